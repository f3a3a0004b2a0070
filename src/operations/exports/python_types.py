"""TypeWriter: JSON Schemas as Python annotations. Object schemas become TypedDicts; equal ones share a TypedDict.

`SignatureWriter` writes the signatures of operations, for stubs and code mode.
"""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from operations.catalogue import attribute_path
from operations.exports.definitions import Hoisted, SharedDefinition, hoist
from operations.exports.signatures import first_line
from operations.schema.parts import merge
from operations.spec import OperationSpec

_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_WORD = re.compile(r"[A-Za-z0-9]+")
_MAX_DEPTH = 12
_MAX_LITERALS = 60
_MAX_BRANCHES = 20
_MAX_DOC = 100
_MAX_NODES = 50_000
"""Maximum number of annotated parts of one schema. The limit is needed because merging `allOf` can repeat parts."""
_SOURCES = {
    **dict.fromkeys(("str", "int", "float", "bool", "bytes", "list", "dict"), "builtins"),
    **dict.fromkeys(("Any", "Literal", "NotRequired"), "typing"),
    "AsyncIterator": "collections.abc",
    "ResponseEnvelope": "operations",
}
"""The module of each name that annotations use."""
_QUOTED_OR_NAME = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\b\w+""")


def refer_by_key(key: str) -> str:
    """Return `key`: in `TypeWriter`, the reference to a definition is its key."""
    return key


class TypeWriter:
    """Collects the TypedDicts of one module. Names depend only on the schemas and on their order.

    No TypedDict has one of the names in `taken`. `functions` are the names of the operations. An operation named `list`
    would hide the type, so annotations use `_list` instead, which `imports` defines.
    """

    def __init__(self, taken: Sequence[str] = (), functions: Iterable[str] = ()) -> None:
        self.records: dict[str, str] = {}
        """The text of each TypedDict by its name; a TypedDict follows those that it uses, except in cycles."""
        self._hidden = sorted(_SOURCES.keys() & set(functions))
        self._used = {*taken, *functions, *_SOURCES, "TypedDict"}
        self._by_content: dict[str, str] = {}
        self._by_key: dict[str, str] = {}
        self._definitions: dict[str, SharedDefinition] = {}
        self._open: set[str] = set()
        self._recursive: set[str] = set()
        self._nodes_left = _MAX_NODES

    def annotate(self, document: Mapping[str, Any] | bool, hint: str) -> str:
        """Return the annotation of a schema; `hint` names the TypedDict of its root."""
        return self._annotation(self.hoisted(document, hint).schema(refer_by_key), hint, 0)

    def imports(self) -> str:
        """Return imports for types that have an operation's name, such as `from builtins import list as _list`."""
        return "".join(f"from {_SOURCES[name]} import {name} as _{name}\n" for name in self._hidden)

    def visible(self, annotation: str) -> str:
        """Return an annotation with aliases, such as `_list`, for types that have the name of an operation."""
        if not self._hidden:
            return annotation
        return _QUOTED_OR_NAME.sub(lambda found: f"_{found[0]}" if found[0] in self._hidden else found[0], annotation)

    def hoisted(self, document: Mapping[str, Any] | bool, hint: str) -> Hoisted:
        """Return a schema with its `$defs` moved to this writer, which can then resolve references to them."""
        self._nodes_left = _MAX_NODES
        found = hoist(document, hint)
        self._definitions.update(found.definitions)
        return found

    def resolve(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema with its reference followed and its `allOf` merged."""
        return merge(schema, self._target)

    def _target(self, key: str) -> Any:
        definition = self._definitions.get(key)
        return None if definition is None else definition.schema(refer_by_key)

    def property_annotation(self, schema: Any, hint: str) -> str:
        """Return the annotation of a part of a hoisted schema."""
        return self._annotation(schema, hint, 1)

    def _annotation(self, schema: Any, hint: str, depth: int) -> str:
        self._nodes_left -= 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._nodes_left < 0:
            return "Any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referenced(reference, depth)
        if "allOf" in schema:
            return self._typed(self.resolve(schema), hint, depth)
        return self._typed(schema, hint, depth)

    def _referenced(self, key: str, depth: int) -> str:
        definition = self._definitions.get(key)
        if definition is None:
            return "Any"
        if key in self._by_key:
            if key in self._open:
                self._recursive.add(key)
            return self._by_key[key]
        if key in self._open:
            return "Any"
        node = self.resolve(definition.schema(refer_by_key))
        if _is_record(node):
            return self._record(node, definition.name, depth, key)
        self._open.add(key)
        try:
            annotation = self._typed(node, definition.name, depth)
        finally:
            self._open.discard(key)
        self._by_key[key] = annotation
        return annotation

    def _typed(self, node: Mapping[str, Any], hint: str, depth: int) -> str:
        values = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(values, list):
            return _literal(values)
        if _is_record(node):
            return self._with_null(node, self._record(node, hint, depth))
        branches = node.get("anyOf") or node.get("oneOf")
        if branches and "type" not in node:
            return self._union([self._annotation(each, hint, depth + 1) for each in branches[:_MAX_BRANCHES]])
        kinds = node.get("type")
        listed = [kinds] if isinstance(kinds, str) else list(kinds or ())
        if branches and listed == ["object"]:
            return self._union([self._annotation(each, hint, depth + 1) for each in branches[:_MAX_BRANCHES]])
        return self._union([self._kind(kind, node, hint, depth) for kind in listed]) if listed else "Any"

    def _kind(self, kind: str, node: Mapping[str, Any], hint: str, depth: int) -> str:
        if kind == "array":
            items = node.get("items", True)
            return f"list[{self._annotation(items, f'{hint} item', depth + 1)}]"
        if kind == "object":
            extra = node.get("additionalProperties", True)
            return f"dict[str, {self._annotation(extra, f'{hint} value', depth + 1)}]"
        if kind == "string" and (node.get("format") in ("binary", "byte") or "contentEncoding" in node):
            return "str | bytes"
        return _NAMES.get(kind, "Any")

    def _with_null(self, node: Mapping[str, Any], name: str) -> str:
        kinds = node.get("type")
        return f"{name} | None" if isinstance(kinds, list) and "null" in kinds else name

    def _union(self, parts: Sequence[str]) -> str:
        flat = dict.fromkeys(part for joined in parts for part in _split_union(joined))
        if "Any" in flat or not flat:
            return "Any"
        if "None" in flat:
            flat = dict.fromkeys([*(part for part in flat if part != "None"), "None"])
        return " | ".join(flat)

    def _record(self, node: Mapping[str, Any], hint: str, depth: int, key: str | None = None) -> str:
        """Return the name of the TypedDict of an object schema; equal schemas share a TypedDict."""
        name = ""
        if key is not None:
            # The definition may refer to itself, so its name is needed before its content is known.
            name = self._by_key[key] = self._free_name(hint)
            self._open.add(key)
        required = set(node.get("required", ()))
        fields = {
            field: self._annotation(child, f"{hint} {field}", depth + 1)
            for field, child in node["properties"].items()
            if field
        }
        content = repr((fields, sorted(required)))
        if key is not None:
            self._open.discard(key)
            if content in self._by_content and key not in self._recursive:
                self._used.discard(name)
                name = self._by_key[key] = self._by_content[content]
                return name
        elif content in self._by_content:
            return self._by_content[content]
        else:
            name = self._free_name(hint)
        self._by_content.setdefault(content, name)
        total = not required.isdisjoint(fields)
        wrapped = fields.keys() - required if total else ()
        kinds = {
            field: self.visible(f"NotRequired[{kind}]" if field in wrapped else kind) for field, kind in fields.items()
        }
        self.records[name] = _record_text(name, kinds, node.get("description"), total)
        return name

    def _free_name(self, hint: str) -> str:
        base = pascal(hint)
        name, count = base, 2
        while name in self._used:
            name, count = f"{base}{count}", count + 1
        self._used.add(name)
        return name


def pascal(text: str) -> str:
    """Return the words of a text as a class name: `shop quote` becomes `ShopQuote`."""
    name = "".join(word[:1].upper() + word[1:] for word in _WORD.findall(text)) or "Record"
    name = f"T{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def is_identifier(name: str) -> bool:
    """Whether a name can be written as an attribute or keyword argument."""
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def doc_line(text: object, most: int = _MAX_DOC) -> str:
    """Return the first line of a description for a docstring: truncated, without backslashes and double quotes."""
    line = first_line(text) if isinstance(text, str) else ""
    line = "".join(each for each in line if each.isprintable()).replace("\\", "/").replace('"', "'")
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def _is_record(node: Mapping[str, Any]) -> bool:
    if not any(node.get("properties", ())):
        return False
    kinds = node.get("type", "object")
    return kinds == "object" or (isinstance(kinds, list) and set(kinds) <= {"object", "null"})


def _record_text(name: str, kinds: Mapping[str, str], description: object, total: bool) -> str:
    """Return the definition of a TypedDict as a call, which pyright checks in half the time of a class."""
    lines = [f"    {field!a}: {kind},\n" for field, kind in kinds.items()]
    doc = doc_line(description)
    end = "})" if total else "}, total=False)"
    return f'{name} = TypedDict("{name}", {{\n{"".join(lines)}{end}\n' + (f'"""{doc}"""\n' if doc else "")


def _literal(values: Sequence[Any]) -> str:
    if len(values) > _MAX_LITERALS or not all(isinstance(value, (str, int, bool, type(None))) for value in values):
        kinds = {type(value).__name__ for value in values}
        known = {"str": "str", "int": "int", "bool": "bool", "float": "float", "NoneType": "None"}
        return " | ".join(known[kind] for kind in known if kind in kinds) if kinds <= known.keys() else "Any"
    rest = dict.fromkeys(ascii(value) for value in values if value is not None)
    literal = f"Literal[{', '.join(rest)}]" if rest else ""
    return " | ".join(part for part in (literal, "None" if None in values else "") if part) or "Any"


def _split_union(text: str) -> list[str]:
    """Split a union at each ` | ` that is not inside brackets or quotes."""
    parts, depth, quote, start, index = [], 0, "", 0, 0
    while index < len(text):
        character = text[index]
        if quote:
            if character == "\\":
                index += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
        elif text.startswith(" | ", index) and depth == 0:
            parts.append(text[start:index])
            start = index + 3
        index += 1
    return [*parts, text[start:]]


RESERVED = frozenset(("subscribe", "self", "mro", "TypedDict"))
"""Names that no attribute or parameter may have.

`TypedDict` is one of them because type checkers recognise it only by this name.
"""


class NamedOperations(msgspec.Struct, frozen=True):
    """Operations of one namespace by Python name, and the ids of operations without a Python name, with the reason."""

    by_name: Mapping[str, OperationSpec]
    unreachable: Mapping[str, str]


def name_operations(specs: Iterable[OperationSpec], taken: Container[str] = ()) -> NamedOperations:
    """Return the operations of one namespace by Python name, sorted; no operation gets a name in `taken`."""
    by_name: defaultdict[str, list[OperationSpec]] = defaultdict(list)
    for spec in specs:
        by_name[attribute_path(spec.name)].append(spec)
    found: dict[str, OperationSpec] = {}
    unreachable: dict[str, str] = {}
    for name, sharing in by_name.items():
        reason = ""
        if not is_identifier(name) or name.startswith("_") or name in RESERVED:
            reason = "not a Python name, or a reserved one"
        elif name in taken:
            reason = "a namespace has the same name"
        exact = [spec for spec in sharing if spec.name == name]
        if not reason and len(sharing) > 1 and not exact:
            reason = f"{len(sharing)} operations share the name {name}"
        for spec in sharing:
            if reason or (len(sharing) > 1 and spec not in exact):
                unreachable[spec.id] = reason or f"{exact[0].id} has the name {name}"
            else:
                found[name] = spec
    return NamedOperations(dict(sorted(found.items())), unreachable)


class SignatureWriter:
    """Writes the parameters and result types of one module, and collects the TypedDicts that they use."""

    def __init__(self, taken: Sequence[str] = (), functions: Iterable[str] = ()) -> None:
        self.types = TypeWriter(taken, functions)

    def result(self, spec: OperationSpec) -> str:
        """Return the annotation of an operation's data."""
        return self.types.visible(self.types.annotate(spec.output_schema.document, f"{pascal(spec.name)} result"))

    def parameters(self, spec: OperationSpec) -> list[str]:
        """Return the parameters of an operation as Python source.

        Each property is a keyword parameter. Properties whose name is not valid in Python are passed together as
        `input`. An input without fixed properties is passed as a whole.
        """
        hint = f"{pascal(spec.name)} input"
        document = spec.input_schema.document
        node = self.types.resolve(self.types.hoisted(document, hint).schema(refer_by_key))
        properties: Mapping[str, Any] = node.get("properties", {})
        if not properties or "anyOf" in node or "oneOf" in node:
            return self._free_parameters(node, document, hint)
        required = set(node.get("required", ()))
        named = [each for each in properties if is_identifier(each) and each not in RESERVED]
        keywords = [
            f"{each}: {self.types.visible(self.types.property_annotation(properties[each], f'{hint} {each}'))}"
            f"{'' if each in required else ' = ...'}"
            for each in sorted(named, key=lambda each: each not in required)
        ]
        others = [each for each in properties if each not in named]
        first = []
        if others:
            needed = bool(required.intersection(others))
            name = "input" if "input" not in named else "input_data"  # positional-only: callers never write this name
            first = [f"{name}: {self.types.visible('dict[str, Any]')}{'' if needed else ' = ...'}", "/"]
        return [*first, *(["*", *keywords] if keywords else [])]

    def _free_parameters(self, node: Mapping[str, Any], document: Any, hint: str) -> list[str]:
        """Return the parameters of an operation whose input has no fixed properties."""
        if node.get("type") == "object" and node.get("additionalProperties") is False and not node.get("properties"):
            return []
        whole, anything = (self.types.visible(each) for each in (self.types.annotate(document, hint), "Any"))
        return [f"input: {whole} = ...", "/", f"**properties: {anything}"]
