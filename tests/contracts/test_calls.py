"""Calls: one body, every transport."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from operations import (
    CallError,
    ErrorCode,
    OperationContext,
    OperationRegistry,
    http_envelope,
    mcp_envelope,
    operation,
)
from operations.calls import PendingRequestMap, from_call
from operations.testing import error_of, stub_operation
from tests.contracts.buses import CALLER, Bus
from tests.contracts.conftest import Serve
from tests.contracts.deadlines import until_timed_out
from tests.contracts.operations_under_test import (
    Sleeper,
    add,
    divide,
    echo,
    read_secret,
    threaded,
    who_am_i,
    write_secret,
)
from tests.waiting import until


def in_ms(milliseconds: int) -> int:
    return int(time.time() * 1000) + milliseconds


async def test_a_call_gives_an_envelope(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(add)
    envelope = await caller.call("math.add", {"a": 1, "b": 2})
    assert envelope.data == 3
    assert envelope.meta.source == "local"
    assert envelope.meta.operation_id == "math.add"


async def test_a_plain_function_runs_in_a_thread(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(threaded)
    assert (await caller.call("text.threaded", {"text": "a"})).data == "A"


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        -1.5,
        "",
        "ü€𝄞",
        [],
        {},
        {"a": [1, {"b": None}]},
        b"",
        b"\x00\xff",
        {"file": b"abc", "deep": [b"x"]},
        2**80,
    ],
    ids=repr,
)
async def test_values_are_sent_unchanged(serve: Serve, caller: PendingRequestMap, value: Any) -> None:
    await serve(echo)
    assert (await caller.call("any.echo", {"value": value})).data == value


async def test_envelopes_of_other_sources_keep_their_meta(serve: Serve, caller: PendingRequestMap) -> None:
    http = http_envelope({"a": 1}, status_code=201, headers={"x-a": "1"}, content_type="application/json")
    mcp = mcp_envelope({"e": 1}, is_error=True, content=[{"type": "text", "text": "no"}])
    await serve(stub_operation("src.http", returns=http), stub_operation("src.mcp", returns=mcp))
    assert await caller.call("src.http") == http
    assert await caller.call("src.mcp") == mcp


@pytest.mark.fault(17)
@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 8 << 20])
async def test_large_payloads_are_sent_both_ways(serve: Serve, caller: PendingRequestMap, size: int) -> None:
    await serve(echo)
    text = "x" * size
    assert (await caller.call("any.echo", {"value": text})).data == text


async def test_an_exception_is_an_execution_error(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(stub_operation("bad.raises", raises=ValueError("oh")))
    error = await error_of(caller.call("bad.raises"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message == "bad.raises: ValueError: oh"
    assert error.details == {"type": "ValueError"}


async def test_a_domain_error_keeps_its_code_and_details(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(divide)
    error = await error_of(caller.call("math.divide", {"a": 1, "b": 0}))
    assert (error.code, error.message, error.details) == ("BY_ZERO", "not by zero", {"a": 1})


@pytest.mark.parametrize("details", [None, ["a"]], ids=repr)
async def test_unavailable_with_details_of_any_type_reaches_the_caller(
    serve: Serve, caller: PendingRequestMap, details: Any
) -> None:
    await serve(stub_operation("bad.raises", raises=CallError(ErrorCode.UNAVAILABLE, "the printer is off", details)))
    error = await error_of(caller.call("bad.raises"))
    assert (error.code, error.message, error.details) == (ErrorCode.UNAVAILABLE, "the printer is off", details)


class Odd(BaseException):
    pass


@pytest.mark.fault(38)
@pytest.mark.parametrize("raised", [Odd("odd"), SystemExit(3), asyncio.CancelledError()], ids=repr)
async def test_a_base_exception_has_a_defined_outcome_and_the_worker_continues(
    serve: Serve, caller: PendingRequestMap, raised: BaseException
) -> None:
    await serve(stub_operation("bad.raises", raises=raised), add)
    error = await error_of(caller.call("bad.raises"))
    assert error.code in (ErrorCode.EXECUTION_ERROR, ErrorCode.ABORTED)
    assert (await caller.call("math.add", {"a": 1, "b": 1})).data == 2


async def test_invalid_input_lists_every_problem(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(add)
    error = await error_of(caller.call("math.add", {"a": "x"}))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert len(error.details["errors"]) == 2


async def test_an_unknown_operation_of_a_known_namespace_is_not_found(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(add)
    assert (await error_of(caller.call("math.ad"))).code is ErrorCode.OPERATION_NOT_FOUND


@pytest.mark.fault(9)
async def test_a_call_without_a_worker_fails_immediately(serve: Serve, caller: PendingRequestMap) -> None:
    async with asyncio.timeout(30):
        error = await error_of(caller.call("nobody.here"))
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details["executed"] == "no"


@pytest.mark.fault(10)
async def test_a_caller_may_wait_for_a_worker(bus: Bus, serve: Serve, caller: PendingRequestMap) -> None:
    waiting = asyncio.create_task(caller.call("math.add", {"a": 1, "b": 2}, wait=True))
    await until(lambda: caller.in_flight == 1 or waiting.done())
    await serve(add)
    async with asyncio.timeout(30):
        assert (await waiting).data == 3


async def test_access_is_checked_with_the_identity_of_the_caller(
    bus: Bus, serve: Serve, caller: PendingRequestMap
) -> None:
    handler = await serve(read_secret)
    handler.registry.register(write_secret)
    handler.refresh()
    assert (await caller.call("secret.read", identity=bus.identity)).data == "42"
    await until(lambda: True)
    error = await error_of(caller.call("secret.write", identity=bus.identity, wait=True))
    assert error.code is ErrorCode.ACCESS_DENIED
    assert error.details["missingScopes"] == ["write", "admin"]
    assert "write, admin" in error.message


async def test_a_handler_knows_its_caller_and_is_not_trusted(bus: Bus, serve: Serve, caller: PendingRequestMap) -> None:
    await serve(who_am_i)
    deadline = in_ms(20_000)
    seen = (
        await caller.call(
            "who.am_i", identity=bus.identity, deadline=deadline, metadata={"k": 1}, parent_request_id="p"
        )
    ).data
    assert seen["id"] == CALLER.id
    assert seen["trusted"] is False
    assert (seen["deadline"], seen["parent"], seen["metadata"]) == (deadline, "p", {"k": 1})


async def test_a_call_ends_at_its_deadline_and_the_handler_is_cancelled(
    serve: Serve, caller: PendingRequestMap
) -> None:
    sleeper = Sleeper()
    await serve(sleeper.operation)
    await until_timed_out(lambda deadline: caller.call("slow.sleep", deadline=deadline), sleeper.started.is_set)
    async with asyncio.timeout(30):
        await sleeper.cancelled.wait()


async def test_a_handler_that_ignores_its_cancellation_does_not_hold_its_caller(
    serve: Serve, caller: PendingRequestMap
) -> None:
    let_go = asyncio.Event()

    @operation(id="slow.stubborn")
    async def stubborn() -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    await serve(stubborn)
    async with asyncio.timeout(30):
        error = await error_of(caller.call("slow.stubborn", deadline=in_ms(100)))
    assert error.code is ErrorCode.TIMEOUT
    let_go.set()


async def test_a_deadline_that_has_passed_never_runs_the_handler(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    await serve(sleeper.operation)
    error = await error_of(caller.call("slow.sleep", deadline=in_ms(-1)))
    assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "no")
    assert sleeper.runs == 0


@pytest.mark.fault(24)
async def test_a_deadline_that_passes_in_the_queue_never_runs_the_handler(
    serve: Serve, caller: PendingRequestMap
) -> None:
    first, second = Sleeper("slow.first"), Sleeper("slow.second")
    await serve(first.operation, second.operation, concurrency=1)
    running = asyncio.create_task(caller.call("slow.first"))
    await first.started.wait()
    error = await error_of(caller.call("slow.second", deadline=in_ms(100)))
    assert error.code is ErrorCode.TIMEOUT
    first.let_go.set()
    assert (await running).data == "awake"
    assert second.runs == 0


@pytest.mark.fault(22)
async def test_cancelling_the_caller_cancels_the_handler(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    await serve(sleeper.operation)
    task = asyncio.create_task(caller.call("slow.sleep"))
    await sleeper.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        await sleeper.cancelled.wait()


def nested(name: str, inner: str) -> Any:
    @operation(id=f"{name}.step", type="query")
    async def step(context: OperationContext) -> Any:
        return [name, (await context.env[inner]["step"]()).data]

    return step


async def test_calls_nest_three_deep_through_the_bus(bus: Bus, serve: Serve, caller: PendingRequestMap) -> None:
    @operation(id="three.step", type="query")
    async def innermost(context: OperationContext) -> Any:
        return context.identity.id if context.identity is not None else None

    for step in (innermost, nested("two", "three"), nested("one", "two")):
        await serve(step)
    assert (await caller.call("one.step", identity=bus.identity)).data == ["one", ["two", CALLER.id]]


@pytest.mark.fault(22, 25)
async def test_cancellation_and_deadlines_reach_the_innermost_call(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper("three.step")
    for step in (sleeper.operation, nested("two", "three"), nested("one", "two")):
        await serve(step)
    task = asyncio.create_task(caller.call("one.step"))
    await sleeper.started.wait()
    task.cancel()
    async with asyncio.timeout(30):
        await sleeper.cancelled.wait()
    sleeper.started.clear()
    sleeper.cancelled.clear()
    await until_timed_out(lambda deadline: caller.call("one.step", deadline=deadline), sleeper.started.is_set)
    async with asyncio.timeout(30):
        await sleeper.cancelled.wait()


async def test_workers_of_a_namespace_share_the_load(serve: Serve, caller: PendingRequestMap) -> None:
    one, two = Sleeper(), Sleeper()
    await serve(one.operation, pool=True)
    await serve(two.operation, pool=True)
    one.let_go.set()
    two.let_go.set()
    await until(lambda: True)
    for _ in range(50):
        await caller.call("slow.sleep")
    assert one.runs + two.runs == 50
    # A bus distributes requests in turn or at random. At random, a worker gets fewer than eight once in a million runs.
    assert min(one.runs, two.runs) >= 8


async def test_remote_operations_look_like_local_ones(bus: Bus, serve: Serve) -> None:
    handler = await serve(add)
    local = OperationRegistry([stub_operation("mine.own", returns=1)])
    async with from_call(await bus.end(), registry=local) as remote, asyncio.timeout(30):
        await remote.ready("math.add")
        assert (await local.execute("math.add", {"a": 2, "b": 3})).data == 5
        assert local.get_spec("math.add").to_dict() == add.spec.to_dict()  # type: ignore[union-attr]
        handler.registry.register(divide)
        handler.refresh()
        await remote.ready("math.divide")
        assert (await local.execute("math.divide", {"a": 1, "b": 2})).data == 0.5
        await handler.drain()
        await remote.until(lambda: not remote.ids)
    assert [spec.id for spec in local.list()] == ["mine.own"]


async def test_draining_finishes_running_calls_and_accepts_no_new_ones(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    handler = await serve(sleeper.operation)
    running = asyncio.create_task(caller.call("slow.sleep"))
    await sleeper.started.wait()
    draining = asyncio.create_task(handler.drain())
    async with asyncio.timeout(30):
        while True:
            error = await error_of(caller.call("slow.sleep", deadline=in_ms(50)))
            if error.code is ErrorCode.UNAVAILABLE:
                break
    sleeper.let_go.set()
    assert (await running).data == "awake"
    await draining


async def test_a_closing_worker_notifies_its_callers(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    handler = await serve(sleeper.operation)
    running = asyncio.create_task(caller.call("slow.sleep"))
    await sleeper.started.wait()
    await handler.close()
    error = await error_of(running)
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
    assert sleeper.cancelled.is_set()


async def test_too_many_requests_are_refused_as_not_run(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    handler = await serve(sleeper.operation, concurrency=2, queue=3)
    calls = [asyncio.create_task(caller.call("slow.sleep")) for _ in range(10)]
    await until(lambda: handler.counters.rejected == 5)
    sleeper.let_go.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, CallError)]
    assert len(refused) == 5
    assert {(error.code, error.details["executed"]) for error in refused} == {(ErrorCode.UNAVAILABLE, "no")}
    assert sleeper.runs == 5


@pytest.mark.fault(36)
@pytest.mark.slow
async def test_ten_thousand_concurrent_calls(serve: Serve, caller: PendingRequestMap) -> None:
    @operation(id="slow.little", type="query")
    async def little(index: int) -> int:
        await asyncio.sleep(index % 50 / 1000)
        return index

    handler = await serve(little, concurrency=10_000)
    outcomes = await asyncio.gather(*(caller.call("slow.little", {"index": index}) for index in range(10_000)))
    assert [envelope.data for envelope in outcomes] == list(range(10_000))
    assert handler.counters.in_flight == 0


async def test_calls_that_are_made_as_the_connection_is_lost_end_and_the_log_stays_quiet(
    bus: Bus, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    await serve(add)
    end: Any = await bus.end()
    pending = PendingRequestMap(end)

    async def cut() -> None:
        if hasattr(end, "cut"):  # there is no connection within one process
            end.drop_connection()

    async def call(number: int) -> int:
        try:
            return (await pending.call("math.add", {"a": number, "b": 1}, deadline=in_ms(10_000))).data  # type: ignore[no-any-return]
        except CallError as error:
            return number + 1 if error.code is ErrorCode.UNAVAILABLE else -1

    results = await asyncio.gather(cut(), *(call(number) for number in range(300)))
    assert results[1:] == list(range(1, 301))
    assert [record.getMessage() for record in caplog.records if record.name != "operations"] == []
