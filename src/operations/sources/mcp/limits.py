"""Limits on a server's messages: length of lists and depth of nesting. Imports no SDK."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

_log = logging.getLogger("operations.mcp")

MAX_PAGES = 1_000
MAX_ITEMS = 100_000
MAX_LIST_BYTES = 64 * 1024 * 1024
"""Maximum size of all pages of a list together, in bytes of JSON."""
MAX_TOOLS = 10_000
MAX_TOOL_LIST_BYTES = 16 * 1024 * 1024
"""Maximum size of all pages of a list of tools. It is less than `MAX_LIST_BYTES`, because tools stay in memory."""
MAX_DEPTH = 200
"""Maximum depth of nesting in a message; the SDK's JSON parser accepts no more."""
TOO_DEEP = "operations/too-deep"
"""Field that replaces the contents of a listed tool that is nested deeper than `MAX_DEPTH` levels."""

Fetch = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Function that sends a request with a method and parameters, and returns the result."""

# Strings, and runs of brackets outside them. Every alternative matches without backtracking, also at the end of input.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.S)
_NESTED = re.compile(rb"[\[{\]}]")
_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,15})"?\s*[,}]')
_MARKER = msgspec.json.encode(TOO_DEEP)
_MAX_HEADER_BYTES = 4_096


async def list_all(
    fetch: Fetch, method: str, field: str, *, server: str, max_items: int = MAX_ITEMS, max_bytes: int = MAX_LIST_BYTES
) -> list[Any]:
    """Return every item of a paged list, up to the limits; truncate a longer list with a warning."""
    collected = _List(max_items, max_bytes)
    params: dict[str, Any] = {}
    while True:
        page = await fetch(method, params)
        cursor = page.get("nextCursor")
        reason = collected.add(page.get(field)) or collected.follow(cursor)
        if reason is not None:
            _log.warning("%s: %s stopped after %d items: %s", server, method, len(collected.items), reason)
        if reason is not None or not isinstance(cursor, str):
            return collected.items
        params = {"cursor": cursor}


class _List:
    """The items and cursors of a paged list; the methods return the reason if the list exceeds a limit."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.items: list[Any] = []
        self._cursors: set[str] = set()
        self._size = 0
        self._max_items = max_items
        self._max_bytes = max_bytes

    def add(self, listed: Any) -> str | None:
        """Add the items of a page; return the limit that they exceed, or None."""
        for item in listed if isinstance(listed, list) else ():
            self._size += len(msgspec.json.encode(item))
            if self._size > self._max_bytes:
                return f"more than {self._max_bytes:,} bytes"
            if len(self.items) == self._max_items:
                return f"more than {self._max_items:,} items"
            self.items.append(item)
        return None

    def follow(self, cursor: Any) -> str | None:
        """Record the cursor of the next page; return why that page must not be fetched, or None."""
        if not isinstance(cursor, str):
            return None
        if cursor in self._cursors:
            return "the server repeated a cursor"
        if len(self._cursors) == MAX_PAGES:
            return f"more than {MAX_PAGES:,} pages"
        self._cursors.add(cursor)
        self._size += len(cursor)
        return f"more than {self._max_bytes:,} bytes" if self._size > self._max_bytes else None


def without_deep_tools(message: bytes) -> bytes | None:
    """Return a copy of a `tools/list` response: `TOO_DEEP` replaces the contents of tools that are nested too deeply.

    Return None for any other message.
    """
    if len(message) > MAX_TOOL_LIST_BYTES or b'"tools"' not in message:
        return None
    try:
        response = msgspec.json.decode(_truncate_deep(message))
        tools = response["result"]["tools"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
    if not isinstance(tools, list):
        return None
    for index, tool in enumerate(tools):
        if _MARKER in msgspec.json.encode(tool):
            tools[index] = {"name": tool.get("name"), TOO_DEEP: True} if isinstance(tool, dict) else None
    return msgspec.json.encode(response)


def is_too_deep(text: bytes) -> bool:
    """Whether JSON is nested deeper than `MAX_DEPTH` levels."""
    return _truncate_deep(text) != text


def _truncate_deep(text: bytes) -> bytes:
    """Return JSON with every value deeper than `MAX_DEPTH` replaced by a marker, without recursion."""
    parts: list[bytes] = []
    start = depth = 0
    for token in _TOKENS.finditer(text):
        length = token.end() - token.start()
        kind = text[token.start()]
        if kind in b"[{":
            if depth <= MAX_DEPTH < depth + length:
                parts += text[start : token.start() + MAX_DEPTH - depth], _MARKER
            depth += length
        elif kind in b"]}":
            if depth - length <= MAX_DEPTH < depth:
                start = token.start() + depth - MAX_DEPTH
            depth -= length
    if depth <= MAX_DEPTH:
        parts.append(text[start:])
    return b"".join(parts)


def response_id(message: bytes) -> int | None:
    """Return the request id of an unparsable response; None if it is not a response or has no id.

    Only the text before the first nested value and after the last one is searched.
    """
    opening = message[:_MAX_HEADER_BYTES].lstrip()
    if not opening.startswith(b"{"):
        return None
    first = _NESTED.split(opening[1:], 1)[0]
    last = _NESTED.split(message[-_MAX_HEADER_BYTES:].rstrip().removesuffix(b"}"))[-1]
    outside = first + b"," + last + b"}"
    found = _ID.search(outside)
    if found is None or b'"jsonrpc"' not in outside or b'"method"' in outside:
        return None
    return int(found[1])
