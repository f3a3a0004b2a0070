"""ASGI applications on a free port of the loopback, for the duration of a block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import uvicorn


@contextmanager
def serving(application: Any, *, lifespan: Literal["on", "off"] = "off", port: int = 0) -> Iterator[str]:
    """Serve the application on uvicorn in a separate thread; yield its base URL."""
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    config = uvicorn.Config(
        application, log_level="critical", lifespan=lifespan, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class _Server(uvicorn.Server):
    """A server that leaves the signal handlers of its process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving_here(application: Any, **options: Any) -> AsyncIterator[str]:
    """Serve the WebSockets of an application on uvicorn in the running event loop; yield their URL."""
    # asyncio disables Nagle's algorithm only for sockets whose protocol is given as TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(
        application,
        log_level="critical",
        lifespan="on",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
        **options,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await task
        listener.close()
