"""PendingCall: one call of a caller, from its first attempt to its end; also durable calls and submitted jobs."""

from __future__ import annotations

import asyncio
import math
from typing import ClassVar

import msgspec

from operations.calls.addresses import control_address, direct_address, queue_address, worker_address
from operations.calls.codec import JSON, Codec, transcode
from operations.calls.endpoint import Endpoint
from operations.calls.events import CallCompleted, CallResponded
from operations.calls.liveness import liveness_of
from operations.context import Grant, Progress
from operations.errors import CallError, ErrorCode
from operations.failures import Executed, executed_of, is_final, is_unconverted, timed_out, unavailable
from operations.pubsub import DeliveryRefused, Record, Stores, TooManyRecords, Transport

_RETRY_SECONDS = 0.05
_LONGEST_RETRY = 1.0
"""A request is sent again after `_RETRY_SECONDS`; the delay doubles with each attempt, up to `_LONGEST_RETRY`."""
_MOST_TRIED = 16
"""Largest number of workers that are tried, one after the other, until a repeated request can be delivered to one.

If it can be delivered to none of them, it is sent to their group.
"""
_AFTER_LOSS = "after the worker or the connection was lost, and no worker responded to the repeated request"


def undelivered(operation_id: str, reason: str) -> CallError:
    """Return the error for a request that no worker received or that this peer may not send."""
    if isinstance(reason, DeliveryRefused):
        details = {"operationId": operation_id, "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"{operation_id}: {reason}", details)
    return unavailable(operation_id, f"no worker received the call: {reason}", "no")


class PendingCall(msgspec.Struct, eq=False):
    """A call in flight: it ends with a response or an error, at its deadline, or when its caller cancels it."""

    is_stored: ClassVar[bool] = False
    """Whether the transport stores the request."""
    operation_id: str
    _endpoint: Endpoint
    transport: Transport
    """The transport that sends the request and may sign it."""
    _retry: bool
    _wait: bool
    grant: Grant | None
    """The grant of the request that the call is nested in."""
    as_worker: bool
    progress: Progress | None
    request_id: str = ""
    message: bytes = b""
    codec: Codec = JSON
    """The codec of `message`. Like `request_id` and `message`, it is set before the request is sent."""
    _future: asyncio.Future[tuple[CallResponded, Codec]] = None  # type: ignore[assignment]
    _attempts: int = 0
    _risked: bool = False
    """Whether an earlier attempt may have run."""
    timer: asyncio.TimerHandle | None = None
    """The timer that sends the request again."""
    worker: str | None = None
    since: float = 0.0
    patience: float = math.inf

    async def outcome(self, seconds: float) -> tuple[CallResponded, Codec]:
        """Send the request and wait for its response, at most `seconds`."""
        endpoint, request_id, loop = self._endpoint, self.request_id, asyncio.get_running_loop()
        self._future = future = loop.create_future()
        endpoint.pending[request_id] = self
        if self.progress is not None:
            endpoint.report_progress(request_id, self.progress)
        now = loop.time()
        self.since = self.since or now
        if self._retry:
            self.patience = seconds / 2  # leaves time for another worker
        bucket = endpoint.wheel.add_at(now + seconds, self, loop)
        is_answered = True
        try:
            if self.is_stored:
                self.send()
            else:
                self.transport.send(endpoint.request_address(self.operation_id), self.message, self)
            # A worker responds in the request's format; a hub may use another format.
            return await future  # type: ignore[no-any-return]
        except BaseException as error:
            is_answered = self._note_end(error)
            raise
        finally:
            del endpoint.pending[request_id]
            if self.progress is not None:
                del endpoint.progress[request_id]
            endpoint.ended.newer[request_id] = is_answered
            if len(endpoint.ended.newer) >= endpoint.ended.minimum:
                endpoint.ended.rotate()
            bucket.discard(self)
            if self.timer is not None:
                self.timer.cancel()
            del future, self  # break the cycle from this frame through the error to its traceback

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """End the call with its response; a second response is dropped."""
        if self._future.done():
            self._note_second()
        else:
            self._future.set_result((event, codec))

    def completed(self, event: CallCompleted) -> None:
        """Fail: a call expects one response, not the end of a stream."""
        message = f"{self.operation_id}: expected one response, got the end of a stream"
        self._fail(CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "yes"}))

    def failed(self, error: CallError) -> None:
        """Fail, or send the request again if that is allowed."""
        if self._future.done():
            self._note_second()
        elif not is_final(error) and self._may_resend(executed_of(error)):
            self._risked = self._risked or executed_of(error) != "no"
            self._resend_later()
        elif self.codec is not JSON and is_unconverted(error) and self._encode_as_json():
            self.send()
        else:
            self._fail(error)

    def _encode_as_json(self) -> bool:
        """Encode the request as JSON, the only format of the worker.

        Return False if that is impossible, or if the result is too large.
        """
        try:
            self.message, self.codec = transcode(self.message, JSON), JSON
        except CallError:
            return False
        limit = self._endpoint.transport.capabilities.max_payload
        return limit is None or len(self.message) <= limit

    def accepted(self, worker: str) -> None:
        """Store the worker that runs the call: control messages go to that worker only."""
        self.worker = worker

    def lost(self, reason: str) -> None:
        """Fail the call, because it may have run.

        A request that no worker received, or that may be repeated (`retry`), is sent again instead.
        """
        if self._is_held_back:
            return
        self.worker = None
        self._risked = True
        if not self._retry:
            self._fail(unavailable(self.operation_id, f"the connection was lost: {reason}", "unknown"))

    def regained(self) -> None:
        """Send the request again."""
        if self.timer is not None:
            self.timer.cancel()
        self._attempts += 1
        self.send()

    def expire(self) -> None:
        """Fail: the deadline has passed."""
        if self._is_held_back:
            self._fail(timed_out(self.operation_id, "no", "before any worker was available"))
            return
        self.abort_worker("the deadline passed")
        self._fail(self._lost_worker() if self._risked else timed_out(self.operation_id, "unknown"))

    def cancel(self, error: CallError) -> None:
        """End the call from the caller's side."""
        self.abort_worker(error.message)
        self._fail(error)

    def __call__(self, reason: str) -> None:
        """Handle an undelivered request: the transport calls this."""
        if self._future.done():
            return
        if not isinstance(reason, DeliveryRefused) and self._may_resend("no"):
            self._resend_later()
        else:
            self._fail(undelivered(self.operation_id, reason))

    def _may_resend(self, executed: str) -> bool:
        """Return whether to send the request again.

        `executed` is whether the operation ran: `no`, `unknown` or `yes`. With `wait`, a request that did not run is
        sent again. With `retry`, a request that may have run is sent again; from then on, it is also sent again
        after an attempt that did not run, even without `wait`.
        """
        if executed == "no":
            return self._wait or self._risked
        return self._retry and executed == "unknown"

    @property
    def _is_held_back(self) -> bool:
        """Whether the request will be sent again, and no worker has received it yet."""
        return self.timer is not None and not self._risked

    def _resend_later(self) -> None:
        delay = min(_LONGEST_RETRY, _RETRY_SECONDS * 2**self._attempts)
        self._attempts += 1
        self.timer = asyncio.get_running_loop().call_later(delay, self.send)

    def send(self) -> None:
        """Send the request, for the first time or again."""
        if self._future.done():
            return
        endpoint = self._endpoint
        self.timer = None
        if self._attempts:
            self.worker = None
            self.since = asyncio.get_running_loop().time()
            self.message = self.codec.renumber(self.message, self._attempts)
            capabilities = endpoint.transport.capabilities
            if capabilities.identity == "hub" and capabilities.codec == "json":
                # The hub after a reconnect may support fewer formats than the one before.
                self.message, self.codec = transcode(self.message, JSON), JSON
        if self._risked and endpoint.transport.capabilities.addresses_workers:
            self._send_to(liveness_of(endpoint).live_peers()[:_MOST_TRIED])
        else:
            self.transport.send(endpoint.request_address(self.operation_id), self.message, self)

    def _send_to(self, peers: list[str]) -> None:
        """Send the request to the first peer to which it can be delivered, or else to the group of workers.

        The group comes last, because a broker may still deliver some of the group's requests to a lost worker.
        """
        transport = self.transport
        if not peers:
            transport.send(self._endpoint.request_address(self.operation_id), self.message, self)
            return
        address = direct_address(peers[0], self.operation_id)
        transport.send(address, self.message, lambda reason: self._send_to(peers[1:]))

    def _lost_worker(self) -> CallError:
        """Return the error for a passed deadline after an attempt that was lost."""
        return timed_out(self.operation_id, "unknown", _AFTER_LOSS, reason="WORKER_LOST")

    def _note_end(self, error: BaseException) -> bool:
        """Handle an error or a cancellation; return whether the error shows that the operation ran."""
        if isinstance(error, asyncio.CancelledError):
            self.abort_worker("the caller was cancelled")
            if self._risked and not self.is_stored:
                # The cancellation may be that of a deadline around this call, which knows nothing of the loss.
                error.__cause__ = self._lost_worker()
        return isinstance(error, CallError) and executed_of(error) == "yes"

    def abort_worker(self, reason: str) -> None:
        """Send an abort to the worker, unless the call has ended."""
        if not self._future.done() or self._future.cancelled():
            address = worker_address(self.worker) if self.worker is not None else control_address(self.operation_id)
            self._endpoint.abort_worker(self.request_id, address, self.codec, reason)

    def _note_second(self) -> None:
        if self._future.cancelled() or self._future.exception() is not None:
            self._endpoint.counters.late += 1
        else:
            self._endpoint.counters.duplicate += 1

    def _fail(self, error: CallError) -> None:
        if not self._future.done():
            if self._risked and executed_of(error) == "no":
                # An earlier attempt may have run, even if the last one did not.
                error = CallError(error.code, error.message, {**error.details, "executed": "unknown"})
            self._future.set_exception(error)


