"""Calls of plain functions: one caller cannot occupy all threads, whatever it does with deadlines and disconnects."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from operations import CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.context import Grant
from operations.dispatch import Dispatcher, Request
from operations.testing import error_of
from tests.waiting import until


class Blocked:
    """A registry with a plain function that blocks its thread until the test ends."""

    def __init__(self, threads: int) -> None:
        self.go_on = threading.Event()
        self.running: list[str] = []

        @operation(id="work.block")
        def block(name: str) -> str:
            self.running.append(name)
            assert self.go_on.wait(30)
            return name

        @operation(id="work.quick")
        def quick(name: str) -> str:
            return name

        @operation(id="work.nested")
        async def nested(name: str, context: OperationContext) -> str:
            return str((await context.env.work.quick(name=name)).data)

        self.registry = OperationRegistry([block, quick, nested], threads=threads)
        self.dispatcher = Dispatcher(self.registry)

    async def call(self, caller: str, operation_id: str, *, deadline: int | None = None) -> str:
        identity = Identity(caller) if caller else None
        grant = Grant(identity=identity, protocol="http", exposure=None)
        request = Request(
            operation_id=operation_id, input={"name": caller}, caller=caller, grant=grant, deadline=deadline
        )
        envelope = await self.dispatcher.call(request)
        return str(envelope.data)


@asynccontextmanager
async def blocked(threads: int = 8) -> AsyncIterator[Blocked]:
    world = Blocked(threads)
    try:
        async with asyncio.timeout(30):
            yield world
    finally:
        world.go_on.set()
        await world.registry.close()


@pytest.mark.parametrize("other", ["ada", ""])
async def test_a_flood_of_calls_leaves_threads_to_others(other: str) -> None:
    async with blocked() as world:
        flood = [asyncio.create_task(world.call("eve", "work.block")) for _ in range(40)]
        await until(lambda: len(world.running) == 6)
        assert await world.call(other, "work.quick") == other
        assert await world.call(other, "work.nested") == other
        assert world.running == ["eve"] * 6
        world.go_on.set()
        assert await asyncio.gather(*flood) == ["eve"] * 40
    assert world.registry._worker_threads._shares._by_key == {}


async def test_calls_that_time_out_or_are_cancelled_keep_their_threads() -> None:
    """A thread cannot be stopped: the limits on calls do not count it, but the limit on threads does."""
    async with blocked() as world:
        for _ in range(6):
            call = asyncio.create_task(world.call("eve", "work.block"))
            before = len(world.running)
            await until(lambda before=before: len(world.running) > before)  # type: ignore[misc]
            call.cancel()
            await asyncio.wait((call,))
        waiting = [asyncio.create_task(world.call("eve", "work.block")) for _ in range(40)]
        await asyncio.sleep(0)
        for call in waiting[:20]:
            call.cancel()
        await asyncio.wait(waiting[:20])
        assert await world.call("ada", "work.quick") == "ada"
        assert len(world.running) == 6
        world.go_on.set()
        assert await asyncio.gather(*waiting[20:]) == ["eve"] * 20
        await until(lambda: world.registry._worker_threads._shares._by_key == {})


async def test_a_call_that_waits_for_a_thread_has_a_deadline() -> None:
    async with blocked(threads=1) as world:
        first = asyncio.create_task(world.call("eve", "work.block"))
        await until(lambda: len(world.running) == 1)
        soon = int((time.time() + 0.1) * 1000)
        error = await error_of(world.call("eve", "work.quick", deadline=soon))
        assert error.code is ErrorCode.TIMEOUT
        world.go_on.set()
        assert await first == "eve"
        assert await world.call("eve", "work.quick") == "eve"
        with pytest.raises(CallError):
            await world.call("eve", "work.none")


async def test_the_program_itself_uses_all_threads() -> None:
    async with blocked() as world:
        calls = [asyncio.create_task(world.registry.execute("work.block", {"name": "own"})) for _ in range(8)]
        await until(lambda: len(world.running) == 8)
        world.go_on.set()
        assert [each.data for each in await asyncio.gather(*calls)] == ["own"] * 8
