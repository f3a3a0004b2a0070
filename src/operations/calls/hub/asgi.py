"""The hub as an ASGI application: spokes connect to a WebSocket endpoint of any ASGI server.

The application needs no framework. The ASGI server sends pings, handles TLS and limits the size of a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from operations.errors import CallError
from operations.pubsub.framing import batches, messages_of
from operations.pubsub.link import (
    CLOSE_SECONDS,
    HEADROOM,
    LARGE_MESSAGE,
    MAX_UNSENT,
    PROTOCOL,
    PROTOCOLS_HEADER,
    SLOW_READER,
    Admit,
    Callbacks,
    LargeMessages,
    Turn,
    bearer_token,
    refusal_status,
    split_protocols,
)

ASGIEvent = MutableMapping[str, Any]
ASGIReceive = Callable[[], Awaitable[ASGIEvent]]
ASGISend = Callable[[ASGIEvent], Awaitable[None]]
_SLOW_BYTES = 64 << 10
"""Number of unsent bytes above which a peer counts as slow."""
_UPGRADE_REQUIRED = 426
_POLICY_VIOLATION = 1008
_NORMAL_CLOSURE = 1000
_TEXT_TYPE = (b"content-type", b"text/plain; charset=utf-8")


class ASGILink:
    """One WebSocket of an ASGI server; a `Link`."""

    def __init__(self, callbacks: Callbacks, max_message: int) -> None:
        self.turn = Turn()
        self.large = LargeMessages()
        self.batch_bytes = 0
        self.max_message = max_message
        self.received_bytes = 0  # the ASGI server has the receive buffer
        self.unsent = 0
        self.reason = ""
        """Why the connection was closed; empty while it is open."""
        self.receive: Callable[[bytes, Any], None] = callbacks.received
        self.source: Any = self
        self._callbacks = callbacks
        self._write_buffer: list[bytes] = []
        self._unsent_bytes = 0
        self._wake = asyncio.Event()
        self._is_closing = False
        self._aborted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def unsent_bytes(self) -> int:
        """Number of buffered bytes that the server has not accepted yet."""
        return self._unsent_bytes

    @property
    def is_slow(self) -> bool:
        """Whether the peer reads more slowly than this side writes."""
        return self._unsent_bytes > _SLOW_BYTES

    def send(self, message: bytes) -> None:
        """Buffer a message; all messages of one iteration of the event loop are sent together."""
        if self._gone.done() or self._is_closing or self._aborted.is_set():
            self.unsent += 1
            return
        self._write_buffer.append(message)
        self._unsent_bytes += len(message)
        self._wake.set()
        if self._unsent_bytes > MAX_UNSENT:
            self.abort(SLOW_READER)
        if self.is_slow:
            self._callbacks.backlogged(self, len(message))

    def close(self, reason: str) -> None:
        """Write the buffered messages and close; disconnect a peer that does not read them within `CLOSE_SECONDS`."""
        if not self._gone.done() and not self._is_closing:
            self.reason = self.reason or reason
            self._is_closing = True
            self._wake.set()
            self._timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort, reason)

    def abort(self, reason: str) -> None:
        """Close immediately."""
        if not self._gone.done():
            self.reason = self.reason or reason
            self.unsent += len(self._write_buffer)
            self._write_buffer.clear()
            self._aborted.set()

    async def wait_closed(self) -> None:
        """Return once the connection is closed."""
        await asyncio.shield(self._gone)

    async def run(self, receive: ASGIReceive, send: ASGISend, protocol: str | None) -> None:
        """Accept the connection, then read and write until either side closes it."""
        try:
            if (await receive())["type"] == "websocket.connect":
                await send({"type": "websocket.accept", "subprotocol": protocol})
                await self._exchange(receive, send)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.unsent += len(self._write_buffer)
            self._gone.set_result(None)
            self._callbacks.closed(self, self.reason or "the connection was lost")

    async def _exchange(self, receive: ASGIReceive, send: ASGISend) -> None:
        steps = (self._read(receive), self._write(send), self._aborted.wait())
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, receive: ASGIReceive) -> None:
        while (event := await receive())["type"] != "websocket.disconnect":
            data = event.get("bytes")
            frame: bytes = event["text"].encode() if data is None else data
            if len(frame) > self.max_message + HEADROOM:
                self.abort("a message exceeds the size limit")
                return
            for message in messages_of(frame):
                while len(message) > LARGE_MESSAGE and not self.large.enter():  # noqa: ASYNC110  # one attempt per iteration
                    await asyncio.sleep(0)
                self.turn.begin()
                self.receive(message, self.source)
                if self._aborted.is_set():
                    return
                if self.turn.is_over():
                    # `receive` may return many frames without suspending.
                    await asyncio.sleep(0)
        self.reason = self.reason or f"closed by the peer: {event.get('reason') or 'no reason given'}"

    async def _write(self, send: ASGISend) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            messages, self._write_buffer = self._write_buffer, []
            frames: Sequence[bytes] = messages
            if self.batch_bytes and len(messages) > 1:
                frames = batches(messages, self.batch_bytes)
            size = sum(map(len, messages))
            for frame in frames:
                await send(_frame_event(frame))
            self._unsent_bytes -= size
            if self._is_closing and not self._write_buffer:
                await send({"type": "websocket.close", "code": _NORMAL_CLOSURE, "reason": self.reason[:120]})
                return


def _frame_event(frame: bytes) -> ASGIEvent:
    if frame[:1] == b"{":
        return {"type": "websocket.send", "text": frame.decode()}
    return {"type": "websocket.send", "bytes": frame}


class ASGIHub:
    """The ASGI application of a hub: WebSocket connections are spokes, HTTP requests are refused."""

    def __init__(self, admit: Admit, *, max_payload: int, close: Callable[[], Awaitable[None]]) -> None:
        self._admit = admit
        self._max_payload = max_payload
        self._close = close

    async def __call__(self, scope: ASGIEvent, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve one connection or the server's lifespan; refuse an HTTP request."""
        if scope["type"] == "websocket":
            await self._accept(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            headers = [_TEXT_TYPE, (b"upgrade", b"websocket")]
            await send({"type": "http.response.start", "status": _UPGRADE_REQUIRED, "headers": headers})
            await send({"type": "http.response.body", "body": b"this is the WebSocket endpoint of a hub"})

    async def _accept(self, scope: ASGIEvent, receive: ASGIReceive, send: ASGISend) -> None:
        protocols = split_protocols(_values(scope, PROTOCOLS_HEADER))
        authorization = next(iter(_values(scope, "Authorization")), "")
        try:
            callbacks = self._admit(bearer_token(authorization, protocols))
        except CallError as error:
            await receive()
            await _deny(scope, send, error)
            return
        link = ASGILink(callbacks, self._max_payload)
        callbacks.opened(link)
        # The response never names the sub-protocol that carries a token.
        await link.run(receive, send, PROTOCOL if PROTOCOL in protocols else None)

    async def _live(self, receive: ASGIReceive, send: ASGISend) -> None:
        """Close the hub when the server shuts down."""
        while (event := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{event['type']}.complete"})
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})


def _values(scope: ASGIEvent, name: str) -> list[str]:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [value.decode("latin-1") for key, value in headers if key == name.lower().encode()]


async def _deny(scope: ASGIEvent, send: ASGISend, error: CallError) -> None:
    """Refuse a connection before it is accepted, with the error's status if the server supports that, else with 403."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message[:120]})
        return
    headers = [_TEXT_TYPE, (b"www-authenticate", b"Bearer")]
    await send({"type": "websocket.http.response.start", "status": refusal_status(error), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error.message.encode(errors="replace")})
