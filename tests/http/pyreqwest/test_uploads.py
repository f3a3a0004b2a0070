"""A stopped upload ends its request; it must not end the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from operations.http import HTTPRequest
from operations.http.pyreqwest.client import _Upload


async def pieces() -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


async def test_the_next_piece_of_a_stopped_upload_is_an_error_when_it_is_awaited() -> None:
    # Python 3.11 crashes if `anext` with a default value, which pyreqwest uses, is called and `__anext__` raises.
    upload = _Upload(HTTPRequest(method="POST", url="http://127.0.0.1/", headers=[], body=pieces()))
    assert await anext(upload, None) == b"first"
    created = anext(upload, None)
    upload.stop()
    for awaitable in (created, anext(upload, None)):
        with pytest.raises(ConnectionAbortedError):
            await awaitable


async def test_an_upload_that_is_stopped_while_it_waits_is_cancelled() -> None:
    upload = _Upload(HTTPRequest(method="POST", url="http://127.0.0.1/", headers=[], body=pieces()))
    await anext(upload)
    pulling = asyncio.ensure_future(anext(upload))
    await asyncio.sleep(0)
    upload.stop()
    with pytest.raises(asyncio.CancelledError):
        await pulling
