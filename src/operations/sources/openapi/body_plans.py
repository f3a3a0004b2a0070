"""How a body is given in an input: member by member or whole, and in which of its media types it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from operations.sources.openapi.bodies import Body, choose_media_type, encode_body
from operations.sources.openapi.documents import DanglingReferenceError, Documents, IdentifiedReferenceError, Node
from operations.sources.openapi.media import essence, is_json, is_text

_PLAIN_OBJECT = frozenset(
    {
        *("type", "properties", "required", "title", "description", "example", "examples", "default", "nullable"),
        *("additionalProperties", "externalDocs", "xml", "deprecated", "$schema", "$comment", "readOnly", "writeOnly"),
    }
)
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SCALARS = ("string", "integer", "number", "boolean", "file")
_DEEPEST = 20


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One media type that a body can be sent in."""

    media_type: str
    encoding: Mapping[str, Mapping[str, Any]]
    """The OAS encoding of its members, for forms."""
    members: frozenset[str] | None
    """The names of the object's members; None for a body that is no plain object."""
    required: Sequence[str] = ()
    hint: Mapping[str, Any] | None = None
    """The schema of a multipart body, which tells files from text."""


class BodyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the body is given: member by member, or whole under one key."""

    formats: Sequence[Format]
    """The media types of the operation, in the order of preference."""
    required: bool
    members: Mapping[str, str] | None
    """Input key to body member, when the body is an object taken apart; None when it is given whole."""
    key: str
    """The input key of a body given whole."""

    @property
    def takes_files(self) -> bool:
        """Whether one of its media types can carry what is no data: a file, or bytes that come in pieces."""
        return any(not is_json(kind.media_type) and essence(kind.media_type) != _FORMS[0] for kind in self.formats)

    def body(self, input: Mapping[str, Any], wanted: str | None, preferred: Sequence[str]) -> Body | None:
        """The body of an input, in the media type `wanted`, else in the best for what is given; None without one."""
        if self.members is None:
            if self.key not in input:
                return None
            value, formats = input[self.key], self.formats
        else:
            value = {member: input[key] for key, member in self.members.items() if key in input}
            if not value and not self.required:
                return None
            formats = self._fitting(value)
        chosen = self._choose(formats, value, wanted, preferred)
        known = {kind.media_type: kind for kind in self.formats}.get(chosen)
        if known is None:
            return encode_body(chosen, value)
        return encode_body(chosen, value, encoding=known.encoding, schema_hint=known.hint)

    def _fitting(self, value: Mapping[str, Any]) -> Sequence[Format]:
        """The formats that have the members given: all of them, or as many as any has; those lacking none first."""
        flat = [kind for kind in self.formats if kind.members is not None]
        if len(flat) < 2:
            return flat
        common = [len(value.keys() & (kind.members or ())) for kind in flat]
        best = [kind for kind, count in zip(flat, common, strict=True) if count == max(common)]
        whole = [kind for kind in best if value.keys() >= set(kind.required)]
        return whole or best

    def _choose(self, formats: Sequence[Format], value: Any, wanted: str | None, preferred: Sequence[str]) -> str:
        every = [kind.media_type for kind in self.formats]
        if wanted is not None:
            return choose_media_type(every, value, wanted)
        offered = [kind.media_type for kind in formats]
        for media_type in preferred:
            for kind in offered:
                if essence(kind) == essence(media_type):
                    return kind
        return choose_media_type(offered, value)


class PlannedBody(NamedTuple):
    """A body's plan, and what it adds to the input schema."""

    plan: BodyPlan
    properties: Mapping[str, Any]
    required: Sequence[str]
    description: str = ""


class _Content(NamedTuple):
    """One media type with its schema, taken apart where that can be done."""

    media_type: str
    media: Node
    schema: Any
    members: _Members | None


class _Members(msgspec.Struct):
    """The members of an object that can be taken apart."""

    properties: dict[str, Node]
    required: list[str]
    hidden: bool = False
    """Whether it has others, which only the server sets."""


