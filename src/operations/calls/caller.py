"""PendingRequestMap: the caller's side of the call protocol. Every call ends exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import msgspec

from operations.calls.addresses import work_address
from operations.calls.codec import CODECS, Codec, CodecName, LocalOutput
from operations.calls.endpoint import endpoint_of, inbox_of
from operations.calls.events import (
    NULL,
    VERSION,
    CallCompleted,
    CallRequested,
    CallResponded,
    CompletionPayload,
    RequestPayload,
    ResponsePayload,
)
from operations.calls.job_records import JobRecord, JobRequest, largest_body, transport_record
from operations.calls.liveness import liveness_of
from operations.calls.pending_call import DurableCall, JobSubmission, PendingCall, undelivered
from operations.calls.replay_protection import STORED_SECONDS
from operations.calls.requests import SignsNestedCalls
from operations.calls.streams import CallStream, StreamReader
from operations.context import Grant, Identity, OperationContext, Progress, check_identity, current_grant
from operations.deadlines import check_deadline, remaining_seconds
from operations.dispatch import Dispatcher, Request
from operations.envelope import ResponseEnvelope, detect_envelope
from operations.errors import CallError, ErrorCode
from operations.failures import timed_out, too_large
from operations.progress import ProgressReporter
from operations.pubsub import InProcess, Transport
from operations.pubsub.limits import check_seconds
from operations.spec import Operation
from operations.telemetry import tracing
from operations.telemetry.counters import Counters

_LONGEST_TIMEOUT = 10.0 * 365 * 86_400
DEFAULT_TIMEOUT = 30.0
"""Time limit in seconds of a call without a deadline."""
_IDS_TOGETHER = 64


class PendingRequestMap:
    """The caller's side of the call protocol on one transport.

    `call` and `subscribe` send requests. `respond`, `complete`, `emit_error` and `abort` respond to requests, for code
    that serves requests without a CallHandler. Requests are encoded in the transport's preferred format, or in `codec`.

    A call that a handler makes has the identity of the caller of the handler's request. A worker can call with its own
    rights only outside any request: pass `as_worker=True`.
    """

    def __init__(
        self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT, codec: CodecName | None = None
    ) -> None:
        check_seconds(timeout=timeout)
        self._endpoint = endpoint_of(transport)
        self._transport = transport
        self._timeout = timeout
        self._chosen = None if codec is None else CODECS[codec]
        self._liveness = None if transport.capabilities.tracks_peers else liveness_of(self._endpoint)
        self._in_process = transport.optional(InProcess)
        self._signs = transport.optional(SignsNestedCalls)

    @property
    def counters(self) -> Counters:
        """Counters of unusual messages on this transport."""
        return self._endpoint.counters

    @property
    def _codec(self) -> Codec:
        return self._chosen or CODECS[self._transport.capabilities.codec]

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for a response."""
        return len(self._endpoint.pending)

    def call(
        self,
        operation: str | Operation[Any],
        input: Any = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: bool = False,
        wait: bool = False,
        durable: bool = False,
        as_worker: bool = False,
        progress: Progress | None = None,
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call an operation and return its envelope, or raise a CallError.

        `operation` is an id or an Operation. For an Operation, the `data` of the envelope is converted to the
        operation's Python return type. The call ends at the latest after `timeout` seconds or at `deadline` (epoch ms);
        without both, after the default timeout of this PendingRequestMap. `retry` sends the request again if the
        connection or the worker is lost: use it for queries, never for operations that change something. If no worker
        is connected, the call fails immediately; with `wait`, it waits for a worker. `durable` stores the request, so
        that it runs at least once, even if a worker or the caller is lost. `as_worker` calls with this process's own
        rights, outside any request. `progress` is called with the progress that the handler reports.
        """
        operation_id = _require_id(operation)
        if identity is not None:
            check_identity(identity)
        until = None if deadline is None and timeout is None else _earliest(deadline, timeout)
        request = RequestPayload("", operation_id, input, parent_request_id, until, None, identity, metadata)
        kind, grant = DurableCall if durable else PendingCall, current_grant.get()
        pending = kind(operation_id, self._endpoint, self._transport, retry, wait, grant, as_worker, progress)
        call = self._send_call(request, pending)
        return call if isinstance(operation, str) or operation.load is None else _rebuild(call, operation)

    async def submit(
        self,
        operation_id: str,
        input: Any,
        job: JobRequest,
        *,
        most: int = 0,
        most_bytes: int | None = None,
        identity: Identity | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the request of a job and wait until it is stored.

        The outcome of the job is stored in its record and is not sent to the caller. `most` is the largest number of
        jobs of the owner (0: no limit), and `most_bytes` is the largest size of the encoded input.
        """
        if identity is not None:
            check_identity(identity)
        grant, now = current_grant.get(), time.time()
        request = RequestPayload("", operation_id, input, None, None, None, identity, metadata, job=job)
        if grant is not None:
            self._use_grant(request, grant, as_worker=False)
        self._prepare_stored(request, now)
        message, codec = self._encode(request, now, grant=grant)
        if most_bytes is not None and len(message) > most_bytes and len(bytes(codec.raw(input))) > most_bytes:
            raise too_large(operation_id, "request", len(message), most_bytes, "no")
        if (limit := self._transport.capabilities.max_payload) is not None and len(message) > largest_body(limit):
            # The record of a failed job contains the request, and the record has to fit into a message as well.
            raise too_large(operation_id, "request", len(message), largest_body(limit), "no")
        record = JobRecord(
            operation_id=operation_id,
            owner=job.owner,
            keep=job.keep,
            created_at=request.sent_at or 0,
            queued_at=request.sent_at or 0,
            request_id=request.request_id,
        )
        submitted = JobSubmission(operation_id, self._endpoint, self._transport, False, True, grant, False, None)
        submitted.request_id, submitted.message, submitted.codec = request.request_id, message, codec
        if self._signs is not None:
            submitted.transport = self._signs.for_grant(grant, as_worker=False)
        submitted.record = transport_record(job.key, record, most=most, waiting=STORED_SECONDS)
        try:
            await submitted.outcome(self._timeout)
        finally:
            del submitted  # break the cycle from this frame through the error to its traceback

    def call_for(
        self,
        context: OperationContext,
        operation_id: str,
        input: Any,
        *,
        retry: bool = False,
        durable: bool = False,
        as_worker: bool = False,
        parent: str | None = None,
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call an operation with the deadline, caller and trace of `context`.

        `parent` is the id of the parent request: by default `context.parent_request_id`, or else `context.request_id`.
        """
        request = self._inherit(context, operation_id, input, parent)
        grant = context.grant or current_grant.get()
        kind, own = DurableCall if durable else PendingCall, as_worker and grant is None
        pending = kind(operation_id, self._endpoint, self._transport, retry, False, grant, own, context.progress)
        return self._send_call(request, pending)

    def subscribe(
        self,
        operation: str | Operation[Any],
        input: Any = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        idle_timeout: float | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        as_worker: bool = False,
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe to a stream.

        The stream fails after `timeout` seconds or at `deadline` (epoch ms), or if no item arrives for `idle_timeout`
        seconds. None of these limits has a default.
        """
        if identity is not None:
            check_identity(identity)
        if idle_timeout is not None:
            check_seconds(idle_timeout=idle_timeout)
        idle = None if idle_timeout is None else int(idle_timeout * 1000)
        operation_id, until = _require_id(operation), _earliest(deadline, timeout)
        request = RequestPayload("", operation_id, input, parent_request_id, until, idle, identity, metadata)
        return self._send_subscribe(request, current_grant.get(), as_worker)

    def subscribe_for(
        self,
        context: OperationContext,
        operation_id: str,
        input: Any,
        *,
        as_worker: bool = False,
        parent: str | None = None,
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe to a stream with the deadline, caller and trace of `context`."""
        request = self._inherit(context, operation_id, input, parent)
        grant = context.grant or current_grant.get()
        return self._send_subscribe(request, grant, as_worker and grant is None)

    def _inherit(self, context: OperationContext, operation_id: str, input: Any, parent: str | None) -> RequestPayload:
        identity = context.identity if self._transport.capabilities.claims_identity else None
        parent = parent or context.parent_request_id or context.request_id or None
        return RequestPayload("", operation_id, input, parent, context.deadline, None, identity, context.metadata)

    def _send_call(self, request: RequestPayload, pending: PendingCall) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        if pending.grant is not None or pending.as_worker:
            self._use_grant(request, pending.grant, pending.as_worker)
        if pending.progress is not None and not pending.is_stored:  # a stored request may run without its caller
            request.progress = True
        if tracing.SDK in tracing.modules and tracing.is_active():
            return self._call_traced(request, pending)
        target = None if self._in_process is None or pending.is_stored else self._target(request.operation_id)
        return self._call(request, pending) if target is None else self._call_local(target, request, pending.progress)

    async def _call_traced(self, request: RequestPayload, pending: PendingCall) -> ResponseEnvelope[Any]:
        request.metadata = metadata = dict(request.metadata or {})
        with tracing.client_span(request.operation_id, metadata):
            target = None if pending.is_stored else self._target(request.operation_id)
            try:
                if target is not None:
                    return await self._call_local(target, request, pending.progress)
                return await self._call(request, pending)
            finally:
                del pending  # as in `_call`

    def _use_grant(self, request: RequestPayload, grant: Grant | None, as_worker: bool) -> None:
        """Give a nested call the identity of its grant if the transport accepts claimed identities.

        Raise a CallError if the call is not allowed.
        """
        if grant is None:
            return
        if as_worker:
            message = "invalid as_worker=True while a request is handled: use it only outside any request"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{request.operation_id}: {message}", {"executed": "no"})
        if grant.ended:
            raise _refused(request.operation_id, "GRANT_ENDED", "the request that this call is nested in has ended")
        capabilities = self._transport.capabilities
        if capabilities.claims_identity:
            request.identity = request.identity or grant.identity
        elif (capabilities.identity == "hub" or self._signs is not None) and grant.origin is not self._endpoint:
            reason = "the call is nested in a request from another transport: make it on that transport"
            raise _refused(request.operation_id, "FOREIGN_GRANT", reason)

    def _target(self, operation_id: str) -> Dispatcher | None:
        """Return the dispatcher that serves the operation if the transport reaches it in this process; else None."""
        if self._in_process is None:
            return None
        target = self._in_process.reach(work_address(operation_id))
        return target if isinstance(target, Dispatcher) else None

    def _call_local(
        self, target: Dispatcher, request: RequestPayload, progress: Progress | None
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        deadline = request.deadline
        if deadline is None:
            deadline = int((time.time() + self._timeout) * 1000)
        local = self._as_local(request, deadline)
        local.progress = None if progress is None else ProgressReporter(progress)
        return target.call(local)

    def _as_local(self, request: RequestPayload, deadline: int | None, idle_timeout: float | None = None) -> Request:
        return Request(
            operation_id=request.operation_id,
            input=request.input,
            parent_id=request.parent_request_id,
            grant=Grant(identity=request.identity, origin=self._endpoint, deadline=deadline, protocol="ws"),
            deadline=deadline,
            idle_timeout=idle_timeout,
            metadata=request.metadata,
        )

    async def _call(self, request: RequestPayload, pending: PendingCall) -> ResponseEnvelope[Any]:
        """Send a request and wait for its outcome."""
        now = time.time()
        if request.deadline is None:
            seconds = self._timeout
            request.deadline = int((now + seconds) * 1000)
        else:
            seconds = remaining_seconds(request.deadline)
        if pending.is_stored:
            self._prepare_stored(request, now)
        message, codec = self._encode(request, now, grant=pending.grant, as_worker=pending.as_worker)
        if seconds <= 0:
            raise timed_out(request.operation_id, "no", "before the call began")
        pending.request_id, pending.message, pending.codec = request.request_id, message, codec
        if self._signs is not None:
            pending.transport = self._signs.for_grant(pending.grant, as_worker=pending.as_worker)
        if self._liveness is not None and self._liveness.timer is None and not pending.is_stored:
            self._liveness.watch()
        try:
            event, codec = await pending.outcome(seconds)
        finally:
            del pending  # break the cycle from this frame through the error to its traceback
        output: Any = event.payload.output
        if type(output) is LocalOutput:
            return ResponseEnvelope(output.data, output.meta)
        return codec.read_envelope(output)

    def _prepare_stored(self, request: RequestPayload, now: float) -> None:
        if not self._transport.capabilities.durable:
            missing = "this transport does not store requests; durable calls need NATS with JetStream, or Redis"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{request.operation_id}: {missing}", {"executed": "no"})
        request.deadline = None  # the deadline bounds the caller's wait; a stored request runs anyway
        request.not_after = int((now + STORED_SECONDS) * 1000)

    def _send_subscribe(
        self, request: RequestPayload, grant: Grant | None, as_worker: bool
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        operation_id = request.operation_id
        if grant is not None or as_worker:
            self._use_grant(request, grant, as_worker)
        request.metadata = tracing.with_trace(request.metadata)
        idle_timeout = None if request.idle_timeout is None else request.idle_timeout / 1000
        target = self._target(operation_id)
        if target is not None:
            return target.stream(self._as_local(request, request.deadline, idle_timeout))
        if self._signs is not None and request.deadline is None and grant is not None:
            request.deadline = grant.deadline
        transport = self._transport if self._signs is None else self._signs.for_grant(grant, as_worker=as_worker)
        message, codec = self._encode(request, time.time(), stream=True, grant=grant, as_worker=as_worker)
        reader = StreamReader(self._endpoint, request.request_id, operation_id, codec)
        reader.start(idle_timeout=idle_timeout, deadline=request.deadline)
        if self._liveness is not None:
            self._liveness.watch()
        transport.send(
            self._endpoint.request_address(operation_id),
            message,
            lambda reason: reader.failed(undelivered(operation_id, reason)),
        )
        return CallStream(reader)

    def respond(
        self, request_id: str, output: ResponseEnvelope[Any] | Mapping[str, Any], *, sequence: int | None = None
    ) -> None:
        """Respond to a request with an envelope; raise `VALIDATION_ERROR` for any other value."""
        envelope = detect_envelope(output)
        if envelope is None:
            message = f"expected a response envelope, not {type(output).__name__}: wrap it with local_envelope"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        event = CallResponded(VERSION, request_id, "", ResponsePayload(request_id, sequence=sequence))
        self._transport.send(inbox_of(request_id), self._codec.write_response(event, envelope))

    def complete(self, request_id: str, *, sequence: int | None = None) -> None:
        """End a stream after `sequence` items."""
        event = CallCompleted(VERSION, request_id, "", CompletionPayload(request_id, sequence))
        self._transport.send(inbox_of(request_id), self._codec.encode(event))

    def emit_error(self, request_id: str, error: CallError) -> None:
        """Respond to a request with an error."""
        self._endpoint.send_error(request_id, error, self._codec)

    def abort(self, request_id: str, reason: str = "") -> None:
        """Cancel a request.

        If this side made the request, the call raises `ABORTED`. If this side received the request, its caller gets an
        abort.
        """
        pending = self._endpoint.pending.get(request_id)
        if pending is None:
            self._endpoint.send_abort(request_id, inbox_of(request_id), self._codec, reason)
        elif isinstance(pending, PendingCall):
            pending.cancel(CallError(ErrorCode.ABORTED, reason or "aborted by the caller", {"executed": "unknown"}))
        elif isinstance(pending, StreamReader):
            pending.abort(reason)

    def _encode(
        self,
        request: RequestPayload,
        now: float,
        *,
        stream: bool = False,
        grant: Grant | None = None,
        as_worker: bool = False,
    ) -> tuple[bytes, Codec]:
        """Give a request a new id; return the encoded request and its codec. Raise a CallError if it cannot be sent.

        A request to a hub has the identity in the header of the event, any other request in the payload.
        """
        capabilities = self._transport.capabilities
        codec = self._chosen or CODECS[capabilities.codec]
        endpoint, operation_id = self._endpoint, request.operation_id
        claimed, token, deadline = NULL, None, None
        if request.identity is not None and not capabilities.claims_identity:
            raise CallError(ErrorCode.VALIDATION_ERROR, _UNCLAIMABLE, {"executed": "no"})
        if endpoint.via_hub:
            deadline = request.deadline
            if request.identity is not None:
                claimed, request.identity = codec.write_identity(request.identity), None
            if grant is not None and grant.origin is endpoint:
                token = grant.token or None
        request.request_id = request_id = random_id(endpoint.peer)
        request.sent_at = int(now * 1000)
        parent, own = request.parent_request_id, as_worker and endpoint.via_hub
        event = CallRequested(VERSION, request_id, operation_id, request, claimed, stream, parent, token, deadline, own)
        try:
            if request.metadata is not None:
                # Metadata contains only JSON values, so that it is the same in every format.
                request.metadata = msgspec.to_builtins(dict(request.metadata), str_keys=True) or None
            message = codec.write_request(event)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot encode the request: {error}") from error
        limit = capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(operation_id, "request", len(message), limit, "no")
        return message, codec


def _require_id(operation: object) -> str:
    """Return the id of an operation; raise `VALIDATION_ERROR` for a value that is neither an id nor an Operation."""
    operation_id = operation.id if type(operation) is not str and isinstance(operation, Operation) else operation
    if isinstance(operation_id, str) and "." in operation_id.strip("."):
        return operation_id
    message = f"invalid operation {operation!r:.80}: expected an id such as 'shop.quote', or an Operation"
    raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})


def _earliest(deadline: float | None, timeout: float | None) -> int | None:
    """Return the earlier of `deadline` and the end of `timeout`, in epoch ms; None without both."""
    until = None
    if timeout is not None:
        check_seconds(timeout=timeout)
        until = int((time.time() + min(timeout, _LONGEST_TIMEOUT)) * 1000)
    if deadline is None:
        return until
    check_deadline(deadline)
    # The deadline may be a float, such as `time.time() * 1000 + 500`.
    return int(deadline) if until is None else min(int(deadline), until)


async def _rebuild(
    call: Coroutine[Any, Any, ResponseEnvelope[Any]], operation: Operation[Any]
) -> ResponseEnvelope[Any]:
    """Return the envelope of a call with its data as the operation's Python type."""
    return operation.rebuild(await call)


def random_id(peer: str) -> str:
    """Return an unguessable request id, which begins with the name of the peer that gets the response."""
    while True:
        try:
            return f"{peer}-{_random_parts.pop()}"
        except IndexError:
            _random_parts.extend(os.urandom(16 * _IDS_TOGETHER).hex(" ", 16).split())


_random_parts: list[str] = []
"""The random parts of the next request ids: one system call is enough for `_IDS_TOGETHER` of them."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random_parts.clear)


def _refused(operation_id: str, reason: str, text: str) -> CallError:
    details = {"operationId": operation_id, "reason": reason, "executed": "no"}
    return CallError(ErrorCode.ACCESS_DENIED, f"{operation_id}: {text}", details)


_UNCLAIMABLE = "identity= is not possible on this transport: it authenticates callers by their credentials"
