"""Redact: replaces secrets in results and errors before a caller sees them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import translate
from typing import Any, TypeVar

import msgspec

from operations.content import content_block
from operations.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.interceptors.base import Envelopes, Invocation, Proceed, open_stream
from operations.redaction import REDACTED, Beginning, json_document

T = TypeVar("T")

SECRET_NAMES = (
    *("*password*", "*passwd*", "*secret*", "*credential*", "*apikey*", "*accesskey*", "*privatekey*"),
    *("token", "idtoken", "*accesstoken*", "*refreshtoken*", "*authtoken*", "*apitoken*", "*sessiontoken*"),
    *("authorization", "proxyauthorization", "cookie", "setcookie"),
)
"""Default shell patterns of the names whose values are redacted; case, `-` and `_` are ignored."""
_MAX_DEPTH = 100
_LARGE = 1 << 16
"""Largest number of characters of a result that is redacted in the event loop."""
_COST_OF_A_PART = 4
"""Number of characters that take as long to redact as a property or item."""
_LONGEST_NAME = 1_000
"""A field with a longer name counts as secret, because comparing a long name with the patterns takes time."""


class FieldRedactor:
    """Replaces the values of fields whose names match `fields` (shell patterns), and matches of `patterns` in strings.

    `patterns` are regular expressions. Unlike `operations.redaction.Redactor`, this class replaces nothing else:
    callers need the rest of a result unchanged.
    """

    def __init__(self, fields: Iterable[str] = SECRET_NAMES, patterns: Iterable[str] = ()) -> None:
        if isinstance(fields, str) or isinstance(patterns, str):
            raise ValueError("invalid redaction: expected lists of fields and patterns")
        names = [translate(_plain(name)) for name in fields]
        self._names = re.compile("|".join(names)) if names else None
        try:
            self._patterns = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise ValueError(f"invalid pattern {error.pattern!r}: {error}") from None
        self._known: dict[str, bool] = {}

    def clean(self, value: Any, depth: int = 0) -> Any:
        """Return a value without secrets; the same object if it has none."""
        if isinstance(value, str):
            return self._clean_text(value, depth)
        if depth >= _MAX_DEPTH:
            return REDACTED if isinstance(value, (Mapping, list, tuple)) else value
        if isinstance(value, Mapping):
            cleaned = {
                name: REDACTED if self._is_secret(name) else self.clean(item, depth + 1) for name, item in value.items()
            }
            return cleaned if any(cleaned[name] is not value[name] for name in cleaned) else value
        if isinstance(value, (list, tuple)):
            items = [self.clean(item, depth + 1) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def beginning(self, value: Any, most: int) -> Any:
        """Return the beginning of a value without secrets; no field or item is added after `most` characters."""
        return Beginning(value, most, text=self.clean, is_secret=self._is_secret, hide=lambda _: REDACTED).data

    def clean_envelope(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Return an envelope whose data and meta have no secrets."""
        data, meta = self.clean(envelope.data), envelope.meta
        if isinstance(meta, HTTPResponseMeta):
            headers = self.clean(meta.headers)
            cookies = [REDACTED for _ in meta.set_cookies or ()] if self._is_secret("set-cookie") else meta.set_cookies
            if headers is not meta.headers or (meta.set_cookies and cookies is not meta.set_cookies):
                meta = msgspec.structs.replace(meta, headers=headers, set_cookies=cookies)
        elif isinstance(meta, MCPResponseMeta):
            meta = self._clean_mcp(meta)
        return envelope if data is envelope.data and meta is envelope.meta else ResponseEnvelope(data, meta)

    def clean_error(self, error: CallError) -> CallError:
        """Return an error whose message and details have no secrets."""
        message, details = self.clean(error.message), self.clean(error.details)
        if message is error.message and details is error.details:
            return error
        return CallError(error.code, message, details)

    def _clean_mcp(self, meta: MCPResponseMeta) -> MCPResponseMeta:
        structured, extensions = self.clean(meta.structured_content), self.clean(meta.extensions)
        blocks = [block.to_dict() for block in meta.content]
        cleaned = self.clean(blocks)
        if cleaned is blocks and structured is meta.structured_content and extensions is meta.extensions:
            return meta
        content = meta.content if cleaned is blocks else [content_block(block) for block in cleaned]
        return msgspec.structs.replace(meta, content=content, structured_content=structured, extensions=extensions)

    def _clean_text(self, text: str, depth: int) -> str:
        """Return a string without matches of the patterns; if it is a JSON document, also without secrets in fields."""
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        document = json_document(text) if depth < _MAX_DEPTH else None
        if document is not None:
            cleaned = self.clean(document, depth + 1)
            return text if cleaned is document else msgspec.json.encode(cleaned).decode()
        return text

    def _is_secret(self, name: Any) -> bool:
        if self._names is None or not isinstance(name, str):
            return False
        if len(name) > _LONGEST_NAME:
            return True
        known = self._known.get(name)
        if known is None:
            known = self._names.match(_plain(name)) is not None
            if len(self._known) < 10_000 and len(name) <= 100:
                self._known[name] = known
        return known


class Redact:
    """Replaces secrets in results and errors with `[redacted]`.

    `fields` are shell patterns of the names of secret fields; case, `-` and `_` are ignored. `patterns` are regular
    expressions: each match in a string is replaced. In a string that is a JSON document, the secret fields of the
    document are replaced. Every item of a stream is redacted. A redacted value may no longer match the output schema.
    """

    def __init__(self, fields: Iterable[str] = SECRET_NAMES, *, patterns: Iterable[str] = ()) -> None:
        self._redactor = FieldRedactor(fields, patterns)

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call and redact its result or its error."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        try:
            return await self._clean(await proceed(invocation))
        except CallError as error:
            cleaned = await self._clean_error(error)
            if cleaned is error:
                raise
            # The cause may contain the secret; the cause appears in the log, not in the result.
            raise cleaned from error.__cause__

    async def _clean(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        return await _beside_other_calls(self._redactor.clean_envelope, envelope, envelope.data, envelope.meta)

    async def _clean_error(self, error: CallError) -> CallError:
        return await _beside_other_calls(self._redactor.clean_error, error, error.message, error.details)

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        try:
            async with open_stream(invocation, proceed) as stream:
                async for envelope in stream:
                    yield await self._clean(envelope)
        except CallError as error:
            cleaned = await self._clean_error(error)
            if cleaned is error:
                raise
            raise cleaned from error.__cause__


async def _beside_other_calls(clean: Callable[[T], T], dirty: T, *parts: Any) -> T:
    """Return `dirty` without secrets; if `parts` are large, a thread removes them, so that other calls continue."""
    if _is_large(parts):
        # A handler that changes data after it returned them makes the thread fail; no handler runs during a plain call.
        with suppress(RuntimeError, ValueError):
            return await asyncio.to_thread(clean, dirty)
    return clean(dirty)


def _is_large(value: Any) -> bool:
    """Whether a value has so many characters and parts that redacting it takes more than a few milliseconds."""
    left, pending = _LARGE, [value]
    while pending and left >= 0:
        item = pending.pop()
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, (Mapping, list, tuple)):
            left -= _COST_OF_A_PART * len(item)
            if left >= 0:
                pending += item.values() if isinstance(item, Mapping) else item
        elif isinstance(item, msgspec.Struct):
            pending += [getattr(item, name) for name in item.__struct_fields__]
    return left < 0


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
