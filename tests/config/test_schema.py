"""The published schema agrees with loading."""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from operations import from_schema
from operations.config import config_schema, load_config
from tests.config.test_loading import EVERYTHING

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
KEYS = (GUIDE / "configuration-keys.md").read_text()
SCHEMA = from_schema(config_schema())


def test_it_is_a_schema_of_2020_12() -> None:
    jsonschema_rs.meta.validate(config_schema())
    assert config_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_a_file_with_every_key_is_valid() -> None:
    assert SCHEMA.errors(tomllib.loads(textwrap.dedent(EVERYTHING))) == []


@pytest.mark.parametrize(
    "text",
    [
        "sorces = {}",
        "[sources.a]\nallow = ['x']",
        "[sources.a]\npython = 3",
        "[sources.a]\npython = 'x'\ntimeot = 3",
        "[sources.a]\npython = 'x'\npolicy = 'stict'",
        "[sources.a]\ncommand = 'x'\ntimeout = 'soon'",
        "[hub]\nport = 70000",
        "[access]\n'a' = 'b'",
    ],
)
def test_a_value_that_loading_refuses_does_not_match(text: str) -> None:
    assert not SCHEMA.check(tomllib.loads(text))


def test_variables_may_replace_numbers() -> None:
    assert SCHEMA.check(tomllib.loads("[sources.a]\ncommand = 'x'\ntimeout = '${T}'\ndisabled = '${D:-false}'"))


def blocks() -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", (GUIDE / "configuration.md").read_text() + KEYS, re.M | re.S)


@pytest.mark.parametrize("number", range(len(blocks())))
def test_the_files_of_the_guide_are_valid_and_load(number: int, tmp_path: Path) -> None:
    text = blocks()[number]
    tree = tomllib.loads(text)
    tree = tree.get("tool", {}).get("operations", tree)
    assert SCHEMA.errors(tree) == []
    (tmp_path / ".env").write_text("")
    name = "pyproject.toml" if "[tool." in text else "operations.toml"
    for included in tree.get("include", ()):
        place = tmp_path / included
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"mcpServers": {}}')
    (tmp_path / name).write_text(text)
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)", text), "value")
    assert load_config(tmp_path / name, environ=environ).sources


def keys(schema: dict[str, Any]) -> set[str]:
    found = set(schema["properties"])
    for definition in schema["$defs"].values():
        found |= set(definition["properties"])
    return found


def test_the_guide_and_the_schema_have_the_same_keys() -> None:
    pages = KEYS + (GUIDE / "interceptors.md").read_text()
    described = "".join(re.findall(r"^\| Key \|.*\n((?:\|.*\n)+)", pages, re.M))
    tables = re.findall(r"^\| `(\w+)` \|", described, re.M)
    assert keys(config_schema()) - set(tables) == set()
    assert set(tables) - keys(config_schema()) == set()


def test_every_key_is_described() -> None:
    schema = config_schema()
    for definition in (schema, *schema["$defs"].values()):
        for name, member in definition["properties"].items():
            assert member.get("description"), name
