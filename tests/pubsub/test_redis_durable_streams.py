"""Stored requests on Redis streams: delivered at least once, stored once, claimed from dead workers, dead-lettered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from operations import ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.jobs import Jobs
from operations.pubsub import Arrival, Delivery, KeepsRecords, Stores
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests.redis_servers import Server, own_server, shared_server
from tests.waiting import stays, until

AnyEnd = Callable[[], Awaitable[RedisTransport]]
QUICK: dict[str, Any] = {"heartbeat": 0.1, "shortest_delay": 0.01, "longest_delay": 0.05}


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    return shared_server(request.param)


@pytest.fixture
async def end(server: Server) -> AsyncIterator[AnyEnd]:
    prefix = os.urandom(8).hex()
    async with contextlib.AsyncExitStack() as stack:

        async def end() -> RedisTransport:
            transport = RedisTransport(server.url, prefix=prefix, **QUICK)
            return await stack.enter_async_context(transport)

        yield end


class Shelf:
    """Takes stored requests and holds them."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[bytes, Delivery]] = []

    def take(self, message: bytes, delivery: Delivery, arrival: Arrival) -> None:
        self.deliveries.append((message, delivery))

    @property
    def messages(self) -> list[bytes]:
        return [message for message, _ in self.deliveries]


def stores_of(transport: RedisTransport) -> Stores:
    stores = transport.optional(Stores)
    assert stores is not None
    return stores


async def store(transport: RedisTransport, message: bytes, key: str) -> None:
    stored = asyncio.Event()
    stores_of(transport).store("queue.some", message, key=key, stored=stored.set, undelivered=pytest.fail)
    async with asyncio.timeout(30):
        await stored.wait()


def left(server: Server, transport: RedisTransport, queue: str = "queue.some") -> int:
    length: int = server.command("XLEN", transport.keys.of_namespace(queue).stored.decode())
    return length


async def test_stored_messages_wait_for_a_worker_and_are_deleted_when_done(server: Server, end: AnyEnd) -> None:
    caller, worker, shelf = await end(), await end(), Shelf()
    await store(caller, b"one", "1")
    await store(caller, b"two", "2")
    await store(caller, b"one again", "1")
    stores_of(worker).take("queue.some", shelf.take, limit=10)
    await until(lambda: len(shelf.messages) == 2)
    assert shelf.messages == [b"one", b"two"]
    for _, delivery in shelf.deliveries:
        assert delivery.number == 1
        delivery.done()
        delivery.done()
    await until(lambda: left(server, caller) == 0)


async def test_at_most_the_limit_is_held_at_a_time_and_workers_share(server: Server, end: AnyEnd) -> None:
    caller, first, second = await end(), await end(), await end()
    one, two = Shelf(), Shelf()
    stores_of(first).take("queue.some", one.take, limit=2)
    for number in range(5):
        await store(caller, b"%d" % number, str(number))
    await until(lambda: len(one.messages) == 2)
    stores_of(second).take("queue.some", two.take, limit=10)
    await until(lambda: len(two.messages) == 3)
    assert len(one.messages) == 2
    for _, delivery in [*one.deliveries, *two.deliveries]:
        delivery.done()
    await until(lambda: left(server, caller) == 0)


async def test_released_messages_are_redelivered_without_counting(server: Server, end: AnyEnd) -> None:
    caller, first, second = await end(), await end(), await end()
    one, two = Shelf(), Shelf()
    stop = stores_of(first).take("queue.some", one.take, limit=10)
    await store(caller, b"x", "1")
    await until(lambda: bool(one.messages))
    stop()
    one.deliveries[0][1].release()
    stores_of(second).take("queue.some", two.take, limit=10)
    await until(lambda: two.messages == [b"x"])
    assert two.deliveries[0][1].number == 1
    two.deliveries[0][1].done()


async def test_only_messages_of_dead_workers_are_taken_over(server: Server, end: AnyEnd) -> None:
    caller, dead, living, heir = await end(), await end(), await end(), await end()
    lost, held, inherited = Shelf(), Shelf(), Shelf()
    stores_of(dead).take("queue.some", lost.take, limit=1)
    await store(caller, b"lost", "1")
    await until(lambda: bool(lost.messages))
    stores_of(living).take("queue.some", held.take, limit=1)
    await store(caller, b"held", "2")
    await until(lambda: held.messages == [b"held"])
    stores_of(heir).take("queue.some", inherited.take, limit=10)
    # It ends without a notice; others detect it by its missing heartbeats.
    for task in list(dead._tasks):
        task.cancel()
    dead._stop_heartbeat()
    await until(lambda: inherited.messages == [b"lost"])
    assert inherited.deliveries[0][1].number == 2
    # Ten heartbeats.
    await stays(lambda: (held.messages, inherited.messages) == ([b"held"], [b"lost"]), seconds=1.0)


