"""One connection to one Redis server: commands are pipelined, replies come in order, with push messages in between."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from operations.pubsub.connection_errors import require_extra
from operations.pubsub.protocols import CONGESTED_BYTES

try:
    import hiredis
except ImportError:  # pragma: no cover  # the message is tested in a separate process
    raise require_extra("hiredis", "redis") from None

Reply = Any
OnReply = Callable[[Reply], None]
"""Callback for the reply of a command; an error of the server is also a reply."""
ReplyError = hiredis.ReplyError


def pack(*command: bytes) -> bytes:
    """Return a command as bytes."""
    return hiredis.pack_command(command)  # type: ignore[arg-type, no-any-return]


_NOTHING = object()
_REFUSALS = ("NOPERM", "WRONGPASS", "NOAUTH", "ACL failure", "can't run this command", "can't access")
CONNECT_SECONDS = 5.0
"""Seconds within which a server has to accept a connection, and to reply to its first commands."""
SILENT_BEATS = 3
"""How many heartbeats a server may be silent before it counts as lost."""


class RedisListener(Protocol):
    """Interface that the user of connections implements."""

    def begin_reading(self) -> None:
        """Called before the replies of one read are handled; `end_reading` is called after the last of them."""

    def end_reading(self) -> None:
        """Called after the replies of one read were handled, to write the messages that handling them caused."""

    def pushed(self, channel: bytes, message: bytes) -> None:
        """Handle a message of a channel."""

    def congestion_changed(self) -> None:
        """Handle a change of the `is_congested` of a connection."""


class RedisConnection(asyncio.Protocol):
    """A pipeline of commands, each with a callback for its reply.

    `lost` is called with the reason when the connection is lost, but not after `close`.
    """

    def __init__(self, listener: RedisListener, lost: Callable[[str], None]) -> None:
        self.server: dict[str, Any] = {}
        """The server's reply to HELLO: version, role, the id of this connection."""
        self.is_congested = False
        """Whether more than `CONGESTED_BYTES` are unsent."""
        self._listener = listener
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: Any = None
        self._waiting: deque[tuple[OnReply | None, bytes | None]] = deque()
        self._unwritten: list[bytes] = []
        self._silent = 0
        self._reason = ""
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._gone.done()

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be written to the socket."""
        return self._transport.get_write_buffer_size() if self.is_open else 0

    @property
    def is_idle(self) -> bool:
        """Whether every command was answered."""
        return not self._waiting

    def put(self, command: bytes, then: OnReply | None = None, *, again: bool = False) -> None:
        """Add a command to the next write; with `again`, `take_unanswered` returns the command until it is answered."""
        self._unwritten.append(command)
        self._waiting.append((then, command if again else None))

    def flush(self) -> None:
        """Write the added commands."""
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        if self.is_open and not self._transport.is_closing():
            self._transport.write(b"".join(unwritten))

    def run(self, command: bytes, then: OnReply | None = None) -> None:
        """Send one command now."""
        self.put(command, then)
        self.flush()

    async def ask(self, *command: str | bytes | int, within: float = CONNECT_SECONDS) -> Reply:
        """Send one command and return its reply; raise a ReplyError, or after `within` seconds a ConnectionError."""
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.run(pack(*map(_bytes, command)), lambda reply: None if answered.done() else answered.set_result(reply))
        await asyncio.wait((answered, self._gone), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise ConnectionError(self._reason or "the server does not respond")
        reply = answered.result()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def beat(self) -> None:
        """Ping an idle server, and abort the connection if the server stays silent."""
        self._silent += 1
        if self._silent > SILENT_BEATS:
            self.abort("the server does not respond to heartbeats")
        elif self.is_idle:
            self.run(b"*1\r\n$4\r\nPING\r\n")

    def take_unanswered(self) -> list[bytes]:
        """Return the unanswered commands that are to be sent again."""
        commands = [command for _, command in self._waiting if command is not None]
        self._waiting.clear()
        return commands

    def abort(self, reason: str) -> None:
        """Abort the connection immediately; `lost` is called."""
        if self.is_open:
            self._reason = self._reason or reason
            self._transport.abort()

    async def close(self, *, within: float = 1.0) -> None:
        """Wait until every command was answered, at most `within` seconds, then close; `lost` is not called."""
        if not self.is_open:
            return
        self._reason = "closed"
        if within > 0 and not self.is_idle:
            with contextlib.suppress(OSError, ReplyError):
                await self.ask("PING", within=within)
        self._transport.abort()
        await asyncio.wait((self._gone,), timeout=1.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the asyncio transport; called by asyncio."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=CONGESTED_BYTES)

    def pause_writing(self) -> None:
        """Report congestion; called by asyncio when more than `CONGESTED_BYTES` are unsent."""
        self.is_congested = True
        self._listener.congestion_changed()

    def resume_writing(self) -> None:
        """Report the end of congestion; called by asyncio when most of the unsent bytes are sent."""
        self.is_congested = False
        self._listener.congestion_changed()

    def data_received(self, data: bytes) -> None:
        """Handle the replies and channel messages of a read; called by asyncio."""
        self._silent = 0
        reader, waiting = self._reader, self._waiting
        self._listener.begin_reading()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                if type(reply) is hiredis.PushNotification:
                    if reply[0] == b"message":
                        self._listener.pushed(reply[1], reply[2])
                        continue
                    if reply[0] not in (b"subscribe", b"unsubscribe"):
                        continue
                if not waiting:
                    # A server sends this before it has read a command: "too many clients", for example.
                    self.abort(str(reply))
                    return
                then, _ = waiting.popleft()
                if then is not None:
                    then(reply)
        except hiredis.ProtocolError as error:
            self.abort(f"the server does not use RESP3: {error}")
        finally:
            self._listener.end_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss of the connection; called by asyncio."""
        if not self._gone.done():
            self._gone.set_result(None)
        if self._reason != "closed":
            self._reason = self._reason or (f"{exc}" if exc is not None else "the server closed the connection")
            self._lost(self._reason)


class Script:
    """A Lua script that the server runs as one step.

    The script is called by its digest, and sent in full if the server does not have it. A caller may lack the
    permission to send scripts, so workers load the scripts that callers use.
    """

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def put(
        self, connection: RedisConnection, keys: Sequence[bytes], arguments: Sequence[bytes], then: OnReply
    ) -> None:
        """Add an execution of the script to the next write."""

        def check(reply: Reply) -> None:
            if is_unknown_script(reply):
                connection.run(pack(b"EVAL", self.source, *rest), lambda again: then(_if_allowed(again, reply)))
            else:
                then(reply)

        rest = (b"%d" % len(keys), *keys, *arguments)
        connection.put(pack(b"EVALSHA", self.digest, *rest), check)

    def load(self, connection: RedisConnection) -> None:
        """Store the script at the server, so that peers without the permission to send scripts can call it."""
        connection.run(pack(b"SCRIPT", b"LOAD", self.source))


NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
"""A Lua statement that defines `now`: the server's time in epoch milliseconds."""


def is_refusal(reply: Reply) -> bool:
    """Whether a reply states that this user may not run a command, directly or in a script."""
    return isinstance(reply, ReplyError) and any(mark in str(reply) for mark in _REFUSALS)


def is_unknown_script(reply: Reply) -> bool:
    """Whether a reply states that the server lacks a script."""
    return isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT")


def _if_allowed(again: Reply, first: Reply) -> Reply:
    """Return the reply to EVAL, or the first reply if this user may not send scripts."""
    return first if isinstance(again, ReplyError) and "'eval'" in str(again) else again


def _bytes(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
