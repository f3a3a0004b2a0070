"""declared_at: the type that an output schema declares at a path of a result, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from operations.exports.schema_parts import SchemaParts, kinds_of

_MOST_CHOICES = 4
_LONGEST = 60


def declared_at(document: Any, pointer: str) -> str | None:
    """Return the type that a schema declares at a JSON pointer (`integer`, `open | closed`); None if undeclared."""
    if not isinstance(document, Mapping):
        return None
    parts = SchemaParts(document)
    found: list[Any] = [document]
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = [below for schema in found[:_MOST_CHOICES] for below in _members(parts, schema, name)]
    words = dict.fromkeys(word for schema in found[:_MOST_CHOICES] for word in _words(parts, schema))
    if not words:
        return None
    text = " | ".join(words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _members(parts: SchemaParts, schema: Any, name: str) -> list[Any]:
    """Return the schemas that declare a property or item of a value."""
    found: list[Any] = []
    for node in parts.variants(schema):
        properties, items = node.get("properties"), node.get("items")
        listed = node.get("prefixItems")
        if isinstance(properties, Mapping) and name in properties:
            found.append(properties[name])
        elif isinstance(listed, list) and name.isdecimal() and int(name) < len(listed):
            found.append(listed[int(name)])
        elif items is not None and name.isdecimal():
            found.append(items)
        elif isinstance(node.get("additionalProperties"), Mapping):
            found.append(node["additionalProperties"])
    return found


def _words(parts: SchemaParts, schema: Any) -> list[str]:
    words: list[str] = []
    for node in parts.variants(schema):
        choices = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(choices, list | tuple) and 0 < len(choices) <= _MOST_CHOICES:
            words += [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in choices]
        else:
            words += kinds_of(node)
    return words
