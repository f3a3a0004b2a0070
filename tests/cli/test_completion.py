"""Completion: what is offered, in a real bash, without opening a source."""

from __future__ import annotations

import shutil

import pytest

from tests.cli.driving import Project

pytestmark = pytest.mark.slow


def offered(project: Project, line: str) -> list[str]:
    done = project.run("__complete", "zsh", line)
    assert done.code == 0
    assert done.err == ""
    return done.out.splitlines()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ops ca", ["call"]),
        ("ops co", ["config", "completion"]),
        ("ops --qu", ["--quiet"]),
        ("ops add ", ["mcp", "openapi", "py"]),
        ("ops completion z", ["zsh"]),
        ("ops ls --ty", ["--type"]),
        ("ops ls --type q", ["query"]),
        ("ops call shop.q", ["shop.quote"]),
        ("ops call --timeout 5 shop.q", ["shop.quote"]),
        ("ops -q call shop.q", ["shop.quote"]),
        ("ops call shop.quote ", ["item=", "count=", "colour="]),
        ("ops call shop.quote item=tea c", ["count=", "colour="]),
        ("ops call shop.quote colour=", ["colour=red", "colour=blue"]),
        ("ops call shop.quote colour=b", ["colour=blue"]),
        ("ops call shop.quote @", ["__files__"]),
        ("ops call shop.quote -o ", ["__files__"]),
        ("ops call no.such ", []),
        ("ops nonsense ", []),
        ("ops call 'shop.q", []),
    ],
)
def test_what_may_come_next(line: str, wanted: list[str], listed: Project) -> None:
    assert offered(listed, line) == wanted


def test_nothing_is_opened_to_complete(project: Project) -> None:
    assert offered(project, "ops call shop.q") == []
    assert not (project.folder / ".cache").exists()
    project.run("ls")
    mark = project.folder / "imported"
    project.write("shop/more.py", f"open({str(mark)!r}, 'w').close()")
    assert offered(project, "ops call shop.q") == ["shop.quote"]
    assert not mark.exists()


def test_many_operations_are_offered_by_namespace(project: Project) -> None:
    body = "".join(
        f'@operation(id="big.n{number // 50}.op{number}")\ndef op{number}() -> int: return 1\n' for number in range(200)
    )
    project.write("other/big.py", f"from operations import operation\n{body}")
    project.run("ls")
    assert offered(project, "ops call big.") == ["big.n0.", "big.n1.", "big.n2.", "big.n3."]
    assert len(offered(project, "ops call big.n1.op5")) == 10


def test_a_real_bash_completes(listed: Project) -> None:
    with listed.terminal("--norc", "--noprofile", "-i", program=["bash"]) as bash:
        bash.press("PS1='> '; source <(ops completion bash); echo rea''dy\n")
        bash.until("ready")
        for typed, shown in (
            ("ops cal\t", "ops call "),
            ("shop.quo\t", "ops call shop.quote "),
            ("it\t", "ops call shop.quote item="),
            ("tea col\t", "ops call shop.quote item=tea colour="),
            ("bl\t", "ops call shop.quote item=tea colour=blue "),
        ):
            bash.press(typed)
            bash.until(shown)
        bash.press("--jq .total; exit\n")
        bash.until("2.5")


def test_a_real_bash_completes_file_names(project: Project) -> None:
    project.write("a_file.json", "{}")
    with project.terminal("--norc", "--noprofile", "-i", program=["bash"]) as bash:
        bash.press("PS1='> '; source <(ops completion bash); echo rea''dy\n")
        bash.until("ready")
        bash.press("ops map x --input a_f\t")
        bash.until("--input a_file.json")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_read_by_it(shell: str, project: Project) -> None:
    script = project.run("completion", shell)
    assert script.code == 0
    assert "__complete" in script.out
    if shutil.which(shell) is not None:
        assert project.run("-n", str(project.write("script", script.out)), program=[shell]).code == 0
