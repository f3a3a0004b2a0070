"""Reading lists that a server gives page by page, with a guard against pages that never end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_log = logging.getLogger("operations.mcp")

MOST_PAGES = 1_000

Fetch = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a request: method and parameters to result."""


async def list_all(fetch: Fetch, method: str, member: str, *, server: str) -> list[Any]:
    """Every item of a paged list; one whose cursor comes back, or that goes on for ever, ends with a warning."""
    items: list[Any] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    while True:
        page = await fetch(method, params)
        listed = page.get(member)
        if isinstance(listed, list):
            items += listed
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return items
        if cursor in seen or len(seen) >= MOST_PAGES:
            reason = "a cursor came again" if cursor in seen else f"more than {MOST_PAGES:,} pages"
            _log.warning("%s: %s stopped after %d items: %s", server, method, len(items), reason)
            return items
        seen.add(cursor)
        params = {"cursor": cursor}
