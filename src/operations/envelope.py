"""ResponseEnvelope: the result of every call, `data` with the `meta` of its source.

This is the only file that lists the kinds of sources: other packages cannot add any. `operations.content` has the
content blocks, and `operations.wire` has the encodings.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Generic, Literal, TypeGuard, TypeVar, cast, get_args, overload

import msgspec

from operations.content import (
    CONTENT_BLOCK,
    Block,
    MCPContentBlock,
    content_block,
    is_content_block,
    require_block,
)
from operations.errors import CallError, ErrorCode
from operations.schema import Schema, record_schema
from operations.wire import decode_json, decode_msgpack, encode_json, encode_msgpack

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

ResponseSource = Literal["local", "http", "mcp"]
"""The kind of source that a result comes from: the `source` of a meta."""
RESPONSE_SOURCES: tuple[ResponseSource, ...] = get_args(ResponseSource)
"""All values of `ResponseSource`."""

Headers = Mapping[str, str | Iterable[str]] | Iterable[tuple[str, str]]


class SSEEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The type and id of the server-sent event that carried a result."""

    type: str
    id: str | None = None


class LocalResponseMeta(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    tag_field="source",
    tag="local",
    forbid_unknown_fields=False,
):
    """Meta of a result that comes from neither HTTP nor MCP: the operation and the time."""

    operation_id: str
    timestamp: int
    """Epoch milliseconds, taken when the result was wrapped."""
    event: SSEEvent | None = None
    """Type and id of a stream item, if the handler yielded an `Event`."""

    source: ClassVar[Literal["local"]] = "local"
    """The kind of source, which identifies the class of a meta."""

    def to_dict(self) -> dict[str, Any]:
        """Return the meta with its JSON names."""
        meta = {"source": "local", "operationId": self.operation_id, "timestamp": self.timestamp}
        return meta if self.event is None else {**meta, "event": msgspec.to_builtins(self.event)}


class HTTPResponseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="source", tag="http"):
    """Meta of an HTTP response: status, headers, cookies and event."""

    status_code: int
    headers: dict[str, str]
    """Headers with lower-case names; repeated headers are joined with `, `."""
    content_type: str
    set_cookies: list[str] | None = None
    """The values of `set-cookie` headers as a list: joined values cannot be split again."""
    event: SSEEvent | None = None

    source: ClassVar[Literal["http"]] = "http"
    """The kind of source, which identifies the class of a meta."""

    def to_dict(self) -> dict[str, Any]:
        """Return the meta with its JSON names; absent fields are omitted."""
        return cast("dict[str, Any]", msgspec.to_builtins(self))


class MCPResponseMeta(
    msgspec.Struct,
    frozen=True,
    rename={"is_error": "isError", "structured_content": "structuredContent", "extensions": "_meta"},
    omit_defaults=True,
    tag_field="source",
    tag="mcp",
):
    """Meta of an MCP tool's result: error flag, content blocks and structured content."""

    is_error: bool
    content: list[MCPContentBlock]
    structured_content: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    """The `_meta` of the MCP result."""

    source: ClassVar[Literal["mcp"]] = "mcp"
    """The kind of source, which identifies the class of a meta."""

    def to_dict(self) -> dict[str, Any]:
        """Return the meta with its JSON names; absent fields are omitted."""
        meta: dict[str, Any] = {
            "source": "mcp",
            "isError": self.is_error,
            "content": [block.to_dict() for block in self.content],
        }
        if self.structured_content is not None:
            meta["structuredContent"] = self.structured_content
        if self.extensions is not None:
            meta["_meta"] = self.extensions
        return meta


ResponseMeta = LocalResponseMeta | HTTPResponseMeta | MCPResponseMeta
"""The `meta` of an envelope: one class for each kind of source."""


