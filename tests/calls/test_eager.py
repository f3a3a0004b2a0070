"""Coroutines started at once: what never waits leaves nothing behind, what waits goes on as a task of its own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations.calls.eager import Paused, Starter

_VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("_VARIABLE", default="unset")


@pytest.fixture
async def starter() -> AsyncIterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()
    await asyncio.sleep(0)


def go_on(paused: Paused) -> tuple[asyncio.Task[Any], list[str]]:
    """Let a coroutine that waits go on within another; its result will be in the list."""
    assert type(paused) is Paused
    results: list[str] = []

    async def outer() -> None:
        results.append(await paused)

    return paused.go_on_in(outer()), results


async def test_what_never_waits_gives_its_result_at_once(starter: Starter) -> None:
    async def work() -> int:
        return 7

    assert starter.step(work()) == 7
    assert starter.step(work()) == 7


async def test_what_never_waits_costs_no_task(starter: Starter) -> None:
    async def work() -> int:
        return id(asyncio.current_task())

    starter.step(work())
    await asyncio.sleep(0)
    tasks = len(asyncio.all_tasks())
    if sys.version_info < (3, 12):
        assert len({starter.step(work()) for _ in range(10)}) == 1
    assert len(asyncio.all_tasks()) == tasks


async def test_what_it_raises_at_once_is_raised(starter: Starter) -> None:
    async def work() -> None:
        raise LookupError("no")

    for _ in range(2):
        with pytest.raises(LookupError, match="no"):
            starter.step(work())


@pytest.mark.parametrize("ends_in", ["a result", "an error", "nothing", "a wait"])
async def test_nothing_is_kept_of_a_coroutine_that_has_ended(starter: Starter, ends_in: str) -> None:
    class Kept:
        pass

    async def work(kept: Kept) -> Kept | None:
        if ends_in == "a wait":
            await asyncio.sleep(0)
        if ends_in == "an error":
            raise LookupError(kept)
        return None if ends_in == "nothing" else kept

    kept = Kept()
    gone = weakref.ref(kept)
    gc.disable()
    try:
        try:
            result = starter.step(work(kept))
            if type(result) is Paused:
                task, results = go_on(result)
                await task
                del task, results
            del result
        except LookupError:
            pass
        del kept
        assert gone() is None
    finally:
        gc.enable()


async def test_a_coroutine_runs_as_one_task_from_its_first_step_to_its_last(starter: Starter) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    me = asyncio.current_task()
    task = starter.start(work())
    assert asyncio.current_task() is me
    assert task is not None
    await task
    assert tasks == [task, task]
    assert task is not me


async def test_what_waits_goes_on_within_another_coroutine(starter: Starter) -> None:
    ready = asyncio.Event()

    async def work() -> str:
        await ready.wait()
        await asyncio.sleep(0)
        return "done"

    task, results = go_on(starter.step(work()))
    ready.set()
    await task
    assert results == ["done"]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_cancelling_reaches_the_coroutine_however_soon_it_comes(starter: Starter, turns: int) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("inner")
            raise

    async def outer(paused: Paused) -> None:
        try:
            await paused
        except asyncio.CancelledError:
            seen.append("outer")

    paused = starter.step(work())
    task = paused.go_on_in(outer(paused))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert seen == ["inner", "outer"]


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_coroutine_may_swallow_its_cancellation(starter: Starter, goes_on: bool) -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if goes_on:
                await asyncio.sleep(0)
            return "stayed"
        return "never"

    task, results = go_on(starter.step(work()))
    task.cancel()
    await asyncio.wait((task,))
    assert results == ["stayed"]


async def test_what_one_coroutine_sets_in_its_context_the_next_does_not_see(starter: Starter) -> None:
    async def mark(value: str) -> str:
        before = _VARIABLE.get()
        _VARIABLE.set(value)
        return before

    assert [starter.step(mark(str(number))) for number in range(3)] == ["unset"] * 3
    assert _VARIABLE.get() == "unset"


async def test_a_first_step_may_start_another(starter: Starter) -> None:
    async def inner() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async def outer() -> tuple[object, object, object]:
        before = asyncio.current_task()
        return before, starter.step(inner()), asyncio.current_task()

    before, within, after = starter.step(outer())
    assert before is after
    assert within is not before


async def test_a_timeout_in_the_first_step_cancels_that_coroutine_alone(starter: Starter) -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    task, results = go_on(starter.step(work()))
    await task
    assert results == ["timed out"]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_cancelling_reaches_what_the_coroutine_waits_for_however_soon_it_comes(
    starter: Starter, turns: int
) -> None:
    inner = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await inner

    paused = starter.step(work())
    task = paused.go_on()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert inner.cancelled()
    assert task.cancelled()


@pytest.mark.parametrize("keep", [list, weakref.WeakSet], ids=["held", "held weakly"])
async def test_whoever_cancels_the_task_of_a_coroutine_that_ended_harms_no_other(starter: Starter, keep: Any) -> None:
    kept = keep()

    async def never_waits() -> None:
        task = asyncio.current_task()
        kept.append(task) if isinstance(kept, list) else kept.add(task)

    async def waits() -> str:
        await asyncio.sleep(0.01)
        return "done"

    starter.step(never_waits())
    task, results = go_on(starter.step(waits()))
    for each in list(kept):
        each.cancel()
    await asyncio.wait((task,))
    assert results == ["done"]


async def test_who_wants_to_know_when_the_task_of_a_coroutine_is_done_is_told(starter: Starter) -> None:
    told: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda task: told.append("cancelled" if task.cancelled() else "done"))

    starter.step(work())
    await asyncio.sleep(0.01)
    assert told == ["done"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_coroutine_that_would_end_the_program_ends_itself_alone(
    starter: Starter, kind: type[BaseException], waits: bool
) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise kind

    caught: list[type[BaseException]] = []

    async def outer(paused: Paused) -> None:
        try:
            await paused
        except BaseException as error:  # noqa: BLE001  # as a running call does
            caught.append(type(error))

    try:
        paused = starter.step(work())
        await paused.go_on_in(outer(paused))
    except BaseException as error:  # noqa: BLE001
        caught.append(type(error))
    assert caught == [kind]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio starts tasks eagerly by itself there")
async def test_nothing_is_left_for_the_collector_by_a_coroutine_that_leaves_a_mark(starter: Starter) -> None:
    async def work() -> None:
        _VARIABLE.set("set")

    def drivers() -> int:
        return sum(type(each).__name__ == "_Driver" for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        others = drivers()
        for _ in range(10):
            starter.step(work())
            await asyncio.sleep(0)
        assert drivers() - others <= 1
    finally:
        gc.enable()


async def test_a_coroutine_that_finds_no_room_on_the_stack_harms_no_other(starter: Starter) -> None:
    async def work() -> int:
        return 7

    def at_depth(depth: int) -> None:
        if depth:
            at_depth(depth - 1)
        else:
            coroutine = work()
            try:
                starter.step(coroutine)
            except RecursionError:
                coroutine.close()

    assert starter.step(work()) == 7
    for depth in range(700, sys.getrecursionlimit()):
        try:
            at_depth(depth)
        except RecursionError:
            break
        finally:
            assert starter.step(work()) == 7
