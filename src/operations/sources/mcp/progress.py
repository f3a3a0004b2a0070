"""Progress of MCP calls as events of a subscription."""

from __future__ import annotations

from typing import Any

from operations.envelope import MCPResponseMeta, ResponseEnvelope, mcp_envelope
from operations.progress import ProgressEvent

EVENT = "operations/event"
"""The `_meta` key that marks progress events of a subscription; a final result does not have it."""


def progress_envelope(event: ProgressEvent) -> ResponseEnvelope[dict[str, Any]]:
    """Return the envelope of a progress event; `is_progress` distinguishes it from the result."""
    data = {name: value for name, value in event._asdict().items() if value is not None}
    return mcp_envelope(data, extensions={EVENT: "progress"})


def is_progress(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether an event of a subscription reports progress; its last event, the result, does not."""
    meta = envelope.meta
    return isinstance(meta, MCPResponseMeta) and (meta.extensions or {}).get(EVENT) == "progress"
