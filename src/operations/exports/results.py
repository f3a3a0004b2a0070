"""ToolResult: the result of a call for a model, truncated, with chosen fields and without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.redaction import REDACTED, Redactor
from operations.wire import valid_text

_MAX_DETAILS = 2_000
_MEDIA = ("image", "audio")
_encode = msgspec.json.Encoder(enc_hook=str).encode

Redaction = bool | Sequence[str] | Callable[[Any], Any]
"""What to redact: True for values that `redaction.Redactor` recognises, patterns of field names, or a function that
returns redacted data.
"""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool for a model."""

    text: str
    is_error: bool = False
    blocks: Sequence[Mapping[str, Any]] = ()
    """Content blocks as MCP writes them: the text, and other blocks of the source, such as images."""
    envelope: ResponseEnvelope[Any] | None = None
    """The whole result, neither truncated nor redacted; None for a raised error and for a stream."""
    error: CallError | None = None


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """Options for rendering results as text."""

    max_characters: int = 20_000
    fields: Sequence[str] = ()
    """Paths of the data to keep, such as `name` and `owner.login`, also inside lists; if empty, all data is kept."""
    redact: Redaction = False

    def result(self, envelope: ResponseEnvelope[Any]) -> ToolResult:
        """Return the result of a call for a model: text, content blocks, and the envelope."""
        meta = envelope.meta
        is_error = isinstance(meta, MCPResponseMeta) and meta.is_error
        text = self.text(envelope.data, content=isinstance(meta, MCPResponseMeta) and is_content(envelope.data, meta))
        blocks: list[Mapping[str, Any]] = [{"type": "text", "text": text}]
        if isinstance(meta, MCPResponseMeta):
            blocks += self._other_blocks(meta)
        return ToolResult(text=text, is_error=is_error, blocks=blocks, envelope=envelope)

    def _other_blocks(self, meta: MCPResponseMeta) -> Iterator[Mapping[str, Any]]:
        """Yield the blocks that are not text.

        Images and audio are not changed. Other blocks are redacted, or left out if `fields` is set or `redact` is a
        function.
        """
        for block in meta.content:
            if block.type in _MEDIA:
                yield block.to_dict()
            elif block.type != "text" and not self.fields and not callable(self.redact):
                yield self._redacted(block.to_dict())

    def items(self, envelopes: Sequence[ResponseEnvelope[Any]], *, is_complete: bool) -> ToolResult:
        """Return the result of a stream: the items received so far, with a note unless `is_complete` is true."""
        text = self.text([envelope.data for envelope in envelopes])
        if not is_complete:
            text += f"\n[the stream goes on after these {len(envelopes)} items]"
        return ToolResult(text=text, blocks=[{"type": "text", "text": text}])

    def failure(self, error: CallError) -> ToolResult:
        """Return the result of a failed call: code, message, and details that the model may need."""
        try:
            message = self._redacted(error.message)
            text = valid_text(self.truncate(f"{error.code}: {message}{self._details(error)}"))
        except Exception:  # noqa: BLE001  # details that cannot be redacted or encoded are not shown
            text = str(error.code)
        return ToolResult(text=text, is_error=True, blocks=[{"type": "text", "text": text}], error=error)

    def _details(self, error: CallError) -> str:
        """Return the body of an HTTP error, or the details of a declared error, truncated."""
        details = error.details
        shown = details.get("body") if isinstance(details, Mapping) and isinstance(error.code, ErrorCode) else details
        if not isinstance(shown, (dict, list)) or not shown:
            return ""
        text = _encode(self._redacted(readable(shown))).decode()
        return f"\n{text[:_MAX_DETAILS]}{'…' if len(text) > _MAX_DETAILS else ''}"

    def data(self, data: Any) -> Any:
        """Return data with the chosen fields and without secrets."""
        return self._redacted(self._chosen(data))

    def text(self, data: Any, *, content: bool = False) -> str:
        """Return the chosen fields of data as text, redacted and truncated: as JSON, unless data is a string.

        With `content`, data is a list of content blocks. Text blocks are then returned as their texts, other blocks as
        JSON.
        """
        chosen = self._chosen(_without_media(data) if content else data)
        write = content_text if content and not self.fields else as_text
        whole = write(chosen)
        if not self.redact:
            return self.truncate(whole)
        if callable(self.redact) or len(whole) <= 2 * self.max_characters:
            return self.truncate(write(self._redacted(chosen)))
        # If the data is long, only the part that can be shown is searched for secrets.
        begun = write(self._redacted(_beginning(chosen, [self.max_characters])))
        return self.truncate(begun, len(whole))

    def truncate(self, text: str, length: int | None = None) -> str:
        """Return a text truncated to `max_characters`, with a note; `length` is the length of the whole text."""
        length = len(text) if length is None else length
        if length <= self.max_characters:
            return text
        shown = text[: self.max_characters]
        return f"{shown}\n[truncated: {len(shown):,} of {length:,} characters]"

    def _chosen(self, data: Any) -> Any:
        return readable(project(data, self.fields) if self.fields else data)

    def _redacted(self, data: Any) -> Any:
        if callable(self.redact):
            return self.redact(data)
        if not self.redact:
            return data
        return Redactor().data(data) if self.redact is True else redact_fields(data, tuple(self.redact))


