"""Observers: notified of every call, local, nested, served and refused, without effects on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.envelope import mcp_envelope
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import Call, Observation
from operations.testing import error_of, stub_operation


class Notes(Observation):
    """An observer that records calls and the methods that were called for them."""

    __slots__ = ("calls", "lines")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lines: list[str] = []

    def begin(self, call: Call) -> Observation:
        self.calls.append(call)
        self.lines.append(f"begin {call.operation_id} {call.kind}")
        return _Noted(self, call)


class _Noted(Observation):
    __slots__ = ("_call", "_notes")

    def __init__(self, notes: Notes, call: Call) -> None:
        self._notes, self._call = notes, call

    def end(self, outcome: str, error: BaseException | None) -> None:
        self._notes.lines.append(f"end {self._call.operation_id} {outcome} {self._call.items}")


@operation("a.inner", type="query")
async def inner() -> int:
    return 1


@operation("a.outer", type="query")
async def outer(context: OperationContext) -> Any:
    return (await context.env.a.inner()).data


async def test_local_and_nested_calls_are_observed() -> None:
    notes = Notes()
    await OperationRegistry([inner, outer], observers=[notes]).execute("a.outer")
    assert notes.lines == ["begin a.outer local", "begin a.inner local", "end a.inner ok 0", "end a.outer ok 0"]
    assert notes.calls[1].parent_request_id == notes.calls[0].request_id != ""


@pytest.mark.parametrize("direct", [True, False])
async def test_served_calls_are_observed_with_their_caller(direct: bool) -> None:
    notes, bus = Notes(), MemoryTransport(direct=direct)
    handler = CallHandler(OperationRegistry([inner, outer], observers=[notes]), bus.join())
    await PendingRequestMap(bus.join()).call("a.outer", identity=Identity("ann"))
    await handler.close()
    assert notes.lines[0] == "begin a.outer served"
    assert notes.lines[1] == "begin a.inner local"
    assert [call.identity.id for call in notes.calls if call.identity] == ["ann", "ann"]


async def test_refused_requests_are_observed() -> None:
    notes, bus = Notes(), MemoryTransport(direct=False)
    secret = stub_operation("a.secret", access_control=AccessControl(("admin",)))
    handler = CallHandler(OperationRegistry([secret], observers=[notes]), bus.join())
    pending = PendingRequestMap(bus.join())
    assert (await error_of(pending.call("a.secret"))).code is ErrorCode.ACCESS_DENIED
    assert (await error_of(pending.call("a.gone"))).code is ErrorCode.OPERATION_NOT_FOUND
    await handler.close()
    assert notes.lines == [
        "begin a.secret served",
        "end a.secret ACCESS_DENIED 0",
        "begin a.gone served",
        "end a.gone OPERATION_NOT_FOUND 0",
    ]
    assert notes.calls[1].spec is None


async def test_a_full_queue_and_a_deadline_in_the_queue_are_observed() -> None:
    notes, bus, opened = Notes(), MemoryTransport(direct=False), asyncio.Event()

    @operation("a.wait", type="query")
    async def wait() -> None:
        await opened.wait()

    handler = CallHandler(OperationRegistry([wait], observers=[notes]), bus.join(), concurrency=1, queue=1)
    pending = PendingRequestMap(bus.join())
    first = asyncio.create_task(pending.call("a.wait"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(pending.call("a.wait", deadline=int(time.time() * 1000) + 100))
    await asyncio.sleep(0.01)
    assert (await error_of(pending.call("a.wait"))).code is ErrorCode.UNAVAILABLE
    assert (await error_of(second)).code is ErrorCode.TIMEOUT
    opened.set()
    await first
    await handler.close()
    assert sorted(line for line in notes.lines if line.startswith("end")) == [
        "end a.wait TIMEOUT 0",
        "end a.wait UNAVAILABLE 0",
        "end a.wait ok 0",
    ]


async def test_outcomes() -> None:
    notes = Notes()
    operations = [
        stub_operation("a.domain", raises=CallError("EMPTY")),
        stub_operation("a.bug", raises=ValueError("x")),
        stub_operation("a.tool", returns=mcp_envelope("bad", content=[], is_error=True)),
    ]

    @operation("a.slow", type="query")
    async def slow() -> None:
        await asyncio.Event().wait()

    registry = OperationRegistry([*operations, slow], observers=[notes])
    await error_of(registry.execute("a.domain"))
    await error_of(registry.execute("a.bug"))
    await registry.execute("a.tool")
    await error_of(registry.execute("a.slow", None, OperationContext(deadline=int(time.time() * 1000) + 20)))
    task = asyncio.create_task(registry.execute("a.slow"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [line.split()[2] for line in notes.lines if line.startswith("end")] == [
        *("EMPTY", "EXECUTION_ERROR", "tool_error", "TIMEOUT", "ABORTED"),
    ]


async def test_streams_are_observed_with_their_items() -> None:
    notes = Notes()

    @operation("a.count")
    async def count(context: OperationContext) -> AsyncIterator[int]:
        for number in range(5):
            yield number
        raise ValueError("over")

    registry = OperationRegistry([count], observers=[notes])
    stream = registry.subscribe("a.count")
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    with pytest.raises(CallError):
        async for _ in registry.subscribe("a.count"):
            pass
    assert [line for line in notes.lines if line.startswith("end")] == [
        "end a.count ok 2",
        "end a.count EXECUTION_ERROR 5",
    ]


async def test_an_observer_that_fails_affects_no_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observation):
        def enter(self) -> Any:
            raise KeyError("enter")

        def leave(self, entered: Any) -> None:
            raise KeyError("leave")

        def end(self, outcome: str, error: BaseException | None) -> None:
            raise KeyError("end")

    class Breaks:
        def __init__(self, at_once: bool) -> None:
            self._at_once = at_once

        def begin(self, call: Call) -> Observation:
            if self._at_once:
                raise KeyError("begin")
            return Broken()

    notes = Notes()
    registry = OperationRegistry([inner], observers=[Breaks(True), Breaks(False), notes])
    assert (await registry.execute("a.inner")).data == 1
    assert notes.lines[-1] == "end a.inner ok 0"
    assert "an observer failed" in caplog.text


@pytest.mark.parametrize("direct", [True, False])
async def test_a_failing_handlers_traceback_is_logged_once_with_its_request(
    caplog: pytest.LogCaptureFixture, direct: bool
) -> None:
    async def fail() -> None:
        raise RuntimeError("the cause")

    @operation("b.inner", type="query")
    async def failing() -> None:
        await fail()

    @operation("b.outer", type="query")
    async def calling(context: OperationContext) -> Any:
        return (await context.env.b.inner()).data

    caplog.set_level(logging.DEBUG)
    bus = MemoryTransport(direct=direct)
    handler = CallHandler(OperationRegistry([failing, calling]), bus.join())
    await error_of(PendingRequestMap(bus.join()).call("b.outer"))
    await handler.close()
    found = [record for record in caplog.records if record.exc_info]
    assert len(found) == 1
    assert "the cause" in caplog.text
    assert found[0].operation == "b.outer"  # type: ignore[attr-defined]
    assert found[0].request_id  # type: ignore[attr-defined]
    assert found[0].request_id in found[0].getMessage()  # type: ignore[attr-defined]


def test_calls_without_observers_create_no_closure() -> None:
    for method in (OperationRegistry.execute, OperationRegistry.run, OperationRegistry.run_stream):
        assert method.__code__.co_cellvars == (), method.__qualname__


@pytest.mark.parametrize("returned", [object(), "watched"])
async def test_another_value_than_an_observation_affects_no_call(
    caplog: pytest.LogCaptureFixture, returned: object
) -> None:
    class Wrong:
        def begin(self, call: Call) -> Any:
            return returned

    @operation(id="shop.tick")
    async def tick() -> AsyncIterator[int]:
        yield 1

    @operation(id="shop.one")
    async def one() -> int:
        return 1

    nothing: Any = object()
    registry = OperationRegistry([one, tick], observers=[Wrong(), nothing])
    assert (await registry.execute("shop.one")).data == 1
    assert [item.data async for item in registry.subscribe("shop.tick")] == [1]
    assert f"Wrong.begin returned {type(returned).__name__}: expected an Observation or None" in caplog.text
    assert "has no attribute 'begin'" in caplog.text
