"""JSON Schema documents of Python types; pydantic writes the documents of its own types."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Never, NoReturn, get_args, get_origin

import msgspec

from operations.schema.types.hints import (
    NO_DEFAULT,
    Alias,
    ClassField,
    Mode,
    container,
    docstring,
    is_anything,
    is_enum,
    is_union,
    key_of,
    members,
    record_kind,
    type_name,
    union_members,
    unsupported_type,
    unwrap_type,
    uses_pydantic,
)
from operations.schema.types.jsonable import jsonable
from operations.schema.types.library_choice import TEXTS

Document = dict[str, Any]

_BYTES = {"type": "string", "contentEncoding": "base64"}
_BASES: tuple[tuple[type, Document], ...] = (
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bytes, _BYTES),
    (bytearray, _BYTES),
    (memoryview, _BYTES),
    (os.PathLike, {"type": "string"}),
)
_IP_FORMATS = {"IPv4Address": "ipv4", "IPv6Address": "ipv6"}
_REF = "#/$defs/"
_KEYWORDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
    "title": "title",
    "description": "description",
    "examples": "examples",
}
_LENGTHS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_KNOWN = ("msgspec", "annotated_types", "pydantic", "typing_extensions", "typing")
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of")


def describe_type(tp: Any, *, mode: Mode) -> Document | Literal[True]:
    """Return the document of `tp`, with referenced types in `$defs`; True if `tp` has no constraints."""
    writer = Writer(mode)
    return writer.finished(writer.describe(tp)) or True


class Writer:
    """Writes one document; keeps definitions, so that a class is written once and may refer to itself."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._defs: Document = {}
        self._names: dict[Any, str] = {}

    def finished(self, root: Document) -> Document:
        """Return `root` with its definitions.

        A root that only refers to a definition is replaced by this definition.
        """
        name = root.get("$ref", "")[len(_REF) :]
        if name in self._defs:
            rest = {key: value for key, value in root.items() if key != "$ref"}
            root = {**self._defs[name], **rest}
            others = {key: value for key, value in self._defs.items() if key != name}
            if not _refers_to([root, others], name):
                return {**root, "$defs": others} if others else root
        return {**root, "$defs": self._defs} if self._defs else root

    def describe(self, tp: Any) -> Document:
        """Return the document of one type, which may refer to the definitions."""
        if uses_pydantic(tp):
            document = self._of_pydantic(tp)
            if document is not None:
                return document
        base, notes = unwrap_type(tp)
        return annotate(self._of_base(base), notes)

    def _of_pydantic(self, tp: Any) -> Document | None:
        from operations.schema.types import pydantic_types

        adapter = pydantic_types.adapt(tp)
        if adapter is None:
            return None
        document = self.adopt(pydantic_types.describe(adapter, self.mode))
        # pydantic ignores descriptions in `Annotated` other than those of its own fields.
        notes = unwrap_type(tp)[1]
        if any(isinstance(getattr(note, "description", None), str) for note in notes):
            return document
        return annotate(document, [note for note in notes if isinstance(note, str) or hasattr(note, "documentation")])

    def _of_base(self, tp: Any) -> Document:
        if is_anything(tp):
            return {}
        if isinstance(tp, Alias):
            return self._named(tp.key, tp.name, lambda: self.describe(tp.resolve()))
        if is_union(tp):
            return self._of_union(union_members(tp))
        if record_kind(tp):
            return self._named(tp, type_name(tp), lambda: self._of_record(tp))
        if is_enum(tp):
            return self._named(tp, type_name(tp), lambda: _of_enum(tp))
        if get_origin(tp) is Literal:
            return {"enum": [jsonable(value) for value in get_args(tp)]}
        return self._of_container(tp) or _of_leaf(tp)

    def _of_union(self, parts: Sequence[Any]) -> Document:
        documents: list[Document] = []
        for part in parts:
            document = self.describe(part)
            if document not in documents:
                documents.append(document)
        if {} in documents:
            return {}
        return documents[0] if len(documents) == 1 else {"anyOf": documents}

    def _of_container(self, tp: Any) -> Document | None:
        arguments = get_args(tp)
        if (get_origin(tp) or tp) is tuple:
            return self._of_tuple(tp, arguments)
        form = container(tp)
        if form is None:
            return None
        if form[0] == "dict":
            return self._of_dict(arguments)
        items = self.describe(arguments[0]) if arguments else {}
        document: Document = {"type": "array", "items": items} if items else {"type": "array"}
        return {**document, "uniqueItems": True} if form[0] == "set" else document

    def _of_tuple(self, tp: Any, arguments: Sequence[Any]) -> Document:
        if tp is tuple:
            return {"type": "array"}
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.describe(arguments[0])}
        return self._positions([self.describe(argument) for argument in arguments], len(arguments))

    def _positions(self, documents: Sequence[Document], least: int) -> Document:
        document: Document = {"type": "array", "minItems": least, "maxItems": len(documents)}
        if documents:
            document |= {"prefixItems": list(documents), "items": False}
        return document

    def _of_dict(self, arguments: Sequence[Any]) -> Document:
        document: Document = {"type": "object"}
        if not arguments:
            return document
        keys, values = self.describe(arguments[0]), self.describe(arguments[1])
        if values:
            document["additionalProperties"] = values
        if _restricts_text(self._resolved(keys)):
            document["propertyNames"] = keys
        return document

    def _of_record(self, tp: Any) -> Document:
        cls = get_origin(tp) or tp
        used = [member for member in members(tp) if (member.settable if self.mode == "input" else member.readable)]
        config = getattr(cls, "__struct_config__", None)
        heading = {"title": getattr(cls, "__name__", type_name(tp))}
        if text := docstring(cls):
            heading["description"] = text
        if record_kind(tp) == "namedtuple" or (config is not None and config.array_like):
            return heading | self._of_row(used, config)
        properties = {member.name: self._of_member(member) for member in used}
        required = [member.name for member in used if member.required]
        if config is not None and config.tag is not None:
            properties = {config.tag_field: {"enum": [config.tag]}, **properties}
            required = [config.tag_field, *required]
        document: Document = heading | {"type": "object", "properties": properties}
        if required:
            document["required"] = required
        if config is not None and config.forbid_unknown_fields:
            document["additionalProperties"] = False
        return document

    def _of_row(self, used: Sequence[ClassField], config: Any) -> Document:
        documents = [self._of_member(member) for member in used]
        least = sum(member.required for member in used)
        if config is None:
            return self._positions(documents, least)
        if config.tag is not None:
            documents, least = [{"enum": [config.tag]}, *documents], least + 1
        return {"type": "array", "prefixItems": documents, "minItems": least}

    def _of_member(self, member: ClassField) -> Document:
        return with_default(self.describe(member.type), member.default, member.factory)

    def _named(self, key: Any, name: str, write: Callable[[], Document]) -> Document:
        """Return a reference to the definition of `key`, which is written at the first request."""
        key = key_of(key)
        if key not in self._names:
            name = self._free_name(name)
            self._names[key] = name
            self._defs[name] = {}  # reserve the name: it may be referred to before it is written
            self._defs[name] = write()
        return {"$ref": _REF + self._names[key]}

    def _free_name(self, name: str) -> str:
        free, count = name, 1
        while free in self._defs:
            count += 1
            free = f"{name}{count}"
        return free

    def _resolved(self, document: Document) -> Document:
        found = self._defs.get(document.get("$ref", "")[len(_REF) :], document)
        return found if isinstance(found, dict) else document

    def adopt(self, document: Mapping[str, Any]) -> Document:
        """Add the definitions of a finished document, and return its root.

        A definition is renamed if a different definition has the same name.
        """
        theirs = document.get("$defs", {})
        names = {name: name for name in theirs}
        renamed = {name for name in theirs if name in self._defs and self._defs[name] != theirs[name]}
        while more := {n for n in set(theirs) - renamed if n in self._defs and _refers_to(theirs[n], *renamed)}:
            renamed |= more
        for name in sorted(renamed):
            names[name] = self._free_name(name)
            self._defs[names[name]] = {}
        for name, definition in theirs.items():
            self._defs[names[name]] = _with_names(definition, names)
        root = {key: value for key, value in document.items() if key != "$defs"}
        return _with_names(root, names)  # type: ignore[no-any-return]


