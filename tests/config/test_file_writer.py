"""Sources added to a file, whose comments and layout stay."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import CallError
from operations.config import add_source, initialise, load_config, remove_source
from operations.config.file_writer import _write_table, text_with_include, text_without_source
from tests.config.files import write

TEXT = """\
# mine
[sources.a]   # first
python = "x"

[access]
"a.*" = ["a"]  # last line without newline"""


def test_a_new_file_is_valid_and_explains_itself(tmp_path: Path) -> None:
    path = initialise(tmp_path)
    assert path == tmp_path / "operations.toml"
    assert load_config(path).sources == {}
    assert "ops add" in path.read_text()
    uncommented = "\n".join(line.removeprefix("# ") for line in path.read_text().splitlines()[3:])
    write(tmp_path / "try", uncommented)
    assert len(load_config(tmp_path / "try", environ={"API_TOKEN": "x"}).sources) == 3
    with pytest.raises(CallError, match="already exists"):
        initialise(tmp_path)


def test_a_source_is_appended_and_nothing_else_changes(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    path.chmod(0o640)
    table = {"url": "https://x", "headers": {"X-A": '${B:-"}'}, "timeout": 2.5, "trace": False, "allow": ["a*"]}
    add_source(path, "my server", table)
    text = path.read_text()
    assert text.startswith(TEXT)
    assert text.removeprefix(TEXT).startswith('\n\n[sources."my server"]\n')
    assert tomllib.loads(text)["sources"]["my server"] == table
    assert path.stat().st_mode & 0o777 == 0o640
    assert [name.name for name in tmp_path.iterdir()] == ["operations.toml"]
    assert list(load_config(path, environ={}).sources) == ["a", "my server"]


def test_a_project_file_gets_a_separate_table(tmp_path: Path) -> None:
    path = write(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    add_source(path, "a", {"python": "x"})
    assert path.read_text() == "[project]\nname = 'x'\n\n[tool.operations.sources.a]\npython = \"x\"\n"


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("a", {"python": "y"}, r"operations.toml:2: sources.a: duplicate source name"),
        ("b", {"pyton": "y"}, "sources.b.pyton: unknown key; did you mean python?"),
        ("b", {"python": 3}, "sources.b.python: expected a string, got an integer"),
        ("b", {"command": "x", "url": "y"}, "sources.b: command and url are both set"),
    ],
)
def test_invalid_sources_are_rejected_and_the_file_is_unchanged(
    tmp_path: Path, name: str, table: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, TEXT)
    with pytest.raises(CallError) as caught:
        add_source(path, name, table)
    assert message in caught.value.message
    assert path.read_text() == TEXT


def test_editors_files_are_not_changed(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="is an editor's file"):
        add_source(write(tmp_path, "{}", "mcp.json"), "a", {"python": "x"})


SEVERAL = """\
# all of them
[sources.a]   # the first
python = "x"

# about b
[sources.b]
command = "npx"
args = [
  "-y",
  "[sources.c]",  # not a header
]
[sources.b.env]
KEY = '''
[sources.a]
'''

[[interceptors]]
use = "log"

[sources.c]
python = "z"
"""


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_source_is_removed_with_its_sub_tables_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, SEVERAL)
    before = tomllib.loads(SEVERAL)
    remove_source(path, name)
    after = tomllib.loads(path.read_text())
    assert list(after["sources"]) == [each for each in "abc" if each != name]
    del before["sources"][name]
    assert after == before
    assert "# all of them" in path.read_text()
    assert "# about b" in path.read_text()
    assert "\n\n\n" not in path.read_text()


def test_a_source_is_replaced_in_place(tmp_path: Path) -> None:
    path = write(tmp_path, SEVERAL)
    add_source(path, "b", {"python": "y"}, replace=True)
    tree = tomllib.loads(path.read_text())
    assert list(tree["sources"]) == ["a", "b", "c"]
    assert tree["sources"]["b"] == {"python": "y"}
    assert tree["interceptors"] == [{"use": "log"}]
    add_source(path, "d", {"python": "d"}, replace=True)
    assert list(tomllib.loads(path.read_text())["sources"]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[sources]\na = { python = "x" }\nb = { python = "y" }\n', None),
        ('sources = { a = { python = "x" } }\n', "a is not a separate table: change the file with 'ops edit'"),
        ('[sources.b]\npython = "x"\n', "has no source 'a'; did you mean b?"),
        ('sources.a.python = "x"\n', None),
    ],
)
def test_a_source_in_any_notation_is_removed_or_refused(tmp_path: Path, text: str, message: str | None) -> None:
    path = write(tmp_path, text)
    if message is None:
        remove_source(path, "a")
        assert "a" not in tomllib.loads(path.read_text()).get("sources", {})
        return
    with pytest.raises(CallError) as caught:
        remove_source(path, "a")
    assert message.removesuffix("; did you mean b?") in caught.value.message
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("operations.toml", "", ()),
        ("operations.toml", "# first\n[sources.a]\npython = 'x'\n", ()),
        ("operations.toml", "include = [\n  'one.toml', # it\n]\n[access]\n'a' = ['b']\n", ()),
        ("pyproject.toml", "[project]\nname = 'x'\n", ("tool", "operations")),
        ("pyproject.toml", "[tool.operations]\npolicy = 'cast'\n[tool.x]\n", ("tool", "operations")),
    ],
)
def test_a_file_is_included_beside_the_others(tmp_path: Path, name: str, text: str, where: tuple[str, ...]) -> None:
    path = write(tmp_path, text, name)
    after: Any = tomllib.loads(text_with_include(path, ["~/.mcp.json"]))
    before: Any = tomllib.loads(text)
    for part in where:
        after, before = after[part], before.get(part, {})
    assert after.pop("include") == [*before.pop("include", []), "~/.mcp.json"]
    assert after == before


def test_removing_every_source_leaves_the_comments(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    assert text_without_source(path, "a") == '# mine\n\n[access]\n"a.*" = ["a"]  # last line without newline'


TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_table_is_written_as_toml(name: str, table: dict[str, Any]) -> None:
    assert tomllib.loads(_write_table(("sources", name), table)) == {"sources": {name: table}}
