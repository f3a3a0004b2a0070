"""Batches: many calls with bounded concurrency, each with its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation

Target = str | Operation[Any]
BatchCall = Target | tuple[Target, Any] | tuple[Target, Any, OperationContext | None]
Execute = Callable[[Any, Any, OperationContext | None], Awaitable[ResponseEnvelope[Any]]]


async def run_batch(
    execute: Execute,
    calls: Iterable[BatchCall],
    *,
    concurrency: int,
    context: OperationContext | None,
    deadline: int | None = None,
) -> list[ResponseEnvelope[Any] | CallError]:
    """Return the envelope or error of each call, in order; a call is read from `calls` only when it can start.

    `context` is for calls without a context. Its deadline must not be later than the deadline of the batch. `deadline`
    limits the calls that have a context.
    """
    if concurrency < 1:
        raise ValueError(f"invalid concurrency {concurrency}: expected 1 or more")
    outcomes: dict[int, ResponseEnvelope[Any] | CallError] = {}
    pending = enumerate(calls)

    async def work() -> None:
        for index, call in pending:
            try:
                target, input, own = _unpack(call)
                outcomes[index] = await execute(target, input, _limit(own, deadline) if own else context)
            except CallError as error:
                outcomes[index] = error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as failed:
        # Only the iterable itself can fail here; raise its exception instead of a group.
        raise failed.exceptions[0] from None
    return [outcomes[index] for index in range(len(outcomes))]


def _limit(own: OperationContext, deadline: int | None) -> OperationContext:
    """Return the context of a call, with its deadline lowered to the deadline of the batch."""
    if deadline is None or not isinstance(own, OperationContext):
        return own
    before: Any = own.deadline  # not validated yet
    is_later = before is None or (isinstance(before, int | float) and before > deadline)
    return msgspec.structs.replace(own, deadline=deadline) if is_later else own


def _unpack(call: Any) -> tuple[Target, Any, OperationContext | None]:
    if isinstance(call, (str, Operation)):
        return call, None, None
    if isinstance(call, (tuple, list)) and 1 <= len(call) <= 3:
        target, input, own = (*call, None, None)[:3]
        return target, input, own
    message = f"invalid call {call!r:.80}: expected an id, (id, input) or (id, input, context)"
    raise CallError(ErrorCode.VALIDATION_ERROR, message)
