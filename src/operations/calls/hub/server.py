"""Hub: a server that authenticates spokes, lists their operations and routes calls between them."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import TracebackType
from weakref import WeakValueDictionary

from operations.calls.codec import CODECS, JSON, UNREADABLE, codec_of
from operations.calls.events import VERSION, HelloPayload, HubHello, HubWelcome, WelcomePayload
from operations.calls.hub.asgi import ASGIHub
from operations.calls.hub.listeners import NO_ADDRESS, HubListeners
from operations.calls.hub.router import CALLS_PER_CALLER, Router
from operations.calls.hub.session import Accept, HubSession, PeerNames, SlowReaderCheck, TokenConnections
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.grants import CLOSING_SECONDS
from operations.identity.tokens import Authenticator, Principal, check_authenticator
from operations.pubsub import Capabilities, Receive, Stop, Undelivered
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.link import (
    BATCH_BYTES,
    MAX_PAYLOAD,
    SLOW_READER,
    Callbacks,
    LargeMessages,
    Link,
    Listener,
    Turn,
)
from operations.pubsub.protocols import HEARTBEAT_SECONDS, InRouterProcess, Part
from operations.telemetry.counters import Counters
from operations.telemetry.metrics import Measure

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
_MAX_UNSENT = 256 << 20
"""Largest number of unsent bytes of all peers together."""
_MAX_UNSENT_OF_TOKEN = 128 << 20
"""Largest number of unsent bytes of all peers of one token."""
_MAX_RECEIVED = 16 << 20
"""Largest number of received bytes that the hub holds for all peers of one token without rights."""
_MAX_HELD = 32 << 20
"""Largest number of received and unsent bytes of all peers of one token without rights."""
_MAX_WITHOUT_RIGHTS = 4 << 20
"""Largest message of a peer without rights: the hub keeps up to three copies of a message, and reading its
header takes 3 ns per byte.
"""
_UNSENT_SECONDS = 0.1
"""Minimum interval between two checks of all unsent bytes."""
_MOST_CONNECTIONS = 64
"""Largest number of connections of one token."""


class Hub:
    """A server at which spokes register their operations: `async with Hub(authenticator) as hub:`.

    Code in the hub's own process calls and serves through `hub.transport()`. `closing_seconds` is the time for which a
    worker may still make nested calls after its request was aborted. `calls_per_caller` is the largest number of calls
    of one identity that were sent to workers and have not ended; further calls are queued at the hub.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        heartbeat: float = HEARTBEAT_SECONDS,
        max_payload: int = MAX_PAYLOAD,
        closing_seconds: float = CLOSING_SECONDS,
        calls_per_caller: int = CALLS_PER_CALLER,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_authenticator(authenticator)
        check_seconds(heartbeat=heartbeat)
        check_counts(max_payload=max_payload, calls_per_caller=calls_per_caller)
        if closing_seconds:
            check_seconds(closing_seconds=closing_seconds)
        self.router = Router(closing_seconds=closing_seconds, calls_per_caller=calls_per_caller)
        self.receive: Callable[[bytes, HubSession], None] = self.router.receive
        self.large = LargeMessages()
        self.heartbeat = heartbeat
        self.max_payload = max_payload
        self._authenticator = authenticator
        self._host = host
        self._port = port
        self._tls = tls
        self._listener: Listener | None = None
        self._digest_key = os.urandom(16)
        """The key of the digests of tokens and addresses.

        Workers receive the digest of an anonymous caller's address; without the key they cannot guess the address.
        """
        self._accounts: dict[bytes, TokenConnections] = {}
        self._joined: dict[str, HubConnection] = {}
        """The connections whose handshake is complete, by the name of their peer."""
        self._turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        """The `Turn` of each connected identity: it limits the messages of all connections of the identity together."""
        self._unsent_checked = 0.0
        self._names = PeerNames()
        self._numbers = itertools.count(1)

    @property
    def port(self) -> int:
        """The port that the hub listens at."""
        return self._listener.port if self._listener is not None else self._port

    @property
    def url(self) -> str:
        """The address that spokes connect to."""
        return f"{'wss' if self._tls is not None else 'ws'}://{self._host}:{self.port}/"

    @property
    def counters(self) -> Counters:
        """Counters of the events that were not forwarded normally."""
        return self.router.counters

    def measures(self) -> Iterator[Measure]:
        """Return the metrics of the hub."""
        yield from self.counters.measures()
        yield Measure("operations_hub_peers", len(self._joined))

    @property
    def operations(self) -> list[str]:
        """The ids of the operations that can be called now."""
        return sorted(self.router.operations)

    @property
    def connected(self) -> list[str]:
        """The ids of the identities of the connected spokes."""
        return sorted(each.session.principal.identity.id for each in self._joined.values())

    def transport(self) -> HubTransport:
        """Return a transport for the hub's own process; it is trusted and may call with any identity."""
        transport = HubTransport(self.router, self.max_payload)
        self._names.reserve(transport.peer)
        return transport

    def asgi_app(self) -> ASGIHub:
        """Return an ASGI application whose WebSocket connections are spokes of this hub.

        Do not call `start`: the server of the application listens for spokes. The hub is closed when the server shuts
        down. If the application is mounted in another application, call `close` yourself.
        """
        return ASGIHub(self.admit, max_payload=self.max_payload, close=self.close)

    async def __aenter__(self) -> Hub:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen for spokes."""
        from operations.pubsub.websocket_server import serve  # imported lazily: an ASGI server has its own library

        self._listener = await serve(
            self.admit,
            host=self._host,
            port=self._port,
            heartbeat=self.heartbeat,
            max_payload=self.max_payload,
            tls=self._tls,
        )

    async def close(self) -> None:
        """Accept no more connections and close the open ones; spokes reconnect when the hub is back."""
        if self._listener is not None:
            self._port = self._listener.port
            await self._listener.close()
            self._listener = None
        links = [link for account in self._accounts.values() for link in account.links]
        for link in links:
            link.close("the hub is shutting down")
        await asyncio.gather(*(link.wait_closed() for link in links))

    def admit(self, token: str | None) -> Callbacks:
        """Authenticate a new connection; raise a CallError if the connection is refused."""
        return self.admit_as(self._authenticator.authenticate(token), token)

    def admit_as(self, principal: Principal, token: str | None, *, anonymous: bool = False) -> HubConnection:
        """Admit an authenticated connection, unless its token already has too many connections.

        An anonymous peer calls without an identity and has no token. For such a peer, pass as
        `token` a string by which its connections are counted, such as its address.
        """
        counted = (token or "").encode(errors="surrogatepass")
        if counted.count(b".") == 2:  # a JWT: from one ECDSA signature, anybody can compute a second valid one
            counted = counted.rpartition(b".")[0]
        digest = blake2b(counted, digest_size=16, key=self._digest_key).digest()
        account = self._accounts.get(digest) or TokenConnections(digest)
        if len(account.links) >= _MOST_CONNECTIONS:
            reason = f"too many connections: a token may have {_MOST_CONNECTIONS}"
            raise CallError(ErrorCode.UNAVAILABLE, reason)
        name = f"s{next(self._numbers)}"
        # A worker has one queue for all calls without an identity whose session names begin with the same digest.
        session = HubSession(f"{digest.hex()}.{name}" if anonymous else name, principal, lambda message: None)
        if anonymous:
            session.caller = None
        turn = self._turns.setdefault(principal.identity.id, Turn())
        return HubConnection(self, session, account, turn)

    def limit_unsent(self) -> None:
        """Disconnect the peers with the most unsent bytes until the total is small; at most ten times a second."""
        now = asyncio.get_running_loop().time()
        if now < self._unsent_checked + _UNSENT_SECONDS:
            return
        self._unsent_checked = now
        unsent = {link: link.unsent_bytes for account in self._accounts.values() for link in account.links}
        total = sum(unsent.values())
        for link in sorted(unsent, key=lambda link: unsent[link], reverse=True):
            if total <= _MAX_UNSENT:
                return
            total -= unsent[link]
            link.abort(SLOW_READER)

    def enter(self, connection: HubConnection) -> None:
        """Add an accepted connection to the connections of its token."""
        account = connection.account
        self._accounts[account.digest] = account

    def join(self, connection: HubConnection) -> bool:
        """Add the session of a connection, in place of an older connection of the same peer.

        Return False if the peer's name is invalid or owned by another identity, or if the peer already has a newer
        connection.
        """
        session = connection.session
        if not self._names.claim(session.peer, session.principal.identity.id):
            return False
        older = self._joined.get(session.peer)
        if older is not None:
            is_same = older.session.principal.identity.id == session.principal.identity.id
            if not is_same or session.generation <= older.session.generation:
                return False
            older.abort("the spoke connected again")
        session.is_worker = self._names.is_worker(session.peer)
        self._joined[session.peer] = connection
        self.router.join(session)
        return True

    def leave(self, connection: HubConnection, reason: str) -> None:
        """Remove a connection that is closed, and its session."""
        self.router.unsent += connection.unsent
        account = connection.account
        if not account.links:
            self._accounts.pop(account.digest, None)
        if connection.joined:
            del self._joined[connection.session.peer]
            if connection.session.is_worker:
                self._names.note_worker(connection.session.peer)
            self.router.leave(connection.session, reason)


class HubConnection:
    """The hub's side of one spoke's connection: handshake, expiry of the token, session."""

    def __init__(self, hub: Hub, session: HubSession, account: TokenConnections, turn: Turn) -> None:
        self.session = session
        self.account = account
        self._turn = turn
        self.joined = False
        """Whether the handshake is complete."""
        self._hub = hub
        self._link: Link | None = None
        self._has_left = False
        self._reading: SlowReaderCheck | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def unsent(self) -> int:
        """Number of messages that were not sent before the connection closed."""
        return self._link.unsent if self._link is not None else 0

    def opened(self, link: Link) -> None:
        """Add the link to the links of its token, and start the timers for the hello and the token's expiry."""
        self._link = self.session.link = link
        link.turn, link.large = self._turn, self._hub.large
        self.session.deliver = link.send
        self.account.links.add(link)
        self._hub.enter(self)
        link.max_message = _HELLO_BYTES
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(_HELLO_SECONDS, self._require_hello))
        expires_at = self.session.principal.expires_at
        if expires_at is not None:
            left = max(0.0, expires_at - time.time())
            self._timers.append(loop.call_later(left, self.end, "the token expired"))

    def received(self, message: bytes, link: Link) -> None:
        """Handle the hello; later messages go to the router."""
        if self._has_left:
            return
        hello = _read_hello(message)
        if hello is None:
            self._hub.counters.malformed += 1
            link.abort("the first event was not a valid hello")
            return
        session = self.session
        session.peer, session.generation, session.max_payload = hello.peer, hello.generation, hello.max_payload
        session.hello = hello
        codecs = {JSON.name, *hello.codecs} & CODECS.keys()
        session.codec = JSON if len(codecs) < len(CODECS) else None
        if not self._hub.join(self):
            self._hub.counters.foreign += 1
            link.abort("another spoke has this name")
            return
        self.joined = True
        self._welcome(link, tuple(sorted(codecs)), batch=hello.batch)

    def backlogged(self, link: Link, size: int) -> None:
        """Enforce the limits of unsent bytes: of this peer, of its token, and of all peers together."""
        if not self.session.is_worker:  # callers can fill the connection of a worker, so other limits apply to it
            if self._reading is None:
                self._reading = SlowReaderCheck(link)
            self._reading.wrote(size)
        unsent = self.account.unsent_bytes
        has_rights = self.session.principal.has_rights
        if unsent > (_MAX_UNSENT_OF_TOKEN if has_rights else _MAX_HELD - self.account.received_bytes):
            link.abort(SLOW_READER)
        self._hub.limit_unsent()

    def drained(self, link: Link) -> None:
        """Do nothing: the hub does not pause for slow peers, but disconnects a peer that exceeds its limits."""

    def receiving(self, link: Link) -> None:
        """Enforce the limit of received bytes."""
        if not self.session.principal.has_rights and self.account.received_bytes > _MAX_RECEIVED:
            link.abort("the connections of this token have too much unhandled data")

    def closed(self, link: Link, reason: str) -> None:
        """Remove the session and its operations."""
        if self._has_left:
            return
        self._has_left = True
        self.account.links.discard(link)
        if self._reading is not None:
            self._reading.close()
        for timer in self._timers:
            timer.cancel()
        link.receive, link.source = self.received, link
        self._hub.leave(self, reason)
        self.joined = False

    def abort(self, reason: str) -> None:
        """Abort the link; the session's operations are removed before this method returns."""
        if self._link is not None:
            self._link.abort(reason)
            self.closed(self._link, reason)

    def end(self, reason: str) -> None:
        """Remove the session and close the link; messages that arrive before the link is closed are dropped."""
        if self._link is not None:
            self._link.close(reason)
            self.closed(self._link, reason)

    def _require_hello(self) -> None:
        if not self.joined and self._link is not None:
            self._link.abort("no hello was received in time")

    def _welcome(self, link: Link, codecs: tuple[str, ...], *, batch: bool) -> None:
        session, hub = self.session, self._hub
        most = hub.max_payload if session.principal.has_rights else min(hub.max_payload, _MAX_WITHOUT_RIGHTS)
        welcome = WelcomePayload(
            session.name,
            codecs,
            hub.heartbeat,
            most,
            batch,
            session.caller,
            list(session.principal.namespaces),
        )
        link.receive, link.source = hub.receive, session
        link.max_message = most
        if batch:
            link.batch_bytes = min(BATCH_BYTES, session.max_payload or BATCH_BYTES)
        link.send(JSON.encode(HubWelcome(VERSION, "", session.peer, welcome)))


