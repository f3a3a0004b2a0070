"""PendingRequestMap: calls over a transport, each of which ends exactly once."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import msgspec

from operations.calls.addresses import control_address, direct_address, queue_address, work_address, worker_address
from operations.calls.codec import CODECS, JSON, Codec, CodecName, LocalOutput, transcode
from operations.calls.endpoint import Endpoint, SignsNestedCalls, endpoint_of, inbox_of
from operations.calls.events import (
    NULL,
    VERSION,
    CallCompleted,
    CallRequested,
    CallResponded,
    Completed,
    Requested,
    Responded,
)
from operations.calls.presence import lifeline_of
from operations.calls.replays import STORED_SECONDS
from operations.calls.streams import CallStream, StreamReader
from operations.context import Grant, Identity, OperationContext, current_grant
from operations.deadlines import remaining_seconds
from operations.dispatch import Dispatcher, Request
from operations.envelope import ResponseEnvelope, detect_envelope
from operations.errors import CallError, ErrorCode
from operations.failures import Executed, executed_of, timed_out, too_large, unavailable
from operations.pubsub import InProcess, Refused, Stores, Transport
from operations.pubsub.limits import check_seconds
from operations.telemetry import tracing
from operations.telemetry.counters import Counters

_RETRY_SECONDS = 0.05
_LONGEST_RETRY = 1.0
_MOST_TRIED = 16
DEFAULT_TIMEOUT = 30.0
"""Seconds that a call may take when it is given no deadline."""


class PendingRequestMap:
    """The caller's side of the call protocol on one transport.

    `call` and `subscribe` make requests; `respond`, `complete`, `emit_error` and `abort` answer them, for servers that
    are no CallHandler. Requests are encoded as the transport prefers, or in `codec`.

    Calls made while a request is handled are made for that request's caller. A worker calls with its own rights only
    with `as_worker=True`, outside of any request.
    """

    def __init__(self, pubsub: Transport, *, timeout: float = DEFAULT_TIMEOUT, codec: CodecName | None = None) -> None:
        check_seconds(timeout=timeout)
        self._endpoint = endpoint_of(pubsub)
        self._transport = pubsub
        self._timeout = timeout
        self._chosen = None if codec is None else CODECS[codec]
        self._lifeline = None if pubsub.capabilities.tracks_peers else lifeline_of(self._endpoint)
        self._in_process = pubsub.optional(InProcess)
        self._signs = pubsub.optional(SignsNestedCalls)

    @property
    def counters(self) -> Counters:
        """Counts of this end's messages."""
        return self._endpoint.counters

    @property
    def _codec(self) -> Codec:
        return self._chosen or CODECS[self._transport.capabilities.codec]

    @property
    def in_flight(self) -> int:
        """Number of requests of this end that wait for an answer."""
        return len(self._endpoint.waiting)

    def call(
        self,
        operation_id: str,
        input: Any = None,
        *,
        deadline: float | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: bool = False,
        wait: bool = False,
        durable: bool = False,
        as_worker: bool = False,
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call an operation: its envelope, or a CallError no later than the deadline (epoch ms; else 30 s from now).

        `retry` sends the request again where its connection or worker was lost: right for queries, never for what
        changes something. `wait` waits for a worker instead of failing immediately when there is none. `durable` has
        the request stored: it runs at least once, whatever becomes of its worker or its caller. `as_worker` calls with
        this process's own rights, outside of any request.
        """
        until = None if deadline is None else int(deadline)  # `time.time() * 1000 + 500` is a float
        request = Requested("", operation_id, input, parent_request_id, until, None, identity, metadata)
        return self._send_call(request, current_grant.get(), retry, wait, durable, as_worker)

    def call_for(
        self,
        context: OperationContext,
        operation_id: str,
        input: Any,
        *,
        retry: bool = False,
        durable: bool = False,
        as_worker: bool = False,
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call on behalf of what runs in `context`: with its deadline, caller and trace."""
        request = self._inherit(context, operation_id, input)
        grant = context.grant or current_grant.get()
        return self._send_call(request, grant, retry, False, durable, as_worker and grant is None)

    def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        *,
        deadline: float | None = None,
        idle_timeout: float | None = None,
        identity: Identity | None = None,
        parent_request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        as_worker: bool = False,
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Follow an operation's stream; `idle_timeout` (seconds) ends it when nothing arrives for so long."""
        if idle_timeout is not None:
            check_seconds(idle_timeout=idle_timeout)
        idle = None if idle_timeout is None else int(idle_timeout * 1000)
        until = None if deadline is None else int(deadline)
        request = Requested("", operation_id, input, parent_request_id, until, idle, identity, metadata)
        return self._send_subscribe(request, current_grant.get(), as_worker)

    def subscribe_for(
        self, context: OperationContext, operation_id: str, input: Any, *, as_worker: bool = False
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Follow a stream on behalf of what runs in `context`."""
        request = self._inherit(context, operation_id, input)
        grant = context.grant or current_grant.get()
        return self._send_subscribe(request, grant, as_worker and grant is None)

    def _inherit(self, context: OperationContext, operation_id: str, input: Any) -> Requested:
        identity = context.identity if self._transport.capabilities.claims_identity else None
        parent = context.parent_request_id or context.request_id or None
        return Requested("", operation_id, input, parent, context.deadline, None, identity, context.metadata)

    def _send_call(
        self, request: Requested, grant: Grant | None, retry: bool, wait: bool, durable: bool, as_worker: bool
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        if grant is not None or as_worker:
            self._use_grant(request, grant, as_worker)
        if tracing.SDK in sys.modules and tracing.is_active():
            return self._call_traced(request, grant, retry, wait, durable, as_worker)
        if self._in_process is not None and not durable:
            target = self._in_process.reach(work_address(request.operation_id))
            if isinstance(target, Dispatcher):
                return self._call_local(target, request)
        return self._call(request, grant, retry, wait, durable, as_worker)

    async def _call_traced(
        self, request: Requested, grant: Grant | None, retry: bool, wait: bool, durable: bool, as_worker: bool
    ) -> ResponseEnvelope[Any]:
        request.metadata = metadata = dict(request.metadata or {})
        with tracing.client_span(request.operation_id, metadata):
            target = None if durable else self._target(request.operation_id)
            if target is not None:
                return await self._call_local(target, request)
            return await self._call(request, grant, retry, wait, durable, as_worker)

    def _use_grant(self, request: Requested, grant: Grant | None, as_worker: bool) -> None:
        """Make a nested call for the caller of its request; refuse what would use other rights."""
        if grant is None:
            return
        if as_worker:
            message = "as_worker=True is for calls outside of any request: this call is made while one is handled"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{request.operation_id}: {message}", {"executed": "no"})
        if grant.ended:
            raise _refused(request.operation_id, "GRANT_ENDED", "the request that this call is made for has ended")
        capabilities = self._transport.capabilities
        if capabilities.claims_identity:
            request.identity = request.identity or grant.identity
        elif (capabilities.identity == "hub" or self._signs is not None) and grant.origin is not self._endpoint:
            reason = "the request that this call is made for came by another transport"
            raise _refused(request.operation_id, "FOREIGN_GRANT", reason)

    def _target(self, operation_id: str) -> Dispatcher | None:
        """Return the dispatcher that answers the operation in this process, where the transport reaches one."""
        if self._in_process is None:
            return None
        target = self._in_process.reach(work_address(operation_id))
        return target if isinstance(target, Dispatcher) else None

    def _call_local(self, target: Dispatcher, request: Requested) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        deadline = request.deadline
        if deadline is None:
            deadline = int((time.time() + self._timeout) * 1000)
        return target.call(self._as_local(request, deadline))

    def _as_local(self, request: Requested, deadline: int | None, idle_timeout: float | None = None) -> Request:
        return Request(
            operation_id=request.operation_id,
            input=request.input,
            parent_id=request.parent_request_id,
            grant=Grant(identity=request.identity, origin=self._endpoint, deadline=deadline),
            deadline=deadline,
            idle_timeout=idle_timeout,
            metadata=request.metadata,
        )

    async def _call(
        self, request: Requested, grant: Grant | None, retry: bool, wait: bool, durable: bool, as_worker: bool
    ) -> ResponseEnvelope[Any]:
        """Send a request and wait for how it ends."""
        now = time.time()
        if request.deadline is None:
            seconds = self._timeout
            request.deadline = int((now + seconds) * 1000)
        else:
            seconds = remaining_seconds(request.deadline)
        if durable:
            self._prepare_stored(request, now)
        codec = self._codec
        transport = self._transport if self._signs is None else self._signs.for_grant(grant, as_worker=as_worker)
        message = self._encode(request, now, codec, grant=grant, as_worker=as_worker)
        if seconds <= 0:
            raise timed_out(request.operation_id, "no", "before the call began")
        endpoint, request_id = self._endpoint, request.request_id
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        kind = DurableCall if durable else PendingCall
        waiting = kind(request_id, request.operation_id, endpoint, transport, message, codec, future, retry, wait)
        begun = loop.time()
        if self._lifeline is not None and not durable:
            waiting.since = begun
            self._lifeline.watch()
        endpoint.waiting[request_id] = waiting
        bucket = endpoint.wheel.add_at(begun + seconds, waiting, loop)
        answered = True
        try:
            if durable:
                waiting.send()
            else:
                transport.send(endpoint.request_address(request.operation_id), message, waiting)
            event, codec = await future  # a worker answers in the request's format, a hub may use another
        except BaseException as error:
            answered = waiting.note_end(error)
            raise
        finally:
            del endpoint.waiting[request_id]
            endpoint.ended.newer[request_id] = answered
            if len(endpoint.ended.newer) >= endpoint.ended.minimum:
                endpoint.ended.rotate()
            bucket.discard(waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()
            del future, waiting  # they hold the error whose traceback holds this frame
        output: Any = event.payload.output
        if type(output) is LocalOutput:
            return ResponseEnvelope(output.data, output.meta)
        return codec.read_envelope(output)  # type: ignore[no-any-return]

    def _prepare_stored(self, request: Requested, now: float) -> None:
        if not self._transport.capabilities.durable:
            missing = "this transport stores nothing; durable calls need NATS with JetStream, or Redis"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{request.operation_id}: {missing}", {"executed": "no"})
        request.deadline = None  # it bounds how long the caller waits; what was stored is run anyway
        request.not_after = int((now + STORED_SECONDS) * 1000)

    def _send_subscribe(
        self, request: Requested, grant: Grant | None, as_worker: bool
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        operation_id = request.operation_id
        if grant is not None or as_worker:
            self._use_grant(request, grant, as_worker)
        if tracing.SDK in sys.modules and tracing.is_active():
            request.metadata = dict(request.metadata or {})
            tracing.inject(request.metadata)
        idle_timeout = None if request.idle_timeout is None else request.idle_timeout / 1000
        target = self._target(operation_id)
        if target is not None:
            return target.stream(self._as_local(request, request.deadline, idle_timeout))
        if self._signs is not None and request.deadline is None and grant is not None:
            request.deadline = grant.deadline
        codec = self._codec
        transport = self._transport if self._signs is None else self._signs.for_grant(grant, as_worker=as_worker)
        message = self._encode(request, time.time(), codec, stream=True, grant=grant, as_worker=as_worker)
        reader = StreamReader(self._endpoint, request.request_id, operation_id, codec)
        reader.start(idle_timeout=idle_timeout, deadline=request.deadline)
        if self._lifeline is not None:
            self._lifeline.watch()
        transport.send(
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
        event = CallResponded(VERSION, request_id, "", Responded(request_id, sequence=sequence))
        self._transport.send(inbox_of(request_id), self._codec.write_response(event, envelope))

    def complete(self, request_id: str, *, sequence: int | None = None) -> None:
        """End a stream that was answered `sequence` times."""
        event = CallCompleted(VERSION, request_id, "", Completed(request_id, sequence))
        self._transport.send(inbox_of(request_id), self._codec.encode(event))

    def emit_error(self, request_id: str, error: CallError) -> None:
        """Answer a request with an error."""
        self._endpoint.send_error(request_id, error, self._codec)

    def abort(self, request_id: str, reason: str = "") -> None:
        """Cancel a request of this end, whose caller gets `ABORTED`, or one that this end was to answer."""
        waiting = self._endpoint.waiting.get(request_id)
        if waiting is None:
            self._endpoint.send_abort(request_id, inbox_of(request_id), self._codec, reason)
        elif isinstance(waiting, PendingCall):
            waiting.cancel(CallError(ErrorCode.ABORTED, reason or "aborted by the caller", {"executed": "unknown"}))
        elif isinstance(waiting, StreamReader):
            waiting.abort(reason)

    def _encode(
        self,
        request: Requested,
        now: float,
        codec: Codec,
        *,
        stream: bool = False,
        grant: Grant | None = None,
        as_worker: bool = False,
    ) -> bytes:
        """Return a request as bytes, under a new id; raise the typed error that says why it cannot be sent.

        The identity is put where the authenticating party of this transport looks for it.
        """
        capabilities = self._transport.capabilities
        operation_id, claimed = request.operation_id, NULL
        if request.identity is not None:
            if not capabilities.claims_identity:
                raise CallError(ErrorCode.VALIDATION_ERROR, _UNCLAIMABLE, {"executed": "no"})
            if capabilities.identity == "hub":
                claimed, request.identity = codec.write_identity(request.identity), None
        request.request_id = request_id = random_id(self._endpoint.peer)
        request.sent_at = int(now * 1000)
        event = CallRequested(VERSION, request_id, operation_id, request, claimed, stream, request.parent_request_id)
        if capabilities.identity == "hub":
            event.deadline, event.as_worker = request.deadline, as_worker
            if grant is not None and grant.origin is self._endpoint:
                event.grant = grant.token or None
        try:
            if request.metadata is not None:
                # As JSON has it, whichever the format.
                request.metadata = msgspec.to_builtins(dict(request.metadata), str_keys=True) or None
            message = codec.write_request(event)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the request cannot be written: {error}") from error
        limit = capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(operation_id, "request", len(message), limit, "no")
        return message


def random_id(peer: str) -> str:
    """Return a request id that nobody can guess; its first part is the peer that the answer goes to."""
    return f"{peer}-{os.urandom(16).hex()}"


def _refused(operation_id: str, reason: str, text: str) -> CallError:
    details = {"operationId": operation_id, "reason": reason, "executed": "no"}
    return CallError(ErrorCode.ACCESS_DENIED, f"{operation_id}: {text}", details)


_UNCLAIMABLE = "an identity cannot be claimed on this transport: it is established where the caller is authenticated"


def undelivered(operation_id: str, reason: str) -> CallError:
    """Return the error for a request that no worker received, or that this peer may not send."""
    if isinstance(reason, Refused):
        details = {"operationId": operation_id, "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"{operation_id}: {reason}", details)
    return unavailable(operation_id, reason, "no")


class PendingCall(msgspec.Struct, eq=False):
    """A call in flight: it ends with the first answer, at its deadline, or when its caller cancels it."""

    request_id: str
    operation_id: str
    _endpoint: Endpoint
    _transport: Transport
    """What sends the request."""
    _message: bytes
    _codec: Codec
    _future: asyncio.Future[tuple[CallResponded, Codec]]
    _retry: bool
    _wait: bool
    _attempts: int = 0
    _risked: bool = False
    """Whether an earlier attempt may have run."""
    timer: asyncio.TimerHandle | None = None
    """When it is sent again."""
    worker: str | None = None
    since: float = 0.0

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """Take the answer; a second one is dropped."""
        if self._future.done():
            self._note_second()
        else:
            self._future.set_result((event, codec))

    def completed(self, event: CallCompleted) -> None:
        """Fail: the end of a stream is no answer to a call."""
        message = f"{self.operation_id}: a stream ended where one answer was expected"
        self._fail(CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "yes"}))

    def failed(self, error: CallError) -> None:
        """Fail, or send the request again where that is allowed."""
        if self._future.done():
            self._note_second()
        elif error.code is ErrorCode.UNAVAILABLE and self._may_resend(executed_of(error)):
            self._risked = self._risked or executed_of(error) != "no"
            self._resend_later()
        else:
            self._fail(error)

    def accepted(self, worker: str) -> None:
        """Note which worker has it: control goes to that worker alone."""
        self.worker = worker

    def lost(self, reason: str) -> None:
        """Fail, as the call may have run; a call that was never sent, or may be repeated, goes on."""
        if self._is_held_back:
            return
        self.worker = None
        self._risked = True
        if not self._retry:
            self._fail(unavailable(self.operation_id, f"the connection was lost: {reason}", "unknown"))

    def regained(self) -> None:
        """Send it again."""
        if self.timer is not None:
            self.timer.cancel()
        self._attempts += 1
        self.send()

    def expire(self) -> None:
        """Fail: the deadline passed."""
        if self._is_held_back:
            self._fail(timed_out(self.operation_id, "no", "before any worker was available"))
            return
        self.abort_worker("the deadline passed")
        self._fail(timed_out(self.operation_id, "unknown"))

    def cancel(self, error: CallError) -> None:
        """End it from this side."""
        self.abort_worker(error.message)
        self._fail(error)

    def __call__(self, reason: str) -> None:
        """Handle that no worker received the request: the transport calls this."""
        if self._future.done():
            return
        if not isinstance(reason, Refused) and self._may_resend("no"):
            self._resend_later()
        else:
            self._fail(undelivered(self.operation_id, reason))

    def _may_resend(self, executed: str) -> bool:
        """Return whether to send it again: a call that did not run if `wait`, one that may have run if `retry`.

        Once a repeatable call was lost, a worker that is not back yet is waited for as well.
        """
        if executed == "no":
            return self._wait or self._risked
        return self._retry and executed == "unknown"

    @property
    def _is_held_back(self) -> bool:
        """Whether no worker has received the request, and it will be sent again."""
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
                # The hub that it reconnected to may not read what the first one did.
                self._message, self._codec = transcode(self._message, JSON), JSON
        if self._risked and endpoint.transport.capabilities.addresses_workers:
            self._send_to(lifeline_of(endpoint).live_peers()[:_MOST_TRIED])
        else:
            self._transport.send(endpoint.request_address(self.operation_id), self._message, self)

    def _send_to(self, peers: list[str]) -> None:
        """Send to a worker that is alive, to the next one if it does not serve the namespace, and at last to the group.

        A broker may keep giving a silent worker its share of what is sent to the group.
        """
        transport = self._transport
        if not peers:
            transport.send(self._endpoint.request_address(self.operation_id), self._message, self)
            return
        address = direct_address(peers[0], self.operation_id)
        transport.send(address, self._message, lambda reason: self._send_to(peers[1:]))

    def note_end(self, error: BaseException) -> bool:
        """Handle an end without a value; return whether it was an answer of the worker."""
        if isinstance(error, asyncio.CancelledError):
            self.abort_worker("the caller was cancelled")
        return isinstance(error, CallError) and executed_of(error) == "yes"

    def abort_worker(self, reason: str) -> None:
        """Tell the worker that nothing waits for it, unless the call has ended."""
        if not self._future.done() or self._future.cancelled():
            address = worker_address(self.worker) if self.worker is not None else control_address(self.operation_id)
            self._endpoint.abort_worker(self.request_id, address, self._codec, reason)

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
    """A call whose request is stored: then only its answer or its deadline ends it."""

    _stored: bool = False
    _is_sent: bool = False
    """Whether the request was sent to the store and not confirmed: it may get there after its caller left."""
    since: float = math.inf
    """No worker need have it yet, so that silence is not a lost worker."""

    def lost(self, reason: str) -> None:
        """Go on: a stored request is run, and one that was not stored is sent again under the same id."""
        self._risked = True

    def regained(self) -> None:
        """Store the request, unless it is stored."""
        if not self._stored:
            self.send()

    def expire(self) -> None:
        """Fail: the caller waits no longer."""
        executed: Executed = "unknown" if self._stored or self._is_sent or self._risked else "no"
        self._fail(timed_out(self.operation_id, executed, stored=self._stored))

    def send(self) -> None:
        """Have the request stored."""
        store = self._transport.optional(Stores)
        if not self._future.done() and store is not None:
            address, key = queue_address(self.operation_id), self.request_id
            # An earlier attempt may still be stored, whatever becomes of this one.
            self._risked = self._risked or self._is_sent
            self._is_sent = True
            store.store(address, self._message, key=key, stored=self._note_stored, undelivered=self)

    def __call__(self, reason: str) -> None:
        """Handle that it was not stored, unless another attempt was."""
        if not self._stored:
            self._is_sent = False
            super().__call__(reason)

    def _note_stored(self) -> None:
        self._stored = True

    def abort_worker(self, reason: str) -> None:
        """Do nothing: a caller that leaves does not undo what was stored."""
