"""Short signatures of operations, for models: a fraction of the tokens of JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.schema.parts import SchemaParts
from operations.spec import OperationSpec

_MAX_DEPTH = 3
_MAX_VALUES = 12
_MAX_NOTE = 100
_MAX_LINE = 120
_MAX_CHARACTERS = 4_000
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}


def signature(spec: OperationSpec) -> str:
    """Return a signature, such as `github.issues/create(owner: str, labels?: [str]) mutation`, truncated."""
    document = spec.input_schema.document
    shown = _Shapes(document).parameters(document)
    text = f"{spec.id}({shown}) {spec.type.value}"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def description_line(spec: OperationSpec) -> str:
    """Return the title or the first line of the description, truncated."""
    text = first_line(spec.title or spec.description)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 1]}…"


def first_line(text: str) -> str:
    """Return the first line of a description, except Markdown headings and quotations; empty if there is none."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith((">", "#"))), "")


def describe(spec: OperationSpec) -> str:
    """Return the signature, the description, the properties with a description or default, and the type of the result.

    The text is truncated.
    """
    document = spec.input_schema.document
    lines = [signature(spec), _cut(spec.description.strip() or spec.title or "", 1_000)]
    properties = document.get("properties", {}) if isinstance(document, Mapping) else {}
    shapes = _Shapes(document)
    for name, schema in properties.items():
        note = shapes.note(schema)
        if note:
            lines.append(f"  {name}: {note}")
    output = spec.output_schema.document
    if not spec.output_schema.is_unknown:
        lines.append(f"returns {_cut(_Shapes(output).shape(output, 1), 600)}")
    return _cut("\n".join(line for line in lines if line), _MAX_CHARACTERS)


class _Shapes:
    """Prints the parts of one schema document."""

    def __init__(self, document: Any) -> None:
        self._parts = SchemaParts(document)

    def parameters(self, schema: Any) -> str:
        """Return the properties of an object as parameters."""
        node = self._parts.merged(schema)
        properties = node.get("properties", {})
        required = set(node.get("required", ()))
        ordered = sorted(properties, key=lambda name: name not in required)
        parts = [f"{name}{'' if name in required else '?'}: {self.shape(properties[name], 1)}" for name in ordered]
        if not properties and node.get("type") != "object":
            return self.shape(schema, 0) if node else "…"
        return ", ".join(parts)

    def note(self, schema: Any) -> str:
        """Return the first line of a property's description, with its default."""
        node = self._parts.merged(schema)
        text = str(node.get("description", "")).strip().partition("\n")[0]
        default = node.get("default")
        return _cut(text, _MAX_NOTE) + (f" (default {_cut(str(default), 40)})" if default is not None else "")

    def shape(self, schema: Any, depth: int) -> str:
        """Return a type in a few characters."""
        node = self._parts.merged(schema)
        if depth > _MAX_DEPTH + 1:
            return "…"
        if "const" in node:
            return repr(node["const"])
        if "enum" in node:
            values = node["enum"]
            shown = "|".join(map(repr, values[:_MAX_VALUES]))
            return shown if len(values) <= _MAX_VALUES else f"{shown}|…"
        branches = node.get("anyOf") or node.get("oneOf")
        if branches and "type" not in node:
            return "|".join(dict.fromkeys(self.shape(branch, depth + 1) for branch in branches[:_MAX_VALUES]))
        kinds = node.get("type")
        listed = [kinds] if isinstance(kinds, str) else list(kinds or ())
        if not listed:
            listed = ["object"] if "properties" in node else []
        return "|".join(self._kind(kind, node, depth) for kind in listed) or "any"

    def _kind(self, kind: str, node: Mapping[str, Any], depth: int) -> str:
        if kind == "array":
            return f"[{self.shape(node.get('items', True), depth + 1)}]" if depth < _MAX_DEPTH else "[…]"
        if kind == "object":
            if depth >= _MAX_DEPTH:
                return "{…}"
            if not node.get("properties"):
                return "{str: " + self.shape(node.get("additionalProperties", True), depth + 1) + "}"
            required = set(node.get("required", ()))
            members = (
                f"{name}{'' if name in required else '?'}: {self.shape(child, depth + 1)}"
                for name, child in node["properties"].items()
            )
            return "{" + ", ".join(members) + "}"
        return _NAMES.get(kind, kind)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
