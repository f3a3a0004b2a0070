"""The operations that the contracts call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from operations import AccessControl, CallError, Operation, OperationContext, OperationSpec, operation


@operation(id="math.add", type="query")
async def add(a: int, b: int) -> int:
    return a + b


@operation(id="math.divide", type="query", error_schemas={"BY_ZERO": {"type": "object"}})
async def divide(a: int, b: int) -> float:
    if b == 0:
        raise CallError("BY_ZERO", "not by zero", {"a": a})
    return a / b


@operation(id="math.count")
async def count(to: int, fail_at: int | None = None) -> AsyncIterator[int]:
    for number in range(to):
        if number == fail_at:
            raise ValueError("no more")
        yield number


@operation(id="text.threaded", type="query")
def threaded(text: str) -> str:
    return text.upper()


@operation(id="secret.read", type="query", access_control=AccessControl(required_scopes=["read"]))
async def read_secret() -> str:
    return "42"


@operation(id="secret.write", access_control=AccessControl(required_scopes=["write", "admin"]))
async def write_secret() -> str:
    return "written"


@operation(id="who.am_i", type="query")
async def who_am_i(context: OperationContext) -> dict[str, Any]:
    identity = context.identity
    return {
        "id": identity.id if identity is not None else None,
        "trusted": context.is_trusted,
        "deadline": context.deadline,
        "parent": context.parent_request_id,
        "metadata": dict(context.metadata),
    }


async def _echo(input: Any, context: OperationContext) -> Any:
    return input["value"]


echo: Operation[Any] = Operation(
    spec=OperationSpec(namespace="any", name="echo", type="query"),  # type: ignore[arg-type]
    handler=_echo,
)


class Sleeper:
    """An operation that waits until it is released, and records its end."""

    def __init__(self, operation_id: str = "slow.sleep") -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.let_go = asyncio.Event()
        self.runs = 0

        @operation(id=operation_id, type="query")
        async def sleep() -> str:
            self.runs += 1
            self.started.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "awake"

        self.operation = sleep


class Ticker:
    """An endless stream that records when it is closed."""

    def __init__(self, pause: float = 0.0) -> None:
        self.closed = asyncio.Event()
        self.sent = 0

        @operation(id="clock.ticks")
        async def ticks() -> AsyncIterator[int]:
            try:
                while True:
                    yield self.sent
                    self.sent += 1
                    if pause:
                        await asyncio.sleep(pause)
            finally:
                self.closed.set()

        self.operation = ticks