def with_default(document: Document, default: Any, factory: Any = None) -> Document:
    """Return `document` with a default, if JSON can represent it."""
    if factory in (list, dict, set, tuple, frozenset):
        default = factory()
    if default is NO_DEFAULT:
        return document
    try:
        data = jsonable(default)
        is_exact = msgspec.json.decode(msgspec.json.encode(data)) == data
    except Exception:  # noqa: BLE001  a default is optional, and converting it may raise anything
        return document
    return {**document, "default": data} if is_exact else document


def _of_enum(tp: Any) -> Document:
    document: Document = {"title": tp.__name__}
    if text := docstring(tp):
        document["description"] = text
    if issubclass(tp, sys.modules["enum"].Flag):
        return document | {"type": "integer"}  # flags can be combined
    return document | {"enum": [jsonable(member.value) for member in tp]}


def _of_leaf(tp: Any) -> Document:
    if tp is type(None):
        return {"type": "null"}
    if tp is Never or tp is NoReturn:
        return {"not": {}}
    if not isinstance(tp, type) or get_origin(tp) is not None:
        raise unsupported_type(tp)
    if tp in TEXTS:
        return {"type": "string", "format": TEXTS[tp]}
    if tp.__module__ == "ipaddress" and tp.__name__ in _IP_FORMATS:
        return {"type": "string", "format": _IP_FORMATS[tp.__name__]}
    for base, document in _BASES:
        if issubclass(tp, base):
            return dict(document)
    raise unsupported_type(tp)


