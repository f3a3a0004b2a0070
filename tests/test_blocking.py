import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.blocking import BlockingRegistry
from operations.testing import stub_operation

log: list[str] = []


@operation(id="t.add")
async def add(a: int, b: int) -> int:
    return a + b


@operation(id="t.count")
async def count(to: int) -> AsyncIterator[int]:
    try:
        for number in range(to):
            yield number
    finally:
        log.append("closed")


def test_calls_without_an_event_loop() -> None:
    with BlockingRegistry(OperationRegistry([add, count])) as registry:
        assert registry.execute(add, {"a": 1, "b": 2}).data == 3
        assert registry.execute("t.add", {"a": 1, "b": 2}).data == 3
        assert [event.data for event in registry.subscribe(count, {"to": 3})] == [0, 1, 2]
        outcomes = registry.execute_many([("t.add", {"a": n, "b": 0}) for n in range(3)])
        assert [o.data for o in outcomes if not isinstance(o, CallError)] == [0, 1, 2]


def test_errors_arrive_as_they_are() -> None:
    registry = OperationRegistry([stub_operation("t.fail", raises=ValueError("x"))])
    with BlockingRegistry(registry) as blocking, pytest.raises(CallError) as caught:
        blocking.execute("t.fail")
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


def test_closing_a_stream_early_closes_the_handlers_generator() -> None:
    log.clear()
    with BlockingRegistry(OperationRegistry([count])) as registry:
        events = registry.subscribe(count, {"to": 1_000})
        assert next(events).data == 0
        events.close()  # type: ignore[attr-defined]
        assert log == ["closed"]


def test_leaving_the_block_ends_an_open_stream() -> None:
    log.clear()
    with BlockingRegistry(OperationRegistry([count])) as registry:
        events = registry.subscribe(count, {"to": 1_000})
        next(events)
    assert log == ["closed"]
    with pytest.raises(CallError, match="closed"):
        next(events)


def test_leaving_the_block_ends_a_call_of_another_thread() -> None:
    import asyncio

    started = threading.Event()
    outcome: list[CallError] = []

    @operation(id="t.wait")
    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    blocking = BlockingRegistry(OperationRegistry([wait]))

    def call() -> None:
        try:
            blocking.execute(wait)
        except CallError as error:
            outcome.append(error)

    with blocking:
        thread = threading.Thread(target=call)
        thread.start()
        started.wait(5)
    thread.join(5)
    assert [error.code for error in outcome] == [ErrorCode.ABORTED]


def test_a_closed_registry_reports_that_it_is_closed() -> None:
    blocking = BlockingRegistry(OperationRegistry([add]))
    with pytest.raises(CallError, match="use it in a `with` block"):
        blocking.execute(add, {"a": 1, "b": 1})
    with blocking, pytest.raises(RuntimeError, match="already open"):
        blocking.__enter__()


def test_a_handler_may_not_wait_for_its_own_loop() -> None:
    blocking = BlockingRegistry(OperationRegistry())

    @operation(id="t.outer")
    async def outer() -> int:
        return blocking.execute("t.add", {"a": 1, "b": 2}).data  # type: ignore[no-any-return]

    blocking.registry.register_all([add, outer])
    with blocking, pytest.raises(CallError, match="cannot be used by its own handlers"):
        blocking.execute("t.outer")


def test_a_handler_in_a_thread_may_call() -> None:
    blocking = BlockingRegistry(OperationRegistry())

    @operation(id="t.outer")
    def outer() -> int:
        return blocking.execute(add, {"a": 1, "b": 2}).data

    blocking.registry.register_all([add, outer])
    with blocking:
        assert blocking.execute("t.outer").data == 3


def test_leaving_the_block_does_not_wait_for_handlers_that_ignore_cancellation() -> None:
    release = threading.Event()

    @operation(id="t.stubborn")
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    blocking = BlockingRegistry(OperationRegistry([stubborn]))
    with blocking:
        loop = blocking._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(blocking.registry.execute("t.stubborn"), loop)
    release.set()


def test_leaving_the_block_does_not_wait_for_streams_that_close_slowly() -> None:
    ended: list[str] = []

    @operation(id="t.items")
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    blocking = BlockingRegistry(OperationRegistry([items]))
    with blocking:
        stream = blocking.subscribe("t.items")
        assert next(stream).data == 1
    assert ended == ["cancelled"]