class ResponseEnvelope(msgspec.Struct, Generic[T_co], frozen=True):
    """The result of a call: `data`, and the `meta` of its source."""

    data: T_co
    meta: ResponseMeta

    def raise_for_error(self) -> ResponseEnvelope[T_co]:
        """Raise `EXECUTION_ERROR` if an MCP tool reported an error; otherwise return the envelope."""
        meta = self.meta
        if isinstance(meta, MCPResponseMeta) and meta.is_error:
            texts = [block.text for block in meta.content if block.type == "text"]
            message = "\n".join(texts) or "the tool reported an error without a message"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, meta.to_dict())
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the envelope as a dict with its JSON names; the data is unchanged."""
        return {"data": self.data, "meta": self.meta.to_dict()}

    def to_json(self) -> bytes:
        """Return the envelope as JSON (UTF-8)."""
        return encode_json(self.to_dict())

    def to_msgpack(self) -> bytes:
        """Return the envelope as MessagePack."""
        return encode_msgpack(self.to_dict())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ResponseEnvelope[Any]:
        """Read an envelope from plain data; raise `VALIDATION_ERROR` if it is invalid."""
        envelope = detect_envelope(value)
        if envelope is None:
            errors = ResponseEnvelopeSchema.errors(value)
            listed = "; ".join(f"{error.path or '(value)'}: {error.message}" for error in errors[:5])
            raise CallError(ErrorCode.VALIDATION_ERROR, f"not a response envelope: {listed}")
        return envelope

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview | str) -> ResponseEnvelope[Any]:
        """Read an envelope from JSON."""
        return cls.from_dict(decode_json(data))

    @classmethod
    def from_msgpack(cls, data: bytes) -> ResponseEnvelope[Any]:
        """Read an envelope from MessagePack."""
        return cls.from_dict(decode_msgpack(data))


class Event(msgspec.Struct, Generic[T_co], frozen=True):
    """An item of a stream, with an event id and an event type.

    If the operation has the annotation `resumable`, a client can resume the stream: the handler runs again, and
    `context.metadata["lastEventId"]` is the id of the last item that the client received.
    """

    data: T_co
    id: str | None = None
    type: str = "message"


def local_envelope(data: T, operation_id: str) -> ResponseEnvelope[T]:
    """Return the envelope of a result that comes from neither HTTP nor MCP; its timestamp is the current time."""
    return ResponseEnvelope(data, LocalResponseMeta(operation_id, time.time_ns() // 1_000_000))


def http_envelope(
    data: T,
    *,
    status_code: int,
    headers: Headers = (),
    content_type: str | None = None,
    set_cookies: Iterable[str] | None = None,
    event: SSEEvent | None = None,
) -> ResponseEnvelope[T]:
    """Return the envelope of an HTTP response with the body `data`; repeated headers are joined."""
    return ResponseEnvelope(data, http_meta(status_code, headers, content_type, set_cookies, event))


def http_meta(
    status_code: int,
    headers: Headers,
    content_type: str | None = None,
    set_cookies: Iterable[str] | None = None,
    event: SSEEvent | None = None,
) -> HTTPResponseMeta:
    """Return the meta of an HTTP response; repeated headers are joined."""
    folded, cookies = _fold_headers(headers)
    if set_cookies is not None:
        cookies += set_cookies
    if content_type is None:
        content_type = folded.get("content-type", "")
    return HTTPResponseMeta(status_code, folded, content_type, cookies or None, event)


def mcp_envelope(
    data: T,
    *,
    is_error: bool = False,
    content: Iterable[MCPContentBlock | Mapping[str, Any]] = (),
    structured_content: dict[str, Any] | None = None,
    extensions: dict[str, Any] | None = None,
) -> ResponseEnvelope[T]:
    """Return the envelope of an MCP tool's result; content blocks may be objects or plain mappings."""
    blocks = [content_block(block) if isinstance(block, Mapping) else require_block(block) for block in content]
    if isinstance(data, list) and any(isinstance(item, Block) for item in data):
        # Data that is a list of content blocks has to consist of plain JSON values, not of block objects.
        data = [item.to_dict() if isinstance(item, Block) else item for item in data]  # type: ignore[assignment]
    return ResponseEnvelope(data, MCPResponseMeta(is_error, blocks, structured_content, extensions))


@overload
def unwrap(envelope: ResponseEnvelope[T]) -> T: ...
@overload
def unwrap(envelope: Mapping[str, Any]) -> Any: ...
def unwrap(envelope: ResponseEnvelope[Any] | Mapping[str, Any]) -> Any:
    """Return the data of an envelope, or of a mapping in its format; raise `VALIDATION_ERROR` for other values."""
    found = detect_envelope(envelope)
    if found is None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"not an envelope: {type(envelope).__name__}")
    return found.data


def is_response_envelope(value: object) -> TypeGuard[ResponseEnvelope[Any] | Mapping[str, Any]]:
    """Whether `value` is an envelope, or a plain mapping in the format of an envelope."""
    return detect_envelope(value) is not None


@lru_cache(maxsize=1024)
def may_be_envelope(kind: Hashable) -> bool:
    """Whether instances of a class can be envelopes; cached, because checking for Mapping is slow."""
    return isinstance(kind, type) and issubclass(kind, (ResponseEnvelope, Mapping))


def detect_envelope(value: object) -> ResponseEnvelope[Any] | None:
    """Return `value` if it is an envelope, or the envelope that a plain mapping describes; None for other values."""
    if isinstance(value, ResponseEnvelope):
        return value
    # Most results are dicts, and checking for Mapping is slow.
    if (type(value) is not dict and not isinstance(value, Mapping)) or "meta" not in value or "data" not in value:
        return None
    meta = value["meta"]
    if not isinstance(meta, Mapping):
        return None
    source = meta.get("source")
    read = _META_READERS.get(source) if isinstance(source, str) else None
    typed = read(meta) if read is not None else None
    return None if typed is None else ResponseEnvelope(value["data"], typed)


