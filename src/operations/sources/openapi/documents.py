"""OpenAPI documents: their types, lazy decoding, and references to other files.

The types have the properties that the source reads; a document may have others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cached_property, reduce
from typing import Any, NamedTuple, TypedDict
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema.checking.values import unicode_text
from operations.sources.openapi.yaml_text import read_yaml, with_text_keys
from operations.wire import member

OpenAPIParameter = TypedDict(
    "OpenAPIParameter",
    {
        "$ref": str,
        "name": str,
        "in": str,
        "required": bool,
        "description": str,
        "schema": Mapping[str, Any] | bool,
        "content": Mapping[str, Mapping[str, Any]],
        "style": str,
        "explode": bool,
        "allowReserved": bool,
        "allowEmptyValue": bool,
        "deprecated": bool,
    },
    total=False,
)
"""A parameter of an operation, or a reference to one."""

OpenAPIOperation = TypedDict(
    "OpenAPIOperation",
    {
        "$ref": str,
        "operationId": str,
        "summary": str,
        "description": str,
        "tags": list[str],
        "deprecated": bool,
        "parameters": list[OpenAPIParameter],
        "requestBody": Mapping[str, Any],
        "responses": Mapping[str, Mapping[str, Any]],
        "security": list[Mapping[str, list[str]]],
        "servers": list[Mapping[str, Any]],
    },
    total=False,
)
"""The operation object of one path and method."""


class OpenAPISpec(TypedDict, total=False):
    """An OpenAPI document, for `from_openapi`, which also accepts any mapping.

    In `paths`, the value of each method of a path is an `OpenAPIOperation`.
    """

    openapi: str
    swagger: str
    info: Mapping[str, Any]
    servers: list[Mapping[str, Any]]
    paths: Mapping[str, Mapping[str, Any]]
    webhooks: Mapping[str, Mapping[str, Any]]
    components: Mapping[str, Any]
    security: list[Mapping[str, list[str]]]
    tags: list[Mapping[str, Any]]


MAIN = "api:///document"
"""Default address of a document."""

_LAZY_LEVELS = {"paths": 2, "components": 2, "definitions": 1, "parameters": 1, "responses": 1}
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_strictly = msgspec.json.Decoder().decode

_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""The escapes in JSON text of backslashes, of pairs of surrogates, and of lone surrogates."""
_LONE = len(r"\ud800")
_MAX_DIGITS = 640
"""Maximum number of digits of an integer; a longer one becomes a float. Python's own limit is never lower."""
_MAX_REFERENCES = 100
"""Maximum length of a chain of references; every path of a document may refer to the same long chain."""

Read = Callable[[str], Awaitable[bytes | str]]

_REFERENCE = re.compile(rb'"\$ref"\s*:\s*"([^"#][^"]*)"')


class LazyObject(Mapping[str, Any]):
    """A JSON object whose properties are decoded on first access, each once."""

    __slots__ = ("_decoded", "_levels", "_raw")

    def __init__(self, raw: Mapping[str, msgspec.Raw], levels: int | Mapping[str, int]) -> None:
        self._raw = raw
        self._levels = levels
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            self._decoded[key] = self.peek(key)
        return self._decoded[key]

    def peek(self, key: str) -> Any:
        """Decode a property without caching it, for code that reads each of many properties once."""
        levels = self._levels
        deeper = levels.get(key, 0) if isinstance(levels, Mapping) else levels - 1
        return _decode_lazily(self._raw[key], deeper)

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def raw(self, key: str) -> msgspec.Raw:
        """Return a property's JSON text."""
        return self._raw[key]


def _decode_lazily(raw: msgspec.Raw, levels: int) -> Any:
    if levels > 0:
        try:
            return LazyObject(_decode_members(raw), levels)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass  # not an object
    return _decode(raw)


