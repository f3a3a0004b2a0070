"""Spoke: a transport that dials out to a hub, and comes back when it was cut off, with back-off and jitter."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from operations.calls.codec import JSON, UNREADABLE, codec_of
from operations.calls.events import VERSION, Hello, HubHello, HubWelcome, Welcome
from operations.calls.hub import Receivers
from operations.errors import CallError, ErrorCode
from operations.pubsub import Capabilities, Receive, Stop, Undelivered
from operations.pubsub.addresses import places
from operations.pubsub.dialling import look_at
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.reconnecting import Reconnecting
from operations.pubsub.websocket import HEARTBEAT_SECONDS, MAX_PAYLOAD, Connection, connect, diagnose

_WELCOME_WITHIN = 5.0
Token = str | Callable[[], str] | None


class Spoke(Reconnecting):
    """One end of a bus whose middle is a hub: `async with Spoke("ws://…", token=…) as spoke:`.

    `token` may be a function, asked at each connection, for tokens that expire. Entering waits for the first
    connection; one that the hub refuses is raised, one that is only not there yet is waited for. Where answers come at
    once, it stays awake for them, unless `stay_awake=False`.
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
        stay_awake: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(server="the hub", shortest_delay=shortest_delay, longest_delay=longest_delay)
        check_seconds(heartbeat=heartbeat)
        check_counts(max_payload=max_payload)
        places(url)  # what is no address is told now: it would be tried for ever
        self.url = url
        self.peer = os.urandom(16).hex()
        self.welcome: Welcome | None = None
        self.reconnects = 0
        self.unsent = 0
        """How many messages were dropped because there was no connection, or none any more."""
        self._token = token
        self._options: dict[str, Any] = {
            "heartbeat": heartbeat,
            "max_payload": max_payload,
            "stay_awake": stay_awake,
            "tls": tls,
        }
        self._max_payload = max_payload
        self.capabilities = msgspec.structs.replace(_CAPABILITIES, max_payload=max_payload)
        self._batch = batch
        self._generation = 0
        self._connection: Connection | None = None
        self._receivers = Receivers(self._hear)
        self._welcomed: asyncio.Future[Welcome] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the hub can be reached now."""
        return self._connection is not None

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send to the hub, which routes by what the message says; while there is no hub, nothing is kept for later."""
        if self._connection is not None:
            self._connection.send(message)
            return
        self.unsent += 1
        if undelivered is not None:
            undelivered(f"there is no connection to the hub{self._why_down and f' ({self._why_down})'}")

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive whatever the hub routes here."""
        return self._receivers.add(receive)

    def cut(self, reason: str = "cut on purpose") -> None:
        """Drop the connection as a fault would; the spoke comes back by itself."""
        if self._connection is not None:
            self._connection.abort(reason)

    async def _leave(self) -> None:
        if self._connection is not None:
            await self._connection.close("the spoke is leaving")

    async def _stay_connected(self) -> None:
        attempt = 0
        while not self._is_closing:
            try:
                connection = await self._dial()
            except CallError as error:
                if await self._give_up(error):
                    return
                self._note_failure(error)
                await self._pause(attempt)
                attempt += 1
                continue
            attempt = 0
            self._arrive()
            await connection.wait_closed()

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await diagnose(self.url, error)

    async def _dial(self) -> Connection:
        loop = asyncio.get_running_loop()
        self._welcomed = loop.create_future()
        self._welcomed.add_done_callback(look_at)
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
        codec = "msgpack" if "msgpack" in welcome.codecs else "json"
        self.capabilities = msgspec.structs.replace(_CAPABILITIES, max_payload=limit, codec=codec)
        self._connection = connection
        self._hear()
        self.reconnects = self._generation - 1
        self._why_down = ""
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
        """The welcome, and what comes right behind it; what comes then is for whoever listens."""
        if self._connection is None and self._welcomed is not None and not self._welcomed.done():
            self._read_welcome(message)
            return
        self._receivers.receive(message)

    def _hear(self) -> None:
        if self._connection is not None:
            self._connection.receive = self._receivers.receive

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


_CAPABILITIES = Capabilities(
    knows_no_responders=True,
    tracks_peers=True,
    groups=True,
    ordered=True,
    identity="hub",
)