class DurableCall(PendingCall):
    """A call whose request the transport stores. After that, a lost worker or connection does not end the call."""

    is_stored: ClassVar[bool] = True
    _stored: bool = False
    _is_sent: bool = False
    """Whether the request was sent to the store, so that it may be stored although this is not confirmed."""
    record: Record | None = None
    """The record of a job, which is stored with its request."""
    since: float = math.inf
    """Infinity instead of a time: the request may not be at a worker yet, so missing heartbeats mean nothing."""

    def lost(self, reason: str) -> None:
        """Do not fail: a stored request runs, and a request that was not stored is sent again with the same id."""
        self._risked = True

    def regained(self) -> None:
        """Store the request, unless it is stored already."""
        if not self._stored:
            self.send()

    def expire(self) -> None:
        """Fail: the deadline has passed, and the caller stops waiting."""
        executed: Executed = "unknown" if self._stored or self._is_sent or self._risked else "no"
        self._fail(timed_out(self.operation_id, executed, stored=self._stored))

    def send(self) -> None:
        """Store the request."""
        store = self.transport.optional(Stores)
        if not self._future.done() and store is not None:
            address, key = queue_address(self.operation_id), self.request_id
            # An earlier attempt may still be stored, even if this one fails.
            self._risked = self._risked or self._is_sent
            self._is_sent = True
            kept = {} if self.record is None else {"record": self.record}
            store.store(address, self.message, key=key, stored=self._note_stored, undelivered=self, **kept)

    def __call__(self, reason: str) -> None:
        """Handle a failed attempt to store the request, unless another attempt succeeded."""
        if not self._stored:
            self._is_sent = False
            super().__call__(reason)

    def _note_stored(self) -> None:
        self._stored = True

    def abort_worker(self, reason: str) -> None:
        """Do nothing: a stored request runs even if its caller has left."""


class JobSubmission(DurableCall):
    """The request of a job: for its caller, the call ends when the request is stored."""

    def __call__(self, reason: str) -> None:
        """Handle a request that was not stored; if the caller has too many jobs, fail immediately."""
        if isinstance(reason, TooManyRecords) and not self._stored:
            details = {"operationId": self.operation_id, "reason": "TOO_MANY_JOBS", "executed": "no"}
            message = f"{self.operation_id}: this identity has too many jobs"
            self._fail(CallError(ErrorCode.UNAVAILABLE, message, details))
        else:
            super().__call__(reason)

    def _note_stored(self) -> None:
        self._stored = True
        if not self._future.done():
            self._future.set_result(None)  # type: ignore[arg-type]
