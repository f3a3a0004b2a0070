"""Spoke: a transport that dials out to a hub, and comes back when it was cut off, with back-off and jitter."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from operations.calls.codec import JSON, UNREADABLE, codec_of
from operations.calls.events import VERSION, Hello, HubHello, HubWelcome, Welcome
from operations.calls.hub import Receivers
from operations.errors import CallError, ErrorCode
from operations.pubsub import UNTRUSTED, Capabilities, Receive, Stop, Undelivered
from operations.pubsub.addresses import places
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.watchers import Watchers
from operations.pubsub.websocket import HEARTBEAT_SECONDS, MAX_PAYLOAD, Connection, connect

_log = logging.getLogger("operations")
_WELCOME_WITHIN = 5.0
Token = str | Callable[[], str] | None


class Spoke:
    """One end of a bus whose middle is a hub: `async with Spoke("ws://…", token=…) as spoke:`.

    `token` may be a function, asked at each connection, for tokens that expire. Entering waits for the first
    connection; one that the hub refuses is raised, one that is only not there yet is waited for.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        max_payload: int = MAX_PAYLOAD,
        batch: bool = True,
        shortest_delay: float = 0.1,
        longest_delay: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_seconds(heartbeat=heartbeat, shortest_delay=shortest_delay, longest_delay=longest_delay)
        check_counts(max_payload=max_payload)
        places(url)  # what is no address is told now: it would be tried for ever
        self.url = url
        self.peer = os.urandom(16).hex()
        self.welcome: Welcome | None = None
        self.reconnects = 0
        self.failures = 0
        """How many tries to connect failed."""
        self.unsent = 0
        """How many messages were dropped because there was no connection, or none any more."""
        self._trouble = ""
        """Why the last try to connect failed."""
        self._token = token
        self._options: dict[str, Any] = {"heartbeat": heartbeat, "max_payload": max_payload, "tls": tls}
        self._max_payload = max_payload
        self.capabilities = msgspec.structs.replace(_CAPABILITIES, max_payload=max_payload)
        self._batch = batch
        self._delays = shortest_delay, longest_delay
        self._generation = 0
        self._connection: Connection | None = None
        self._receivers = Receivers()
        self._watchers = Watchers()
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._closing = asyncio.Event()
        self._first: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the hub can be reached now."""
        return self._connection is not None

    async def __aenter__(self) -> Spoke:
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._stay_connected())
        self._task.add_done_callback(self._note_end)
        try:
            await self._first
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send to the hub, which routes by what the message says; while there is no hub, nothing is kept for later."""
        if self._connection is not None:
            self._connection.send(message)
            return
        self.unsent += 1
        if undelivered is not None:
            undelivered(f"there is no connection to the hub{self._trouble and f' ({self._trouble})'}")

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive whatever the hub routes here."""
        return self._receivers.add(receive)

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Be told when the hub is back, and when it is lost."""
        return self._watchers.add(up, down)

    async def close(self) -> None:
        """Write what is buffered, leave the hub, and do not come back."""
        self._closing.set()
        if self._connection is not None:
            await self._connection.close("the spoke is leaving")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def cut(self, reason: str = "cut on purpose") -> None:
        """Drop the connection as a fault would; the spoke comes back by itself."""
        if self._connection is not None:
            self._connection.abort(reason)

    async def _stay_connected(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            try:
                connection = await self._dial()
            except CallError as error:
                if self._give_up(error):
                    return
                await self._pause(attempt, error)
                attempt += 1
                continue
            attempt = 0
            self._settle_first(None)
            await connection.wait_closed()

    async def _dial(self) -> Connection:
        loop = asyncio.get_running_loop()
        self._welcomed = loop.create_future()
        self._generation += 1
        connection = await connect(self.url, self, token=self._fresh_token(), **self._options)
        try:
            hello = Hello(self.peer, self._generation, ("json", "msgpack"), self._max_payload, self._batch)
            connection.send(JSON.encode(HubHello(VERSION, "", "", hello)))
            async with asyncio.timeout(_WELCOME_WITHIN):
                welcome = await self._welcomed
        except TimeoutError:
            connection.abort("no welcome came")
            raise CallError(ErrorCode.UNAVAILABLE, "the hub did not answer the hello") from None
        except asyncio.CancelledError:
            connection.abort("the spoke is leaving")
            raise
        connection.batches = welcome.batch
        self.welcome = welcome
        limit = min(self._max_payload, welcome.max_payload)
        self.capabilities = msgspec.structs.replace(_CAPABILITIES, max_payload=limit)
        self._connection = connection
        self.reconnects = self._generation - 1
        self._trouble = ""
        self._watchers.up()
        return connection

    def _fresh_token(self) -> str | None:
        try:
            return self._token() if callable(self._token) else self._token
        except Exception as error:
            raise CallError(ErrorCode.UNAVAILABLE, f"no token could be had: {error}") from error

    def opened(self, connection: Connection) -> None:
        """The socket stands; the hello comes next."""

    def received(self, connection: Connection, message: bytes) -> None:
        """The welcome first, then events for whoever listens."""
        if self._connection is None and self._welcomed is not None and not self._welcomed.done():
            self._read_welcome(message)
            return
        for receive in self._receivers.all:
            receive(message)

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(CallError(ErrorCode.UNAVAILABLE, f"the hub hung up: {reason}"))
        self.unsent += connection.unsent
        if self._connection is connection:
            self._connection = None
            self._watchers.down(reason)

    def _read_welcome(self, message: bytes) -> None:
        try:
            event = codec_of(message).decode(message)
        except UNREADABLE:
            return
        if isinstance(event, HubWelcome) and self._welcomed is not None:
            self._welcomed.set_result(event.payload)

    def _give_up(self, error: CallError) -> bool:
        """A first connection that is refused, or must not be trusted, will not be better the next time."""
        hopeless = error.code is ErrorCode.ACCESS_DENIED or (error.details or {}).get("reason") == UNTRUSTED
        if not hopeless or self._first is None or self._first.done():
            return False
        self._settle_first(error)
        return True

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """The task that keeps the connection ended: whoever waits for the first one must not wait for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the spoke stopped", exc_info=error)
            self._settle_first(error)

    def _settle_first(self, error: BaseException | None) -> None:
        if self._first is None or self._first.done():
            return
        if error is None:
            self._first.set_result(None)
        else:
            self._first.set_exception(error)

    async def _pause(self, attempt: int, error: CallError) -> None:
        """Wait before the next try: longer each time, and never the same for all spokes of a hub that restarted."""
        self.failures += 1
        shortest, longest = self._delays
        delay = random.uniform(0.5, 1.0) * min(longest, shortest * 2 ** min(attempt, 16))
        level = logging.INFO if error.message == self._trouble else logging.WARNING
        self._trouble = error.message
        _log.log(level, "no connection to the hub (%s); next try in %.1f s", error.message, delay)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._closing.wait()


_CAPABILITIES = Capabilities(
    knows_no_responders=True,
    tracks_peers=True,
    groups=True,
    ordered=True,
    identity="hub",
)
