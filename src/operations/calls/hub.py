"""Hub: where spokes dial in, authenticate and register; it exposes their operations and routes calls between them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import ssl
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from operations.calls.authentication import Authenticator, Principal
from operations.calls.codec import CODECS, JSON, UNREADABLE, Codec, codec_of
from operations.calls.counters import Counters
from operations.calls.events import VERSION, CallRequested, Header, HubHello, HubWelcome, Welcome
from operations.calls.routing import Router
from operations.calls.sessions import Session
from operations.context import Identity
from operations.pubsub import Capabilities, Receive, Stop, Undelivered
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.websocket import HEARTBEAT_SECONDS, MAX_PAYLOAD, Connection, Listener, serve
from operations.recent import Recent

_HELLO_WITHIN = 5.0
_SHORTEST_NAME = 16
_REMEMBERED = 100_000


class Hub:
    """A WebSocket server that spokes register at: `async with Hub(authenticator, port=…) as hub:`.

    Code in the hub's own process calls and serves through `hub.transport()`. Where answers come at once, it stays awake
    for them, unless `stay_awake=False`.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        heartbeat: float = HEARTBEAT_SECONDS,
        max_payload: int = MAX_PAYLOAD,
        stay_awake: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_seconds(heartbeat=heartbeat)
        check_counts(max_payload=max_payload)
        self.router = Router()
        self.heartbeat = heartbeat
        self.max_payload = max_payload
        self._authenticator = authenticator
        self._host = host
        self._port = port
        self._stay_awake = stay_awake
        self._tls = tls
        self._listener: Listener | None = None
        self._spokes: set[SpokeSession] = set()
        self._owners: Recent[str, str] = Recent(_REMEMBERED)
        self._numbers = itertools.count(1)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._listener.port if self._listener is not None else self._port

    @property
    def url(self) -> str:
        """Where spokes dial."""
        return f"{'wss' if self._tls is not None else 'ws'}://{self._host}:{self.port}/"

    @property
    def counters(self) -> Counters:
        """What became of the events that came here."""
        return self.router.counters

    @property
    def operations(self) -> list[str]:
        """The ids that can be called now."""
        return sorted(self.router.offers)

    @property
    def connected(self) -> list[str]:
        """The identities of the spokes that are connected now."""
        return sorted(spoke.session.principal.identity.id for spoke in self._spokes if spoke.joined)

    def transport(self) -> HubTransport:
        """An end of the bus in the hub's own process; it is trusted, and may call on anybody's behalf."""
        return HubTransport(self.router, self.max_payload)

    async def __aenter__(self) -> Hub:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen."""
        self._listener = await serve(
            self._admit,
            host=self._host,
            port=self._port,
            heartbeat=self.heartbeat,
            max_payload=self.max_payload,
            stay_awake=self._stay_awake,
            tls=self._tls,
        )

    async def close(self) -> None:
        """Accept nobody any more and close every connection; spokes come back by themselves when a hub does."""
        if self._listener is not None:
            self._port = self._listener.port
            await self._listener.close()
            self._listener = None
        await asyncio.gather(*(spoke.close("the hub is shutting down") for spoke in list(self._spokes)))

    def _admit(self, token: str | None) -> SpokeSession:
        principal = self._authenticator.authenticate(token)
        spoke = SpokeSession(self, f"s{next(self._numbers)}", principal)
        self._spokes.add(spoke)
        return spoke

    def forget(self, spoke: SpokeSession, unsent: int) -> None:
        """A connection is gone, and with it so many messages."""
        if spoke in self._spokes:
            self._spokes.remove(spoke)
            self.counters.unsent += unsent

    def owns(self, peer: str, identity: Identity) -> bool:
        """Whether a peer's name is this identity's: names are seen by others, and stay with who used them first."""
        if len(peer) < _SHORTEST_NAME or "." in peer:
            return False
        if peer not in self._owners:
            self._owners[peer] = identity.id
        return self._owners[peer] == identity.id

    def predecessor(self, spoke: SpokeSession, peer: str) -> SpokeSession | None:
        """The connection that the same peer had before, where the hub has not noticed its end yet."""
        return next((other for other in self._spokes if other is not spoke and other.session.peer == peer), None)


class SpokeSession:
    """The hub's side of one spoke's connection."""

    def __init__(self, hub: Hub, name: str, principal: Principal) -> None:
        self.joined = False
        self._left = False
        self._hub = hub
        self._connection: Connection | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.session = Session(name, principal, lambda message: None)

    def opened(self, connection: Connection) -> None:
        """Wait for the hello, and for the token to expire."""
        self._connection = connection
        self.session.deliver = connection.send
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(_HELLO_WITHIN, self._require_hello))
        expires_at = self.session.principal.expires_at
        if expires_at is not None:
            left = max(0.0, expires_at - time.time())
            self._timers.append(loop.call_later(left, connection.hang_up, "the token expired"))

    def received(self, connection: Connection, message: bytes) -> None:
        """The hello; what comes then is the router's, and what comes after the end nobody's."""
        if not self._left:
            self._greet(connection, message)

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone, and what it offered with it."""
        for timer in self._timers:
            timer.cancel()
        self._hub.forget(self, connection.unsent)
        self._left = True
        connection.receive = functools.partial(self.received, connection)
        if self.joined:
            self.joined = False
            self._hub.router.leave(self.session, reason)

    async def close(self, reason: str) -> None:
        """Close the connection and wait until it is."""
        if self._connection is not None:
            await self._connection.close(reason)

    def abort(self, reason: str) -> None:
        """Cut the connection; what it offered is gone before this returns."""
        if self._connection is not None:
            self._connection.abort(reason)
            self.closed(self._connection, reason)

    def _require_hello(self) -> None:
        if not self.joined and self._connection is not None:
            self._connection.abort("no hello came")

    def _greet(self, connection: Connection, message: bytes) -> None:
        try:
            event = codec_of(message).decode(message)
        except UNREADABLE:
            event = None
        if not isinstance(event, HubHello):
            self._hub.counters.malformed += 1
            connection.abort("the first event is not a hello")
            return
        hello = event.payload
        if not self._succeed(hello.peer, hello.generation):
            self._hub.counters.foreign += 1
            connection.abort("another spoke has this name")
            return
        session = self.session
        session.peer, session.generation, session.max_payload = hello.peer, hello.generation, hello.max_payload
        codecs = frozenset(hello.codecs) & CODECS.keys() or {"json"}
        if len(codecs) < len(CODECS):
            (session.codec,) = (CODECS[name] for name in codecs)
        self._welcome(connection, tuple(sorted(codecs)), batch=hello.batch)

    def _welcome(self, connection: Connection, codecs: tuple[str, ...], *, batch: bool) -> None:
        session, hub = self.session, self._hub
        welcome = Welcome(
            session.name,
            codecs,
            hub.heartbeat,
            hub.max_payload,
            batch,
            session.principal.identity,
            list(session.principal.namespaces),
        )
        self.joined = True
        hub.router.join(session)
        connection.receive = functools.partial(hub.router.receive, session)
        connection.send(JSON.encode(HubWelcome(VERSION, "", session.peer, welcome)))
        connection.flush()
        connection.batches = batch

    def _succeed(self, peer: str, generation: int) -> bool:
        """Take the place of an older connection of the same peer; a name that somebody else has is refused."""
        if not self._hub.owns(peer, self.session.principal.identity):
            return False
        older = self._hub.predecessor(self, peer)
        if older is None:
            return True
        if generation <= older.session.generation:
            return False
        older.abort("the spoke connected again")
        return True


