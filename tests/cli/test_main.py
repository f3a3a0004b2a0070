"""The program as a whole: help, usage errors, closed pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from operations.cli.arguments import find_command
from operations.cli.commands import SUMMARIES
from operations.cli.main import main
from tests.cli.driving import OPS, Project

PARTS = [(name,) for name in SUMMARIES] + [
    (name, part.name.split()[1]) for name in SUMMARIES for part in find_command(name).parts
]


@pytest.mark.parametrize("words", PARTS, ids=" ".join)
@pytest.mark.parametrize("columns", [60, 100])
def test_every_command_has_help_with_examples_that_fits_the_terminal(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("OPERATIONS_PYTHON", sys.executable)
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"usage  ops {' '.join(words)}" in shown.out
    command = find_command(words[0])
    if len(words) == 2:
        command = next(part for part in command.parts if part.name == " ".join(words))
    typed = [example for example, _ in command.examples]
    assert all(example in shown.out for example in typed)
    # Only commands to be copied may be wider than the terminal.
    usages = [line for line in shown.out.splitlines() if line.strip().startswith(("usage ", "ops "))]
    others = [line for line in shown.out.splitlines() if line not in usages and line.strip() not in typed]
    assert max(map(len, others)) <= columns


def test_help_states_default_values_variables_and_repeatable_options(tmp_path: Path) -> None:
    worker, serve, jobs = (
        " ".join(Project(tmp_path).run(name, "--help").out.split()) for name in ("worker", "serve", "jobs")
    )
    assert "maximum number of concurrent calls (default: 64)" in worker
    assert "when the command stops (default: 30)" in worker
    assert "format of log records (text, json; default: text)" in worker
    assert "(default: $OPERATIONS_URL)" in worker
    assert "(default: $OPERATIONS_CONFIG, or the nearest operations.toml)" in worker
    assert "(default: all); repeatable" in serve
    assert jobs.endswith("Run 'ops jobs submit --help' for its options, and so on.")


def test_the_overview_lists_every_command_in_groups(tmp_path: Path) -> None:
    done = Project(tmp_path).run("--help")
    assert done.code == 0
    for name, summary in SUMMARIES.items():
        assert name in done.out
        assert summary in done.out
    assert Project(tmp_path).run().out == done.out
    assert Project(tmp_path).run("help").out == done.out
    assert "usage  ops call" in Project(tmp_path).run("help", "call").out
    assert "\x1b" not in done.out


def test_both_names_and_the_module_run_the_same_program(tmp_path: Path) -> None:
    project = Project(tmp_path)
    shown = project.run("--version").out
    assert shown.startswith("operations ")
    assert project.run("--version", program=[str(Path(OPS).with_name("operations"))]).out == shown
    assert project.run("--version", program=[sys.executable, "-m", "operations"]).out == shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cal"], "error: unknown command 'cal'; did you mean call?"),
        (["--quit"], "error: unknown option --quit; did you mean --quiet?"),
        (["ls", "--tabel"], "error: unknown option --tabel; did you mean --table?"),
        (["call"], "error: missing OPERATION"),
        (["add"], "error: missing subcommand of ops add\nhint: usage: ops add mcp|openapi|py|--discover ..."),
        (["add", "mpc"], "error: unknown command 'ops add mpc'; did you mean mcp?"),
        (["completion", "zhs"], "error: invalid SHELL 'zhs': expected one of bash, zsh, fish; did you mean zsh?"),
        (["show", "a.b", "--type"], "error: unknown option --type"),
        (
            ["call", "a.b", "--customer", "Ada"],
            "error: unknown option --customer\nhint: write an input field without dashes before it: customer=Ada;",
        ),
        (["ls"], "error: no operations.toml here or in a parent directory"),
        (["call", "a.b"], "error: no operations.toml here or in a parent directory"),
        (["-c", "nowhere.toml", "ls"], "error: nowhere.toml does not exist"),
        (["-c", "/", "ls"], "error: no operations.toml in / or in a parent directory"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint_and_exit_code_2(words: list[str], message: str, tmp_path: Path) -> None:
    done = Project(tmp_path).run(*words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(message)
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "--json", "--refresh"],
        ["call", "shop.quote", "item=tea"],
        ["scan", "shop", "--json"],
        ["doctor", "--json"],
    ],
    ids=" ".join,
)
def test_only_results_reach_stdout(words: list[str], project: Project) -> None:
    project.write(
        "shop/loud.py",
        "import os, subprocess, sys\n"
        "print('printed')\n"
        "os.write(1, b'written to the descriptor\\n')\n"
        "sys.__stdout__.write('written to what stdout was\\n')\n"
        "subprocess.run(['echo', 'written by a child'])\n",
    )
    done = project.run(*words)
    assert done.code == 0
    assert done.data
    for written in ("printed", "to the descriptor", "to what stdout was", "by a child"):
        assert written in done.err


def test_debug_shows_the_traceback(project: Project) -> None:
    assert "Traceback" in project.run("call", "shop.crash", "--debug").err
    done = project.run("call", "shop.crash")
    assert "Traceback" not in done.err
    assert "hint: run the command again with --debug to see the traceback" in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sources.shop\n", "operations.toml:1"),
        ('[sources.shop]\npyhton = "./shop"\n', "python"),
        ("sources = 3\n", "sources"),
    ],
)
def test_an_error_in_the_configuration_names_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", text)
    for words in (["ls"], ["call", "shop.quote"], ["config", "show"]):
        done = project.run(*words)
        assert done.code == 2, words
        assert message in done.err
        assert "hint: fix the file" in done.err
        assert "Traceback" not in done.err
    doctor = project.run("doctor")
    assert doctor.code == 2
    assert message in doctor.out


def test_variables_name_the_configuration_and_the_transport(project: Project, tmp_path: Path) -> None:
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.directory.mkdir()
    config = str(project.directory / "operations.toml")
    assert elsewhere.run("config", "path", env={"OPERATIONS_CONFIG": config}).out == f"{config}\n"
    assert elsewhere.run("call", "shop.quote", "item=tea", env={"OPERATIONS_CONFIG": config}).code == 0
    missing = elsewhere.run("ls", env={"OPERATIONS_CONFIG": "nowhere.toml"})
    assert (missing.code, "nowhere.toml does not exist" in missing.err) == (2, True)
    named = elsewhere.run("-c", config, "config", "path", env={"OPERATIONS_CONFIG": "nowhere.toml"})
    assert named.out == f"{config}\n"
    bus = {"OPERATIONS_URL": "ws://127.0.0.1:9/"}
    refused = project.run("call", "shop.quote", "item=tea", env=bus)
    assert (refused.code, "ws://127.0.0.1:9/ cannot be reached" in refused.err) == (6, True)
    assert project.run("call", "shop.quote", "item=tea", "--url", "", env=bus).code == 0


def test_version_is_a_command_too(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.run("version").out == project.run("--version").out
    assert project.run("version", "--json").data == project.run("--version", "--json").data


def in_shell(project: Project, command: str) -> subprocess.CompletedProcess[str]:
    """The result of a shell command in the project's directory."""
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=project.directory,
        env=project.environment,
        timeout=60,
        check=False,
    )


