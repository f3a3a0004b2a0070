"""TokenCache: caches verified tokens, so that the signature of a token is not verified for every request."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.tokens import AnyAuthenticator, Principal

_SECONDS = 300.0
_MAX_ENTRIES = 10_000
"""Limits of the cache of verified tokens: seconds per token, and number of tokens."""
_MAX_FAILURES = 1_000
_FAILURE_SECONDS = 5.0
"""Limits of the cache of refused tokens: number of tokens, and seconds per token."""


class TokenCache:
    """Principals by a salted hash of their token, until the token expires or `seconds` have passed.

    Refused tokens are cached for a few seconds. Concurrent requests with the same token cause only one verification.
    """

    def __init__(self, *, seconds: float = _SECONDS, max_entries: int = _MAX_ENTRIES) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._salt = os.urandom(16)
        self._principals: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._failures: OrderedDict[bytes, float] = OrderedDict()
        self._verifying: dict[bytes, asyncio.Future[Principal]] = {}
        self._generation = 0

    def get(self, token: str) -> Principal | None:
        """Return the principal of a cached token; None if the token is not cached."""
        entry = self._principals.get(sha256(self._salt + token.encode()).digest())
        if entry is None or entry[0] <= time.time():
            return None
        return entry[1]

    async def verify(self, token: str, authenticator: AnyAuthenticator) -> Principal:
        """Verify a token with `authenticator`, cache the result and return the principal."""
        key = sha256(self._salt + token.encode()).digest()
        refused = self._failures.get(key)
        if refused is not None:
            if refused > time.time():
                raise CallError(ErrorCode.ACCESS_DENIED, "the token was refused")
            del self._failures[key]
        running = self._verifying.get(key)
        if running is not None:
            return _checked(await asyncio.shield(running))
        try:
            verdict = authenticator.authenticate(token)
        except CallError as error:
            self._keep_failure(key, error)
            raise
        if not isinstance(verdict, Principal):
            return await self._await(key, verdict)
        self._keep(key, _checked(verdict), self._generation)
        return verdict

    def clear(self) -> None:
        """Remove all entries; called when a token was revoked."""
        self._generation += 1
        self._principals.clear()
        self._failures.clear()

    async def _await(self, key: bytes, verdict: Awaitable[Principal]) -> Principal:
        """Await an asynchronous authenticator. Concurrent requests with the same token share the result."""
        generation = self._generation
        task = self._verifying[key] = asyncio.ensure_future(verdict)
        task.add_done_callback(lambda _: self._verifying.pop(key, None))
        try:
            principal = _checked(await asyncio.shield(task))
        except CallError as error:
            self._keep_failure(key, error)
            raise
        self._keep(key, principal, generation)
        return principal

    def _keep(self, key: bytes, principal: Principal, generation: int) -> None:
        if generation != self._generation:  # the cache was cleared meanwhile
            return
        until = time.time() + self._seconds
        if principal.expires_at is not None:
            until = min(until, principal.expires_at)
        self._principals[key] = until, principal
        self._principals.move_to_end(key)
        if len(self._principals) > self._max_entries:
            self._principals.popitem(last=False)

    def _keep_failure(self, key: bytes, error: CallError) -> None:
        if error.code is not ErrorCode.ACCESS_DENIED:
            return
        self._failures[key] = time.time() + _FAILURE_SECONDS
        if len(self._failures) > _MAX_FAILURES:
            self._failures.popitem(last=False)


def _checked(verdict: Any) -> Principal:
    """Return the principal that an authenticator returned; raise a TypeError for another value."""
    if not isinstance(verdict, Principal) or not isinstance(verdict.identity, Identity):
        raise TypeError("the authenticator returned another value than Principal(Identity(…))")
    return verdict
