"""`ops add --replace`, `rm`, `edit` and `add --discover`: changes of the configuration from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.driving import Project

pytestmark = pytest.mark.slow
MODULE = "from operations import operation\n@operation(id='{0}.one', type='query')\ndef one() -> int: return {1}\n"


@pytest.fixture
def untrusted(tmp_path: Path) -> Project:
    """A project whose user trusts nothing yet."""
    project = Project(tmp_path)
    del project.environment["OPERATIONS_TRUST"]
    project.environment["HOME"] = str(tmp_path / "home")
    for name, number in (("a", 1), ("b", 2), ("c", 3)):
        project.write(f"{name}/module.py", MODULE.format(name, number))
    return project


def ids(project: Project) -> list[str]:
    done = project.run("ls")
    assert done.code == 0, done.err
    return [line.split("\t")[0] for line in done.out.splitlines()]


def test_sources_are_added_replaced_and_removed_and_stay_trusted(untrusted: Project) -> None:
    project = untrusted
    config = project.directory / "operations.toml"
    for name in "ab":
        assert project.run("add", "py", name, f"./{name}").code == 0
    assert ids(project) == ["a.one", "b.one"]
    again = project.run("add", "py", "a", "./c")
    assert again.code == 2
    assert "duplicate source name" in again.err
    assert "hint: choose another name, or pass --replace" in again.err
    assert project.run("add", "py", "a", "./c", "--replace").code == 0
    assert ids(project) == ["b.one", "c.one"]
    assert config.read_text().count("[sources.a]") == 1
    assert project.run("rm", "nothing").code == 3
    done = project.run("rm", "a", "b", "--json")
    assert done.data == {"config": str(config), "removed": ["a", "b"]}
    assert ids(project) == []
    assert "ops add" in config.read_text()  # its comments


def test_a_failed_add_changes_no_file(untrusted: Project) -> None:
    project = untrusted
    config = project.directory / "operations.toml"
    dead = ("add", "mcp", "dead", "--", "no-such-program-anywhere")
    assert project.run(*dead).code == 6
    assert not config.exists()
    assert project.run("add", "py", "a", "./a").code == 0
    before = config.read_text()
    assert project.run(*dead).code == 6
    assert project.run("add", "mcp", "dead", "https://x", "--header", "nonsense").code == 2
    assert config.read_text() == before
    assert ids(project) == ["a.one"]
    assert sorted(path.name for path in project.directory.iterdir() if "toml" in path.name) == ["operations.toml"]


def test_adding_a_source_opens_no_other(untrusted: Project) -> None:
    project = untrusted
    mark = project.directory / "imported"
    project.write("a/module.py", f"open({str(mark)!r}, 'a').write('x')\n" + MODULE.format("a", 1))
    assert project.run("add", "py", "a", "./a").code == 0
    imports = mark.read_text()
    assert project.run("add", "py", "b", "./b").code == 0
    assert project.run("rm", "b").code == 0
    assert ids(project) == ["a.one"]
    assert mark.read_text() == imports


def test_an_included_source_is_removed_where_it_is_defined(untrusted: Project) -> None:
    project = untrusted
    project.write("more.toml", "[sources.b]\npython = './b'\n")
    project.write("operations.toml", "include = ['more.toml']\n[sources.a]\npython = './a'\n")
    done = project.run("rm", "b")
    assert done.code == 2
    assert f"b is defined in {project.directory / 'more.toml'}:1" in done.err
    # A configuration that was not trusted before is not trusted afterwards.
    assert project.run("rm", "a").code == 0
    assert project.run("ls").code == 4


EDITOR = """#!{python}
import pathlib, sys
path = pathlib.Path(sys.argv[-1])
path.write_text(path.read_text().replace("./a", "./b") + {more!r})
pathlib.Path("arguments").write_text(" ".join(sys.argv[1:-1]))
"""


def test_an_edited_configuration_is_checked_and_stays_trusted(untrusted: Project) -> None:
    project = untrusted
    editor = project.write("vim", EDITOR.format(python=sys.executable, more=""))
    editor.chmod(0o755)
    project.environment |= {"EDITOR": str(editor), "VISUAL": ""}
    assert project.run("add", "py", "own", "./a").code == 0
    line = (project.directory / "operations.toml").read_text().split("\n").index("[sources.own]") + 1
    done = project.run("edit", "own")
    assert (done.code, done.err) == (0, "")
    assert (project.directory / "arguments").read_text() == f"+{line}"
    assert ids(project) == ["b.one"]
    assert project.run("edit", "owm").err.startswith("error: ")
    project.write("vim", EDITOR.format(python=sys.executable, more="nonsense = 1\n"))
    bad = project.run("edit")
    assert bad.code == 2
    assert "is invalid now" in bad.err
    assert "unknown key" in bad.err
    assert project.run("edit", env={"EDITOR": "no-such-editor"}).err.startswith("error: no-such-editor: ")


def test_edit_does_not_trust_an_untrusted_file(untrusted: Project) -> None:
    project = untrusted
    project.write("operations.toml", "[sources.a]\npython = './a'\n")
    assert project.run("edit", env={"EDITOR": "true"}).code == 0
    assert project.run("ls").code == 4


SERVERS = {"mcpServers": {"text": {"command": "no-such-server", "args": ["--token", "abcdef-secret-1"]}}}


def test_editors_files_are_discovered_and_included_on_request(untrusted: Project) -> None:
    project = untrusted
    assert project.run("add", "--discover").code == 3
    project.write(".mcp.json", json.dumps(SERVERS))
    project.write(".cursor/mcp.json", '{"mcpServers": nonsense}')
    project.write("home/.codeium/windsurf/mcp_config.json", '{"mcpServers": {"far": {"url": "https://x.example/mcp"}}}')
    found = project.run("add", "--discover", "--json").data
    assert [Path(each["file"]).name for each in found] == [".mcp.json", "mcp.json", "mcp_config.json"]
    assert found[0]["servers"] == {"text": "start no-such-server --token [redacted]"}
    assert "invalid JSON" in found[1]["state"]
    assert found[2]["servers"] == {"far": "connect to https://x.example/mcp"}
    assert not (project.directory / "operations.toml").exists()
    assert project.run("add", "--discover", ".mcp.json").code == 0
    assert 'include = [".mcp.json"]' in (project.directory / "operations.toml").read_text()
    refused = project.run("ls")
    assert refused.code == 4
    assert "start no-such-server" in refused.err
    twice = project.run("add", "--discover", ".mcp.json")
    assert (twice.code, "included" in twice.err) == (2, True)
    project.write("other.json", json.dumps(SERVERS))
    clash = project.run("add", "--discover", "other.json")
    assert (clash.code, "duplicate source name" in clash.err) == (2, True)


def test_a_name_in_an_editors_file_is_one_line(untrusted: Project) -> None:
    server = {"command": "no-such-server"}
    untrusted.write(".mcp.json", json.dumps({"mcpServers": {"good\n  other  start harmless": server}}))
    with untrusted.terminal("add", "--discover", env={"NO_COLOR": "1"}, columns=200) as terminal:
        shown = terminal.until("Include .mcp.json? [y/N]")
    assert "\n  good\\n  other  start harmless  start no-such-server" in shown.replace("\r", "")


def test_sources_chosen_on_the_terminal_are_trusted(untrusted: Project) -> None:
    project = untrusted
    project.write(".mcp.json", json.dumps(SERVERS))
    with project.terminal("add", "--discover") as terminal:
        terminal.until("Include .mcp.json? [y/N]")
        assert "start no-such-server --token [redacted]" in terminal.shown
        terminal.press("y\n")
        assert terminal.end() == 0
    assert project.run("ls").code == 0
