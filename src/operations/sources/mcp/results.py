"""What an MCP server answered, as envelopes: pure functions that lose nothing and invent nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from operations.content import content_block
from operations.envelope import MCPResponseMeta, ResponseEnvelope, mcp_envelope
from operations.schema import Schema
from operations.wire import encode_json

EVENT = "operations/event"
"""The `_meta` key that marks an event of a subscription; a final result has none."""
_NOTHING: Any = object()
_read_json = msgspec.json.Decoder().decode


def tool_envelope(result: Mapping[str, Any], output_schema: Schema) -> ResponseEnvelope[Any]:
    """The envelope of a `tools/call` result: structured content, else JSON that fits the schema, else the blocks."""
    content = [content_block(_as_block(block)) for block in _as_list(result.get("content"))]
    structured = result.get("structuredContent")
    extensions = result.get("_meta")
    is_error = result.get("isError") is True
    if structured is not None:
        data: Any = structured
    else:
        data = _NOTHING if is_error else _described_text(content, output_schema)
        if data is _NOTHING:
            data = [block.to_dict() for block in content]
    return mcp_envelope(
        data,
        is_error=is_error,
        content=content,
        # The envelope has room for an object only; another JSON value (legal since 2026-07-28) is the data itself.
        structured_content=structured if isinstance(structured, dict) else None,
        extensions=extensions if isinstance(extensions, dict) else None,
    )


def progress_envelope(progress: float, total: float | None, message: str | None) -> ResponseEnvelope[dict[str, Any]]:
    """A progress notification as an event of a subscription; `is_progress` tells it from the result."""
    data: dict[str, Any] = {"progress": progress}
    if total is not None:
        data["total"] = total
    if message is not None:
        data["message"] = message
    return mcp_envelope(data, extensions={EVENT: "progress"})


def is_progress(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether an event of a subscription reports progress; the result that ends the subscription does not."""
    meta = envelope.meta
    return isinstance(meta, MCPResponseMeta) and (meta.extensions or {}).get(EVENT) == "progress"


def is_tool_data(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether a tool's output schema speaks of this envelope: not of errors, progress, or blocks in place of data."""
    meta = envelope.meta
    if not isinstance(meta, MCPResponseMeta) or meta.is_error:
        return False
    if meta.structured_content is not None:
        return True
    return not is_progress(envelope) and envelope.data != [block.to_dict() for block in meta.content]


def _described_text(content: list[Any], schema: Schema) -> Any:
    """The value of a single text block that holds JSON of the declared shape."""
    if len(content) != 1 or content[0].type != "text" or schema.is_unknown:
        return _NOTHING
    try:
        value = _read_json(content[0].text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return _NOTHING
    return value if schema.check(value) else _NOTHING


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


def _as_block(block: Any) -> Mapping[str, Any]:
    return block if isinstance(block, Mapping) else {"type": "text", "text": encode_json(block).decode()}
