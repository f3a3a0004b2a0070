"""The bus of random schedules over Redis and NATS, with signed identities."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping

from operations import Identity, OperationRegistry
from operations.calls import CallHandler
from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSecret
from operations.identity import Principal, StaticTokens
from operations.pubsub import Transport, nats
from operations.pubsub.nats import NatsTransport
from operations.pubsub.redis import RedisTransport
from tests import nats_server, redis_servers
from tests.security.rights_bus import WORKERS, Bus


class SignedBus:
    """A shared bus whose members sign. Workers share the secret, so a right that one keeps ends at its deadline."""

    closing_seconds = math.inf
    knows_ends = False

    def __init__(
        self, connect: Callable[[str], RedisTransport | NatsTransport], principals: Mapping[str, Principal]
    ) -> None:
        self._connect = connect
        self._prefix = f"t{os.urandom(8).hex()}"
        self._secret = SigningSecret(os.urandom(32))
        self._tokens = StaticTokens(dict(principals))

    @classmethod
    @contextlib.asynccontextmanager
    async def over_redis(cls, principals: Mapping[str, Principal]) -> AsyncIterator[Bus]:
        url = redis_servers.shared_server("redis").url
        yield cls(
            lambda prefix: RedisTransport(url, prefix=prefix, shortest_delay=0.001, longest_delay=0.02), principals
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def over_nats(cls, principals: Mapping[str, Principal]) -> AsyncIterator[Bus]:
        url = nats_server.shared_server().url
        yield cls(lambda prefix: nats.connect(url, prefix=prefix, shortest_delay=0.001, longest_delay=0.02), principals)

    async def open(self, name: str) -> Transport:
        inner = await self._connect(self._prefix).__aenter__()
        session = self._secret.session(name)
        if name in WORKERS:
            return SignedTransport(inner, session=session, secret=self._secret, tokens=self._tokens)
        return SignedTransport(inner, session=session)

    async def close(self, transport: Transport) -> None:
        await _inner(transport).close()

    def nested_identity(self, worker: Principal, caller: Identity | None) -> Identity | None:
        return caller

    def serve(self, registry: OperationRegistry, transport: Transport, *, pool: bool) -> CallHandler:
        assert isinstance(transport, SignedTransport)
        return CallHandler(registry, transport, pool=pool, identify=transport.identify)

    def cut(self, transport: Transport) -> None:
        _inner(transport).drop_connection()

    def trusted(self) -> Transport | None:
        return None

    async def check_idle(self) -> None:
        """Do nothing: the server keeps no state of calls."""


def _inner(transport: Transport) -> RedisTransport | NatsTransport:
    assert isinstance(transport, SignedTransport)
    assert isinstance(transport.inner, RedisTransport | NatsTransport)
    return transport.inner