def has_described_data(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the output schema applies to the data.

    It does not apply to an error, nor to an MCP result that consists only of content blocks.
    """
    meta = envelope.meta
    if isinstance(meta, LocalResponseMeta):  # checked first: isinstance() is slow if the class differs
        return True
    if isinstance(meta, HTTPResponseMeta):
        return meta.status_code < 400
    if meta.is_error:
        return False
    return meta.structured_content is not None or envelope.data != [block.to_dict() for block in meta.content]


def _fold_headers(headers: Headers) -> tuple[dict[str, str], list[str]]:
    """Return headers with lower-case names, repeated ones joined, and the `set-cookie` values separately."""
    if type(headers) is list:
        plain = dict(headers)
        # Fast path: each name once and in lower case, without cookies.
        if len(plain) == len(headers) and "set-cookie" not in plain and "".join(plain).islower():
            return plain, []
    folded: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        key = name.lower()
        values = [value] if isinstance(value, str) else list(value)
        if key == "set-cookie":
            cookies += values
        elif values:
            folded[key] = ", ".join([folded[key], *values] if key in folded else values)
    return folded, cookies


def _present(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null.

    Numbers such as 200.0, which JSON Schema accepts as integers, become integers.
    """
    present = {name: value for name, value in meta.items() if value is not None}
    for name in ("timestamp", "statusCode"):
        value = present.get(name)
        if isinstance(value, float) and value.is_integer():
            present[name] = int(value)
    return present


def _read_local(meta: Mapping[str, Any]) -> LocalResponseMeta | None:
    try:
        return msgspec.convert(_present(meta), LocalResponseMeta)
    except msgspec.ValidationError:
        return None


def _read_http(meta: Mapping[str, Any]) -> HTTPResponseMeta | None:
    try:
        typed = msgspec.convert(_present(meta), HTTPResponseMeta)
    except msgspec.ValidationError:
        return None
    if all(name.islower() for name in typed.headers) and "set-cookie" not in typed.headers:
        return typed
    folded, cookies = _fold_headers(typed.headers)
    return msgspec.structs.replace(typed, headers=folded, set_cookies=(typed.set_cookies or []) + cookies or None)


def _read_mcp(meta: Mapping[str, Any]) -> MCPResponseMeta | None:
    is_error, content = meta.get("isError"), meta.get("content")
    if not isinstance(is_error, bool) or not isinstance(content, (list, tuple)):
        return None
    if not all(is_content_block(block) for block in content):
        return None
    optional: list[dict[str, Any] | None] = []
    for name in ("structuredContent", "_meta"):
        value = meta.get(name)
        if value is not None and not isinstance(value, Mapping):
            return None
        optional.append(value if value is None or isinstance(value, dict) else dict(value))
    return MCPResponseMeta(is_error, [content_block(block) for block in content], *optional)


_META_READERS = {"local": _read_local, "http": _read_http, "mcp": _read_mcp}

_TEXT = {"type": "string"}
_EVENT = {
    "type": ["object", "null"],
    "properties": {"type": _TEXT, "id": {"type": ["string", "null"]}},
    "required": ["type"],
}
_LOCAL_META = {
    "type": "object",
    "properties": {
        "source": {"const": "local"},
        "operationId": _TEXT,
        "timestamp": {"type": "integer", "description": "epoch milliseconds"},
        "event": _EVENT,
    },
    "required": ["source", "operationId", "timestamp"],
}
_HTTP_META = {
    "type": "object",
    "properties": {
        "source": {"const": "http"},
        "statusCode": {"type": "integer"},
        "headers": {"type": "object", "additionalProperties": _TEXT},
        "contentType": _TEXT,
        "setCookies": {"type": ["array", "null"], "items": _TEXT},
        "event": _EVENT,
    },
    "required": ["source", "statusCode", "headers", "contentType"],
}
_MCP_META = {
    "type": "object",
    "properties": {
        "source": {"const": "mcp"},
        "isError": {"type": "boolean"},
        "content": {"type": "array", "items": CONTENT_BLOCK},
        "structuredContent": {"type": ["object", "null"]},
        "_meta": {"type": ["object", "null"]},
    },
    "required": ["source", "isError", "content"],
}
_META = {"anyOf": [_LOCAL_META, _HTTP_META, _MCP_META]}
_ENVELOPE = {
    "type": "object",
    "properties": {"data": {"description": "the operation's output"}, "meta": _META},
    "required": ["data", "meta"],
}


def _to_json(value: Any) -> Any:
    return value.to_dict() if isinstance(value, ResponseEnvelope | ResponseMeta) else value


LocalResponseMetaSchema: Schema = record_schema(_LOCAL_META, _to_json)
"""Schema of `LocalResponseMeta`: accepts instances and their JSON form."""
HTTPResponseMetaSchema: Schema = record_schema(_HTTP_META, _to_json)
"""Schema of `HTTPResponseMeta`: accepts instances and their JSON form."""
MCPResponseMetaSchema: Schema = record_schema(_MCP_META, _to_json)
"""Schema of `MCPResponseMeta`: accepts instances and their JSON form."""
ResponseMetaSchema: Schema = record_schema(_META, _to_json)
"""Schema of any `ResponseMeta`: accepts instances and their JSON form."""
ResponseEnvelopeSchema: Schema = record_schema(_ENVELOPE, _to_json)
"""Schema of a `ResponseEnvelope`: accepts instances and their JSON form."""
