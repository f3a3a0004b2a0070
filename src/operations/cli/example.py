"""An example input for a schema: what the schema itself offers first, else a value of each field's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.cli.fields import Fields
from operations.schema import Schema

_MOST_FIELDS = 12
_FORMATS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "ada@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "9f1c2a34-5b6d-4e7f-8a90-b1c2d3e4f506",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}


def example_input(schema: Schema, *, optional: bool = False) -> Any:
    """An input that the schema accepts: its required fields, and with `optional` some more.

    Where guessing by types does not give a valid one, the schema engine's own smallest value does.
    """
    if schema.is_unknown:
        return {}
    fields = Fields(schema.document)
    guessed = _guess(fields, [], optional=optional, depth=0)
    if schema.check(guessed):
        return guessed
    return schema.cast(guessed, "total")


def _guess(fields: Fields, path: list[str | int], *, optional: bool, depth: int) -> Any:
    nodes = fields.at(path)
    offered = _offered(nodes)
    if offered:
        return offered[0]
    types = fields.types(path)
    if "object" in types or (not path and fields.names()):
        return _guess_object(fields, path, nodes, optional=optional, depth=depth)
    if "array" in types:
        return [] if depth > 4 else [_guess(fields, [*path, 0], optional=False, depth=depth + 1)]
    return _guess_scalar(types, nodes)


def _guess_object(
    fields: Fields, path: list[str | int], nodes: list[Mapping[str, Any]], *, optional: bool, depth: int
) -> dict[str, Any]:
    required = [name for node in nodes[:1] for name in node.get("required", [])]
    names = fields.names(path)
    wanted = [name for name in names if name in required or (optional and not path)]
    if not wanted and not path:
        wanted = names[:1]
    if depth > 4:
        return {}
    most = max(_MOST_FIELDS, len(required))
    return {name: _guess(fields, [*path, name], optional=False, depth=depth + 1) for name in wanted[:most]}


def _offered(nodes: list[Mapping[str, Any]]) -> list[Any]:
    """The values that a schema names itself, the most telling first; a default of null tells nothing."""
    listed: list[Any] = []
    for node in nodes:
        examples = node.get("examples")
        listed += examples if isinstance(examples, list) else []
        listed += [node[key] for key in ("example", "const") if key in node]
    for node in nodes:
        listed += [node["default"]] if node.get("default") is not None else []
        listed += node["enum"][:1] if isinstance(node.get("enum"), list) else []
    return listed


def _guess_scalar(types: set[str], nodes: list[Mapping[str, Any]]) -> Any:
    node: dict[str, Any] = {}
    for each in nodes:
        node.update(each)
    if "string" in types:
        text = _FORMATS.get(node.get("format", ""), "text")
        return text.ljust(int(node.get("minLength", 0)), "x")
    if types & {"integer", "number"}:
        low = node.get("minimum", node.get("exclusiveMinimum", 0))
        return max(1, int(low) + 1) if "maximum" not in node else min(max(1, int(low)), int(node["maximum"]))
    return True if "boolean" in types else None
