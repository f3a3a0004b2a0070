"""PendingRequestMap: makes calls over a transport, and sees to it that each ends exactly once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

from operations.calls import tracing
from operations.calls.codec import CODECS, Codec, CodecName
from operations.calls.counters import Counters
from operations.calls.deadlines import DEFAULT_TIMEOUT, now_ms, remaining_seconds
from operations.calls.endpoint import (
    Endpoint,
    control_address,
    endpoint_of,
    inbox_of,
    queue_address,
    work_address,
    worker_address,
)
from operations.calls.events import (
    VERSION,
    CallCompleted,
    CallRequested,
    CallResponded,
    Completed,
    Requested,
    Responded,
)
from operations.calls.failures import Executed, executed_of, timed_out, too_large, unavailable, undelivered
from operations.calls.presence import lifeline_of
from operations.calls.streams import CallStream, StreamReader
from operations.context import Identity
from operations.envelope import ResponseEnvelope, detect_envelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import DurableTransport, Refused, Transport

_RETRY_SECONDS = 0.05
_LONGEST_RETRY = 1.0


class PendingRequestMap:
    """The caller's side of the call protocol on one transport.

    `call` and `subscribe` make requests; `respond`, `complete`, `emit_error` and `abort` answer them, for whoever
    serves requests by other means than a CallHandler.
    """

    def __init__(self, pubsub: Transport, *, timeout: float = DEFAULT_TIMEOUT, codec: CodecName = "json") -> None:
        self._endpoint = endpoint_of(pubsub)
        self._transport = pubsub
        self._timeout = timeout
        self._codec = CODECS[codec]
        self._lifeline = None if pubsub.capabilities.tracks_peers else lifeline_of(self._endpoint)
        self._reach = getattr(pubsub, "reach", None) if getattr(pubsub, "direct", False) else None

    @property
    def counters(self) -> Counters:
        """What became of the messages of this end of the transport."""
        return self._endpoint.counters

    @property
    def in_flight(self) -> int:
        """How many requests of this end wait for an answer."""
        return len(self._endpoint.waiting)

    async def call(
        self,
        operation_id: str,
        input: Any = None,
        *,
        deadline: int | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: bool = False,
        wait: bool = False,
        durable: bool = False,
    ) -> ResponseEnvelope[Any]:
        """Call an operation: its envelope, or a CallError no later than the deadline (epoch ms; else 30 s from now).

        `retry` sends the request again where its connection or worker was lost: right for queries, never for what
        changes something. `wait` waits for somebody to answer instead of failing at once when there is nobody.
        `durable` has the request stored: it is run at least once, whatever becomes of its worker or its caller.
        """
        if tracing.is_active():
            metadata = dict(metadata or {})
            with tracing.client_span(operation_id, metadata):
                return await self._call(
                    operation_id, input, deadline, identity, parent_request_id, metadata, retry, wait, durable
                )
        return await self._call(
            operation_id, input, deadline, identity, parent_request_id, metadata, retry, wait, durable
        )

    async def _call(
        self,
        operation_id: str,
        input: Any,
        deadline: int | None,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
        retry: bool,
        wait: bool,
        durable: bool,
    ) -> ResponseEnvelope[Any]:
        if durable:
            return await self._call_durably(operation_id, input, deadline, identity, parent, metadata)
        if self._reach is not None:
            target = self._reach(work_address(operation_id))
            if target is not None:
                return await target.execute(operation_id, input, deadline, identity, parent, metadata, self._timeout)  # type: ignore[no-any-return]
        if deadline is None:
            deadline = now_ms() + int(self._timeout * 1000)
        event = self._request(operation_id, input, deadline, identity, parent, metadata)
        waiting = _PendingCall(self._endpoint, event, self._codec, retry=retry, wait=wait)
        if self._lifeline is not None:
            waiting.since = asyncio.get_running_loop().time()
            self._lifeline.watch()
        return await waiting.run(remaining_seconds(deadline))

    async def _call_durably(
        self,
        operation_id: str,
        input: Any,
        deadline: int | None,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> ResponseEnvelope[Any]:
        if not self._transport.capabilities.durable:
            message = f"{operation_id}: this transport stores nothing; durable calls need NATS with JetStream, or Redis"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        # The deadline bounds how long the caller waits; what was stored is run all the same.
        event = self._request(operation_id, input, None, identity, parent, metadata)
        seconds = self._timeout if deadline is None else remaining_seconds(deadline)
        return await _DurableCall(self._endpoint, event, self._codec).run(seconds)

    def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        *,
        deadline: int | None = None,
        idle_timeout: float | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Follow an operation's stream; `idle_timeout` (seconds) ends it when nothing comes for so long."""
        if tracing.is_active():
            metadata = dict(metadata or {})
            tracing.inject(metadata)
        target = self._reach(work_address(operation_id)) if self._reach is not None else None
        if target is not None:
            return target.stream(  # type: ignore[no-any-return]
                operation_id, input, deadline, idle_timeout, identity, parent_request_id, metadata
            )
        event = self._request(operation_id, input, deadline, identity, parent_request_id, metadata)
        event.stream = True
        if idle_timeout is not None:
            event.payload.idle_timeout = int(idle_timeout * 1000)
        reader = StreamReader(self._endpoint, event.id, operation_id, self._codec)
        message = self._encode(event)
        reader.start(idle_timeout=idle_timeout, deadline=deadline)
        if self._lifeline is not None:
            self._lifeline.watch()
        self._transport.send(
            self._endpoint.request_address(operation_id),
            message,
            lambda reason: reader.failed(undelivered(operation_id, reason)),
        )
        return CallStream(reader)

    def respond(
        self, request_id: str, output: ResponseEnvelope[Any] | Mapping[str, Any], *, sequence: int | None = None
    ) -> None:
        """Answer a request with an envelope; anything else is refused."""
        envelope = detect_envelope(output)
        if envelope is None:
            message = f"respond takes a response envelope, not {type(output).__name__}: wrap it with local_envelope"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        payload = Responded(request_id, self._codec.write_envelope(envelope), sequence)
        self._send_answer(request_id, CallResponded(VERSION, request_id, "", payload))

    def complete(self, request_id: str, *, sequence: int | None = None) -> None:
        """End a stream that was answered `sequence` times."""
        self._send_answer(request_id, CallCompleted(VERSION, request_id, "", Completed(request_id, sequence)))

    def emit_error(self, request_id: str, error: CallError) -> None:
        """Answer a request with an error."""
        self._endpoint.send_error(request_id, error, self._codec)

    def abort(self, request_id: str, reason: str = "") -> None:
        """Give up: a request of this end, whose caller gets `ABORTED`, or one that this end was to answer."""
        waiting = self._endpoint.waiting.get(request_id)
        if waiting is None:
            self._endpoint.send_abort(request_id, inbox_of(request_id), self._codec, reason)
        elif isinstance(waiting, _PendingCall):
            waiting.give_up(CallError(ErrorCode.ABORTED, reason or "aborted by the caller", {"executed": "unknown"}))
        elif isinstance(waiting, StreamReader):
            waiting.abort(reason)

    def _send_answer(self, request_id: str, event: CallResponded | CallCompleted) -> None:
        self._transport.send(inbox_of(request_id), self._codec.encode(event))

    def _request(
        self,
        operation_id: str,
        input: Any,
        deadline: int | None,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> CallRequested:
        capabilities = self._transport.capabilities
        if identity is not None and not capabilities.claims_identity:
            message = (
                "an identity cannot be claimed on this transport: it is established where the caller is authenticated"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        request_id = self._endpoint.new_id()
        payload = Requested(
            request_id,
            operation_id,
            self._codec.raw({} if input is None else input),
            parent,
            deadline,
            None,
            identity if capabilities.identity != "hub" else None,
            dict(metadata) if metadata else None,
            now_ms(),
        )
        vouched = identity if capabilities.identity == "hub" else None
        return CallRequested(VERSION, request_id, operation_id, payload, vouched, False, parent)

    def _encode(self, event: CallRequested) -> bytes:
        return encode_request(event, self._codec, self._transport)


def encode_request(event: CallRequested, codec: Codec, transport: Transport) -> bytes:
    """A request as bytes, or the typed error that says why it cannot travel."""
    try:
        message = codec.encode(event)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the request cannot be written: {error}") from error
    limit = transport.capabilities.max_payload
    if limit is not None and len(message) > limit:
        raise too_large(event.to, "request", len(message), limit, "no")
    return message


class _PendingCall:
    """One call on its way: it ends with the first answer, at its deadline, or when its caller leaves."""

    __slots__ = (
        "_attempts",
        "_codec",
        "_endpoint",
        "_event",
        "_future",
        "_message",
        "_retry",
        "_risked",
        "_timer",
        "_wait",
        "since",
        "worker",
    )

    def __init__(self, endpoint: Endpoint, event: CallRequested, codec: Codec, *, retry: bool, wait: bool) -> None:
        self._endpoint = endpoint
        self._event = event
        self._codec = codec
        self._retry = retry
        self._wait = wait
        self._attempts = 0
        self._risked = False
        self._timer: asyncio.TimerHandle | None = None
        self._message = encode_request(event, codec, endpoint.transport)
        self._future: asyncio.Future[tuple[CallResponded, Codec]] = asyncio.get_running_loop().create_future()
        self.worker: str | None = None
        self.since = 0.0

    @property
    def operation_id(self) -> str:
        """What was called."""
        return self._event.to

    async def run(self, seconds: float) -> ResponseEnvelope[Any]:
        """Send the request and wait for how it ends."""
        endpoint, request_id = self._endpoint, self._event.id
        if seconds <= 0:
            raise timed_out(self._event.to, "no", "before the call began")
        endpoint.waiting[request_id] = self
        tick = endpoint.deadlines.add(self, seconds)
        answered = False
        try:
            self._send()
            event, codec = await self._future
            answered = True
            return codec.read_envelope(event.payload.output)
        except asyncio.CancelledError:
            self._tell_worker("the caller was cancelled")
            raise
        except CallError as error:
            answered = answered or executed_of(error) == "yes"
            raise
        finally:
            endpoint.deadlines.discard(tick, self)
            endpoint.forget(request_id, answered=answered)
            if self._timer is not None:
                self._timer.cancel()

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """The answer; a second one is dropped."""
        if self._future.done():
            self._note_second()
        else:
            self._future.set_result((event, codec))

    def completed(self, event: CallCompleted) -> None:
        """A call is not a stream: an end without an answer is an error."""
        message = f"{self._event.to}: a stream ended where one answer was expected"
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
        """The transport was lost: it may have run, or may yet."""
        self.worker = None
        self._risked = True
        if not self._retry:
            self._fail(unavailable(self._event.to, f"the connection was lost: {reason}", "unknown"))

    def regained(self) -> None:
        """The transport is back: what may be sent again is."""
        if self._timer is not None:
            self._timer.cancel()
        self._attempts += 1
        self._send()

    def expire(self) -> None:
        """The deadline passed."""
        self._tell_worker("the deadline passed")
        self._fail(timed_out(self._event.to, "unknown"))

    def give_up(self, error: CallError) -> None:
        """End it from this side."""
        self._tell_worker(error.message)
        self._fail(error)

    def _undelivered(self, reason: str) -> None:
        if self._future.done():
            return
        if not isinstance(reason, Refused) and self._may_resend("no"):
            self._resend_later()
        else:
            self._fail(undelivered(self._event.to, reason))

    def _may_resend(self, executed: str) -> bool:
        """Whether to send it again: what was not run if asked to wait, what may have run if it is safe to repeat.

        Once a repeatable call was lost, a worker that is not back yet is waited for as well.
        """
        if executed == "no":
            return self._wait or self._risked
        return self._retry and executed == "unknown"

    def _resend_later(self) -> None:
        delay = min(_LONGEST_RETRY, _RETRY_SECONDS * 2**self._attempts)
        self._attempts += 1
        self._timer = asyncio.get_running_loop().call_later(delay, self._send)

    def _send(self) -> None:
        if self._future.done():
            return
        if self._attempts:
            self.worker = None
            self.since = asyncio.get_running_loop().time()
            self._event.payload.attempt = self._attempts
            self._message = self._codec.encode(self._event)
        endpoint = self._endpoint
        endpoint.transport.send(endpoint.request_address(self._event.to), self._message, self._undelivered)

    def _tell_worker(self, reason: str) -> None:
        if not self._future.done() or self._future.cancelled():
            address = worker_address(self.worker) if self.worker is not None else control_address(self._event.to)
            self._endpoint.send_abort(self._event.id, address, self._codec, reason)

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


class _DurableCall(_PendingCall):
    """A call whose request is stored: once it is, only its answer or its deadline ends it."""

    __slots__ = ("_stored",)

    def __init__(self, endpoint: Endpoint, event: CallRequested, codec: Codec) -> None:
        super().__init__(endpoint, event, codec, retry=False, wait=False)
        self._stored = False
        self.since = math.inf  # no worker need have it yet, and silence is nobody's death

    def lost(self, reason: str) -> None:
        """The transport was lost: what was stored is run, and what was not may be sent again, as it has one id."""
        self._risked = True

    def regained(self) -> None:
        """The transport is back."""
        if not self._stored:
            self._send()

    def expire(self) -> None:
        """The caller waits no longer."""
        executed: Executed = "unknown" if self._stored or self._risked else "no"
        self._fail(timed_out(self._event.to, executed, stored=self._stored))

    def _send(self) -> None:
        if not self._future.done():
            transport: DurableTransport = self._endpoint.transport  # type: ignore[assignment]
            address, key = queue_address(self._event.to), self._event.id
            transport.store(address, self._message, key=key, stored=self._note_stored, undelivered=self._undelivered)

    def _note_stored(self) -> None:
        self._stored = True

    def _tell_worker(self, reason: str) -> None:
        """A caller that leaves does not undo what was stored."""
