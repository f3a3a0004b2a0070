from __future__ import annotations

from typing import Any

import pytest

from operations.schema import from_schema
from operations.schema.dialects.references import join, pointer_parts

REMOTE: dict[str, Any] = {
    "https://example.com/types.json": {
        "$defs": {
            "name": {"$anchor": "name", "type": "string"},
            "person": {"properties": {"n": {"$ref": "#/$defs/name"}}},
        }
    },
    "https://example.com/loop.json": {"properties": {"next": {"$ref": "loop.json"}, "v": {"type": "integer"}}},
}


def test_nothing_is_fetched_without_a_loader(caplog: pytest.LogCaptureFixture) -> None:
    for address in ("https://example.com/types.json", "file:///etc/passwd", "other.json"):
        schema = from_schema({"properties": {"a": {"$ref": address}, "b": {"type": "null"}}})
        assert schema.check({"a": 1})
        assert not schema.check({"b": 1})
    assert len(caplog.records) == 3


@pytest.mark.parametrize("address", ["#/$defs/person", "https://example.com/types.json#/$defs/person"])
def test_references_are_resolved_by_the_loader(address: str) -> None:
    asked: list[str] = []

    def load(uri: str) -> Any:
        asked.append(uri)
        return REMOTE[uri]

    schema = from_schema(
        {"$id": "https://example.com/types.json", "$ref": address, **REMOTE["https://example.com/types.json"]},
        loader=load,
    )
    assert not schema.check({"n": 1})
    remote = from_schema({"$ref": "https://example.com/types.json#/$defs/person"}, loader=load)
    assert not remote.check({"n": 1})
    assert remote.cast({"n": "x", "m": 1}) == {"n": "x"}
    assert remote.document == {
        "$ref": "#/$defs/person",
        "$defs": {"person": {"properties": {"n": {"$ref": "#/$defs/name"}}}, "name": {"type": "string"}},
    }
    assert set(asked) == {"https://example.com/types.json"}


def test_loaded_documents_may_refer_to_themselves() -> None:
    schema = from_schema({"$ref": "https://example.com/loop.json"}, loader=REMOTE.__getitem__)
    assert schema.check({"next": {"next": {"v": 1}}})
    assert not schema.check({"next": {"next": {"v": "x"}}})


def test_a_loader_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def load(uri: str) -> Any:
        raise OSError("no network")

    assert from_schema({"$ref": "https://example.com/a"}, loader=load).check(1)
    assert "no network" in caplog.text


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/a",
        "#anchored",
        "https://example.com/root#/$defs/a",
        "inner",
        "inner#/properties/x",
        "#/$defs/p%25/properties/a~1b",
    ],
)
def test_ways_to_refer(reference: str) -> None:
    schema = from_schema(
        {
            "$id": "https://example.com/root",
            "$ref": reference,
            "$defs": {
                "a": {"type": "integer", "$anchor": "anchored"},
                "b": {"$id": "inner", "type": "integer", "properties": {"x": {"type": "integer"}}},
                "p%": {"properties": {"a/b": {"type": "integer"}}},
            },
        }
    )
    assert schema.check(1)
    assert not schema.check("x")


def test_joining_addresses() -> None:
    assert join("urn:example:a", "#/b") == "urn:example:a#/b"
    assert join("https://a/b/c", "d") == "https://a/b/d"
    assert join("", "d") == "d"
    assert pointer_parts("/a~1b/m~0n/p%25") == ["a/b", "m~n", "p%"]


def test_definitions_with_one_name_at_different_locations_are_kept_apart() -> None:
    """Also where one is met while the other is being read."""
    document = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"n": {"$ref": "#/other/node"}}}},
        "other": {"node": {"type": "integer"}},
    }
    schema = from_schema(document)
    assert schema.check({"n": 1})
    assert not schema.check({"n": "x"})
    assert not schema.check(1)
