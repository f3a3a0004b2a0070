"""Calls whose response waits for a congested transport: each way to end such a call ends it once and frees its slot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from operations import CallError, ErrorCode, Identity, OperationRegistry, OperationType, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.spec import Operation
from tests.waiting import until

TOKENS = StaticTokens({"caller": Principal(Identity("c")), "worker": Principal(Identity("w"), ("*",))})
SLOTS = 2


class Scene:
    """A worker whose connection to the hub is congested, and a caller."""

    def __init__(self, worker: Spoke, caller: Spoke) -> None:
        self.returned = 0
        self.worker, self.caller = worker, caller
        self.handler = CallHandler(OperationRegistry(self._operations()), worker, concurrency=SLOTS)
        self.pending = PendingRequestMap(caller)

    def _operations(self) -> list[Operation[object]]:
        @operation(id="shop.look", type=OperationType.QUERY)
        async def look() -> str:
            self.returned += 1
            return "seen"

        @operation(id="shop.slow", type=OperationType.QUERY)
        async def slow() -> str:
            await asyncio.sleep(0)
            self.returned += 1
            return "seen"

        @operation(id="shop.items", type=OperationType.SUBSCRIPTION)
        async def items() -> AsyncIterator[str]:
            self.returned += 1
            yield "seen"

        @operation(id="shop.fail", type=OperationType.QUERY)
        async def fail() -> str:
            self.returned += 1
            raise CallError("SOLD_OUT", "seen")

        return [look, slow, items, fail]

    async def get(self, operation_id: str, timeout: float | None = None) -> object:
        if operation_id != "shop.items":
            try:
                return (await self.pending.call(operation_id, timeout=timeout)).data
            except CallError as error:
                if error.code != "SOLD_OUT":
                    raise
                return error.message
        stream = self.pending.subscribe(operation_id, timeout=timeout)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            return (await anext(stream)).data

    async def begin(self, operation_id: str, timeout: float | None = None) -> asyncio.Task[object]:
        """Call an operation whose response then waits."""
        self.worker._note_congestion(True)
        call = asyncio.create_task(self.get(operation_id, timeout))
        await until(lambda: self.returned == 1)
        assert self.handler.dispatcher.slots.free == SLOTS - 1
        return call

    async def ends(self) -> None:
        """Wait for the end of the call: it is counted once, also after the congestion."""
        dispatcher = self.handler.dispatcher
        await until(lambda: dispatcher.in_flight == 0)
        self.worker._note_congestion(False)
        dispatcher.backpressure.change(False)  # a closed worker does not watch its transport
        await until(lambda: not dispatcher.backpressure.is_on)
        assert (dispatcher.slots.free, dispatcher.backpressure._waiting.size) == (SLOTS, 0)
        assert self.handler._requests.finished == 1
        assert not self.handler.endpoint.running


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with (
        Hub(TOKENS) as hub,
        Spoke(hub.url, token="worker", shortest_delay=0.01, longest_delay=0.02) as worker,
        Spoke(hub.url, token="caller") as caller,
        asyncio.timeout(30),
    ):
        made = Scene(worker, caller)
        await made.handler.registered()
        yield made
        await made.handler.close()


each_kind = pytest.mark.parametrize("operation_id", ["shop.look", "shop.slow", "shop.items", "shop.fail"])


@each_kind
async def test_a_waiting_response_is_sent_after_the_congestion(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id)
    scene.worker._note_congestion(False)
    assert await call == "seen"
    await scene.ends()


@each_kind
async def test_the_deadline_ends_a_call_whose_response_waits(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id, timeout=0.3)
    with pytest.raises(CallError) as raised:
        await call
    assert raised.value.code is ErrorCode.TIMEOUT
    await scene.ends()


@each_kind
async def test_the_caller_aborts_a_call_whose_response_waits(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id)
    call.cancel()
    await asyncio.wait((call,))
    await scene.ends()


@each_kind
async def test_the_caller_disconnects_while_its_response_waits(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id)
    await scene.caller.close()
    await asyncio.wait((call,))
    assert isinstance(call.exception(), CallError)
    await scene.ends()


@each_kind
@pytest.mark.parametrize("grace", [None, 0.01])
async def test_the_worker_leaves_while_a_response_waits(scene: Scene, operation_id: str, grace: float | None) -> None:
    call = await scene.begin(operation_id)
    await (scene.handler.close() if grace is None else scene.handler.drain(grace=grace))
    with pytest.raises(CallError) as raised:
        await call
    assert raised.value.code is ErrorCode.UNAVAILABLE
    await scene.ends()


@each_kind
async def test_a_draining_worker_sends_a_waiting_response_after_the_congestion(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id)
    leaving = asyncio.create_task(scene.handler.drain())
    await until(lambda: scene.handler.dispatcher.idle is not None)
    scene.worker._note_congestion(False)
    assert await call == "seen"
    await leaving
    await scene.ends()


@each_kind
async def test_the_worker_loses_its_connection_while_a_response_waits(scene: Scene, operation_id: str) -> None:
    call = await scene.begin(operation_id)
    scene.worker.drop_connection()
    with pytest.raises(CallError) as raised:
        await call
    assert raised.value.code is ErrorCode.UNAVAILABLE
    await scene.ends()


async def test_a_worker_that_starts_on_a_congested_transport_waits(scene: Scene) -> None:
    scene.worker._note_congestion(True)
    other = CallHandler(OperationRegistry([]), scene.worker)
    assert other.dispatcher.backpressure.is_on
    scene.worker._note_congestion(False)
    assert not other.dispatcher.backpressure.is_on
    await other.close()