def _decode(raw: msgspec.Raw) -> Any:
    try:
        return _decode_strictly(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Accept huge numbers and invalid UTF-8. Replace lone surrogates: one would make every list of operations fail.
        text = bytes(raw).decode("utf-8", "replace")
        text = _ESCAPES.sub(lambda found: "\\ufffd" if len(found[0]) == _LONE else found[0], text)
        return json.loads(text, parse_int=_read_integer)


def _read_integer(digits: str) -> int | float:
    """Return an integer, or a float if it has more digits than Python reads."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def as_utf8(text: bytes | str) -> bytes:
    """Return the text of a document in UTF-8, from any Unicode encoding, without a byte order mark."""
    if isinstance(text, str):
        return text.removeprefix("\ufeff").encode("utf-8", "replace")
    encoding = json.detect_encoding(text[:4])
    if encoding in ("utf-8", "utf-8-sig"):
        return text.removeprefix(b"\xef\xbb\xbf")
    return text.decode(encoding, "replace").encode("utf-8", "replace")


def read_document(text: bytes | str | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a document, or part of one, parsed from JSON or YAML; raise `VALIDATION_ERROR` if the text is neither."""
    if isinstance(text, Mapping):
        return text if _is_valid(text) else with_text_keys(text)
    data = as_utf8(text)
    if data.lstrip()[:1] == b"{":
        try:
            return LazyObject(_decode_members(data), _LAZY_LEVELS)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # A YAML document may start with a brace, too.
            reason = f"malformed JSON: {error}"
    else:
        reason = ""
    try:
        document = read_yaml(data.decode("utf-8", "replace"))
    except CallError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: {reason or error.message}") from None
    if not isinstance(document, Mapping):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: not an OpenAPI document: expected an object")
    return document


def _is_valid(document: Any) -> bool:
    """Whether every key is a string, and every string is valid Unicode.

    A document from another parser may have numbers as keys, and lone surrogates in strings.
    """
    pending, seen = [document], {id(document)}
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping) and not all(isinstance(key, str) for key in node):
            return False
        for item in (*node, *node.values()) if isinstance(node, Mapping) else node:
            if isinstance(item, str):
                if not item.isascii() and unicode_text(item) != item:
                    return False
            elif isinstance(item, (Mapping, list)) and id(item) not in seen:
                seen.add(id(item))
                pending.append(item)
    return True


class DanglingReferenceError(LookupError):
    """A reference without a target."""


class IdentifiedReferenceError(DanglingReferenceError):
    """A reference to a schema by its `$id`, which is not a path in a document. Validation resolves such references."""


class DocNode(NamedTuple):
    """A node of a document: its value, the document's address and the path of keys."""

    value: Any
    address: str
    keys: tuple[str, ...] = ()

    @property
    def pointer(self) -> str:
        """The node's JSON pointer, as a URL fragment."""
        return "".join(f"/{quote(key.replace('~', '~0').replace('/', '~1'), safe='~')}" for key in self.keys)

    def get(self, *keys: str) -> DocNode:
        """Return the node at `keys` below this one; if the document has no such node, its value is None."""
        value = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return DocNode(value, self.address, self.keys + keys)

    def items(self) -> Iterator[tuple[str, DocNode]]:
        """Yield the properties of an object, or the items of a list by index."""
        if isinstance(self.value, Mapping):
            for key in self.value:
                yield key, DocNode(self.value[key], self.address, (*self.keys, key))
        elif isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield str(index), DocNode(item, self.address, (*self.keys, str(index)))

    def text(self, key: str) -> str:
        """Return the string at `key`; an empty string if the property is missing or not a string."""
        value = self.value.get(key) if isinstance(self.value, Mapping) else None
        return value if isinstance(value, str) else ""


