"""ConnectionEpoch: the connections of a peer, from finding the servers until one connection is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Sequence
from typing import Protocol

from operations.pubsub.redis.addresses import RedisAddress, RedisNode
from operations.pubsub.redis.connection import OnReply, RedisConnection, ReplyError, Script, open_connection
from operations.pubsub.redis.topology import Topology, TopologyFinder, check_role

_FATAL = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")


class EpochListener(Protocol):
    """Interface that the user of an epoch implements."""

    def begin_reading(self) -> None:
        """Called before messages are handled."""

    def end_reading(self) -> None:
        """Called after the messages were handled."""

    def pushed(self, channel: bytes, message: bytes) -> None:
        """Handle a message of a channel."""

    def congestion_changed(self) -> None:
        """Handle a change of the epoch's `is_congested`."""


class ConnectionEpoch:
    """The connections of one peer: the main one, which also listens; one per other master; those for blocking commands.

    The loss of any of them ends them all, because messages in flight may be lost.
    """

    def __init__(
        self,
        listener: EpochListener,
        address: RedisAddress,
        finder: TopologyFinder,
        tls: ssl.SSLContext | None,
        name: str,
    ) -> None:
        self.reason = ""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.topology = Topology(address.nodes)
        self._listener = listener
        self._address = address
        self._finder = finder
        self._tls = tls
        self._name = name
        self._masters: dict[RedisNode, RedisConnection] = {}
        self._blocking: dict[RedisConnection, RedisNode] = {}
        self._flushes = False
        """Whether a flush is scheduled."""

    @property
    def main(self) -> RedisConnection:
        """The connection that publishes and listens."""
        return self._masters[self.topology.masters[0]]

    @property
    def is_active(self) -> bool:
        """Whether all servers are connected."""
        return not self.ended.done()

    @property
    def server_version(self) -> int:
        """The major version of the server."""
        version = str(self.main.server.get("version", "6")).partition(".")[0]
        return int(version) if version.isdigit() else 6

    async def begin(self) -> None:
        """Find the servers and connect to them all."""
        self.topology = await self._finder.find()
        for node in self.topology.masters:
            self._masters[node] = await self._dial(node)
            check_role(self._masters[node], node)

    async def open_blocking(self, key: bytes) -> RedisConnection:
        """Open one more connection to the server that has a key, for blocking commands."""
        node = self.topology.node(key)
        connection = await self._dial(node)
        if not self.is_active:
            await connection.close(within=0)
            raise ConnectionError(self.reason)
        self._blocking[connection] = node
        return connection

    async def close_blocking(self, connection: RedisConnection) -> None:
        """Close a connection for blocking commands."""
        self._blocking.pop(connection, None)
        await connection.close(within=0)

    def non_blocking(self, blocking: RedisConnection) -> RedisConnection:
        """Return the connection to the same server that does not block."""
        return self._masters[self._blocking[blocking]]

    async def _dial(self, node: RedisNode) -> RedisConnection:
        return await open_connection(node, self, self._address, tls=self._tls, name=self._name)

    def connection_for(self, key: bytes) -> RedisConnection:
        """Return the connection to the server that has a key."""
        return self._masters[self.topology.node(key)]

    def put(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], then: OnReply) -> None:
        """Run a script on the server of its keys.

        If the slot of the keys has moved to another known server, run it there. If the server is no longer a master,
        end the epoch.
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

    def flush(self) -> None:
        """Write the added commands on all connections."""
        for connection in self._masters.values():
            connection.flush()

    def flush_soon(self) -> None:
        """Write the added commands at the end of this iteration of the event loop."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._flushes = False
        self.flush()

    async def catch_up(self) -> None:
        """Return once every server has replied to everything that was sent."""
        for connection in list(self._masters.values()):
            await connection.ask("PING")

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the servers have not read."""
        return sum(connection.unsent_bytes for connection in self._masters.values())

    def beat(self) -> None:
        """Check that every server responds."""
        for connection in [*self._masters.values(), *self._blocking]:
            connection.beat()

    def begin_reading(self) -> None:
        """Called before a connection handles replies."""
        self._listener.begin_reading()

    def end_reading(self) -> None:
        """Called after the replies were handled."""
        self._listener.end_reading()

    def pushed(self, channel: bytes, message: bytes) -> None:
        """Handle a message of a channel."""
        self._listener.pushed(channel, message)

    @property
    def is_congested(self) -> bool:
        """Whether many bytes are unsent to one of the servers."""
        return any(connection.is_congested for connection in self._masters.values())

    def congestion_changed(self) -> None:
        """Forward a change of congestion."""
        self._listener.congestion_changed()

    def lost(self, connection: RedisConnection, reason: str) -> None:
        """End the epoch: one connection is lost."""
        self.end(reason)

    def end(self, reason: str) -> None:
        """End the epoch; its connections are lost or being closed."""
        if not self.ended.done():
            self.reason = reason
            self.ended.set_result(None)

    async def close(self, *, within: float) -> list[bytes]:
        """Close every connection; return the messages to publish again in the next epoch."""
        self.end("closed")
        unanswered = self.main.take_unanswered() if self._masters and within == 0 else []
        for connection in [*self._blocking, *self._masters.values()]:
            with contextlib.suppress(Exception):
                await connection.close(within=within)
        return unanswered
