"""Calls on their way, as their caller sees them: each ends once, whatever comes and however often."""

from __future__ import annotations

import asyncio
import math

import msgspec

from operations.calls.addresses import control_address, queue_address, worker_address
from operations.calls.codec import JSON, Codec, transcode
from operations.calls.endpoint import Endpoint
from operations.calls.events import CallCompleted, CallResponded
from operations.calls.failures import Executed, executed_of, timed_out, unavailable, undelivered
from operations.errors import CallError, ErrorCode
from operations.pubsub import DurableTransport, Refused

_RETRY_SECONDS = 0.05
_LONGEST_RETRY = 1.0


class PendingCall(msgspec.Struct, eq=False):
    """One call on its way: it ends with the first answer, at its deadline, or when its caller leaves."""

    request_id: str
    operation_id: str
    _endpoint: Endpoint
    _message: bytes
    _codec: Codec
    _future: asyncio.Future[tuple[CallResponded, Codec]]
    _retry: bool
    _wait: bool
    _attempts: int = 0
    _risked: bool = False
    timer: asyncio.TimerHandle | None = None
    """When it is sent again, if it is."""
    worker: str | None = None
    since: float = 0.0

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """The answer; a second one is dropped."""
        if self._future.done():
            self._note_second()
        else:
            self._future.set_result((event, codec))

    def completed(self, event: CallCompleted) -> None:
        """A call is not a stream: an end without an answer is an error."""
        message = f"{self.operation_id}: a stream ended where one answer was expected"
        self._fail(CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "yes"}))

    def failed(self, error: CallError) -> None:
        """It ended in an error, unless it may be sent again."""
        if self._future.done():
            self._note_second()
        elif error.code is ErrorCode.UNAVAILABLE and self._may_resend(executed_of(error)):
            self._risked = self._risked or executed_of(error) != "no"
            self._resend_later()
        else:
            self._fail(error)

    def accepted(self, worker: str) -> None:
        """This worker has it: control goes to it alone."""
        self.worker = worker

    def lost(self, reason: str) -> None:
        """The transport was lost: it may have run, or may yet, unless it was never sent."""
        if self._is_held_back:
            return
        self.worker = None
        self._risked = True
        if not self._retry:
            self._fail(unavailable(self.operation_id, f"the connection was lost: {reason}", "unknown"))

    def regained(self) -> None:
        """The transport is back: what may be sent again is."""
        if self.timer is not None:
            self.timer.cancel()
        self._attempts += 1
        self.send()

    def expire(self) -> None:
        """The deadline passed."""
        if self._is_held_back:
            self._fail(timed_out(self.operation_id, "no", "before anybody could be asked"))
            return
        self.tell_worker("the deadline passed")
        self._fail(timed_out(self.operation_id, "unknown"))

    def give_up(self, error: CallError) -> None:
        """End it from this side."""
        self.tell_worker(error.message)
        self._fail(error)

    def __call__(self, reason: str) -> None:
        """Nobody got the request: what a transport is given to say so."""
        if self._future.done():
            return
        if not isinstance(reason, Refused) and self._may_resend("no"):
            self._resend_later()
        else:
            self._fail(undelivered(self.operation_id, reason))

    def _may_resend(self, executed: str) -> bool:
        """Whether to send it again: what was not run if asked to wait, what may have run if it is safe to repeat.

        Once a repeatable call was lost, a worker that is not back yet is waited for as well.
        """
        if executed == "no":
            return self._wait or self._risked
        return self._retry and executed == "unknown"

    @property
    def _is_held_back(self) -> bool:
        """Whether nobody got the request so far, and it is to be sent again."""
        return self.timer is not None and not self._risked

    def _resend_later(self) -> None:
        delay = min(_LONGEST_RETRY, _RETRY_SECONDS * 2**self._attempts)
        self._attempts += 1
        self.timer = asyncio.get_running_loop().call_later(delay, self.send)

    def send(self) -> None:
        """Send the request, or send it again."""
        if self._future.done():
            return
        endpoint = self._endpoint
        self.timer = None
        if self._attempts:
            self.worker = None
            self.since = asyncio.get_running_loop().time()
            self._message = self._codec.renumber(self._message, self._attempts)
            capabilities = endpoint.transport.capabilities
            if capabilities.identity == "hub" and capabilities.codec == "json":
                # A hub that it did not begin at need not read what the first one did.
                self._message, self._codec = transcode(self._message, JSON), JSON
        endpoint.transport.send(endpoint.request_address(self.operation_id), self._message, self)

    def note_end(self, error: BaseException) -> None:
        """It ends without an answer, unless the error is one; an answer that still comes is late."""
        if isinstance(error, asyncio.CancelledError):
            self.tell_worker("the caller was cancelled")
        if not (isinstance(error, CallError) and executed_of(error) == "yes"):
            self._endpoint.note_unanswered(self.request_id)

    def tell_worker(self, reason: str) -> None:
        """Tell whoever runs it that nobody waits, unless it has ended."""
        if not self._future.done() or self._future.cancelled():
            address = worker_address(self.worker) if self.worker is not None else control_address(self.operation_id)
            self._endpoint.send_abort(self.request_id, address, self._codec, reason)

    def _note_second(self) -> None:
        if self._future.cancelled() or self._future.exception() is not None:
            self._endpoint.counters.late += 1
        else:
            self._endpoint.counters.duplicate += 1

    def _fail(self, error: CallError) -> None:
        if not self._future.done():
            if self._risked and executed_of(error) == "no":
                # An earlier attempt may have run, whatever became of the last one.
                error = CallError(error.code, error.message, {**error.details, "executed": "unknown"})
            self._future.set_exception(error)


class DurableCall(PendingCall):
    """A call whose request is stored: once it is, only its answer or its deadline ends it."""

    _stored: bool = False
    _is_out: bool = False
    """Whether the request is on its way to where it is to be stored: it may get there after its caller left."""
    since: float = math.inf
    """No worker need have it yet, and silence is nobody's death."""

    def lost(self, reason: str) -> None:
        """The transport was lost: what was stored is run, and what was not may be sent again, as it has one id."""
        self._risked = True

    def regained(self) -> None:
        """The transport is back."""
        if not self._stored:
            self.send()

    def expire(self) -> None:
        """The caller waits no longer."""
        executed: Executed = "unknown" if self._stored or self._is_out or self._risked else "no"
        self._fail(timed_out(self.operation_id, executed, stored=self._stored))

    def send(self) -> None:
        """Have the request stored."""
        if not self._future.done():
            transport: DurableTransport = self._endpoint.transport  # type: ignore[assignment]
            address, key = queue_address(self.operation_id), self.request_id
            # The one before this may be stored yet, whatever becomes of this one.
            self._risked = self._risked or self._is_out
            self._is_out = True
            transport.store(address, self._message, key=key, stored=self._note_stored, undelivered=self)

    def __call__(self, reason: str) -> None:
        """It was not stored, unless another try was: what is said of one may come late."""
        if not self._stored:
            self._is_out = False
            super().__call__(reason)

    def _note_stored(self) -> None:
        self._stored = True

    def tell_worker(self, reason: str) -> None:
        """A caller that leaves does not undo what was stored."""
