"""A response's body written to a file as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from operations.http import HTTPResponse

_PIECE = 1024 * 1024


async def download(response: HTTPResponse, path: str) -> dict[str, Any]:
    """Write the body to `path`; it is there when it is whole, and an unfinished file does not stay."""
    partial = Path(f"{path}.part")
    file = await asyncio.to_thread(partial.open, "wb")
    size = 0
    try:
        with file:
            async for piece in _gathered(response.chunks()):
                await asyncio.to_thread(file.write, piece)
                size += len(piece)
        await asyncio.to_thread(partial.replace, path)
    except BaseException:
        await asyncio.to_thread(partial.unlink, missing_ok=True)
        raise
    return {"path": path, "size": size}


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in fewer, larger pieces: each is a trip to another thread."""
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= _PIECE:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)
