"""The servers of a Redis URL: connecting to them, and which of them has a key.

A key is on the only server, on the master that the sentinels report, or in a cluster on the master of the key's slot.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.pubsub.connection_errors import (
    UNSUPPORTED,
    has_no_tls,
    is_reachable,
    plain_reply,
    untrusted,
    uses_tls,
    wrong_protocol,
)
from operations.pubsub.redis.addresses import RedisAddress, RedisNode
from operations.pubsub.redis.connection import CONNECT_SECONDS, RedisConnection, RedisListener, ReplyError, is_refusal

SLOTS = 16_384


class Topology:
    """The masters, and for a cluster the master of each slot."""

    def __init__(self, masters: Iterable[RedisNode], slots: list[RedisNode] | None = None) -> None:
        self.masters = list(dict.fromkeys(masters))
        self._slots = slots

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self._slots is not None

    def slot(self, key: bytes) -> int:
        """Return the slot of a key; 0 without a cluster."""
        return slot_of(key) if self._slots is not None else 0

    def node(self, key: bytes) -> RedisNode:
        """Return the server that has a key."""
        return self.masters[0] if self._slots is None else self._slots[slot_of(key)]

    def move(self, slot: int, node: RedisNode) -> bool:
        """Move a slot; return whether its new server is known."""
        if self._slots is None or node not in self.masters:
            return False
        self._slots[slot] = node
        return True


class RedisServers:
    """Finds the masters and connects to servers.

    Each `ConnectionEpoch` finds the masters again, because the roles of servers may change.
    """

    def __init__(self, address: RedisAddress, tls: ssl.SSLContext | None, name: str) -> None:
        self._address = address
        self._tls = tls
        self._name = name
        self._known: list[RedisNode] = list(address.nodes)

    async def connect(
        self, node: RedisNode, listener: RedisListener, lost: Callable[[str], None], *, sentinel: bool = False
    ) -> RedisConnection:
        """Connect and authenticate; raise a CallError if trying again is useless, otherwise an OSError.

        If the connection is lost later, `lost` is called with the reason.
        """
        loop, tls = asyncio.get_running_loop(), self._tls
        connection = RedisConnection(listener, lost)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if node.port:
                    await loop.create_connection(
                        lambda: connection, node.host, node.port, ssl=tls, server_hostname=node.host if tls else None
                    )
                else:
                    await loop.create_unix_connection(lambda: connection, node.host)
        except ssl.SSLCertVerificationError as error:
            raise untrusted(f"Redis at {node}", error) from error
        except TimeoutError:
            to = " to a TLS handshake" if tls else ""
            raise ConnectionError(f"no response{to} within {CONNECT_SECONDS:g} s") from None
        try:
            await self._authenticate(connection, sentinel=sentinel)
        except BaseException:
            with contextlib.suppress(Exception):
                await connection.close(within=0)
            raise
        return connection

    async def _authenticate(self, connection: RedisConnection, *, sentinel: bool) -> None:
        address = self._address
        username = address.sentinel_username if sentinel else address.username
        password = address.sentinel_password if sentinel else address.password
        login = ("AUTH", username or "default", password) if password is not None else ()
        try:
            reply = await connection.ask("HELLO", "3", *login, "SETNAME", self._name)
        except ReplyError as error:
            text = str(error)
            if is_refusal(error):
                raise CallError(ErrorCode.ACCESS_DENIED, f"Redis refused the connection: {text}") from None
            if text.startswith(("ERR unknown command", "NOPROTO")):
                details = {"executed": "no", "reason": UNSUPPORTED}
                raise CallError(ErrorCode.UNAVAILABLE, f"Redis 6.2 or later is needed: {text}", details) from None
            raise ConnectionError(text) from error
        connection.server = {key.decode(): _text(value) for key, value in dict(reply).items()}
        if address.database and not sentinel:
            try:
                await connection.ask("SELECT", address.database)
            except ReplyError as error:
                message = f"Redis refused database {address.database}: {error}"
                raise CallError(ErrorCode.UNAVAILABLE, message, {"executed": "no", "reason": UNSUPPORTED}) from None

    async def diagnose(self, error: Exception) -> CallError | None:
        """Return the permanent error behind a failed connection; None if there is no such error.

        The permanent errors are that TLS is expected but not used, or the reverse.
        """
        if not is_reachable(error) or isinstance(error.__cause__ or error, ReplyError):
            return None
        for host, port in ((node.host, node.port) for node in self._address.nodes if node.port):
            where = f"Redis at {host}:{port}"
            if not self._address.tls:
                if await uses_tls(host, port):
                    return wrong_protocol(where, "the server uses TLS: use a rediss:// address instead of redis://")
            elif has_no_tls(error) and (await plain_reply(host, port, b"PING\r\n")).startswith((b"+", b"-")):
                return wrong_protocol(where, "the server does not use TLS: use a redis:// address instead of rediss://")
        return None

    async def find(self) -> Topology:
        """Return the present masters."""
        if self._address.arrangement == "single":
            return Topology(self._address.nodes)
        find = self._find_master if self._address.arrangement == "sentinel" else self._find_slots
        problems = []
        for node in list(self._known):
            try:
                return await find(node)
            except (OSError, ReplyError, EOFError) as error:
                problems.append(f"{node}: {str(error) or type(error).__name__}")
                # The next attempt starts with another node.
                self._known.append(self._known.pop(self._known.index(node)))
        raise ConnectionError("; ".join(problems))

    async def _find_master(self, node: RedisNode) -> Topology:
        reply = await self._ask(node, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
        if not reply:
            raise ConnectionError(f"the sentinel does not know the service {self._address.service!r}")
        return Topology([RedisNode(reply[0].decode(), int(reply[1]))])

    async def _find_slots(self, node: RedisNode) -> Topology:
        ranges = await self._ask(node, "CLUSTER", "SLOTS")
        slots: list[RedisNode | None] = [None] * SLOTS
        known = list(self._address.nodes)
        for first, last, master, *replicas in ranges:
            owner = _node(master, node)
            slots[first : last + 1] = [owner] * (last + 1 - first)
            known += [owner, *(_node(replica, node) for replica in replicas)]
        if None in slots:
            raise ConnectionError(f"the cluster has no server for {slots.count(None):,} of its slots")
        self._known = list(dict.fromkeys(known))
        return Topology([each for each in slots if each is not None], [each for each in slots if each is not None])

    async def _ask(self, node: RedisNode, *command: str) -> Any:
        sentinel = self._address.arrangement == "sentinel"
        connection = await self.connect(node, _Idle(), lambda reason: None, sentinel=sentinel)
        try:
            return await connection.ask(*command)
        finally:
            await connection.close(within=0)


def check_role(connection: RedisConnection, node: RedisNode) -> None:
    """Raise a ConnectionError for a replica: writes must go to the master."""
    if connection.server.get("role", "master") != "master":
        raise ConnectionError(f"{node} is a replica")


def _node(parts: Any, asked: RedisNode) -> RedisNode:
    """Return a server that a cluster's description names; an empty host means the server that sent it."""
    host = parts[0].decode() if parts[0] else ""
    return RedisNode(host if host not in ("", "?") else asked.host, int(parts[1]))


class _Idle:
    """The owner of a connection for a single command."""

    def begin_reading(self) -> None: ...

    def end_reading(self) -> None: ...

    def pushed(self, channel: bytes, message: bytes) -> None: ...

    def congestion_changed(self) -> None: ...


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a cluster, by the text in its first braces if there is any."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
