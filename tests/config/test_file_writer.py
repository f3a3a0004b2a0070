"""Sources added to a file, whose comments and layout stay."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import CallError
from operations.config import add_source, initialise, load_config
from operations.config.file_writer import _write_table
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


def test_a_project_file_gets_a_table_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    add_source(path, "a", {"python": "x"})
    assert path.read_text() == "[project]\nname = 'x'\n\n[tool.operations.sources.a]\npython = \"x\"\n"


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("a", {"python": "y"}, r"operations.toml:2: sources.a: duplicate source name"),
        ("b", {"pyton": "y"}, "sources.b.pyton: unknown key; did you mean python?"),
        ("b", {"python": 3}, "sources.b.python: expected str, got int"),
        ("b", {"command": "x", "url": "y"}, "sources.b: command and url are both set"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_file_stays(
    tmp_path: Path, name: str, table: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, TEXT)
    with pytest.raises(CallError) as caught:
        add_source(path, name, table)
    assert message in caught.value.message
    assert path.read_text() == TEXT


def test_editors_files_are_left_to_editors(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="is an editor's file"):
        add_source(write(tmp_path, "{}", "mcp.json"), "a", {"python": "x"})


TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_table_is_written_as_toml(name: str, table: dict[str, Any]) -> None:
    assert tomllib.loads(_write_table(("sources", name), table)) == {"sources": {name: table}}
