"""Cache: keeps results of queries for a time; by default, a result is returned only to the same caller."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from operations.context import TRACE_FIELDS
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.interceptors.base import Invocation, Proceed
from operations.spec import OperationSpec, OperationType

Share = Literal["identity", "rights", "everyone"]
_ENCODER = msgspec.msgpack.Encoder(order="sorted")


class Cache:
    """Caches results of queries for `ttl` seconds, by operation and input; errors and MCP error results are not cached.

    `share` selects the callers that get a cached result: the same `identity` (id, rights and claims), callers with the
    same `rights` (scopes and resources), or `everyone` who may call the operation. Calls never share a result if their
    metadata differ in anything but the trace, for example in credentials. Each caller gets a copy. Mutations and
    streams are not cached.

    At most `max_entries` results with `max_bytes` bytes in total are cached; the least recently used ones are evicted
    first.
    """

    def __init__(
        self,
        ttl: float,
        *,
        share: Share = "identity",
        max_entries: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (ttl > 0 and max_entries >= 1 and max_bytes >= 1):
            raise ValueError("invalid cache: expected positive ttl, max_entries and max_bytes")
        if share not in ("identity", "rights", "everyone"):
            raise ValueError(f"invalid share {share!r}: expected identity, rights or everyone")
        self._ttl = ttl
        self._share = share
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes = 0
        """Size of the cached results in bytes."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def applies(self, spec: OperationSpec) -> bool:
        """Whether results of an operation are cached: only those of queries."""
        return spec.type is OperationType.QUERY

    def clear(self) -> None:
        """Remove every result."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0

    def counts(self) -> dict[str, int]:
        """Return the number of hits and of misses."""
        return {"hits": self.hits, "misses": self.misses}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Return a cached result, or run the call and cache its result."""
        key = None
        if not invocation.streaming and self.applies(invocation.spec):
            key = self._key(invocation)
        if key is None:
            return await proceed(invocation)
        kept = self._get(key)
        if kept is not None:
            return ResponseEnvelope.from_msgpack(kept)
        envelope = await proceed(invocation)
        if isinstance(envelope, ResponseEnvelope):
            self._keep(key, envelope)
        return envelope

    def _key(self, invocation: Invocation) -> bytes | None:
        """Return a digest of everything that a result may depend on; None if the input cannot be encoded."""
        context = invocation.context
        identity = context.identity
        caller: Any = None
        if identity is not None and self._share == "identity":
            caller = [identity.id, sorted(identity.scopes), identity.resources, identity.claims]
        elif identity is not None and self._share == "rights":
            caller = [sorted(identity.scopes), identity.resources]
        metadata = {name: value for name, value in context.metadata.items() if name not in TRACE_FIELDS}
        trusted = context.is_trusted if self._share != "everyone" else None
        try:
            text = _ENCODER.encode([invocation.spec.id, invocation.input, caller, trusted, metadata])
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None
        return hashlib.blake2b(text, digest_size=32).digest()

    def _get(self, key: bytes) -> bytes | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] > self._clock():
                self._entries.move_to_end(key)
                self.hits += 1
                return entry[1]
            self.misses += 1
            if entry is not None:
                del self._entries[key]
                self.bytes -= len(entry[1])
        return None

    def _keep(self, key: bytes, envelope: ResponseEnvelope[Any]) -> None:
        if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error:
            return
        try:
            written = envelope.to_msgpack()
        except CallError:
            return
        if len(written) > self._max_bytes:
            return
        with self._lock:
            before = self._entries.pop(key, None)
            self.bytes += len(written) - (0 if before is None else len(before[1]))
            self._entries[key] = self._clock() + self._ttl, written
            while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
                _, (_, oldest) = self._entries.popitem(last=False)
                self.bytes -= len(oldest)
