"""Request bodies with limits on size and duration, and the cancellation of calls whose clients disconnect."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Generator, Mapping
from typing import Any

from operations.deadlines import Deadline, DeadlineHost
from operations.errors import CallError, ErrorCode
from operations.failures import aborted
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.asgi import Receive, wait_for_disconnect
from operations.serving.limits import Limits
from operations.serving.refusals import RefusedError
from operations.wire import check_json_values


class ClientDisconnectedError(Exception):
    """The client closed the connection before its request was complete."""


class BodyReader:
    """Reads bodies within the limits `body_bytes`, `body_seconds` and `incoming_bytes`."""

    def __init__(self, host: DeadlineHost, limits: Limits) -> None:
        self._host = host
        self._max_bytes = limits.body_bytes
        self._seconds = limits.body_seconds
        self._incoming = ConcurrencyLimits(limits.incoming_bytes, "bytes of request bodies at once")

    @types.coroutine
    def read(self, receive: Receive, headers: Mapping[bytes, bytes], key: str) -> Generator[Any, Any, bytes]:
        """Return the body; raise RefusedError if the body is compressed, too large or too slow.

        Raise RefusedError also if the unfinished bodies of the caller `key` are too large together. Raise
        ClientDisconnectedError if the client disconnects before the end of the body.
        """
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise _encoded()
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or int(length[:18]) > self._max_bytes):
            raise self._too_large()
        collecting = self._collect(receive, key)
        try:
            waiting = collecting.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # most bodies have arrived already and need no deadline
        until = time.time() + self._seconds
        deadline = Deadline(host=self._host, operation_id="", until=until)
        try:
            return (yield from deadline.resume(collecting, waiting))  # type: ignore[no-any-return]
        except CallError as error:
            if error.code is ErrorCode.TIMEOUT:
                message = f"the body did not arrive within {self._seconds:g} s"
                raise RefusedError(408, ErrorCode.TIMEOUT, message, "SLOW_BODY", [(b"connection", b"close")]) from None
            raise

    async def _collect(self, receive: Receive, key: str) -> bytes:
        parts: list[bytes] = []
        counted = 0
        try:
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    raise ClientDisconnectedError
                body: bytes = event.get("body", b"")
                parts.append(body)
                if counted + len(body) > self._max_bytes:
                    raise self._too_large()
                if not event.get("more_body", False):
                    return b"".join(parts)
                if body:
                    self._count(key, len(body))
                    counted += len(body)
        finally:
            if counted:
                self._incoming.release(key, counted)

    def _count(self, key: str, size: int) -> None:
        """Count bytes of a body that has not arrived completely; refuse the body if its caller sends too much."""
        try:
            self._incoming.acquire(key, size)
        except CallError as error:
            closes = [(b"connection", b"close")]
            raise RefusedError(429, error.code, error.message, "RATE_LIMITED", closes, retryAfter=1) from None

    def _too_large(self) -> RefusedError:
        message = f"the body is over the limit of {self._max_bytes:,} bytes"
        return RefusedError(
            413,
            ErrorCode.VALIDATION_ERROR,
            message,
            "PAYLOAD_TOO_LARGE",
            [(b"connection", b"close")],
            limit=self._max_bytes,
        )


def check_values(body: bytes, limit: int) -> None:
    """Refuse a body with more than `limit` JSON values, the limit for callers without rights."""
    try:
        check_json_values(body, limit)
    except CallError as error:
        raise RefusedError(413, error.code, error.message, "TOO_MANY_VALUES", limit=limit) from None


def _encoded() -> RefusedError:
    """Return the error for a compressed body. Bodies are not decompressed, because their size would be unknown."""
    message = "unsupported Content-Encoding: send the body without one"
    accepted = [(b"accept-encoding", b"identity")]
    return RefusedError(415, ErrorCode.VALIDATION_ERROR, message, "CONTENT_ENCODING", accepted)


class CallWatcher:
    """Watches a call that suspends: counts it towards its caller's limit, and stops it if the client disconnects."""

    __slots__ = ("_calls", "_deadline", "_is_gone", "_key", "_operation_id", "_receive", "_task", "is_counted")

    def __init__(self, receive: Receive | None, operation_id: str, calls: ConcurrencyLimits, key: str) -> None:
        self._receive = receive
        """`receive` of ASGI; None for a call that continues when its client disconnects."""
        self._operation_id = operation_id
        self._calls = calls
        self._key = key
        self._deadline: Deadline | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_gone = False
        self.is_counted = False

    def __call__(self, deadline: Deadline) -> None:
        """Begin to watch a call; called when the call suspends."""
        if not self.is_counted:
            self.is_counted = True
            self._calls.add(self._key)
        self._deadline = deadline
        if self._is_gone:
            self._stop()
        elif self._task is None and self._receive is not None:
            self._task = asyncio.get_running_loop().create_task(self._watch(self._receive))

    async def _watch(self, receive: Receive) -> None:
        await wait_for_disconnect(receive)
        self._is_gone = True
        self._stop()

    def _stop(self) -> None:
        assert self._deadline is not None
        self._deadline.stop(aborted(self._operation_id, "the client closed the connection"))