def plan_body(documents: Documents, body: Node, taken: frozenset[str], notes: list[str]) -> PlannedBody:
    """Plan how a body is given beside parameters whose keys are `taken`.

    It is taken apart when everything it may be is a plain object. Media types whose members differ are then one flat
    input, and what is given tells which one is meant.
    """
    content = {kind: _followed(documents, media) for kind, media in body.get("content").items()}
    declared = content or {"application/octet-stream": Node(None, body.address)}
    contents = [_content(documents, kind, declared[kind], notes) for kind in sorted(declared, key=_preference)]
    distinct = _distinct(contents)
    required = body.value.get("required") is True
    flat = all(content.members is not None for content in distinct)
    names = {name: name for content in distinct for name in (content.members.properties if content.members else ())}
    hidden = any(content.members is not None and content.members.hidden for content in distinct)
    flat = flat and not taken.intersection(names) and (bool(names) or hidden)
    key = free_name("body", taken)
    formats = [_format(documents, content) for content in contents]
    plan = BodyPlan(formats=formats, required=required, members=names if flat else None, key=key)
    if flat:
        return PlannedBody(plan, _member_schemas(documents, distinct, contents), _needed(distinct) if required else [])
    whole = _any_of([content.schema for content in distinct])
    return PlannedBody(plan, {key: whole}, [key] if required else [], body.text("description"))


def _content(documents: Documents, kind: str, media: Node, notes: list[str]) -> _Content:
    schema = media.get("schema")
    if essence(kind) == _FORMS[1] and (schema.value is None or _declared_type(documents, schema) in _SCALARS):
        told = "is not given" if schema.value is None else "is of a single value, which no form is"
        notes.append(f"the schema of {essence(kind)} {told}: any fields are taken")
        return _Content(kind, media, {"type": "object"}, None)
    if is_json(kind) or essence(kind) in _FORMS:
        return _Content(kind, media, documents.schema(schema), _members(documents, schema, notes))
    return _Content(kind, media, _raw_schema(documents, schema, kind), None)


def _distinct(contents: Sequence[_Content]) -> list[_Content]:
    """The contents that are described differently; XML of the same description as JSON, say, is no other input."""
    kept: list[_Content] = []
    for content in contents:
        own = content.media.get("schema").value
        bare = own is None and (content.members is not None or is_text(content.media_type))
        if not kept or not (bare or any(own == other.media.get("schema").value for other in kept)):
            kept.append(content)
    return kept


def _format(documents: Documents, content: _Content) -> Format:
    members = content.members
    multipart = essence(content.media_type).startswith("multipart/")
    return Format(
        media_type=content.media_type,
        encoding=_encoding(content.media),
        members=None if members is None else frozenset(members.properties),
        required=() if members is None else members.required,
        hint=_hint(documents, members) if multipart and members is not None else None,
    )


def _member_schemas(documents: Documents, distinct: Sequence[_Content], contents: Sequence[_Content]) -> dict[str, Any]:
    """The schema of each member, or of everything that it may be."""
    found: dict[str, list[Any]] = {}
    multipart = any(essence(content.media_type) == _FORMS[1] for content in contents)
    for content in distinct:
        for name, node in content.members.properties.items() if content.members else ():
            schema = documents.schema(node)
            found.setdefault(name, []).append(_file_schema(schema) if multipart else schema)
    return {name: _any_of(schemas) for name, schemas in found.items()}


def _needed(distinct: Sequence[_Content]) -> list[str]:
    """The members that every one of the contents requires."""
    lists = [content.members.required for content in distinct if content.members is not None]
    shown = {name for content in distinct if content.members for name in content.members.properties}
    return [name for name in lists[0] if name in shown and all(name in other for other in lists[1:])]