def _restricts_text(document: Document) -> bool:
    if "enum" in document:
        return all(isinstance(value, str) for value in document["enum"])
    return document.get("type") == "string" and bool({"pattern", "minLength", "maxLength"} & document.keys())


def _refers_to(node: Any, *names: str) -> bool:
    """Whether a document refers to one of these definitions."""
    if isinstance(node, dict):
        return node.get("$ref") in [_REF + name for name in names] or any(
            _refers_to(item, *names) for item in node.values()
        )
    return isinstance(node, list) and any(_refers_to(item, *names) for item in node)


def _with_names(node: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a document in which the references to definitions have new names."""
    if isinstance(node, list):
        return [_with_names(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _with_names(item, names) for key, item in node.items()}
    ref = node.get("$ref")
    if isinstance(ref, str) and ref.startswith(_REF):
        copy["$ref"] = _REF + names.get(ref[len(_REF) :], ref[len(_REF) :])
    return copy


def annotate(document: dict[str, Any], notes: Sequence[Any]) -> dict[str, Any]:
    """Return `document` with the constraints of `Annotated` metadata: bounds, lengths, patterns, titles."""
    for note in _flat(notes):
        document = _with_note(document, note)
    return document


def _flat(notes: Sequence[Any]) -> Iterator[Any]:
    for note in notes:
        inner = getattr(note, "metadata", None)
        if isinstance(inner, list) and type(note).__module__.startswith("pydantic"):
            yield from inner
        yield note


def _with_note(document: dict[str, Any], note: Any) -> dict[str, Any]:
    if isinstance(note, str):
        return {**document, "description": note}
    if type(note).__module__.partition(".")[0] not in _KNOWN:
        return document
    if isinstance(text := getattr(note, "documentation", None), str):
        return {**document, "description": text}
    added = {
        keyword: value
        for name, keyword in _KEYWORDS.items()
        if _is_expressible((value := getattr(note, name, None)), name)
    }
    document = {**document, **added}
    if (extra := getattr(note, "extra_json_schema", None)) is not None:
        document |= extra
    return _with_lengths(document, getattr(note, "min_length", None), getattr(note, "max_length", None))


def _is_expressible(value: Any, name: str) -> bool:
    """Whether JSON Schema can express a metadata attribute."""
    if name in _BOUNDS:
        return isinstance(value, int | float)
    return isinstance(value, list if name == "examples" else str)


def _with_lengths(document: dict[str, Any], least: Any, most: Any) -> dict[str, Any]:
    """Return `document` with length bounds, in the keywords for its type; each member of a union gets the bounds."""
    if not least and most is None:
        return document
    if "anyOf" in document:
        return {**document, "anyOf": [_with_lengths(option, least, most) for option in document["anyOf"]]}
    if document.get("type") not in _LENGTHS or "contentEncoding" in document:
        return document
    lower, upper = _LENGTHS[document["type"]]
    if least:
        document = {**document, lower: least}
    return document if most is None else {**document, upper: most}