def test_a_closed_pipe_ends_the_program_silently(project: Project) -> None:
    project.run("ls")
    for words in (["ls"], ["sub", "shop.ticks", "interval=0"], ["--help"], ["call", "shop.text", f"text={'x' * 10}"]):
        command = f"set -o pipefail; {OPS} -q {' '.join(words)} | head -1; exit ${{PIPESTATUS[0]}}"
        done = in_shell(project, command)
        assert done.returncode == 0, words
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1


def test_a_full_disk_is_one_line_and_exit_code_2(listed: Project) -> None:
    for words in ("ls", "--help", "--version", "doctor", "call other.double value=1"):
        done = in_shell(listed, f"{OPS} {words} > /dev/full")
        assert (words, done.returncode, done.stderr) == (words, 2, "error: No space left on device\n")


def test_help_is_a_command_with_options_too(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.run("help", "--json").data == project.run("--help", "--json").data
    assert project.run("help", "--json", "ls").data == project.run("ls", "--help", "--json").data
    assert project.run("help", "ls", "--json").data["name"] == "ls"


def test_closed_standard_streams_do_not_crash(project: Project) -> None:
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        command = f"{OPS} call shop.quote item=tea {closed}; {OPS} ls {closed}; {OPS} --help {closed}"
        done = in_shell(project, command)
        assert done.returncode == 0, closed
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr
