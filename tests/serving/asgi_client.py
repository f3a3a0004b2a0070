"""A client of an ASGI application in the same loop: whole answers, open streams, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

HOST = "127.0.0.1:8000"


class Answer:
    """A response that is complete."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.raw_headers = headers
        self.headers = {name.decode(): value.decode("latin-1") for name, value in headers}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request whose response is read while it is sent."""

    def __init__(self, application: Any, scope: dict[str, Any], body: list[bytes]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self._application = application
        self._scope = scope
        self._pieces = list(body)
        self._gone = asyncio.Event()
        self._changed = asyncio.Condition()
        self._complete = False
        self._task: asyncio.Task[None] | None = None
        self.paused = asyncio.Event()
        self.paused.set()

    async def __aenter__(self) -> Exchange:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone.set()
        self.paused.set()
        assert self._task is not None
        async with asyncio.timeout(5):
            await self._task

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def until(self, wanted: Any) -> None:
        """Wait until a condition of this exchange holds."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: wanted(self))

    async def complete(self) -> Answer:
        await self.until(lambda _: self._complete)
        return Answer(self.status, self.headers, self.body)

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._send)
        finally:
            async with self._changed:
                self._complete = True
                self._gone.set()
                self._changed.notify_all()

    async def _receive(self) -> dict[str, Any]:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Mapping[str, Any]) -> None:
        await self.paused.wait()
        async with self._changed:
            if event["type"] == "http.response.start":
                self.status, self.headers = event["status"], list(event["headers"])
            else:
                self.body += event.get("body", b"")
                if not event.get("more_body", False):
                    self._complete = True
                    self._gone.set()
            self._changed.notify_all()


def exchange(
    application: Any,
    method: str,
    target: str,
    *,
    body: bytes | list[bytes] = b"",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    json_body: Any = None,
    token: str | None = None,
    address: str = "10.0.0.1",
    root_path: str = "",
) -> Exchange:
    path, _, query = target.partition("?")
    listed = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if json_body is not None:
        body = json.dumps(json_body).encode()
        if "content-type" not in dict(listed):
            listed.append(("content-type", "application/json"))
    if token is not None:
        listed.append(("authorization", f"Bearer {token}"))
    if "host" not in dict(listed):
        listed.append(("host", HOST))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root_path + path,
        "raw_path": (root_path + path).encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in listed],
        "client": (address, 5000),
        "server": ("127.0.0.1", 8000),
    }
    return Exchange(application, scope, [body] if isinstance(body, bytes) else body)


async def request(application: Any, method: str, target: str, **options: Any) -> Answer:
    """Send a request and return its whole response."""
    async with exchange(application, method, target, **options) as sent:
        return await sent.complete()


async def post(application: Any, target: str, data: Any = None, **options: Any) -> Answer:
    return await request(application, "POST", target, json_body={} if data is None else data, **options)


@asynccontextmanager
async def following(application: Any, target: str, **options: Any) -> AsyncIterator[Exchange]:
    """Follow an event stream."""
    async with exchange(application, "GET", target, **options) as sent:
        yield sent


def events_of(body: bytes) -> list[dict[str, str]]:
    """Return the events of a stream, comments and `retry` left out."""
    events = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        fields.pop("retry", None)
        if fields:
            events.append(fields)
    return events
