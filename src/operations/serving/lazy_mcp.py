"""LazyMCP: the MCP endpoint of an application, started by its lifespan or by its first request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from operations.serving.admission import Caller
from operations.serving.asgi import Receive, Scope, Send


class LazyMCP:
    """The MCP endpoint, created by `make` and started on first use, because its modules are slow to import."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._endpoint: Any = None
        self._is_running = False
        self._background: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request. Without a lifespan, the first request starts the endpoint in a background task."""
        if not self._is_running:
            await self._run_in_background()
        await self._endpoint(scope, receive, send, caller)

    def end_streams(self) -> None:
        """End the streams of notifications."""
        if self._endpoint is not None:
            self._endpoint.end_streams()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the endpoint within the block."""
        self._endpoint = self._make()
        async with self._endpoint.run():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

    async def _run_in_background(self) -> None:
        if self._background is None or self._background.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._background = asyncio.create_task(self._run_forever(self._ready))
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def _run_forever(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.run():
                ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:  # raised in the requests that wait for the start
            if ready.done():
                raise
            ready.set_exception(error)
