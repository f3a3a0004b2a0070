"""Spoke: the transport that connects to a hub and reconnects with back-off and jitter."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from operations import __version__
from operations.calls.codec import JSON, UNREADABLE, codec_of
from operations.calls.events import VERSION, HelloPayload, HubHello, HubWelcome, WelcomePayload
from operations.calls.hub.listeners import NO_ADDRESS, HubListeners
from operations.errors import CallError, ErrorCode
from operations.pubsub import Capabilities, Receive, Stop, Undelivered
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.link import BATCH_BYTES, MAX_PAYLOAD, Link
from operations.pubsub.protocols import CONGESTED_BYTES, HEARTBEAT_SECONDS, MOST_UNSENT, TOO_SLOW
from operations.pubsub.reconnect import ReconnectingTransport
from operations.pubsub.urls import hosts_and_ports
from operations.pubsub.websocket import WebSocketLink
from operations.pubsub.websocket_client import connect, diagnose, retrieve_exception

_WELCOME_SECONDS = 5.0
Token = str | Callable[[], str] | None


class Spoke(ReconnectingTransport):
    """A client of a hub: `async with Spoke("ws://…", token=…) as spoke:`.

    `token` may be a function, for tokens that expire: it is called for each connection. Entering the block waits for
    the first connection. It raises an error if the hub refuses the token, and keeps trying while the hub does not
    respond.
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
        super().__init__(server="the hub", shortest_delay=shortest_delay, longest_delay=longest_delay)
        check_seconds(heartbeat=heartbeat)
        check_counts(max_payload=max_payload)
        hosts_and_ports(url)  # raise for an invalid address now: connecting would be retried indefinitely
        self.url = url
        self.peer = os.urandom(16).hex()
        self.welcome: WelcomePayload | None = None
        self._token = token
        self._options: dict[str, Any] = {"heartbeat": heartbeat, "max_payload": max_payload, "tls": tls}
        self._max_payload = max_payload
        self.capabilities = msgspec.structs.replace(_CAPABILITIES, max_payload=max_payload, heartbeat=heartbeat)
        self._batch = batch
        self._generation = 0
        self._link: WebSocketLink | None = None
        self._listeners = HubListeners(self._update)
        self._welcomed: asyncio.Future[WelcomePayload] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the spoke is connected to the hub."""
        return self._link is not None

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a message to the hub, which routes it by its header; call `undelivered` if it cannot be sent now."""
        link = self._link
        if link is None:
            self.unsent += 1
            if undelivered is not None:
                undelivered(f"there is no connection to the hub{self._why_down and f' ({self._why_down})'}")
        elif link.is_slow and undelivered is not None and link.unsent_bytes > MOST_UNSENT:
            undelivered(TOO_SLOW)
        else:
            link.send(message)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive all messages that the hub routes to this spoke; the address is not used."""
        return self._listeners.add(receive)

    def drop_connection(self, reason: str = "dropped on purpose") -> None:
        """Abort the connection, to test faults; the spoke reconnects."""
        if self._link is not None:
            self._link.abort(reason)

    async def _leave(self) -> None:
        if self._link is not None:
            link = self._link
            link.close("the spoke is leaving")
            await link.wait_closed()

    async def _wait_lost(self) -> None:
        if self._link is not None:
            await self._link.wait_closed()

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await diagnose(self.url, error)

    async def _connect(self) -> None:
        """Connect and complete the handshake."""
        loop = asyncio.get_running_loop()
        self._welcomed = loop.create_future()
        self._welcomed.add_done_callback(retrieve_exception)
        self._generation += 1
        link = await connect(self.url, self, token=self._fresh_token(), **self._options)
        try:
            hello = HelloPayload(
                self.peer,
                self._generation,
                ("json", "msgpack"),
                self._max_payload,
                self._batch,
                socket.gethostname(),
                os.getpid(),
                __version__,
            )
            link.send(JSON.encode(HubHello(VERSION, "", "", hello)))
            async with asyncio.timeout(_WELCOME_SECONDS):
                welcome = await self._welcomed
        except TimeoutError:
            link.abort("no welcome was received in time")
            raise CallError(ErrorCode.UNAVAILABLE, "the hub did not respond to the hello") from None
        except asyncio.CancelledError:
            link.abort("the spoke is leaving")
            raise
        if welcome.batch:
            link.batch_bytes = min(BATCH_BYTES, welcome.max_payload)
        self.welcome = welcome
        limit = min(self._max_payload, welcome.max_payload)
        codec = "msgpack" if "msgpack" in welcome.codecs else "json"
        self.capabilities = msgspec.structs.replace(self.capabilities, max_payload=limit, codec=codec)
        self._link = link
        self._update()

    def _fresh_token(self) -> str | None:
        try:
            return self._token() if callable(self._token) else self._token
        except Exception as error:
            raise CallError(ErrorCode.UNAVAILABLE, f"the token function failed: {error}") from error

    def opened(self, link: Link) -> None:
        """Do nothing: `_connect` sends the hello."""

    def received(self, message: bytes, link: Link) -> None:
        """Handle the welcome; pass to the listeners the messages that arrive directly after it."""
        if self._link is None and self._welcomed is not None and not self._welcomed.done():
            self._read_welcome(message)
            return
        self._listeners.receive(message, NO_ADDRESS)

    def _update(self) -> None:
        if self._link is not None:
            self._link.receive, self._link.source = self._listeners.receive, NO_ADDRESS

    def backlogged(self, link: Link, size: int) -> None:
        """Report congestion if many bytes are unsent, so that responses are paused."""
        if link.unsent_bytes > CONGESTED_BYTES:
            self._note_congestion(True)

    def drained(self, link: Link) -> None:
        """Report the end of congestion, so that responses continue."""
        self._note_congestion(False)

    def receiving(self, link: Link) -> None:
        """Do nothing: the hub is trusted, so its unhandled bytes are not limited here."""

    def closed(self, link: Link, reason: str) -> None:
        """Report the lost connection."""
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(CallError(ErrorCode.UNAVAILABLE, f"the hub closed the connection: {reason}"))
        self.unsent += link.unsent
        if self._link is link:
            self._link = None
            self._note_loss(reason)

    def _read_welcome(self, message: bytes) -> None:
        try:
            event = codec_of(message).decode_any(message)
        except UNREADABLE:
            return
        if isinstance(event, HubWelcome) and self._welcomed is not None:
            self._welcomed.set_result(event.payload)


_CAPABILITIES = Capabilities(
    tracks_peers=True,
    identity="hub",
)
