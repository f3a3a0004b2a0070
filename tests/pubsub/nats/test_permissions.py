"""The permissions that the guide shows: everything works with them, and no user can exceed its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.jobs import Jobs
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.nats.wire import NatsMessage, whole
from operations.testing import error_of
from tests.nats_server import NatsServer, nats_server
from tests.waiting import until

GUIDE = Path(__file__).parent.parent.parent.parent / "docs" / "guide" / "nats.md"
CONFIG = re.search(r"^```conf\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
PASSWORDS = {"ada": "a-secret", "bob": "b-secret", "stock": "s-secret"}


class House:
    def __init__(self, stack: contextlib.AsyncExitStack, server: NatsServer) -> None:
        self._stack = stack
        self._server = server

    @property
    def log(self) -> str:
        return self._server.log

    async def end(self, user: str, **options: Any) -> NatsTransport:
        transport = connect(self._server.url, user=user, password=PASSWORDS[user], **options)
        return await self._stack.enter_async_context(transport)

    async def worker(self) -> CallHandler:
        end = await self.end("stock")
        handler = CallHandler(OperationRegistry([left, order, count]), end)
        self._stack.push_async_callback(handler.close)
        await end.flush()
        return handler


@operation(id="stock.left", type="query")
async def left(item: str) -> int:
    await asyncio.sleep(0.15)  # long enough for the worker to send call.accepted
    return 12


@operation(id="stock.order", durable=True)
async def order(item: str) -> str:
    return f"{item} ordered"


@operation(id="stock.count")
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


@pytest.fixture
async def house() -> AsyncIterator[House]:
    assert CONFIG is not None
    with nats_server(CONFIG[1]) as server:
        async with contextlib.AsyncExitStack() as stack:
            yield House(stack, server)


async def test_calls_streams_and_durable_calls_work(house: House) -> None:
    await house.worker()
    ada = await house.end("ada")
    async with from_call(ada) as remote, asyncio.timeout(20):
        await remote.ready("stock.left", "stock.order", "stock.count")
        assert (await remote.registry.execute("stock.left", {"item": "tea"})).data == 12
        assert (await remote.registry.execute("stock.order", {"item": "tea"})).data == "tea ordered"
        # More than a window: the credit goes to the worker's own subject.
        items = [envelope.data async for envelope in remote.registry.subscribe("stock.count", {"to": 1_000})]
        assert items == list(range(1_000))
    assert "Violation" not in house.log


async def test_no_user_calls_under_another_name(house: House) -> None:
    await house.worker()
    spoofer = await house.end("bob", name="ada")
    async with asyncio.timeout(30):
        error = await error_of(PendingRequestMap(spoofer).call("stock.left", {"item": "tea"}, wait=True))
    assert (error.code, error.details["executed"]) == (ErrorCode.ACCESS_DENIED, "no")
    assert "Permissions Violation for Publish" in error.message
    async with asyncio.timeout(30):
        error = await error_of(PendingRequestMap(spoofer).call("stock.order", {"item": "tea"}, durable=True))
    assert error.code is ErrorCode.ACCESS_DENIED


async def test_a_user_without_access_to_the_records_is_refused_jobs_immediately(house: House) -> None:
    await house.worker()
    jobs = Jobs(await house.end("ada"))
    for attempt in (jobs.submit("stock.order", {"item": "tea"}), jobs.list(), jobs.wait(f"stock.{'0' * 48}")):
        async with asyncio.timeout(20):
            error = await error_of(attempt)
        assert error.code is ErrorCode.ACCESS_DENIED
        assert "Permissions Violation for Publish" in error.message


async def test_no_user_reads_anothers_responses_or_takes_anothers_work(house: House) -> None:
    await house.worker()
    ada, bob = await house.end("ada"), await house.end("bob")
    heard: list[NatsMessage] = []
    for subject in (b"calls.v1.inbox.>", b"calls.v1.inbox.ada.>", b"calls.v1.work.>", b"calls.v1.work.*.stock.*", b">"):
        bob.subscribe(subject, whole(heard.append))
    await bob.flush()
    assert (await PendingRequestMap(ada).call("stock.left", {"item": "tea"})).data == 12
    await bob.flush()
    assert heard == []


async def test_only_workers_respond_or_announce(house: House) -> None:
    handler = await house.worker()
    ada, bob = await house.end("ada"), await house.end("bob")
    pending = PendingRequestMap(ada)
    call = asyncio.create_task(pending.call("stock.left", {"item": "tea"}))
    await until(lambda: pending.in_flight == 1)
    forged = b'{"v":1,"type":"call.error","id":"%b-1","to":"","payload":{"requestId":"%b-1","code":"FORGED"}}'
    forged %= (ada.peer.encode(), ada.peer.encode())
    bob.send(f"inbox.{ada.peer}", forged)
    gone = b'{"v":1,"type":"worker.gone","id":"","to":"","payload":{"workerId":"%b"}}' % handler.worker_id.encode()
    bob.send("workers", gone)
    bob.send("asks", gone)
    bob.send("control.stock", forged)
    assert (await call).data == 12
    assert pending.counters.foreign == 0
    # Bob may publish to these subjects, but workers do not accept these events there.
    assert handler.counters.foreign == 2


async def test_a_worker_serves_its_own_namespace_only(house: House) -> None:
    @operation(id="bank.balance", type="query")
    async def balance() -> int:
        return 0

    end = await house.end("stock")
    handler = CallHandler(OperationRegistry([balance]), end)
    await end.flush()
    error = await error_of(PendingRequestMap(await house.end("ada")).call("bank.balance"))
    assert isinstance(error, CallError)
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    await handler.close()
