"""A registry that changes while it is served: changes are announced automatically."""

from __future__ import annotations

import asyncio

import pytest

from operations import CallError, ErrorCode, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.testing import error_of, stub_operation
from tests.contracts.buses import Bus
from tests.contracts.conftest import Serve


async def test_operations_registered_later_can_be_called(serve: Serve, caller: PendingRequestMap, bus: Bus) -> None:
    handler = await serve(stub_operation("shop.first", returns=1))
    async with from_call(await bus.end()) as remote:
        await remote.ready("shop.first", timeout=10)
        handler.registry.register_all([stub_operation("shop.second", returns=2), stub_operation("bank.pay", returns=3)])
        await remote.ready("shop.second", "bank.pay", timeout=10)
        assert [(await caller.call(name)).data for name in ("shop.second", "bank.pay")] == [2, 3]
        handler.registry.register(stub_operation("shop.second", returns=4), replace=True)
        assert (await caller.call("shop.second")).data == 4


async def test_operations_unregistered_later_are_removed(serve: Serve, caller: PendingRequestMap, bus: Bus) -> None:
    handler = await serve(stub_operation("shop.first", returns=1), stub_operation("bank.pay", returns=3))
    async with from_call(await bus.end()) as remote:
        await remote.ready("shop.first", "bank.pay", timeout=10)
        handler.registry.unregister("bank.pay")
        await remote.until(lambda: remote.ids == ["shop.first"], timeout=10)
        assert (await error_of(caller.call("bank.pay"))).details["executed"] == "no"
        assert (await caller.call("shop.first")).data == 1


async def test_an_imported_operation_that_the_program_replaced_is_kept(serve: Serve, bus: Bus) -> None:
    handler = await serve(stub_operation("shop.first", returns=1))
    async with from_call(await bus.end()) as remote:
        await remote.ready("shop.first", timeout=10)
        remote.registry.register(stub_operation("shop.first", returns=5), replace=True)
        changed = stub_operation("shop.first", returns=2, description="changed")
        handler.registry.register_all([changed, stub_operation("shop.second", returns=3)], replace=True)
        await remote.ready("shop.second", timeout=10)
        assert (await remote.registry.execute("shop.first")).data == 5
        assert remote.ids == ["shop.second"]
        remote.registry.unregister("shop.first")
        handler.registry.register(stub_operation("shop.first", returns=4), replace=True)
        await remote.ready("shop.first", timeout=10)
        assert (await remote.registry.execute("shop.first")).data == 4


async def test_a_change_in_another_thread_is_announced_too(serve: Serve, bus: Bus) -> None:
    handler = await serve(stub_operation("shop.first", returns=1))
    async with from_call(await bus.end()) as remote:
        await asyncio.to_thread(handler.registry.register, stub_operation("shop.second", returns=2))
        await remote.ready("shop.second", timeout=10)


async def test_imported_operations_are_not_served_where_they_came_from(serve: Serve, bus: Bus) -> None:
    await serve(stub_operation("shop.first", returns=1))
    end = await bus.end("worker")
    registry = OperationRegistry([stub_operation("own.one", returns=2)])
    handler = CallHandler(registry, end)
    async with from_call(end, registry=registry) as remote, from_call(await bus.end()) as seen:
        await remote.ready("shop.first", timeout=10)
        registry.register(stub_operation("own.two", returns=3))
        await seen.ready("own.two", timeout=10)
        assert sorted(operation.id for operation in handler._served()) == ["own.one", "own.two"]
        assert handler.rejected == {}
    await handler.close()


async def test_waiting_for_a_missing_operation_times_out(bus: Bus) -> None:
    async with from_call(await bus.end()) as remote:
        error = await error_of(remote.ready("shop.first", timeout=0.05))
        assert (error.code, error.details) == (ErrorCode.TIMEOUT, {"missing": ["shop.first"]})
        with pytest.raises(CallError, match=r"within 0\.05 s"):
            await remote.until(lambda: False, timeout=0.05)


async def test_a_worker_waits_until_it_is_registered(bus: Bus) -> None:
    registry = OperationRegistry([stub_operation("shop.first", returns=1)])
    handler = CallHandler(registry, await bus.end("worker"))
    await handler.registered(timeout=10)
    assert (await PendingRequestMap(await bus.end()).call("shop.first")).data == 1
    await handler.close()


async def test_a_call_right_after_the_registration_reaches_the_worker(bus: Bus, caller: PendingRequestMap) -> None:
    end = await bus.end("worker")
    for number in range(20):
        operation = stub_operation(f"shop{number}.first", returns=number)
        handler = CallHandler(OperationRegistry([operation]), end)
        await handler.registered(timeout=10)
        assert (await caller.call(operation.id)).data == number
        await handler.close()
