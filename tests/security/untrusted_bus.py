"""A bus on which no peer is trusted, over memory, Redis and NATS, and the secret and tokens of signed requests."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import jwt

from operations.calls.signing_secrets import SigningSecret, SigningSession
from operations.identity import JWTTokens
from operations.pubsub import Capabilities, Transport, nats
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.redis import RedisTransport
from tests import nats_server, redis_servers

KEY = "k" * 32
SECRET = SigningSecret(b"s" * 32)
TOKENS = JWTTokens(KEY, algorithms=["HS256"], audience="shop")
UNTRUSTED = Capabilities(tracks_peers=True, identity="none")
Bus = Callable[[], Awaitable[Transport]]
"""Connects another peer."""


def token(key: Any = KEY, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    default = {"sub": "ada", "scope": "read", "aud": "shop", "exp": time.time() + 3_600}
    return jwt.encode(default | claims, key, algorithm, headers)


def session(name: str, scope: str = "") -> SigningSession:
    return SECRET.session(token(sub=name, scope=scope))


@contextlib.asynccontextmanager
async def untrusted_bus(kind: str) -> AsyncIterator[Bus]:
    """A bus over `memory`, `redis` or `nats`, whose peers are closed at the end."""
    first, prefix = MemoryTransport(direct=False, capabilities=UNTRUSTED), f"t{os.urandom(8).hex()}"
    async with contextlib.AsyncExitStack() as stack:

        async def connect() -> Transport:
            if kind == "memory":
                return first.join()
            if kind == "redis":
                url = redis_servers.shared_server("redis").url
                return await stack.enter_async_context(RedisTransport(url, prefix=prefix))
            return await stack.enter_async_context(nats.connect(nats_server.shared_server().url, prefix=prefix))

        yield connect