async def test_dead_letters_keep_the_message_and_reason(server: Server, end: AnyEnd) -> None:
    caller, worker, shelf = await end(), await end(), Shelf()
    stores_of(worker).take("queue.some", shelf.take, limit=1)
    await store(caller, b"x", "1")
    await until(lambda: bool(shelf.messages))
    shelf.deliveries[0][1].dead_letter("it is bad")
    await until(lambda: left(server, caller) == 0)
    dead = server.command("XRANGE", caller.keys.of_namespace("queue.some").dead.decode(), "-", "+")
    assert dead[0][1] == [b"message", b"x", b"reason", b"it is bad"]


async def test_a_deleted_stream_is_created_again(server: Server, end: AnyEnd) -> None:
    caller, worker, shelf = await end(), await end(), Shelf()
    stores_of(worker).take("queue.some", shelf.take, limit=10)
    await store(caller, b"one", "1")
    await until(lambda: len(shelf.messages) == 1)
    server.command("DEL", caller.keys.of_namespace("queue.some").stored.decode())
    await store(caller, b"two", "2")
    await until(lambda: shelf.messages == [b"one", b"two"])


async def test_a_durable_call_is_answered_and_outlives_its_caller(server: Server, end: AnyEnd) -> None:
    runs: list[int] = []

    @operation(id="order.place", durable=True)
    async def place(number: int) -> int:
        runs.append(number)
        return number

    gone, caller, worker = await end(), await end(), await end()
    waiting = asyncio.create_task(PendingRequestMap(gone).call("order.place", {"number": 1}, durable=True))
    await until(lambda: left(server, gone, "queue.order") == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    handler = CallHandler(OperationRegistry([place]), worker)
    answer = await PendingRequestMap(caller).call("order.place", {"number": 2}, durable=True)
    assert answer.data == 2
    assert runs == [1, 2]
    await handler.drain()


POISON = """
import asyncio, os, sys
from operations import OperationRegistry, operation
from operations.calls import serve_registry
from operations.pubsub.redis import RedisTransport

@operation(id="order.place", durable=True)
async def place(number: int) -> int:
    if number < 0:
        os._exit(3)
    return number

async def main():
    async with RedisTransport(sys.argv[1], heartbeat=0.2) as transport:
        await serve_registry(OperationRegistry([place]), transport)

asyncio.run(main())
"""


@pytest.mark.fault(37, on="redis")
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["redis", "valkey"])
async def test_a_request_that_kills_three_workers_is_dead_lettered_and_its_caller_gets_an_error(engine: str) -> None:
    async with own_server(engine) as server:
        stopping = asyncio.Event()
        deaths = 0

        async def keep_a_worker() -> None:
            nonlocal deaths
            while not stopping.is_set():
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", POISON, server.url)
                stop = asyncio.create_task(stopping.wait())
                end = asyncio.create_task(process.wait())
                await asyncio.wait((stop, end), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
                if end.done():
                    deaths += process.returncode == 3
                else:
                    process.kill()
                    await end

        keeper = asyncio.create_task(keep_a_worker())
        async with RedisTransport(server.url) as transport:
            pending = PendingRequestMap(transport, timeout=60)
            poisoned = asyncio.create_task(error_of(pending.call("order.place", {"number": -1}, durable=True)))
            good = await pending.call("order.place", {"number": 5}, durable=True)
            error = await poisoned
            while not (dead := await Jobs(transport).dead()):  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.02)
        stopping.set()
        await keeper
        assert good.data == 5
        assert (error.code, error.details["reason"]) == (ErrorCode.EXECUTION_ERROR, "DEAD_LETTERED")
        assert deaths == 3
        assert [(each.operation_id, each.code) for each in dead] == [("order.place", ErrorCode.EXECUTION_ERROR)]
        assert server.command("XLEN", "operations:{order}:stored") == 0


async def test_the_read_of_a_record_fails_when_the_connection_is_lost(end: AnyEnd) -> None:
    transport = await end()
    records = transport.optional(KeepsRecords)
    assert records is not None
    read = asyncio.create_task(records.read_record("queue.some", "0" * 48))
    while not transport.epoch or not transport.epoch._asked:  # noqa: ASYNC110  # before the server can reply
        await asyncio.sleep(0)
    transport.drop_connection()
    error = await error_of(read)
    assert error.code is ErrorCode.UNAVAILABLE
    assert "dropped on purpose" in error.message
