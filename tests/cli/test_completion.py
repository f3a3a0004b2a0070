"""Completion candidates in real shells (zsh and fish if installed), without opening a source."""

from __future__ import annotations

import shutil

import pytest

from tests.cli.driving import Project

pytestmark = pytest.mark.slow
needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: its completion was not run")
needs_fish = pytest.mark.skipif(
    shutil.which("fish") is None, reason="fish is not installed: its completion was not run"
)


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
        ("ops sub shop.", ["shop.ticks"]),
        ("ops ls --type q", ["query"]),
        ("ops call shop.q", ["shop.quote"]),
        ("ops call --timeout 5 shop.q", ["shop.quote"]),
        ("ops -q call shop.q", ["shop.quote"]),
        ("ops call shop.quote ", ["item=", "count=", "colour="]),
        ("ops call shop.quote item=tea c", ["count=", "colour="]),
        ("ops call shop.quote colour=", ["colour=red", "colour=blue"]),
        ("ops call shop.quote colour=b", ["colour=blue"]),
        ("ops call shop.quote @oper", ["@operations.toml"]),
        ("ops call shop.quote @sho", ["@shop/"]),
        ("ops call shop.quote item@shop/s", ["item@shop/selling.py"]),
        ("ops call shop.quote item:=@oper", ["item:=@operations.toml"]),
        ("ops call shop.quote item=a@oper", []),
        ("ops call shop.send ", ["item=", "to.", "tags="]),
        ("ops call shop.send to.", ["to.city=", "to.zip="]),
        ("ops call shop.send to.city=Rome to.", ["to.zip="]),
        ("ops call shop.quote -o ", ["__files__"]),
        ("ops call no.such ", []),
        ("ops nonsense ", []),
        ("ops call 'shop.q", []),
    ],
)
def test_completions(line: str, wanted: list[str], listed: Project) -> None:
    assert offered(listed, line) == wanted


def test_completion_opens_no_source(project: Project) -> None:
    assert offered(project, "ops call shop.q") == []
    assert not (project.directory / ".cache").exists()
    project.run("ls")
    mark = project.directory / "imported"
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


def test_a_real_bash_completes_the_file_of_a_field(listed: Project) -> None:
    with listed.terminal("--norc", "--noprofile", "-i", program=["bash"]) as bash:
        bash.press("PS1='> '; source <(ops completion bash); echo rea''dy\n")
        bash.until("ready")
        bash.press("ops call shop.quote item@sh\t")
        bash.until("item@shop/")
        bash.press("se\t")
        bash.until("item@shop/selling.py ")


@needs_zsh
@pytest.mark.parametrize("way", ["source <(ops completion zsh)", "ops completion zsh > f/_ops; compinit -u -D"])
def test_a_real_zsh_completes(way: str, project: Project) -> None:
    project.run("ls")
    project.write("f/readme", "in a directory of fpath")
    with project.terminal("-f", "-i", program=["zsh"]) as zsh:
        zsh.press("PS1='> '; fpath=($PWD/f $fpath); autoload -Uz compinit; compinit -u -D\n")
        zsh.press(f"{way}; echo rea''dy\n")
        zsh.until("ready")
        typed = (
            "ops cal\tshop.quo\tit\ttea col\tbl\t--jq .total > total; "
            'ops call shop.text text@f/rea\t> text; ops call shop.send item="a b" to.ci\tRome --jq .item > item; exit\n'
        )
        zsh.press(typed)
        assert zsh.end() == 0, zsh.shown
    written = [(project.directory / name).read_text() for name in ("total", "text", "item")]
    assert written == ["2.5\n", '"in a directory of fpath"\n', '"a b"\n'], zsh.shown


@needs_fish
def test_a_real_fish_completes(listed: Project) -> None:
    offers = {
        "ops cal": ["call"],
        "ops call shop.quo": ["shop.quote"],
        "ops call shop.quote ": ["colour=", "count=", "item="],
        "ops call shop.quote item='a b' colour=": ["colour=blue", "colour=red"],
        "ops call shop.quote item@sh": ["item@shop/"],
        "ops call shop.send to.c": ["to.city="],
        "ops --config oper": ["operations.toml"],
    }
    quoted = [line.replace("'", "\\'") for line in offers]
    asked = "; ".join(f"echo '>'; complete -C '{line}'" for line in quoted)
    done = listed.run("--no-config", "-c", f"ops completion fish | source; {asked}", program=["fish"])
    assert done.code == 0, done.err
    answers = [sorted(each.split("\t")[0] for each in part.splitlines()) for part in done.out.split(">\n")[1:]]
    assert dict(zip(offers, answers, strict=True)) == offers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_read_by_it(shell: str, project: Project) -> None:
    script = project.run("completion", shell)
    assert script.code == 0
    assert "__complete" in script.out
    if shutil.which(shell) is not None:
        assert project.run("-n", str(project.write("script", script.out)), program=[shell]).code == 0
