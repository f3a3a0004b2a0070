"""What a worker makes of one request: what runs, which bytes are its answer, which error it ends in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from operations.calls.codec import Codec
from operations.calls.deadlines import now_ms
from operations.calls.events import NULL, VERSION, CallRequested, CallResponded, Responded
from operations.calls.failures import aborted, of_handler, timed_out, too_large
from operations.calls.workplace import Workplace
from operations.context import Identity
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation


def refuse_late(workplace: Workplace, event: CallRequested, codec: Codec) -> None:
    """Tell the caller of a request whose deadline has passed already, with the clocks by which it has."""
    workplace.counters.expired += 1
    clocks = {"deadline": event.payload.deadline, "sentAt": event.payload.sent_at, "workerTime": now_ms()}
    workplace.endpoint.send_error(event.id, timed_out(event.to, "no", "before the call began", **clocks), codec)


def execute(
    workplace: Workplace, event: CallRequested, codec: Codec, operation: Operation[Any], identity: Identity | None
) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
    """What runs: the operation on the request's input, with a context where somebody would look at it."""
    registry, payload = workplace.registry, event.payload
    input: Any = payload.input
    if type(input) is msgspec.Raw:
        input = codec.read(input)
    if not operation.wants_context and not registry.has_interceptors:
        return registry.execute_found(operation, input)
    return registry.execute_found(operation, input, workplace.context(operation, payload, identity))


def write_answer(
    workplace: Workplace, event: CallRequested, codec: Codec, envelope: ResponseEnvelope[Any], sequence: int | None
) -> bytes:
    """An answer as bytes; one that cannot travel is a typed error instead."""
    request_id = event.id
    worker = workplace.worker_id if sequence == 0 else None
    answer = CallResponded(VERSION, request_id, "", Responded(request_id, NULL, sequence, worker))
    message = codec.write_response(answer, envelope)
    limit = workplace.transport.capabilities.max_payload
    if limit is not None and len(message) > limit:
        raise too_large(event.to, "answer", len(message), limit, "yes")
    return message


def translate(error: BaseException, operation_id: str) -> CallError:
    """What the caller gets for whatever left the registry."""
    if isinstance(error, CallError):
        return of_handler(error, operation_id)
    if isinstance(error, asyncio.CancelledError):
        return aborted(operation_id, "cancelled")
    kind = type(error).__name__
    return CallError(ErrorCode.EXECUTION_ERROR, f"{operation_id}: {kind}", {"type": kind})
