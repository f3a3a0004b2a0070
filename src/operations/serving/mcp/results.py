"""Results: an envelope or an error as the result of an MCP tool, for the fast path and the SDK.

Bytes are base64 text. A client that identifies itself as a registry of this library receives the whole envelope.
"""

from __future__ import annotations

import binascii
from typing import Any

import msgspec

from operations.content import MCPTextContent
from operations.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.serving.refusals import public_error
from operations.sources.mcp.own_fields import BYTES, ENVELOPE, ERROR, RESULT, WRAPPED, plain_json

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_SECRET_DETAILS = frozenset({"headers", "setCookies"})
_MEDIA = {"image": "image", "audio": "audio"}


class Result(msgspec.Struct):
    """A tool result before encoding."""

    content: list[Any]
    is_error: bool = False
    structured: Any = msgspec.UNSET
    meta: dict[str, Any] = msgspec.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the result in the format of the protocol."""
        data: dict[str, Any] = {"content": self.content, "isError": self.is_error}
        if self.structured is not msgspec.UNSET:
            data["structuredContent"] = self.structured
        if self.meta:
            data["_meta"] = self.meta
        return data


def tool_result(envelope: ResponseEnvelope[Any], *, wrap: bool, modern: bool) -> Result:
    """Return the tool result of an envelope. `wrap` nests structured content under the key `result`.

    Raise a CallError for data that JSON cannot express.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta):
        return _untouched(envelope, meta, modern=modern)
    media = _media_block(envelope)
    return _structured(envelope.data, wrap, modern) if media is None else Result([media])


def whole_envelope(envelope: ResponseEnvelope[Any]) -> Result:
    """Return the result for a client that is a registry of this library: the whole envelope."""
    is_error = isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error
    return Result([], is_error=is_error, meta={ENVELOPE: envelope.to_json().decode()})


def error_result(error: CallError, operation_id: str) -> Result:
    """Return the result for a failed call."""
    shown = public_error(error, operation_id)
    data = shown.to_dict()
    if isinstance(shown.details, dict):
        data["details"] = {key: value for key, value in shown.details.items() if key not in _SECRET_DETAILS}
    try:
        data, _ = plain_json(data)
    except CallError:
        data.pop("details", None)
    return Result([{"type": "text", "text": str(shown)}], is_error=True, meta={ERROR: data})


def as_text(data: Any) -> str:
    """Return data as text for a model: a string unchanged, other data as JSON."""
    if isinstance(data, str):
        return data
    return _encode(data).decode()


def _structured(value: Any, wrap: bool, modern: bool) -> Result:
    data, places = plain_json(value)
    result = Result([{"type": "text", "text": as_text(data)}])
    # Many clients read null as absent, and earlier versions allow objects only.
    if wrap or data is None or (not modern and type(data) is not dict):
        result.structured = {RESULT: data}
        result.meta[WRAPPED] = True
    else:
        result.structured = data
    if places:
        result.meta[BYTES] = places
    return result


def _untouched(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, *, modern: bool) -> Result:
    """Return the result of an imported MCP tool; add the data as structured content if the result lacks the data."""
    result = Result([block.to_dict() for block in meta.content], is_error=meta.is_error)
    result.meta.update(meta.extensions or {})
    structured = meta.structured_content
    if structured is not None:
        result.structured = structured
    elif _has_own_data(envelope, meta):
        data, _ = plain_json(envelope.data)
        if modern and data is not None:
            result.structured = data
        else:
            result.structured = {RESULT: data}
            result.meta[WRAPPED] = True
    return result


def _has_own_data(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta) -> bool:
    """Whether the data differs from the content blocks, and from the JSON in the text of a single block."""
    if envelope.data == [block.to_dict() for block in meta.content]:
        return False
    if len(meta.content) == 1 and isinstance(meta.content[0], MCPTextContent):
        try:
            return bool(_decode(meta.content[0].text) != envelope.data)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return True
    return True


def _media_block(envelope: ResponseEnvelope[Any]) -> dict[str, Any] | None:
    """Return an image or audio file from an HTTP API as a content block; None for other data."""
    meta, data = envelope.meta, envelope.data
    if not isinstance(data, bytes | bytearray | memoryview) or not isinstance(meta, HTTPResponseMeta):
        return None
    content_type = meta.content_type.partition(";")[0].strip().lower()
    kind = _MEDIA.get(content_type.partition("/")[0])
    if kind is None:
        return None
    return {"type": kind, "data": binascii.b2a_base64(data, newline=False).decode("ascii"), "mimeType": content_type}
