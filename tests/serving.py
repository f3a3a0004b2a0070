"""Running an ASGI application on a free port of the loopback, for as long as a block lasts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn


@contextmanager
def serving(application: Any, *, lifespan: Literal["on", "off"] = "off", port: int = 0) -> Iterator[str]:
    """Serve the application on uvicorn in a thread of its own; gives its base URL."""
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