class Documents:
    """A document and the documents that it refers to, by address; nothing is fetched except through `loader`."""

    def __init__(
        self, main: Mapping[str, Any], address: str = MAIN, *, loader: Callable[[str], Any] | None = None
    ) -> None:
        self.root = DocNode(main, address)
        self._parts: dict[str, Any] = {address: main}
        self._loader = loader

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, address: object) -> bool:
        return address in self._parts

    def add(self, address: str, document: Any) -> None:
        """Add another document."""
        self._parts[address] = document

    def load(self, address: str) -> Any:
        """Return the document at an address; raise `DanglingReferenceError` if there is none."""
        if address not in self._parts:
            if address in self._identified:
                raise IdentifiedReferenceError(f"{address} is not a document: it is the `$id` of a schema")
            if self._loader is None:
                raise DanglingReferenceError(f"{address} is outside the document: pass loader= to allow it")
            self._parts[address] = read_document(self._loader(address), address)
        return self._parts[address]

    @cached_property
    def _identified(self) -> frozenset[str]:
        """The `$id` addresses of the main document's schemas."""
        found: set[str] = set()
        schemas = [self.root.get("components", "schemas").value, self.root.get("definitions").value]
        pending = [(value, self.root.address) for value in schemas]
        while pending:
            value, base = pending.pop()
            own = value.get("$id") if isinstance(value, Mapping) else None
            if isinstance(own, str):
                base = urljoin(base, own).partition("#")[0]
                found.add(base)
            members = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            pending += [(member, base) for member in members if isinstance(member, (Mapping, list))]
        return frozenset(found)

    def follow(self, node: DocNode) -> DocNode:
        """Return the node itself, or the target of its `$ref`; raise `DanglingReferenceError` if there is no target."""
        seen: set[tuple[str, str]] = set()
        while isinstance(node.value, Mapping) and isinstance(node.value.get("$ref"), str):
            reference = node.value["$ref"]
            joined = node.address + reference if reference.startswith("#") else urljoin(node.address, reference)
            address, _, pointer = joined.partition("#")
            if (address, pointer) in seen:
                raise DanglingReferenceError(f"circular reference {reference!r}")
            if len(seen) == _MAX_REFERENCES:
                raise DanglingReferenceError(f"{reference!r} leads to more than {_MAX_REFERENCES} further references")
            seen.add((address, pointer))
            node = self._at(address, pointer)
        return node

    def follow_if_found(self, node: DocNode) -> DocNode:
        """Return the target of a node's `$ref`; the node itself if the target does not exist."""
        try:
            return self.follow(node)
        except DanglingReferenceError:
            return node

    def declared_type(self, schema: DocNode) -> str | None:
        """Return the type that a schema declares; None if it declares no type or several."""
        kind = self.follow_if_found(schema).get("type").value
        return kind if isinstance(kind, str) else None

    def schema(self, node: DocNode) -> Any:
        """Return a JSON Schema for use in the main document: the node's value, or a `$ref` to another file."""
        if node.address == self.root.address or not isinstance(node.value, Mapping):
            return True if node.value is None else node.value
        return {"$ref": f"{node.address}#{node.pointer}"}

    def _at(self, address: str, pointer: str) -> DocNode:
        value = self.load(address)
        keys = [unquote(part).replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        try:
            return DocNode(reduce(member, keys, value), address, tuple(keys))
        except LookupError:
            where = "" if address == self.root.address else address
            raise DanglingReferenceError(f"unresolved reference {where}#{pointer}") from None


async def read_referenced_files(documents: Documents, text: bytes | None, read: Read, *, directory: str) -> list[str]:
    """Read every referenced file in `directory`, also indirectly referenced ones; return a line for each failure.

    `text` is the main document if it is JSON: searching the text is faster than walking the tree.
    """
    address = documents.root.address
    found = _search_references(text) if text is not None else _walk_references(documents.root.value)
    pending = list(dict.fromkeys(_absolute_addresses(address, found)))
    seen = {address, *pending}
    problems: list[str] = []
    while pending:
        target = pending.pop()
        if urlsplit(target).scheme != "file":
            continue
        if not target.startswith(directory) or "/../" in unquote(target):
            problems.append(f"{target} is outside the allowed directory (in Python, root= sets this directory)")
            continue
        try:
            document = read_document(await read(unquote(urlsplit(target).path)), target)
        except (OSError, CallError) as error:
            problems.append(f"cannot read {target}: {error}")
            continue
        documents.add(target, document)
        for further in _absolute_addresses(target, _walk_references(document)):
            if further not in seen:
                seen.add(further)
                pending.append(further)
    return problems


def _absolute_addresses(base: str, references: Iterator[str]) -> Iterator[str]:
    for reference in references:
        address = urldefrag(urljoin(base, reference))[0]
        if address and address != base:
            yield address


def _search_references(text: bytes) -> Iterator[str]:
    # Most documents have no external references, and counting is faster than searching.
    own = text.count(b'"$ref":"#') + text.count(b'"$ref": "#')
    if text.count(b'"$ref"') == own:
        return
    for match in _REFERENCE.finditer(text):
        yield match[1].decode("utf-8", "replace")


def _walk_references(document: Any) -> Iterator[str]:
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, (dict, LazyObject, Mapping)):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                yield reference
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
