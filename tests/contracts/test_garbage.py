"""Calls leave no objects to the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from operations import CallError, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from tests.contracts.buses import TOKENS
from tests.contracts.conftest import Serve
from tests.contracts.operations_under_test import add, count, threaded, who_am_i

_MANY = 100
_FEW = 10
_TRIES = 3


@operation(id="end.well", type="query")
async def end_well() -> str:
    await asyncio.sleep(0)
    return "well"


@operation(id="end.badly", type="query")
async def end_badly(later: bool) -> str:
    if later:
        await asyncio.sleep(0)
    raise ValueError("no")


@operation(id="end.as_declared", type="query", error_schemas={"BAD": {"type": "object"}})
async def end_as_declared() -> str:
    raise CallError("BAD", "it is bad", {"how": "very"})


@operation(id="end.in_thread", type="query")
def end_in_thread() -> str:
    raise ValueError("no")


@operation(id="end.never", type="query")
async def end_never() -> str:
    await asyncio.Event().wait()
    return "never"


@operation(id="end.nested", type="query")
async def end_nested(fails: bool, context: OperationContext) -> Any:
    called = context.env["end"]["as_declared"]({}) if fails else context.env["end"]["well"]({})
    return (await called).data


@operation(id="end.kept", durable=True)
async def end_kept(fails: bool) -> str:
    if fails:
        raise CallError("BAD", "it is bad", {"how": "very"})
    return "kept"


OPERATIONS = (
    *(add, count, threaded, who_am_i),
    *(end_well, end_badly, end_as_declared, end_in_thread, end_never, end_nested, end_kept),
)
Kind = Callable[[Any], Awaitable[None]]


def answered(operation_id: str, **input: Any) -> Kind:
    async def call(pending: PendingRequestMap) -> None:
        await pending.call(operation_id, input)

    return call


def failing(operation_id: str, **input: Any) -> Kind:
    async def call(pending: PendingRequestMap) -> None:
        with pytest.raises(CallError):
            await pending.call(operation_id, input)

    return call


def in_task(operation_id: str, seconds: float, **input: Any) -> Kind:
    async def call(pending: PendingRequestMap) -> None:
        deadline = (time.time() + seconds) * 1000
        task = asyncio.create_task(pending.call(operation_id, input, deadline=deadline))
        await asyncio.wait((task,))
        assert isinstance(task.exception(), CallError)

    return call


def stored(**input: Any) -> Kind:
    async def call(pending: PendingRequestMap) -> None:
        with contextlib.suppress(CallError):
            await pending.call("end.kept", input, durable=True)

    return call


async def burst(pending: PendingRequestMap) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(pending.call("math.add", {"a": number, "b": 1}))


async def cancelled(pending: PendingRequestMap) -> None:
    task = asyncio.create_task(pending.call("end.never"))
    await asyncio.sleep(0.002)  # cancelled while it is sent or runs: nothing may be left in either case
    task.cancel()
    await asyncio.wait((task,))


def streaming(*, fail_at: int | None = None, leave: bool = False) -> Kind:
    async def follow(pending: PendingRequestMap) -> None:
        stream: Any = pending.subscribe("math.count", {"to": 50, "fail_at": fail_at})
        with contextlib.suppress(CallError):
            async for _ in stream:
                if leave:
                    break
        await stream.aclose()

    return follow


async def streaming_in_task(pending: PendingRequestMap) -> None:
    async def follow() -> None:
        async for _ in pending.subscribe("math.count", {"to": 50, "fail_at": 3}):
            pass

    task = asyncio.create_task(follow())
    await asyncio.wait((task,))
    assert isinstance(task.exception(), CallError)


KINDS: dict[str, tuple[Kind, int]] = {
    "answered at once": (answered("math.add", a=1, b=2), _MANY),
    "answered later": (answered("end.well"), _MANY),
    "with a context": (answered("who.am_i"), _MANY),
    "in a thread": (answered("text.threaded", text="a"), _MANY),
    "nested": (answered("end.nested", fails=False), _MANY),
    "a burst": (burst, _FEW),
    "failing at once": (failing("end.badly", later=False), _MANY),
    "failing later": (failing("end.badly", later=True), _MANY),
    "failing as declared": (failing("end.as_declared"), _MANY),
    "failing in a thread": (failing("end.in_thread"), _MANY),
    "failing in a nested call": (failing("end.nested", fails=True), _MANY),
    "failing in a task": (in_task("end.as_declared", 30), _MANY),
    "invalid": (failing("math.add"), _MANY),
    "not found": (failing("end.nowhere"), _MANY),
    "nobody there": (failing("nobody.listens"), _MANY),
    "too late": (in_task("end.never", 0.005), _FEW),
    "cancelled": (cancelled, _FEW),
    "a stream": (streaming(), _MANY),
    "a stream that fails": (streaming(fail_at=3), _MANY),
    "a stream that fails in a task": (streaming_in_task, _MANY),
    "a stream that is left": (streaming(leave=True), _MANY),
}
DURABLE: dict[str, tuple[Kind, int]] = {
    "stored": (stored(fails=False), _MANY),
    "stored and failing": (stored(fails=True), _MANY),
}


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.disable()
    gc.freeze()  # so that earlier objects are not examined in every collection
    yield
    gc.unfreeze()
    gc.enable()


async def found_after(kind: Kind, pending: Any, times: int) -> int:
    gc.collect()
    for _ in range(times):
        await kind(pending)
    await asyncio.sleep(0.01)  # let the loop finish the last call; what it has not finished is found below
    return gc.collect()


async def grows(kind: Kind, pending: Any, times: int) -> float:
    """Return the number of objects per call that wait for the garbage collector, without those of heartbeats."""
    await found_after(kind, pending, 2)
    least = float("inf")
    for _ in range(_TRIES):
        more = await found_after(kind, pending, 2 * times) - await found_after(kind, pending, times)
        least = min(least, more / times)
        if least < 0.5:
            return 0.0
    return least


async def growing(pending: Any, kinds: dict[str, tuple[Kind, int]]) -> dict[str, float]:
    left = {name: await grows(kind, pending, times) for name, (kind, times) in kinds.items()}
    return {name: found for name, found in left.items() if found}


async def test_no_call_leaves_garbage(serve: Serve, caller: PendingRequestMap) -> None:
    handler = await serve(*OPERATIONS)
    is_durable = handler.transport.capabilities.durable
    assert await growing(caller, KINDS | DURABLE if is_durable else KINDS) == {}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(TOKENS) as hub:
        yield hub


async def test_a_call_that_the_hub_itself_answers_leaves_no_garbage(hub: Hub) -> None:
    handler = CallHandler(OperationRegistry(OPERATIONS), hub.transport())
    async with Spoke(hub.url, token="caller") as spoke:
        assert await growing(PendingRequestMap(spoke), KINDS) == {}
        assert await growing(PendingRequestMap(hub.transport()), KINDS) == {}
    await handler.drain()


def executed(operation_id: str, seconds: float | None, **input: Any) -> Kind:
    async def execute(registry: OperationRegistry) -> None:
        deadline = None if seconds is None else int((time.time() + seconds) * 1000)
        with contextlib.suppress(CallError):
            await registry.execute(operation_id, input, OperationContext(deadline=deadline))

    return execute


def followed(seconds: float | None, **input: Any) -> Kind:
    async def follow(registry: OperationRegistry) -> None:
        deadline = None if seconds is None else int((time.time() + seconds) * 1000)
        with contextlib.suppress(CallError):
            async for _ in registry.subscribe("math.count", input, OperationContext(deadline=deadline)):
                pass

    return follow


async def test_a_local_call_leaves_no_garbage() -> None:
    kinds: dict[str, tuple[Kind, int]] = {
        f"{name} {'without' if seconds is None else 'with'} a deadline": (kind, _MANY)
        for seconds in (None, 30)
        for name, kind in {
            "a call": executed("math.add", seconds, a=1, b=2),
            "failing": executed("end.badly", seconds, later=True),
            "failing as declared": executed("end.as_declared", seconds),
            "failing in a thread": executed("end.in_thread", seconds),
            "a stream": followed(seconds, to=5),
            "a stream that fails": followed(seconds, to=5, fail_at=3),
        }.items()
    }
    kinds["too late"] = executed("end.never", 0.005), _FEW
    assert await growing(OperationRegistry(OPERATIONS), kinds) == {}
