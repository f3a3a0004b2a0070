"""Schemas as text for people: one line for each field, with ranges, formats and variants; nested fields are below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from operations.cli.terminal import columns, one_line, paint, printable
from operations.schema.parts import Fields
from operations.wire import encode_json

_MAX_DEPTH = 4
_MAX_ROWS = 1_000
"""Maximum number of rows of one schema, because a schema may refer to itself."""
_MAX_WORK = 10_000
"""Maximum number of sub-schemas whose type is determined."""
_MAX_HOPS = 4
"""Maximum nesting depth of lists and unions in the type that a row shows, such as `string[][]`."""
_MAX_VARIANTS = 12
_MAX_CHOICES = 6
_MAX_NAME = 32
_MAX_KIND = 24
_RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " fields"),
)
_SINGLE = {
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
    "multipleOf": "multiple of",
    "format": "",
    "pattern": "pattern",
    "uniqueItems": "no duplicates",
    "readOnly": "read only",
    "writeOnly": "write only",
    "deprecated": "deprecated",
}


class SchemaRow(NamedTuple):
    """One line: a field, or a variant of a union."""

    depth: int
    is_required: bool
    name: str
    kind: str
    about: str


def schema_lines(document: Any, *, limit: int, more: str) -> Iterator[str]:
    """Yield a line for each field of a schema, or the type of a schema without fields.

    If there are more than `limit` fields, another line has the number of omitted fields, and the command `more`, which
    prints all fields.
    """
    text = SchemaText(document)
    rows = list(text.rows())
    if not rows:
        about = text.about(document)
        yield f"  {text.kind(document)}{f'  {one_line(about, columns() - 30)}' if about else ''}"
        return
    kind = text.kind(document)
    if kind != "object":
        yield f"  {paint('cyan', kind)}"
    shown = _fitting(rows, limit)
    widest = min(max(2 * row.depth + len(row.name) for row in shown), _MAX_NAME)
    widest_kind = min(max(len(row.kind) for row in shown), _MAX_KIND)
    for row in shown:
        indent = "  " * row.depth
        marker = paint("red", "*") if row.is_required else " "
        name = f"{printable(row.name):<{max(0, widest - 2 * row.depth)}}"
        width = columns() - max(widest, 2 * row.depth + len(row.name)) - max(widest_kind, len(row.kind)) - 8
        kind = paint("cyan", f"{row.kind:<{widest_kind}}")
        yield f"  {indent}{marker} {name}  {kind}  {one_line(row.about, max(width, 0))}".rstrip()
    if len(shown) < len(rows):
        yield paint("dim", f"    … {len(rows) - len(shown):,} more: {printable(more)}")
    if any(row.is_required for row in shown):
        yield paint("dim", "  * required")


def _fitting(rows: list[SchemaRow], limit: int) -> list[SchemaRow]:
    """Return all rows; if there are too many, drop the deepest levels, then the last fields."""
    for depth in range(_MAX_DEPTH, -1, -1):
        shown = [row for row in rows if row.depth <= depth]
        if len(shown) <= limit + 1:
            return shown
    return shown[:limit]


class SchemaText:
    """The rows of one schema document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._fields = Fields(document)
        self._left = _MAX_ROWS
        self._work = _MAX_WORK

    def rows(self) -> Iterator[SchemaRow]:
        """Yield a row for each field, and below it the rows of its nested fields and variants."""
        yield from self._below(self._document, 0)

    def kind(self, schema: object, hops: int = 0) -> str:
        """Return the type of a value in a few words: `string`, `red|blue`, `object[]`."""
        self._work -= 1
        if hops > _MAX_HOPS or self._work < 0:
            return "anything"  # the schema refers to itself
        node = self._fields.merged(schema)
        choices = self._choices(node)
        if choices:
            return printable("|".join(map(_plain, choices)))
        given = node.get("type", [])
        types = [given] if isinstance(given, str) else given or self._untyped(node, hops)
        names = dict.fromkeys(self._named(name, node, hops) for name in types)
        return printable("|".join(sorted(names, key=lambda name: name == "null"))) or "anything"

    def about(self, schema: object) -> str:
        """Return the text beside a field: the limits of its value, its description and its default."""
        node = self._fields.merged(schema)
        limits = [*_limits(node)]
        values = node.get("enum", ())
        if len(values) > _MAX_CHOICES:
            limits.append(f"one of {', '.join(map(_plain, values[:_MAX_CHOICES]))}, … ({len(values)})")
        items = node.get("items")
        if isinstance(items, Mapping):
            limits += [f"each {limit}" for limit in _limits(self._fields.merged(items))]
        description = node.get("description") or node.get("title")
        text = " · ".join(filter(None, [", ".join(limits), str(description).strip() if description else ""]))
        return text if node.get("default") is None else f"{one_line(text)} [{_plain(node['default'])}]".strip()

    def _below(self, schema: object, depth: int, hops: int = 0) -> Iterator[SchemaRow]:
        """Yield the fields of an object, of the items of a list, or of the variants of a union."""
        if depth > _MAX_DEPTH or hops > _MAX_HOPS or self._left <= 0:
            return
        node = self._fields.merged(schema)
        if "properties" not in node and isinstance(node.get("items"), Mapping):
            yield from self._below(node["items"], depth, hops + 1)
            return
        needed = set(node.get("required", ()))
        for name, child in sorted(node.get("properties", {}).items(), key=lambda item: item[0] not in needed):
            self._left -= 1
            yield SchemaRow(depth, name in needed, name, self.kind(child), self.about(child))
            yield from self._below(child, depth + 1)
        others = node.get("additionalProperties")
        if isinstance(others, Mapping) and others:
            yield SchemaRow(depth, False, "(any name)", self.kind(others), self.about(others))
            yield from self._below(others, depth + 1)
        yield from self._variants(node, depth, hops)

    def _variants(self, node: Mapping[str, Any], depth: int, hops: int) -> Iterator[SchemaRow]:
        found = self._fields.branches(node)
        if len(found) == 1:
            yield from self._below(found[0], depth, hops + 1)
            return
        if not any("properties" in each for each in found):
            return
        for number, each in enumerate(found):
            self._left -= 1
            title = each.get("title") or each.get("description") or ""
            yield SchemaRow(depth, False, "or" if number else "either", self.kind(each), one_line(str(title)))
            yield from self._below(each, depth + 1)

    def _choices(self, node: Mapping[str, Any]) -> list[Any]:
        if "const" in node:
            return [node["const"]]
        values = node.get("enum", [])
        return values if len(values) <= _MAX_CHOICES else []

    def _untyped(self, node: Mapping[str, Any], hops: int) -> list[str]:
        """Return the types that a schema without `type` implies."""
        variants = self._fields.branches(node)[:_MAX_VARIANTS]
        if variants:
            return list(dict.fromkeys(part for each in variants for part in self.kind(each, hops + 1).split("|")))
        return ["object"] if "properties" in node else []

    def _named(self, name: str, node: Mapping[str, Any], hops: int) -> str:
        if name == "array":
            inner = self.kind(node["items"], hops + 1) if isinstance(node.get("items"), Mapping) else "anything"
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        if name == "string" and (node.get("contentEncoding") == "base64" or node.get("format") in ("binary", "byte")):
            return "bytes"
        return name


def _limits(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the range, format and pattern of a value."""
    for least, most, unit in _RANGES:
        text = _range(node.get(least) or (None if unit else node.get(least)), node.get(most))
        if text:
            yield text + (unit.removesuffix("s") if text.rpartition(" ")[2] == "1" else unit)
    for keyword, word in _SINGLE.items():
        value = node.get(keyword)
        is_said = value is not None and value is not False and not isinstance(value, (dict, list))
        if is_said and value not in ("binary", "byte"):
            yield word if value is True else f"{word} {value}".strip()


def _range(low: Any, high: Any) -> str:
    if low is not None and high is not None:
        return f"{low}" if low == high else f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else encode_json(value).decode()
