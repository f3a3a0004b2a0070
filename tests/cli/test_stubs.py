from __future__ import annotations

from tests.cli.driving import Project

NEW = "from operations import operation\n@operation(id='n.one')\ndef one() -> int: return 1\n"


def test_stubs_are_written_beside_the_configuration(project: Project) -> None:
    done = project.run("stubs")
    assert done.code == 0
    assert "operations_env/shop.pyi" in done.out
    text = (project.directory / "operations_env" / "shop.pyi").read_text()
    assert "async def quote(self, *, item: str" in text
    assert project.run("stubs").out == ""
    project.write("other/more.py", NEW)
    changed = project.run("stubs", "--json").data["changed"]
    assert changed == ["__init__.pyi", "n.pyi"]


def test_stubs_are_written_to_the_given_directory(project: Project) -> None:
    assert project.run("stubs", "--output", "typed").code == 0
    assert (project.directory / "typed" / "operations_env" / "__init__.py").exists()
    project.write("mine/operations_env/own.py", "x = 1\n")
    done = project.run("stubs", "--output", "mine")
    assert done.code == 2
    assert "was not written by ops stubs" in done.err


def test_stubs_names_modules_that_it_cannot_import(project: Project) -> None:
    project.write("other/broken.py", f"from nowhere import name\n{NEW}")
    done = project.run("stubs")
    assert done.code == 0
    assert "broken.py was skipped: cannot find module 'nowhere'" in done.err


def test_stubs_watch(project: Project) -> None:
    with project.terminal("stubs", "--watch") as terminal:
        terminal.until("shop.pyi")
        project.write("other/more.py", NEW)
        terminal.until("n.pyi")
        terminal.press("\x03")
        assert terminal.end() == 130
