"""Limits: the resource limits of a served application."""

from __future__ import annotations

import msgspec

from operations.dispatch import CONCURRENCY
from operations.pubsub.limits import check_counts, check_seconds
from operations.wire import MAX_VALUES


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes and times in seconds. Each limit applies to one request unless its description says otherwise.

    For anonymous callers, the limits of an identity apply to each address.
    """

    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    incoming_bytes: int = 64 << 20
    """Largest total size of the request bodies of one identity that have not arrived completely.

    For a caller without scopes and resources, also the largest total size of the inputs of its running calls. HTTP and
    MCP have separate totals. Inputs of at most 64 KiB do not count.
    """
    values: int = MAX_VALUES
    """Largest number of JSON values in a body over 64 KiB, if the caller has neither scopes nor resources."""
    response_bytes: int = 64 << 20
    deadline_seconds: float = 60.0
    """The longest duration of a call, except for streams; over MCP, a call that can ask questions gets 300 s more.

    The request header `Operations-Timeout` can shorten this duration, but not extend it.
    """
    connections: int = 20_000
    """Largest number of open connections of an `HTTPServer`, such as the one of `serve_http`."""
    concurrency: int = CONCURRENCY
    """Largest number of concurrent calls of all callers: one limit for HTTP and MCP together, one for WebSocket."""
    queue: int = 10_000
    """Largest number of calls that wait for a slot; further calls are refused."""
    all_streams: int = 10_000
    """Largest number of open streams of all callers over HTTP and MCP; streams over WebSocket count as calls."""
    streams: int = 64
    """Largest number of streams of one identity over HTTP that are open or can be resumed."""
    calls: int = 256
    """Largest number of running and waiting calls of one identity, over HTTP and over MCP separately."""
    rate: float | None = None
    """Largest number of requests per second of one identity, over all protocols; None for no limit."""
    burst: int | None = None
    """Largest number of requests that one identity may send at once; by default as many as in one second."""
    failures: int = 30
    """Largest number of requests with invalid credentials per address and minute."""
    heartbeat_seconds: float = 15.0
    """Interval of heartbeat comments in a stream without events."""
    replay_seconds: float = 0.0
    """How long a stream continues after its client disconnected, so that the client can resume it."""
    drain_seconds: float = 30.0
    """How long running calls may continue when the server stops."""

    def __post_init__(self) -> None:
        check_counts(
            body_bytes=self.body_bytes,
            incoming_bytes=self.incoming_bytes,
            values=self.values,
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