class HubTransport:
    """The hub's own end of the bus: a session without a connection."""

    def __init__(self, router: Router, max_payload: int) -> None:
        self.peer = os.urandom(16).hex()
        self.capabilities = Capabilities(
            knows_no_responders=True,
            tracks_peers=True,
            groups=True,
            ordered=True,
            max_payload=max_payload,
            identity="hub",
            claims_identity=True,
            codec="msgpack",
        )
        self._router = router
        self._receivers = Receivers(self._hear)
        principal = Principal(Identity("hub"), ("*",))
        self._session = Session(f"local-{self.peer}", principal, self._receivers.receive, trusted=True)
        self._session.peer = self.peer
        self.answer = functools.partial(router.answer, self._session)
        """Route an answer of which it is known what it answers."""
        router.join(self._session)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Route a message; the router answers what it cannot deliver."""
        self._router.receive(self._session, message)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive whatever is routed to this end."""
        return self._receivers.add(receive)

    def listen_for_requests(
        self, take: Callable[[CallRequested, Codec], None], open: Callable[[Header, Codec], None]
    ) -> None:
        """Hand requests over as the router read them: whole, or the outside of them."""
        self._session.take, self._session.open = take, open

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """The hub's own end is never lost: neither is ever called."""
        return lambda: None

    async def close(self) -> None:
        """Leave the hub."""
        self._router.leave(self._session, "it was closed")

    def _hear(self) -> None:
        self._session.deliver = self._receivers.receive


class Receivers:
    """Who gets the messages of a transport that is one pipe; one that was added twice gets each message once."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.receive: Receive = self._hand_over
        """Hands a message to all of them; who is the only one, as most are, gets it directly."""
        self._changed = changed
        self._all: tuple[Receive, ...] = ()
        self._added: Counter[Receive] = Counter()

    def add(self, receive: Receive) -> Stop:
        """Hand messages to one more, until it is told to stop."""
        self._added[receive] += 1
        self._count()
        added = [receive]
        return lambda: self._remove(added)

    def _hand_over(self, message: bytes) -> None:
        for receive in self._all:
            receive(message)

    def _count(self) -> None:
        self._all = tuple(self._added)
        self.receive = self._all[0] if len(self._all) == 1 else self._hand_over
        self._changed()

    def _remove(self, added: list[Receive]) -> None:
        while added:
            receive = added.pop()
            self._added[receive] -= 1
            if not self._added[receive]:
                del self._added[receive]
            self._count()
