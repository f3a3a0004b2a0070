"""One connection to a NATS server: handshake, one write per iteration of the loop, liveness, errors."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.connection_errors import reason_of, untrusted
from operations.pubsub.diagnosis import answer_in_plain, has_no_tls, is_reachable, speaks_tls, wrong_protocol
from operations.pubsub.nats.servers import Server, Settings
from operations.pubsub.nats.wire import PING, PONG, Reader, ServerInfo

_MOST_UNSENT = 64 << 20
_SMALLEST, _LARGEST = 512, 16 << 10
"""How many bytes are processed at a time: fewer where their messages take long to handle."""
_MOST_UNREAD = 256
_LONGEST_TURN = 0.05
_BEHIND_SECONDS = 0.1
_DENIALS = ("authorization violation", "authentication", "user authentication", "nkey", "account")


class Owner(Protocol):
    """Whoever uses a connection."""

    def told(self, info: ServerInfo) -> None:
        """The server sent a new description: its cluster changed."""

    def complained(self, text: str) -> None:
        """The server refused a message or a subscription, and the connection stays open."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """A connection that its server has accepted; `open_connection` makes it."""

    def __init__(self, owner: Owner) -> None:
        self.info = ServerInfo()
        self.reason = ""
        self.reader = Reader(self)
        self.heard = 0.0
        """When the server last sent anything, by the loop's clock."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._outbox: list[bytes] = []
        self.turn_seconds: float | None = None
        """How long the messages that were just read took to handle, while their results are written."""
        self._reading = False
        self._scheduled = False
        self._pongs: deque[Callable[[], None]] = deque()
        self._unread: deque[bytes] = deque()
        self._portion = _LARGEST
        self._position = 0
        self._behind_since = 0.0
        self._is_paused = False
        self._informed: asyncio.Future[ServerInfo] = self._loop.create_future()
        self._refused: CallError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._before_write: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._gone.done()

    @property
    def is_behind(self) -> bool:
        """Whether received bytes have been waiting to be processed for a while."""
        return bool(self._unread) and self._loop.time() - self._behind_since > _BEHIND_SECONDS

    @property
    def unanswered(self) -> int:
        """How many PINGs the server has not answered."""
        return len(self._pongs)

    @property
    def is_writing(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._outbox)

    def before_write(self, call: Callable[[], None]) -> None:
        """Call `call` before each write, so that it can add to it."""
        self._before_write = call

    def send(self, data: bytes) -> None:
        """Send together with everything else of this iteration of the loop, or of the messages being read."""
        self._outbox.append(data)
        self.expect_write()

    def expect_write(self) -> None:
        """Schedule a write at the end of this iteration of the loop, or of the messages being read."""
        if not self._scheduled and not self._reading:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def ping(self, pong: Callable[[], None]) -> None:
        """Send a PING; `pong` is called once the server has processed everything before it."""
        self._pongs.append(pong)
        self.send(PING)

    def flush(self) -> None:
        """Write what was sent."""
        if self._before_write is not None and self.is_open:
            self._scheduled = True  # what is added now goes with this write
            try:
                self._before_write()
            finally:
                self._scheduled = False
        self._scheduled = False
        if not self._outbox or not self.is_open or self._transport.is_closing():
            return
        outbox, self._outbox = self._outbox, []
        self._transport.write(outbox[0] if len(outbox) == 1 else b"".join(outbox))
        if self._transport.get_write_buffer_size() > _MOST_UNSENT:
            self.abort("the server reads too slowly")

    def abort(self, reason: str) -> None:
        """Abort the connection at once."""
        if self.is_open:
            self.reason = self.reason or reason
            self._transport.abort()

    async def close(self) -> None:
        """Write what is buffered, close, and wait until it is."""
        if not self.is_open:
            return
        self.flush()
        self.reason = self.reason or "closed"
        self._transport.close()
        await asyncio.wait((self._gone,), timeout=1.0)
        self.abort("closed")

    async def wait_closed(self) -> None:
        """Return once the connection is gone."""
        await asyncio.shield(self._gone)

    async def handshake(self, settings: Settings, name: str, server_name: str | None) -> None:
        """Upgrade to TLS if required, send the credentials, and wait until the server has accepted them."""
        info = await self._informed
        if not settings.tls_first and (settings.tls is not None or info.tls_required):
            await self._upgrade(settings.tls or ssl.create_default_context(), server_name)
        fields = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "echo": True,
            "lang": "python",
            "version": "1",
            "name": name,
            "tls_required": settings.tls is not None,
            **settings.credentials.answer(info.nonce),
        }
        self.send(b"CONNECT %b\r\n" % msgspec.json.encode(fields))
        await self.processed()
        if not info.headers:
            raise CallError(ErrorCode.UNAVAILABLE, f"NATS {info.version} has no headers: 2.2 or later is needed")

    async def processed(self) -> None:
        """Return once the server has processed what was sent so far; raise if the connection is lost before."""
        answered = self._loop.create_future()
        self.ping(lambda: None if answered.done() else answered.set_result(None))
        await asyncio.wait((answered, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()
            raise self._refused or CallError(ErrorCode.UNAVAILABLE, f"the server hung up: {self.reason}")

    async def _upgrade(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._transport = await self._loop.start_tls(
            self._transport, self, context, server_side=False, server_hostname=server_name
        )

    def connection_made(self, transport: Any) -> None:
        """Called by the loop."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop: handle the messages, then write at once what they caused to be sent."""
        if not self._unread and len(data) <= self._portion:
            self._read(data)
            return
        self._unread.append(data)
        if len(self._unread) == 1:
            self._behind_since = self._loop.time()
            self._read_on()
        elif len(self._unread) > _MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Process in portions, so that the loop runs in between when messages take long to handle.

        The rest is buffered here, because a server disconnects a client that does not read.
        """
        end = self._loop.time() + _LONGEST_TURN
        while self._unread and self.is_open:
            before = self._loop.time()
            if before > end:
                self._loop.call_soon(self._read_on)
                return
            self._read(self._next_portion())
            is_slow = self._loop.time() - before > _LONGEST_TURN / 4
            self._portion = max(_SMALLEST, self._portion // 2) if is_slow else min(_LARGEST, self._portion * 2)
        self._unread.clear()

    def _next_portion(self) -> bytes:
        data, start = self._unread[0], self._position
        self._position += self._portion
        if self._position >= len(data):
            self._position = 0
            self._unread.popleft()
            if self._is_paused and len(self._unread) < _MOST_UNREAD:
                self._is_paused = False
                self._transport.resume_reading()
        return data[start : start + self._portion]

    def _read(self, data: bytes) -> None:
        began = time.perf_counter()
        self._reading = True
        self.heard = self._loop.time()
        try:
            self.reader.feed(data)
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            self._unread.clear()
            self.abort(f"the server speaks no NATS: {error}")
        finally:
            self._reading = False
        if not self._scheduled:
            # Nothing waited before: everything in the buffer was caused by these messages.
            self.turn_seconds = time.perf_counter() - began
            self.flush()
            self.turn_seconds = None

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        if self._gone.done():
            return
        self.reason = self.reason or (str(error) if error is not None else "") or "the connection was lost"
        self._gone.set_result(None)
        if not self._informed.done():
            self._informed.set_exception(CallError(ErrorCode.UNAVAILABLE, f"the server hung up: {self.reason}"))
            self._informed.exception()  # nobody may be waiting any more
        self._owner.closed(self, self.reason)

    def on_info(self, info: ServerInfo) -> None:
        """The first description opens the handshake, later ones announce changes."""
        self.info = info
        if not self._informed.done():
            self._informed.set_result(info)
        self._owner.told(info)

    def on_ping(self) -> None:
        """The server checks whether this end is alive."""
        self.send(PONG)

    def on_pong(self) -> None:
        """The server has processed what was sent before the oldest PING."""
        if self._pongs:
            self._pongs.popleft()()

    def on_error(self, text: str) -> None:
        """Handle an error: of one message or subscription, or one that ends the connection."""
        lower = text.lower()
        if lower.startswith(("permissions violation", "invalid subject")):
            self._owner.complained(text)
            return
        self.reason = text
        if lower.startswith(_DENIALS):
            self._refused = CallError(ErrorCode.ACCESS_DENIED, f"the NATS server refused the connection: {text}")


async def open_connection(
    owner: Owner, server: Server, settings: Settings, *, name: str, host: str, timeout: float
) -> Connection:
    """Connect to a server; a refusal is `ACCESS_DENIED`, anything else that fails `UNAVAILABLE`."""
    where = f"nats://{server.host}:{server.port}"
    connection = Connection(owner)
    first: dict[str, Any] = {}
    if settings.tls_first:
        first = {"ssl": settings.tls or ssl.create_default_context(), "server_hostname": host}
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_connection(lambda: connection, server.host, server.port, **first)
            await connection.handshake(settings, name, host)
    except CallError:
        connection.abort("the handshake failed")
        raise
    except ssl.SSLCertVerificationError as error:
        connection.abort("the handshake failed")
        raise untrusted(where, error) from error
    except (OSError, TimeoutError) as error:
        connection.abort("the handshake failed")
        reason = reason_of(error) if str(error) else f"no answer within {timeout:g} s"
        raise CallError(ErrorCode.UNAVAILABLE, f"no connection to {where}: {reason}", {"executed": "no"}) from error
    except BaseException:
        with contextlib.suppress(Exception):
            connection.abort("cancelled")
        raise
    return connection


async def diagnose(server: Server, settings: Settings, error: Exception) -> CallError | None:
    """Return the permanent error behind a failed connection: TLS expected where there is none, or at another time."""
    if not is_reachable(error) or not has_no_tls(error):
        return None
    where = f"nats://{server.host}:{server.port}"
    said = await answer_in_plain(server.host, server.port)
    if said.startswith(b"INFO "):
        if settings.tls is None and not settings.tls_first:
            return None
        if b'"tls_required":true' in said or b'"tls_available":true' in said:
            sooner = "the server there begins TLS after its first word: leave tls_first out"
            return wrong_protocol(where, sooner) if settings.tls_first else None
        return wrong_protocol(where, "the server there speaks no TLS: its address begins with nats, not tls")
    if not settings.tls_first and not said and await speaks_tls(server.host, server.port):
        return wrong_protocol(where, "the server there wants TLS before its first word: add tls_first=True")
    return None