def project(data: Any, paths: Iterable[str]) -> Any:
    """Return only the named parts of data: `owner.login` of an object, or of each object of a list."""
    return _project(data, [path.split(".") for path in paths])


def redact_fields(data: Any, patterns: Sequence[str]) -> Any:
    """Return data in which non-empty values of fields with a matching name are replaced; case does not matter."""
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


def _beginning(data: Any, left: list[int]) -> Any:
    """Return the first entries of data, about `left[0]` characters.

    Strings are not truncated, so that secrets are found.
    """
    if isinstance(data, dict):
        kept: dict[str, Any] = {}
        for key, value in data.items():
            if left[0] <= 0:
                break
            left[0] -= len(key)
            kept[key] = _beginning(value, left)
        return kept
    if isinstance(data, list):
        items = []
        for item in data:
            if left[0] <= 0:
                break
            items.append(_beginning(item, left))
        return items
    left[0] -= len(data) if isinstance(data, str) else 1
    return data


def as_text(data: Any) -> str:
    """Return data as JSON text; if data is a string, return it unchanged."""
    return data if isinstance(data, str) else _encode(data).decode()


def is_content(data: Any, meta: MCPResponseMeta) -> bool:
    """Whether the data of an MCP result is the list of its content blocks."""
    return isinstance(data, list) and bool(data) and data == [block.to_dict() for block in meta.content]


def content_text(blocks: Any) -> str:
    """Return the texts of content blocks, and other blocks as JSON, one below the other."""
    if not isinstance(blocks, list):  # a function that redacts may return another value
        return as_text(blocks)
    return "\n".join(
        str(block.get("text", "")) if isinstance(block, dict) and block.get("type") == "text" else as_text(block)
        for block in blocks
    )


def _without_media(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return content blocks with the length of base64 data instead of the data, which a model cannot read as text."""
    shown = []
    for block in blocks:
        inner = block.get("resource", {})
        if block["type"] in _MEDIA:
            block = {**block, "data": _size(block["data"])}
        elif "blob" in inner:
            block = {**block, "resource": {**inner, "blob": _size(inner["blob"])}}
        shown.append(block)
    return shown


def _size(encoded: str) -> str:
    return f"<{len(encoded.rstrip('=')) * 3 // 4:,} bytes>"


def readable(data: Any) -> Any:
    """Return data that a model can read: bytes are replaced by their length, lone surrogates by question marks."""
    if isinstance(data, str):
        return valid_text(data)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return f"<{len(data):,} bytes>"
    if isinstance(data, dict):
        return {valid_text(key if isinstance(key, str) else str(key)): readable(value) for key, value in data.items()}
    return [readable(each) for each in data] if isinstance(data, (list, tuple)) else data