def _any_of(schemas: Sequence[Any]) -> Any:
    different = [schema for index, schema in enumerate(schemas) if schema not in schemas[:index]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _raw_schema(documents: Documents, schema: Node, media_type: str) -> Any:
    """The schema of a body that is sent as it is given: text or bytes, whatever structure the text has."""
    if _declared_type(documents, schema) == "string":
        return documents.schema(schema)
    if essence(media_type).endswith(("/*", "yaml", "jsonl", "ndjson", "json-seq")):
        return documents.schema(schema)
    return {"type": "string", "contentMediaType": essence(media_type)}


def _declared_type(documents: Documents, schema: Node) -> str | None:
    kind = _followed(documents, schema).get("type").value
    return kind if isinstance(kind, str) else None


def _file_schema(schema: Any) -> Any:
    """The schema of a part of a form: a file may be its content, or its content with a name and a type."""
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return {**schema, "items": _file_schema(schema["items"])}
    if schema.get("format") not in ("binary", "byte") and "contentMediaType" not in schema:
        return schema
    text = {"type": "string"}
    named = {
        "type": "object",
        "properties": {"filename": text, "content": {"type": "string", "format": "binary"}, "contentType": text},
        "required": ["content"],
        "additionalProperties": False,
    }
    return {"anyOf": [schema, named]}


def _hint(documents: Documents, members: _Members) -> dict[str, Any]:
    """The schemas of a multipart body's members, references followed, as far as they tell files from text."""
    properties = {}
    for name, node in members.properties.items():
        followed = _followed(documents, node)
        shown = followed.value
        if isinstance(shown, Mapping) and shown.get("type") == "array":
            shown = {"type": "array", "items": _followed(documents, followed.get("items")).value}
        properties[name] = shown
    return {"properties": properties}


def _followed(documents: Documents, node: Node) -> Node:
    try:
        return documents.follow(node)
    except DanglingReferenceError:
        return node


def _members(documents: Documents, node: Node, notes: list[str], depth: int = 0) -> _Members | None:
    """The members of a plain object schema, those joined by `allOf` included; None for any other schema."""
    try:
        node = documents.follow(node)
    except IdentifiedReferenceError:
        return None
    except DanglingReferenceError as error:
        notes.append(f"the body's schema accepts anything: {error}")
        return None
    schema = node.value
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    if schema.get("additionalProperties") not in (None, False):
        return None
    members = _Members({}, [])
    for _, part in node.get("allOf").items():
        inherited = _members(documents, part, notes, depth + 1)
        if inherited is None:
            return None
        members.properties |= inherited.properties
        members.required += inherited.required
        members.hidden = members.hidden or inherited.hidden
    if any(key not in _PLAIN_OBJECT and key != "allOf" and not key.startswith("x-") for key in schema):
        return None
    if schema.get("type", "object") != "object":
        return None
    members.properties |= dict(node.get("properties").items())
    required = schema.get("required")
    members.required += [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return _without_read_only(documents, members)


def _without_read_only(documents: Documents, members: _Members) -> _Members:
    """The members a caller may send: what only the server sets is not asked for."""
    shown = {name: node for name, node in members.properties.items() if not _is_read_only(documents, node)}
    required = [name for name in dict.fromkeys(members.required) if name in shown or name not in members.properties]
    return _Members(shown, required, members.hidden or len(shown) < len(members.properties))


def _is_read_only(documents: Documents, node: Node, depth: int = 0) -> bool:
    """Whether only the server sets a member: it says so, or what it refers to or is joined of does."""
    if not isinstance(node.value, Mapping) or depth > _DEEPEST:
        return False
    if node.value.get("readOnly") is True:
        return True
    parts: Iterator[Node] = (part for _, part in node.get("allOf").items())
    if any(_is_read_only(documents, part, depth + 1) for part in parts):
        return True
    target = _followed(documents, node)
    return target is not node and _is_read_only(documents, target, depth + 1)


def _encoding(media: Node) -> Mapping[str, Mapping[str, Any]]:
    declared = media.get("encoding").value
    if not isinstance(declared, Mapping):
        return {}
    return {name: value for name, value in declared.items() if isinstance(value, Mapping)}


def _preference(media_type: str) -> tuple[bool, bool, bool, bool]:
    kind = essence(media_type)
    return not is_json(kind), kind != _FORMS[0], kind != _FORMS[1], not is_text(kind)


def free_name(name: str, taken: Any) -> str:
    """The name, or one like it that is not taken."""
    while name in taken:
        name = f"{name}_"
    return name
