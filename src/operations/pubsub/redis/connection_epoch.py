"""ConnectionEpoch: the connections of a peer, from finding the servers until one connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from operations.pubsub.protocols import Receive, Stop
from operations.pubsub.redis.addresses import RedisKeys, RedisNode
from operations.pubsub.redis.connection import OnReply, RedisConnection, RedisListener, Reply, ReplyError, Script, pack
from operations.pubsub.redis.servers import RedisServers, Topology, check_role

_ANSWER_SECONDS = 5.0
"""Seconds within which a server has to reply to a script."""
_FATAL = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")


class RedisBus(Protocol):
    """The part of the transport that queues, streams and records use."""

    epoch: ConnectionEpoch | None
    keys: RedisKeys
    peer: str
    heartbeat: float

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive the messages to an address."""

    def write(self) -> None:
        """Write the buffered messages."""

    def worked(self, *, quickly: bool) -> None:
        """Called when the taken requests have been handled; `quickly` if that took little time."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the transport."""


class ConnectionEpoch:
    """The connections of one peer: the main one, which also listens; one per other master; those for blocking commands.

    The loss of one connection ends the epoch, because messages in flight may be lost.
    """

    def __init__(self, listener: RedisListener, servers: RedisServers) -> None:
        self.reason = ""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.topology = Topology(())
        self._listener = listener
        self._servers = servers
        self._masters: dict[RedisNode, RedisConnection] = {}
        self._asked: set[OnReply] = set()
        """The functions that end the waiting for a reply, see `ask`."""
        self._blocking: dict[RedisConnection, RedisNode] = {}
        self._is_flush_scheduled = False

    @property
    def main(self) -> RedisConnection:
        """The connection that publishes and listens."""
        return self._masters[self.topology.masters[0]]

    @property
    def is_active(self) -> bool:
        """Whether the epoch has not ended: no connection was lost or closed."""
        return not self.ended.done()

    @property
    def server_version(self) -> int:
        """The major version of the server."""
        version = str(self.main.server.get("version", "6")).partition(".")[0]
        return int(version) if version.isdigit() else 6

    async def begin(self) -> None:
        """Find the servers and connect to them all."""
        self.topology = await self._servers.find()
        for node in self.topology.masters:
            self._masters[node] = await self._servers.connect(node, self._listener, self.end)
            check_role(self._masters[node], node)

    async def open_blocking(self, key: bytes) -> RedisConnection:
        """Open one more connection to the server that has a key, for blocking commands."""
        node = self.topology.node(key)
        connection = await self._servers.connect(node, self._listener, self.end)
        if not self.is_active:
            await connection.close(within=0)
            raise ConnectionError(self.reason)
        self._blocking[connection] = node
        return connection

    async def close_blocking(self, connection: RedisConnection) -> None:
        """Close a connection for blocking commands."""
        self._blocking.pop(connection, None)
        await connection.close(within=0)

    def unblock(self, blocking: RedisConnection) -> None:
        """Make the server reply to the blocking command of a connection."""
        if blocking.is_open and self.is_active:
            command = pack(b"CLIENT", b"UNBLOCK", b"%d" % blocking.server["id"])
            self._masters[self._blocking[blocking]].run(command)

    def connection_for(self, key: bytes) -> RedisConnection:
        """Return the connection to the server that has a key."""
        return self._masters[self.topology.node(key)]

    def put(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], then: OnReply) -> None:
        """Run a script on the server of its keys; the command is sent with the next write.

        If the slot of the keys has moved to another known server, run it there. If the reply shows that the server
        cannot serve the keys now, end the epoch.
        """
        script.put(
            self.connection_for(keys[0]), keys, arguments, functools.partial(self._check, script, keys, arguments, then)
        )

    def _check(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], then: OnReply, reply: object
    ) -> None:
        if isinstance(reply, ReplyError):
            text = str(reply)
            if text.startswith("MOVED") and self._follow(text):
                self.put(script, keys, arguments, then)
                self.connection_for(keys[0]).flush()
                return
            if text.startswith((*_FATAL, "MOVED", "ASK")):
                then(reply)
                self.end(text)
                return
        then(reply)

    def _follow(self, text: str) -> bool:
        _, slot, place = text.split(" ")[:3]
        host, _, port = place.rpartition(":")
        return self.topology.move(int(slot), RedisNode(host or self.topology.masters[0].host, int(port)))

    async def ask(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Reply:
        """Run a script and return its reply, or a ReplyError if the epoch ends or the server does not respond."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Reply] = loop.create_future()

        def answer(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        self._asked.add(answer)
        self.put(script, keys, arguments, answer)
        self.flush_soon()
        timer = loop.call_later(_ANSWER_SECONDS, answer, ReplyError("Redis does not respond"))
        try:
            return await answered
        finally:
            timer.cancel()
            self._asked.discard(answer)

    def flush(self) -> None:
        """Write the added commands to all masters."""
        for connection in self._masters.values():
            connection.flush()

    def flush_soon(self) -> None:
        """Write the added commands at the end of this iteration of the event loop."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    async def catch_up(self) -> None:
        """Return once every server has replied to everything that was sent."""
        for connection in list(self._masters.values()):
            await connection.ask("PING")

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be written to the masters."""
        return sum(connection.unsent_bytes for connection in self._masters.values())

    def beat(self) -> None:
        """Check that every server responds."""
        for connection in [*self._masters.values(), *self._blocking]:
            connection.beat()

    @property
    def is_congested(self) -> bool:
        """Whether many bytes are unsent to one of the servers."""
        return any(connection.is_congested for connection in self._masters.values())

    def end(self, reason: str) -> None:
        """End the epoch: one connection is lost, or all of them are being closed."""
        if not self.ended.done():
            self.reason = reason
            self.ended.set_result(None)
            for answer in self._asked:
                answer(ReplyError(reason))

    async def close(self, *, within: float) -> list[bytes]:
        """Close every connection; with `within=0`, return the unanswered messages, to publish them again."""
        self.end("closed")
        unanswered = self.main.take_unanswered() if self._masters and within == 0 else []
        for connection in [*self._blocking, *self._masters.values()]:
            with contextlib.suppress(Exception):
                await connection.close(within=within)
        return unanswered
