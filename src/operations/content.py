"""MCP content blocks: independent of the MCP SDK and tolerant of newer servers.

`extra` of a block contains the fields that its class does not declare, such as `_meta`; `to_dict` includes them. A
block of an unknown type becomes a text block with the JSON of the original block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema import Schema, record_schema
from operations.wire import encode_json


class _Extensible(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of blocks and their parts; `extra` contains the fields that the class does not declare."""

    extra: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return a dict with JSON names; it includes the fields in `extra`, and omits fields that are None."""
        data: dict[str, Any] = {}
        for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, field)
            if field != "extra" and value is not None:
                data[name] = value.to_dict() if isinstance(value, _Extensible) else value
        return {**self.extra, **data}


class MCPAnnotations(_Extensible, frozen=True, kw_only=True):
    """Audience, priority and time of last change of a block."""

    audience: list[str] | None = None
    priority: float | None = None
    last_modified: str | None = None


class MCPResourceContent(_Extensible, frozen=True, kw_only=True):
    """The content of a resource: text, or a base64 blob."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


class Block(_Extensible, frozen=True, kw_only=True):
    """Base of the five kinds of content blocks."""

    annotations: MCPAnnotations | None = None

    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the block in the protocol's format."""
        return {"type": self.type, **super().to_dict()}


class MCPTextContent(Block, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str
    type: ClassVar[Literal["text"]] = "text"


class MCPImageContent(Block, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image, in base64."""

    data: str
    mime_type: str
    type: ClassVar[Literal["image"]] = "image"


class MCPAudioContent(Block, frozen=True, kw_only=True, tag_field="type", tag="audio"):
    """Audio, in base64."""

    data: str
    mime_type: str
    type: ClassVar[Literal["audio"]] = "audio"


class MCPEmbeddedResource(Block, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    """A resource with its content."""

    resource: MCPResourceContent
    type: ClassVar[Literal["resource"]] = "resource"


class MCPResourceLink(Block, frozen=True, kw_only=True, tag_field="type", tag="resource_link"):
    """A link to a resource that can be read by its URI."""

    uri: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    type: ClassVar[Literal["resource_link"]] = "resource_link"


MCPContentBlock = MCPTextContent | MCPImageContent | MCPAudioContent | MCPEmbeddedResource | MCPResourceLink
"""One content block of an MCP result."""

_BLOCKS: dict[str, type[MCPContentBlock]] = {
    "text": MCPTextContent,
    "image": MCPImageContent,
    "audio": MCPAudioContent,
    "resource": MCPEmbeddedResource,
    "resource_link": MCPResourceLink,
}
_NESTED = {"annotations": MCPAnnotations, "resource": MCPResourceContent}


def content_block(block: Mapping[str, Any]) -> MCPContentBlock:
    """Convert a mapping to a content block. If its type is unknown or a field invalid, return a text block of JSON."""
    name = block.get("type")
    kind = _BLOCKS.get(name) if isinstance(name, str) else None
    if kind is not None:
        members = {key: value for key, value in block.items() if key != "type"}
        try:
            block_of_kind: MCPContentBlock = _read(kind, members)
        except msgspec.ValidationError:
            pass
        else:
            return block_of_kind
    return MCPTextContent(text=encode_json(dict(block)).decode())


def is_content_block(value: object) -> bool:
    """Whether `value` is a mapping with a `type`, and is a valid block if the type is known."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        return False
    kind = _BLOCKS.get(value["type"])
    if kind is None:
        return True
    try:
        _read(kind, {key: member for key, member in value.items() if key != "type"})
    except msgspec.ValidationError:
        return False
    return True


def require_block(value: Any) -> MCPContentBlock:
    """Return a content block unchanged; raise `VALIDATION_ERROR` for any other value."""
    if not isinstance(value, Block):
        message = f"invalid content block: expected a mapping with a `type`, not {type(value).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    block: Any = value
    return block  # type: ignore[no-any-return]


@cache
def _optional(kind: Any) -> frozenset[str]:
    """Return the JSON names of the optional fields; some servers send null for them."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind) if field.default is None)


def _read(kind: Any, members: Mapping[str, Any]) -> Any:
    """Return a value of `kind` from JSON properties; unknown properties are stored in `extra`."""
    names = set(kind.__struct_encode_fields__) - {"extra"}
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in members.items():
        if key not in names:
            extra[key] = value
        elif key in _NESTED and isinstance(value, Mapping):
            known[key] = _read(_NESTED[key], value)
        elif value is None and key not in _optional(kind):
            raise msgspec.ValidationError(f"`{key}` is null")
        elif value is not None:
            known[key] = value
    if extra:
        known["extra"] = extra
    return msgspec.convert(known, kind)


def _block_schema(kind: str, properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties, "annotations": _ANNOTATIONS},
        "required": ["type", *(name for name in properties if name not in optional)],
    }


_TEXT = {"type": "string"}
_ANNOTATIONS = {
    "type": "object",
    "properties": {
        "audience": {"type": "array", "items": _TEXT},
        "priority": {"type": "number"},
        "lastModified": _TEXT,
    },
}
_RESOURCE = {
    "type": "object",
    "properties": {"uri": _TEXT, "mimeType": _TEXT, "text": _TEXT, "blob": _TEXT},
    "required": ["uri"],
}


def _to_json(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Block) else value


CONTENT_BLOCK: dict[str, Any] = {
    "anyOf": [
        _block_schema("text", {"text": _TEXT}),
        _block_schema("image", {"data": _TEXT, "mimeType": _TEXT}),
        _block_schema("audio", {"data": _TEXT, "mimeType": _TEXT}),
        _block_schema("resource", {"resource": _RESOURCE}),
        _block_schema(
            "resource_link",
            {"uri": _TEXT, "name": _TEXT, "description": _TEXT, "mimeType": _TEXT},
            optional=("description", "mimeType"),
        ),
        {
            "description": "a block of an unknown type",
            "type": "object",
            "properties": {"type": {"type": "string", "not": {"enum": list(_BLOCKS)}}},
            "required": ["type"],
        },
    ]
}

MCPContentBlockSchema: Schema = record_schema(CONTENT_BLOCK, _to_json)
"""Schema of an `MCPContentBlock`: accepts instances and their JSON form."""
