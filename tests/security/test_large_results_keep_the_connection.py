"""Large unread results and large inputs do not close a connection: results wait, and callers take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

import pytest

from operations import (
    CallError,
    ErrorCode,
    Identity,
    OperationContext,
    OperationRegistry,
    OperationType,
    ResponseEnvelope,
    operation,
)
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.dispatch.queueing import Backpressure
from operations.identity import Principal, StaticTokens
from operations.pubsub.protocols import CONGESTED_BYTES, MOST_UNSENT
from operations.spec import Operation
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

TOKENS = StaticTokens(
    {name: Principal(Identity(name)) for name in ("mallory", "honest")} | {"worker": Principal(Identity("w"), ("*",))}
)
CALLS = 64
TEXT = "x" * (4 << 20)


class Shop:
    """Operations that wait until the test lets all of them end at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started = 0

    async def end(self) -> None:
        self.started += 1
        await self.gate.wait()

    def operations(self) -> list[Operation[object]]:
        @operation(id="shop.big", type=OperationType.QUERY)
        async def big() -> str:
            await self.end()
            return TEXT

        @operation(id="shop.fail", type=OperationType.QUERY)
        async def fail() -> str:
            await self.end()
            raise CallError("SHOP_FAILED", "failed", {"text": TEXT})

        @operation(id="shop.items", type=OperationType.SUBSCRIPTION)
        async def items() -> AsyncIterator[str]:
            await self.end()
            for _ in range(4):
                yield TEXT

        @operation(id="shop.small", type=OperationType.QUERY)
        async def small() -> str:
            await self.end()
            return "small"

        @operation(id="shop.relay", type=OperationType.QUERY)
        async def relay(context: OperationContext) -> str:
            await self.end()
            return str((await context.env["shop"]["length"](text=TEXT[: 2 << 20])).data)

        return [big, fail, items, small, relay]


@contextlib.asynccontextmanager
async def worker(shop: Shop, hub: Hub) -> AsyncIterator[Spoke]:
    async with Spoke(hub.url, token="worker") as connected:
        handler = CallHandler(OperationRegistry(shop.operations()), connected)
        await handler.registered()
        yield connected
        await handler.close()


async def text_of(call: Awaitable[ResponseEnvelope[object]]) -> str:
    """Return the text of a result, or of the details of an error."""
    try:
        return str((await call).data)
    except CallError as error:
        return str(error.details["text"])


async def ask(hub: Hub, operation_id: str, *, stream: bool = False) -> RawPeer:
    """Call an operation many times and read nothing."""
    peer = await RawPeer.join(hub.port, "mallory", "m" * 32)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(CALLS):
        request_id = f"{'m' * 32}-{number}"
        payload = {"requestId": request_id, "operationId": operation_id, "input": {}}
        peer.send_event("call.requested", payload, id=request_id, to=operation_id, stream=stream)
        if stream:
            credit = {"requestId": request_id, "items": 1_000, "bytes": 1 << 30}
            peer.send_event("call.credit", credit, id=request_id)
    return peer


@pytest.mark.parametrize(("operation_id", "stream"), [("shop.big", False), ("shop.items", True)])
async def test_unread_results_are_bounded(operation_id: str, stream: bool) -> None:
    shop = Shop()
    async with (
        Hub(TOKENS) as hub,
        worker(shop, hub) as connected,
        Spoke(hub.url, token="honest") as own,
        asyncio.timeout(60),
    ):
        mallory = await ask(hub, operation_id, stream=stream)
        await until(lambda: shop.started == CALLS)
        honest = PendingRequestMap(own)
        calls = [asyncio.create_task(honest.call("shop.small")) for _ in range(8)]
        await until(lambda: shop.started == CALLS + 8)
        shop.gate.set()
        assert [each.data for each in await asyncio.gather(*calls)] == ["small"] * 8
        assert connected.reconnects == 0
        assert own.reconnects == 0
        await mallory.close()


@pytest.mark.parametrize("operation_id", ["shop.big", "shop.fail"])
async def test_results_wait_while_many_bytes_are_unsent(operation_id: str) -> None:
    """All calls of an honest caller get their result, or their error, and a bounded part of it is written at a time."""
    shop, most = Shop(), 0

    async with (
        Hub(TOKENS) as hub,
        worker(shop, hub) as connected,
        Spoke(hub.url, token="honest") as own,
        asyncio.timeout(60),
    ):
        pending = PendingRequestMap(own)
        calls = [asyncio.create_task(text_of(pending.call(operation_id))) for _ in range(CALLS)]
        await until(lambda: shop.started == CALLS)
        shop.gate.set()
        while not all(call.done() for call in calls):
            assert connected._link is not None
            most = max(most, connected._link.unsent_bytes)
            await asyncio.sleep(0)
        assert {len(await call) for call in calls} == {len(TEXT)}
        assert most < CONGESTED_BYTES + 4 * len(TEXT)
        assert connected.reconnects == 0


async def test_large_inputs_fail_alone() -> None:
    shop = Shop()

    @operation(id="shop.length", type=OperationType.QUERY)
    async def length(text: str) -> int:
        return len(text)

    async with (
        Hub(TOKENS) as hub,
        worker(shop, hub) as connected,
        Spoke(hub.url, token="worker") as second,
        Spoke(hub.url, token="honest") as own,
        asyncio.timeout(60),
    ):
        other = CallHandler(OperationRegistry([length]), second)
        await other.registered()
        mallory = await ask(hub, "shop.relay")
        await until(lambda: shop.started == CALLS)
        honest = asyncio.create_task(PendingRequestMap(own).call("shop.small"))
        await until(lambda: shop.started == CALLS + 1)
        shop.gate.set()
        assert (await honest).data == "small"
        assert connected.reconnects == 0
        await mallory.close()
        await other.close()


async def test_a_request_is_not_sent_while_too_many_bytes_are_unsent() -> None:
    async with Hub(TOKENS) as hub, worker(Shop(), hub), Spoke(hub.url, token="honest") as own, asyncio.timeout(60):
        link, calls = own._link, PendingRequestMap(own)
        assert link is not None
        link._transport.underlying_transport.write(b"")  # the socket works; what follows only fills its buffer
        sent = 0
        while sent <= MOST_UNSENT + (16 << 20):
            link.send(bytes(4 << 20))
            sent += 4 << 20
        link._flush()
        with pytest.raises(CallError, match="the server reads too slowly") as refused:
            await calls.call("shop.small")
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert (refused.value.details or {})["executed"] == "no"
        assert link.is_open


async def test_callers_take_turns_to_respond() -> None:
    backpressure, order = Backpressure(), list[str]()

    async def respond(caller: str) -> None:
        await backpressure.wait(caller)
        order.append(caller)

    backpressure.change(True)
    assert backpressure.is_on
    waiting = [asyncio.create_task(respond(caller)) for caller in ("a", "a", "a", "b", "gone")]
    await asyncio.sleep(0)
    waiting[-1].cancel()
    assert order == []
    backpressure.change(False)
    await asyncio.gather(*waiting[:-1])
    assert order == ["a", "b", "a", "a"]
    await until(lambda: not backpressure.is_on)


async def test_one_response_at_a_time_follows() -> None:
    backpressure, order = Backpressure(), list[int]()

    async def respond(number: int) -> None:
        await backpressure.wait("a")
        order.append(number)
        backpressure.change(True)

    backpressure.change(True)
    waiting = [asyncio.create_task(respond(number)) for number in range(3)]
    await asyncio.sleep(0)
    for number in range(3):
        backpressure.change(False)
        await waiting[number]
        await asyncio.sleep(0)
        assert order == list(range(number + 1))