def _read_hello(message: bytes) -> HelloPayload | None:
    if len(message) > _HELLO_BYTES:
        return None
    try:
        event = codec_of(message).decode_any(message)
    except UNREADABLE:
        return None
    return event.payload if isinstance(event, HubHello) else None


class HubTransport:
    """The transport of the hub's own process: a session without a connection."""

    def __init__(self, router: Router, max_payload: int) -> None:
        self.peer = os.urandom(16).hex()
        self.capabilities = Capabilities(
            tracks_peers=True,
            max_payload=max_payload,
            identity="hub",
            claims_identity=True,
            codec="msgpack",
        )
        self.attachment: object | None = None
        self._router = router
        self._listeners = HubListeners(self._update)
        self.respond = router.respond
        self._accept: Accept | None = None
        principal = Principal(Identity("hub"), ("*",))
        self._session = HubSession(f"local-{self.peer}", principal, self._deliver, trusted=True)
        self._session.peer = self.peer
        router.join(self._session)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Route a message; if it cannot be delivered, the router responds with an error."""
        self._router.receive(message, self._session)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive all messages that are routed to the hub's own process; the address is not used."""
        return self._listeners.add(receive)

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Do nothing: the connection within one process is never lost."""
        return lambda: None

    def optional(self, kind: type[Part]) -> Part | None:
        """Return this transport for `InRouterProcess`, and None for any other part."""
        return self if kind is InRouterProcess and isinstance(self, kind) else None

    def accept(self, receive: Accept) -> None:
        """Pass small requests to `receive` without encoding them, while this transport has only one listener."""
        self._accept = receive
        self._update()

    def _update(self) -> None:
        self._session.accept = self._accept if len(self._listeners) == 1 else None

    async def close(self) -> None:
        """Leave the hub."""
        self._router.leave(self._session, "its transport was closed")

    def _deliver(self, message: bytes) -> None:
        self._listeners.receive(message, NO_ADDRESS)
