"""PendingRequestMap: makes calls over a transport, and sees to it that each ends exactly once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from threading import get_ident
from typing import Any

import msgspec

from operations.calls import tracing
from operations.calls.addresses import inbox_of, work_address
from operations.calls.codec import CODECS, Codec, CodecName
from operations.calls.counters import Counters
from operations.calls.deadlines import DEFAULT_TIMEOUT, remaining_seconds
from operations.calls.endpoint import endpoint_of
from operations.calls.events import (
    VERSION,
    CallCompleted,
    CallRequested,
    CallResponded,
    Completed,
    Requested,
    Responded,
)
from operations.calls.failures import timed_out, too_large, undelivered
from operations.calls.presence import lifeline_of
from operations.calls.streams import CallStream, StreamReader
from operations.calls.underway import DurableCall, PendingCall
from operations.context import Identity, OperationContext
from operations.envelope import ResponseEnvelope, detect_envelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Transport
from operations.pubsub.limits import check_seconds


class PendingRequestMap:
    """The caller's side of the call protocol on one transport.

    `call` and `subscribe` make requests; `respond`, `complete`, `emit_error` and `abort` answer them, for whoever
    serves requests by other means than a CallHandler. Requests are written as the transport prefers, or in `codec`.
    """

    def __init__(self, pubsub: Transport, *, timeout: float = DEFAULT_TIMEOUT, codec: CodecName | None = None) -> None:
        check_seconds(timeout=timeout)
        self._endpoint = endpoint_of(pubsub)
        self._transport = pubsub
        self._timeout = timeout
        self._asked = None if codec is None else CODECS[codec]
        self._lifeline = None if pubsub.capabilities.tracks_peers else lifeline_of(self._endpoint)
        self._reach = getattr(pubsub, "reach", None) if getattr(pubsub, "direct", False) else None

    @property
    def counters(self) -> Counters:
        """What became of the messages of this end of the transport."""
        return self._endpoint.counters

    @property
    def _codec(self) -> Codec:
        return self._asked or CODECS[self._transport.capabilities.codec]

    @property
    def in_flight(self) -> int:
        """How many requests of this end wait for an answer."""
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
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call an operation: its envelope, or a CallError no later than the deadline (epoch ms; else 30 s from now).

        `retry` sends the request again where its connection or worker was lost: right for queries, never for what
        changes something. `wait` waits for somebody to answer instead of failing at once when there is nobody.
        `durable` has the request stored: it is run at least once, whatever becomes of its worker or its caller.
        """
        until = None if deadline is None else int(deadline)  # `time.time() * 1000 + 500` is a float
        request = Requested("", operation_id, input, parent_request_id, until, None, identity, metadata)
        if tracing.is_active():
            return self._call_traced(request, retry, wait, durable)
        if self._reach is not None and not durable:
            return self._call_near(request, retry, wait)
        return self._call(request, retry, wait, durable)

    async def _call_traced(self, request: Requested, retry: bool, wait: bool, durable: bool) -> ResponseEnvelope[Any]:
        request.metadata = metadata = dict(request.metadata or {})
        with tracing.client_span(request.operation_id, metadata):
            if self._reach is not None and not durable:
                return await self._call_near(request, retry, wait)
            return await self._call(request, retry, wait, durable)

    def call_for(
        self, context: OperationContext, operation_id: str, input: Any, *, retry: bool = False, durable: bool = False
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call on behalf of whatever runs in `context`: its deadline, its caller, its trace."""
        return self.call(operation_id, input, **self._inherited(context), retry=retry, durable=durable)

    def subscribe_for(
        self, context: OperationContext, operation_id: str, input: Any
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe on behalf of whatever runs in `context`."""
        return self.subscribe(operation_id, input, **self._inherited(context))

    def _inherited(self, context: OperationContext) -> dict[str, Any]:
        return {
            "deadline": context.deadline,
            "identity": context.identity if self._transport.capabilities.claims_identity else None,
            "parent_request_id": context.parent_request_id or context.request_id or None,
            "metadata": context.metadata,
        }

    def _call_near(self, request: Requested, retry: bool, wait: bool) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """One call ready to be awaited: by reference where its worker is in this process, else as bytes."""
        assert self._reach is not None
        target = self._reach(work_address(request.operation_id))
        if target is not None:
            return target.execute(request, self._timeout)  # type: ignore[no-any-return]
        return self._call(request, retry, wait, durable=False)

    async def _call(self, request: Requested, retry: bool, wait: bool, durable: bool) -> ResponseEnvelope[Any]:
        """Send a request and wait for how it ends."""
        now = time.time()
        if request.deadline is None:
            seconds = self._timeout
            request.deadline = int((now + seconds) * 1000)
        else:
            seconds = remaining_seconds(request.deadline)
        if durable:
            self._require_store(request.operation_id)
            request.deadline = None  # it bounds how long the caller waits; what was stored is run all the same
        codec = self._asked or CODECS[self._transport.capabilities.codec]
        message = self._write(request, now, codec)
        if seconds <= 0:
            raise timed_out(request.operation_id, "no", "before the call began")
        endpoint, request_id = self._endpoint, request.request_id
        if (loop := endpoint.loop) is None or endpoint.thread != get_ident() or not loop.is_running():
            loop = endpoint.find_loop()
        future = loop.create_future()
        kind = DurableCall if durable else PendingCall
        waiting = kind(request_id, request.operation_id, endpoint, message, codec, future, retry, wait)
        begun = loop.time()
        if self._lifeline is not None and not durable:
            waiting.since = begun
            if self._lifeline.timer is None:
                self._lifeline.watch()
        endpoint.waiting[request_id] = waiting
        bucket = None
        try:
            # Sent first: while it is on its way there is time to set the clock.
            waiting.send()
            bucket = endpoint.deadlines.add_at(begun + seconds, waiting, loop)
            event, codec = await future  # a worker answers as it was asked, a hub for itself as it likes
        except BaseException as error:
            waiting.note_end(error)
            raise
        finally:
            del endpoint.waiting[request_id]
            if bucket is not None:
                bucket.discard(waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()  # it is over, and not sent again
            del future, waiting  # they have the error whose traceback has this frame
        return codec.read_envelope(event.payload.output)  # type: ignore[no-any-return]

    def _require_store(self, operation_id: str) -> None:
        if not self._transport.capabilities.durable:
            message = f"{operation_id}: this transport stores nothing; durable calls need NATS with JetStream, or Redis"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})

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
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Follow an operation's stream; `idle_timeout` (seconds) ends it when nothing comes for so long."""
        if idle_timeout is not None:
            check_seconds(idle_timeout=idle_timeout)
        idle = None if idle_timeout is None else int(idle_timeout * 1000)
        until = None if deadline is None else int(deadline)
        request = Requested("", operation_id, input, parent_request_id, until, idle, identity, metadata)
        if tracing.is_active():
            request.metadata = dict(metadata or {})
            tracing.inject(request.metadata)
        target = self._reach(work_address(operation_id)) if self._reach is not None else None
        if target is not None:
            return target.stream(request)  # type: ignore[no-any-return]
        codec = self._codec
        message = self._write(request, time.time(), codec, stream=True)
        reader = StreamReader(self._endpoint, request.request_id, operation_id, codec)
        reader.start(idle_timeout=idle_timeout, deadline=until)
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
        """Give up: a request of this end, whose caller gets `ABORTED`, or one that this end was to answer."""
        waiting = self._endpoint.waiting.get(request_id)
        if waiting is None:
            self._endpoint.send_abort(request_id, inbox_of(request_id), self._codec, reason)
        elif isinstance(waiting, PendingCall):
            waiting.give_up(CallError(ErrorCode.ABORTED, reason or "aborted by the caller", {"executed": "unknown"}))
        elif isinstance(waiting, StreamReader):
            waiting.abort(reason)

    def _write(self, request: Requested, now: float, codec: Codec, *, stream: bool = False) -> bytes:
        """A request as the bytes of an event, with an id of its own; or the typed error that says why it cannot travel.

        An identity goes where whoever vouches for it on this transport looks.
        """
        capabilities = self._transport.capabilities
        operation_id, vouched = request.operation_id, None
        if request.identity is not None:
            if not capabilities.claims_identity:
                raise CallError(ErrorCode.VALIDATION_ERROR, _UNCLAIMABLE, {"executed": "no"})
            if capabilities.identity == "hub":
                vouched, request.identity = request.identity, None
        request.request_id = request_id = self._endpoint.new_id()
        request.sent_at = int(now * 1000)
        event = CallRequested(VERSION, request_id, operation_id, request, vouched, stream, request.parent_request_id)
        try:
            if request.metadata is not None:
                # As JSON has it, whichever format it is.
                request.metadata = msgspec.to_builtins(dict(request.metadata), str_keys=True) or None
            message = codec.write_request(event)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the request cannot be written: {error}") from error
        limit = capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(operation_id, "request", len(message), limit, "no")
        return message


_UNCLAIMABLE = "an identity cannot be claimed on this transport: it is established where the caller is authenticated"
