"""ToolResult: the result of a call as a model reads it, cut to a size, with chosen fields and without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.redaction import REDACTED, Redactor

_MOST_SAID = 2_000
_encode = msgspec.json.Encoder(enc_hook=str).encode

Redact = bool | Sequence[str] | Callable[[Any], Any]
"""True for what `redaction.Redactor` recognises, patterns of field names, or a function of the data."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gives back to a model."""

    text: str
    is_error: bool = False
    blocks: Sequence[Mapping[str, Any]] = ()
    """Content blocks as MCP writes them: the text, and what the source sent besides, such as images."""
    envelope: ResponseEnvelope[Any] | None = None
    """The whole result, neither cut nor redacted; None for an error that was raised, and for a stream."""
    error: CallError | None = None


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """How results become text."""

    max_characters: int = 20_000
    fields: Sequence[str] = ()
    """Paths of what is kept, such as `name` and `owner.login`; lists are passed through. Everything without one."""
    redact: Redact = False

    def result(self, envelope: ResponseEnvelope[Any]) -> ToolResult:
        """Return the result of a call."""
        meta = envelope.meta
        is_error = isinstance(meta, MCPResponseMeta) and meta.is_error
        text = self._text(envelope.data)
        blocks: list[Mapping[str, Any]] = [{"type": "text", "text": text}]
        if isinstance(meta, MCPResponseMeta):
            blocks += [block.to_dict() for block in meta.content if block.type != "text"]
        return ToolResult(text=text, is_error=is_error, blocks=blocks, envelope=envelope)

    def items(self, envelopes: Sequence[ResponseEnvelope[Any]], *, is_complete: bool) -> ToolResult:
        """Return the result of a stream: its items so far."""
        text = self._text([envelope.data for envelope in envelopes])
        if not is_complete:
            text += f"\n[the stream goes on after these {len(envelopes)} items]"
        return ToolResult(text=text, blocks=[{"type": "text", "text": text}])

    def failure(self, error: CallError) -> ToolResult:
        """Return the result of a call that failed: code and message, and what the source said about it."""
        try:
            message = self.redact(error.message) if callable(self.redact) else error.message
            text = self._cut(f"{error.code}: {message}{self._said(error)}")
        except Exception:  # noqa: BLE001  # what cannot be redacted or written is not shown
            text = str(error.code)
        return ToolResult(text=text, is_error=True, blocks=[{"type": "text", "text": text}], error=error)

    def _said(self, error: CallError) -> str:
        """Return the body of an HTTP error, or the details of a declared error, cut to a size."""
        details = error.details
        said = details.get("body") if isinstance(details, Mapping) and isinstance(error.code, ErrorCode) else details
        if not isinstance(said, (dict, list)) or not said:
            return ""
        text = _encode(self._redacted(_shown(said))).decode()
        return f"\n{text[:_MOST_SAID]}{'…' if len(text) > _MOST_SAID else ''}"

    def _text(self, data: Any) -> str:
        if self.fields:
            data = project(data, self.fields)
        data = self._redacted(_shown(data))
        return self._cut(data if isinstance(data, str) else _encode(data).decode())

    def _redacted(self, data: Any) -> Any:
        if callable(self.redact):
            return self.redact(data)
        if not self.redact:
            return data
        return Redactor().data(data) if self.redact is True else redact_fields(data, tuple(self.redact))

    def _cut(self, text: str) -> str:
        if len(text) <= self.max_characters:
            return text
        return f"{text[: self.max_characters]}\n[cut: {self.max_characters:,} of {len(text):,} characters]"


def project(data: Any, paths: Iterable[str]) -> Any:
    """Return only the named parts of data: `owner.login` of an object, or of each object of a list."""
    return _project(data, [path.split(".") for path in paths])


def redact_fields(data: Any, patterns: Sequence[str]) -> Any:
    """Return data with the values of fields that match a pattern replaced; case does not matter."""
    if isinstance(data, dict):
        return {
            key: REDACTED
            if _matches(key, patterns) and value not in (None, "", [], {})
            else redact_fields(value, patterns)
            for key, value in data.items()
        }
    return [redact_fields(each, patterns) for each in data] if isinstance(data, list) else data


def _matches(key: Any, patterns: Sequence[str]) -> bool:
    return isinstance(key, str) and any(fnmatchcase(key.lower(), pattern.lower()) for pattern in patterns)


def _project(data: Any, paths: Sequence[Sequence[str]]) -> Any:
    if isinstance(data, list):
        return [_project(each, paths) for each in data]
    if not isinstance(data, dict) or any(not path for path in paths):
        return data
    kept: dict[str, Any] = {}
    for name in dict.fromkeys(path[0] for path in paths):
        if name in data:
            kept[name] = _project(data[name], [path[1:] for path in paths if path[0] == name])
    return kept


def _shown(data: Any) -> Any:
    """Return data with bytes replaced by their number: a model cannot read them."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return f"<{len(data):,} bytes>"
    if isinstance(data, dict):
        return {key if isinstance(key, str) else str(key): _shown(value) for key, value in data.items()}
    return [_shown(each) for each in data] if isinstance(data, (list, tuple)) else data
