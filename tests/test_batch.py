import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationContext, OperationRegistry, operation
from operations.testing import stub_operation
from tests.waiting import until


async def test_each_call_has_its_outcome_in_the_order_of_the_calls() -> None:
    ended = [asyncio.Event() for _ in range(6)]
    ended[5].set()

    @operation(id="t.wait")
    async def wait(n: int) -> int:
        await ended[n + 1].wait()  # the last one ends first
        ended[n].set()
        if n == 3:
            raise ValueError("three")
        return n

    registry = OperationRegistry([wait])
    outcomes = await registry.execute_many([(wait, {"n": n}) for n in range(5)])
    assert [o.code if isinstance(o, CallError) else o.data for o in outcomes] == [0, 1, 2, "EXECUTION_ERROR", 4]


async def test_a_call_is_an_id_with_or_without_input_and_context() -> None:
    def seen(input: Any) -> Any:
        return input

    registry = OperationRegistry([stub_operation("t.echo", returns=seen)])
    late = OperationContext(deadline=1)
    outcomes = await registry.execute_many(["t.echo", ("t.echo", {"a": 1}), ("t.echo", {}, late), ("t.nope", {})])
    assert [o.code if isinstance(o, CallError) else o.data for o in outcomes] == [
        {},
        {"a": 1},
        ErrorCode.TIMEOUT,
        ErrorCode.OPERATION_NOT_FOUND,
    ]


async def test_the_common_context_is_for_calls_that_bring_none() -> None:
    registry = OperationRegistry([stub_operation("t.echo")])
    outcomes = await registry.execute_many(
        ["t.echo", ("t.echo", {}, OperationContext())], context=OperationContext(deadline=1)
    )
    assert [isinstance(outcome, CallError) for outcome in outcomes] == [True, False]


async def test_the_timeout_also_limits_calls_with_a_context() -> None:
    @operation(id="t.wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    later = OperationContext(deadline=int(time.time() * 1000) + 3_600_000)
    calls: list[Any] = [wait, (wait, {}, OperationContext()), (wait, {}, later)]
    async with asyncio.timeout(30):
        outcomes = await OperationRegistry([wait]).execute_many(calls, timeout=0.05)
    assert [o.code if isinstance(o, CallError) else o.data for o in outcomes] == [ErrorCode.TIMEOUT] * 3


async def test_concurrency_is_limited_and_the_iterable_is_read_as_calls_end() -> None:
    running = 0
    most = 0
    read = 0

    @operation(id="t.wait")
    async def wait() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    def calls() -> Iterator[str]:
        nonlocal read
        for _ in range(100):
            assert running < 7
            read += 1
            yield "t.wait"

    assert len(await OperationRegistry([wait]).execute_many(calls(), concurrency=7)) == 100
    assert most == 7


async def test_an_empty_batch_has_no_outcomes() -> None:
    assert await OperationRegistry().execute_many([]) == []


async def test_a_batch_must_allow_one_call() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        await OperationRegistry().execute_many([], concurrency=0)


async def test_cancelling_a_batch_cancels_its_calls() -> None:
    started = cancelled = 0

    @operation(id="t.wait")
    async def wait() -> None:
        nonlocal started, cancelled
        started += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    task = asyncio.create_task(OperationRegistry([wait]).execute_many(["t.wait"] * 10, concurrency=4))
    await until(lambda: started == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == 4


@pytest.mark.parametrize("call", [None, ("t.echo", {}, None, 1), 5, ()])
async def test_a_malformed_call_does_not_affect_others(call: Any) -> None:
    registry = OperationRegistry([stub_operation("t.echo", returns=1)])
    outcomes = await registry.execute_many(["t.echo", call, ("t.echo",), ["t.echo", {}]])  # type: ignore[list-item]
    assert [o.code if isinstance(o, CallError) else o.data for o in outcomes] == [1, ErrorCode.VALIDATION_ERROR, 1, 1]


async def test_an_iterable_that_fails_raises_its_own_error() -> None:
    def calls() -> Iterator[str]:
        yield "t.echo"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await OperationRegistry([stub_operation("t.echo")]).execute_many(calls())
