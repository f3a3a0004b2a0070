"""Limits: what one served application gives to its callers at most."""

from __future__ import annotations

import msgspec

from operations.dispatch import CONCURRENCY
from operations.pubsub.limits import check_counts, check_seconds


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes and times in seconds, for each request unless something else is said."""

    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    response_bytes: int = 64 << 20
    deadline_seconds: float = 60.0
    """How long a call may take; `Operations-Timeout` lowers it."""
    connections: int = 20_000
    """Connections of the server that `serve_http` runs."""
    concurrency: int = CONCURRENCY
    """Calls that run at once, all callers together."""
    queue: int = 10_000
    """Calls that wait for their turn; more are refused."""
    all_streams: int = 10_000
    """Streams that are open at once, all callers together."""
    streams: int = 64
    """Open streams of one identity."""
    calls: int = 256
    """Calls of one identity that run or wait at once."""
    rate: float | None = None
    """Requests per second of one identity; None for no limit."""
    burst: int | None = None
    """Requests of one identity at once; a second's worth by default."""
    failures: int = 30
    """Requests with invalid credentials that an address may send in a minute."""
    heartbeat_seconds: float = 15.0
    """How often a silent stream sends a comment."""
    replay_seconds: float = 0.0
    """How long a stream that lost its client goes on, so that the client can resume it."""
    drain_seconds: float = 30.0
    """How long calls may go on once the server is told to stop."""

    def __post_init__(self) -> None:
        check_counts(
            body_bytes=self.body_bytes,
            response_bytes=self.response_bytes,
            connections=self.connections,
            concurrency=self.concurrency,
            all_streams=self.all_streams,
            streams=self.streams,
            calls=self.calls,
            failures=self.failures,
        )
        check_counts(queue=self.queue, least=0)
        check_seconds(
            body_seconds=self.body_seconds,
            deadline_seconds=self.deadline_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
        )
