"""Completion inserts text from elsewhere as an argument: a shell never runs it.

The shells are real ones on a pseudo-terminal. Where zsh or fish is not installed, its tests are skipped and say so.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.driving import Project, Terminal

pytestmark = pytest.mark.slow

VALUES = {
    "a": "a$(touch pwned)",
    "b": "b`touch pwned`",
    "c": "c; touch pwned; #",
    "d": "d | touch pwned",
    "e": "e' ; touch pwned ; '",
    "f": 'f" ; touch pwned ; "$(touch pwned)',
    "g": "g && touch pwned &",
    "h": "h > pwned < pwned",
    "i": "i!touch!!",
    "j": "j* ? [a-z]",
    "k": "k\\ \\\\ \\$(touch pwned)",
    "l": "l{x,y} ~ ^x",
    "m": "m<(touch pwned)",
    "n": "n$HOME ${HOME}",
    "o": "o=x:y@z%+,-.",
    "p": "pé 日本 ünï",
}
FIELD = "z$(touch pwned)`touch pwned`"
FILES = ["@x", "y=@x", "y@x"]
"""Values and names of fields for which the command would read a file."""
OPTIONS = ["--url=http://127.0.0.1:9/pwned", "-c", "--trust"]
"""Names of fields that would be options."""
UNSAFE = ["u\nv=$(touch pwned)", "u\x1b]0;title\x07", "u\x9b31m", "u\u202eevil", "u\ttab", "u\u2028line"]
MODULE = f"""
from operations import Operation, OperationSpec, from_schema

schema = from_schema({{
    "type": "object",
    "properties": {{"v": {{"enum": {[*VALUES.values(), *UNSAFE, *FILES[:1]]!r}}}, {FIELD!r}: {{"type": "string"}},
        **dict.fromkeys({[*OPTIONS, *FILES]!r}, {{"type": "string"}})}},
}})

async def echo(input, context):
    return input

spec = OperationSpec(name="echo", namespace="evil", type="query", input_schema=schema)
operation = Operation(spec=spec, handler=echo)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a hostile operation, which is cached, and a hostile file name."""
    made = Project(tmp_path_factory.mktemp("evil"))
    made.write("operations.toml", "[sources.evil]\npython = './code'\n")
    made.write("code/hostile.py", MODULE)
    made.write("x$(touch pwned);'\"&.json", '{"v": "a$(touch pwned)"}')
    assert made.run("ls", "-q").out.startswith("evil.echo\t")
    return made


def start(project: Project, shell: str) -> Terminal:
    """Start a shell with completion; a shell that is not installed skips the test."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion was not run")
    program, ready = {
        "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='> '; source <(ops completion bash)"),
        "zsh": (
            ["zsh", "-f", "-i"],
            "PS1='> '; autoload -Uz compinit; compinit -u -D; source <(ops completion zsh)",
        ),
        "fish": (["fish", "--no-config", "-i"], "ops completion fish | source"),
    }[shell]
    terminal = project.terminal(program=program, columns=200)
    terminal.press(f"{ready}; echo rea''dy\n")
    terminal.until("ready")
    return terminal


def complete(terminal: Terminal, project: Project, typed: str, name: str) -> object:
    """Type the start of an argument, press TAB and ENTER; return what the operation received."""
    out = project.directory / f"{name}.out"
    done = project.directory / f"{name}.done"
    terminal.press(f"ops call -q evil.echo {typed}\t")
    terminal.press(f" > {out.name}; touch {done.name}; echo {name}''-end\n")
    terminal.until(f"{name}-end")
    assert done.exists(), terminal.shown
    text = out.read_text()
    assert text, terminal.shown
    return json.loads(text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_values_fields_and_files_are_inserted_and_not_run(shell: str, project: Project) -> None:
    with start(project, shell) as terminal:
        for name, value in VALUES.items():
            assert complete(terminal, project, f"v={name}", f"{shell}-{name}") == {"v": value}
        assert complete(terminal, project, "@x", f"{shell}-file") == {"v": VALUES["a"]}
        terminal.press("ops call -q evil.echo z\t")
        terminal.press(f"1 > {shell}-field.out; echo field''-end\n")
        terminal.until("field-end")
        assert json.loads((project.directory / f"{shell}-field.out").read_text()) == {FIELD: "1"}, terminal.shown
    assert not (project.directory / "pwned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_unprintable_values_are_not_completed(shell: str, project: Project) -> None:
    done = project.run("__complete", shell, "ops call evil.echo v=u")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(project.run("__complete", shell, "ops call evil.echo v=").out.splitlines()) == len(VALUES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_that_would_be_options_are_not_completed(shell: str, project: Project) -> None:
    lines = project.run("__complete", shell, "ops call evil.echo ").out.splitlines()
    assert len(lines) == 2
    assert not [line for line in lines if line.startswith("-")]
    assert "--trust=" not in project.run("__complete", shell, "ops call evil.echo --t").out.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_and_values_that_would_read_a_file_are_not_completed(shell: str, project: Project) -> None:
    assert "@x" not in project.run("__complete", shell, "ops call evil.echo v=").out
    assert project.run("__complete", shell, "ops call evil.echo y").out == ""
    lines = project.run("__complete", shell, "ops call evil.echo v=@").out.splitlines()
    assert "v=@x" not in lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("line", ["ops call evil.echo 'v=a", 'ops call evil.echo "v=a', "ops call evil.echo v='a"])
def test_nothing_is_offered_within_an_open_quote(shell: str, line: str, project: Project) -> None:
    assert project.run("__complete", shell, line).out == ""


def test_bash_gets_every_special_character_quoted(project: Project) -> None:
    lines = project.run("__complete", "bash", "ops call evil.echo v=").out.splitlines()
    assert lines[0] == "a\\$\\(touch\\ pwned\\)"
    script = "".join(f"printf '%s\\0' {line}\n" for line in lines)
    done = project.run("--norc", "-c", script, program=["bash"])
    assert done.out.split("\0")[:-1] == list(VALUES.values())
    assert not Path(project.directory, "pwned").exists()
