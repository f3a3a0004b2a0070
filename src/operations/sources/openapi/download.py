"""A response's body written to a file as it arrives."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from errno import EISDIR
from pathlib import Path
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.http import HTTPResponse

_PIECE = 1024 * 1024


async def download(response: HTTPResponse, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Write the body to `path`; it is there when it is whole, and an unfinished file does not stay."""
    try:
        return {"path": os.fspath(path), "size": await _write(response, Path(path))}
    except OSError as error:
        message = f"the answer cannot be written to {os.fspath(path)}: {error.strerror or error}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message) from error


async def _write(response: HTTPResponse, path: Path) -> int:
    # A name of its own: neither another download to the same path nor a file of the user's is written over.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    size = 0
    if await asyncio.to_thread(path.is_dir):
        raise IsADirectoryError(EISDIR, "it is a folder")
    file = await asyncio.to_thread(partial.open, "xb")
    try:
        with file:
            async for piece in _gathered(response.chunks()):
                await asyncio.to_thread(file.write, piece)
                size += len(piece)
        await asyncio.to_thread(partial.replace, path)
    except BaseException:
        await asyncio.to_thread(partial.unlink, missing_ok=True)
        raise
    return size


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
