"""Idempotency: stored responses to mutations with an `Idempotency-Key`, returned again for repeated requests."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Protocol

import msgspec

from operations.errors import ErrorCode
from operations.serving.asgi import Response
from operations.serving.refusals import RefusedError

HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
_MAX_KEY_LENGTH = 255
_SECONDS = 24 * 3600.0
_SHARE = 8
"""An owner may use at most 1/_SHARE of a store, so that no owner evicts the responses of all others."""


class StoredCall(msgspec.Struct):
    """A call with a key, and its response once it has ended."""

    fingerprint: bytes
    response: Response | None = None
    until: float = 0.0
    is_lost: bool = False
    """Whether the response was too large to store."""

    @property
    def size(self) -> int:
        """Estimated size in bytes."""
        return len(self.response.body) + 512 if self.response is not None else 512


class IdempotencyStore(Protocol):
    """Stores calls by key. If several calls begin with one key at the same time, `begin` returns None to only one."""

    async def begin(self, owner: str, key: bytes, fingerprint: bytes) -> StoredCall | None:
        """Return the call with this key; if there is none, store a running call and return None."""

    async def finish(self, owner: str, key: bytes, response: Response) -> None:
        """Store the response of a call."""

    async def release(self, owner: str, key: bytes) -> None:
        """Remove a call that was not executed."""


class MemoryStore:
    """A store in memory with limits on entries, bytes and time. Calls are refused while it is full of running calls."""

    def __init__(
        self,
        *,
        entries: int = 10_000,
        size: int = 64 << 20,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = entries
        self._max_bytes = size
        self._seconds = seconds
        self._clock = clock
        self._owners: dict[str, OrderedDict[bytes, StoredCall]] = {}
        self._sizes: Counter[str] = Counter()
        """The size in bytes of the calls of each owner."""
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    async def begin(self, owner: str, key: bytes, fingerprint: bytes) -> StoredCall | None:
        """Return the call with this key; if there is none, store a running call and return None."""
        calls = self._owners.setdefault(owner, OrderedDict())
        known = calls.get(key)
        if known is not None:
            if known.response is None or known.until > self._clock():
                return known
            self._remove(owner, key)
            calls = self._owners.setdefault(owner, OrderedDict())
        if len(calls) >= max(1, self._max_entries // _SHARE) and not self._evict(owner):
            self._discard_empty(owner)
            raise _full()
        if self._count >= self._max_entries and not self._evict(
            max(self._owners, key=lambda each: len(self._owners[each]))
        ):
            self._discard_empty(owner)
            raise _full()
        calls = self._owners.setdefault(owner, calls)
        calls[key] = call = StoredCall(fingerprint)
        self._count += 1
        self._resize(owner, call.size)
        return None

    async def finish(self, owner: str, key: bytes, response: Response) -> None:
        """Store the response of a call."""
        calls = self._owners.get(owner)
        call = None if calls is None else calls.get(key)
        if call is None:
            return
        before = call.size
        # If the response is not stored, the key stays, and repeated requests are refused.
        call.is_lost = len(response.body) > self._max_bytes // _SHARE
        call.response = msgspec.structs.replace(response, body=b"") if call.is_lost else response
        call.until = self._clock() + self._seconds
        self._resize(owner, call.size - before)
        # The owner of the most bytes loses its oldest responses, so that no caller can displace those of others.
        while self._bytes > self._max_bytes and self._evict(max(self._sizes, key=self._sizes.__getitem__)):
            pass

    async def release(self, owner: str, key: bytes) -> None:
        """Remove a call that was not executed."""
        if key in self._owners.get(owner, ()):
            self._remove(owner, key)

    def _evict(self, owner: str) -> bool:
        """Remove the oldest finished call of an owner; return False if there is none."""
        for key, call in self._owners.get(owner, {}).items():
            if call.response is not None:
                self._remove(owner, key)
                return True
        return False

    def _remove(self, owner: str, key: bytes) -> None:
        call = self._owners[owner].pop(key)
        self._count -= 1
        self._resize(owner, -call.size)
        self._discard_empty(owner)

    def _resize(self, owner: str, difference: int) -> None:
        self._bytes += difference
        self._sizes[owner] += difference

    def _discard_empty(self, owner: str) -> None:
        if not self._owners.get(owner, True):
            del self._owners[owner]
            self._sizes.pop(owner, None)


def read_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the `Idempotency-Key` of a request, without its quotes; None if the header is missing."""
    header = headers.get(HEADER)
    if header is None:
        return None
    key = header.strip()
    if len(key) >= 2 and key[:1] == key[-1:] == b'"':
        key = key[1:-1].replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.decode().isprintable():
        message = f"invalid Idempotency-Key: expected 1 to {_MAX_KEY_LENGTH} printable ASCII characters"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "IDEMPOTENCY_KEY")
    return key


def store_key(operation_id: str, key: bytes) -> bytes:
    """Return the key under which the store has a call: a hash of the operation and the `Idempotency-Key`."""
    return blake2b(operation_id.encode() + b"\n" + key, digest_size=16).digest()


def fingerprint_of(body: bytes, content_type: bytes | None) -> bytes:
    """Return a hash of a body and its content type, by which a repeated request is recognised."""
    return blake2b((content_type or b"").strip().lower() + b"\n" + body, digest_size=16).digest()


def replay(call: StoredCall, fingerprint: bytes) -> Response:
    """Return the stored response of a call; raise RefusedError if there is none, or if the call had another body."""
    if call.fingerprint != fingerprint:
        message = "this Idempotency-Key was used with another body"
        raise RefusedError(422, ErrorCode.VALIDATION_ERROR, message, "IDEMPOTENCY_KEY_REUSED")
    response = call.response
    if response is None:
        message = "the call with this Idempotency-Key is still running"
        raise RefusedError(409, ErrorCode.UNAVAILABLE, message, "IDEMPOTENCY_KEY_RUNNING", [(b"retry-after", b"1")])
    if call.is_lost:
        message = "the call with this Idempotency-Key was executed, but its response was too large to store"
        raise RefusedError(409, ErrorCode.UNAVAILABLE, message, "IDEMPOTENCY_RESULT_LOST")
    return Response(response.status, [*response.headers, REPLAYED], response.body)


def _full() -> RefusedError:
    message = "too many concurrent calls with an Idempotency-Key"
    return RefusedError(503, ErrorCode.UNAVAILABLE, message, "IDEMPOTENCY_STORE_FULL", [(b"retry-after", b"1")])
