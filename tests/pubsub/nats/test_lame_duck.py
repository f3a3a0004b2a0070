"""A NATS server that announces its shutdown (lame duck mode): clients move to another one, and no call is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.nats.parser import DuplicateFilter, NatsParser
from operations.pubsub.nats.wire import whole
from tests.nats_server import NatsServer, nats_cluster, nats_server
from tests.waiting import until

QUICK: dict[str, Any] = {"shortest_delay": 0.02, "longest_delay": 0.2, "heartbeat": 1.0, "trusted": True}


class Watched:
    """A transport that records lost connections: a move must not count as one."""

    def __init__(self, transport: NatsTransport) -> None:
        self.transport = transport
        self.lost: list[str] = []
        transport.watch(lambda: None, self.lost.append)


@contextlib.asynccontextmanager
async def peers(servers: list[NatsServer]) -> AsyncIterator[tuple[Watched, Watched]]:
    """A caller and a worker at the first server; both know the other servers."""
    async with (
        connect(servers[0].url, name="caller", **QUICK) as caller,
        connect(servers[0].url, name="worker", **QUICK) as worker,
    ):
        yield Watched(caller), Watched(worker)


async def test_calls_and_streams_continue_while_their_server_shuts_down() -> None:
    gate = asyncio.Event()

    @operation(id="work.add")
    async def add(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    @operation(id="work.wait")
    async def wait() -> str:
        await gate.wait()
        return "done"

    @operation(id="work.count")
    async def count() -> AsyncIterator[int]:
        for number in range(2_000):
            yield number

    @operation(id="work.keep", durable=True)
    async def keep() -> str:
        await gate.wait()
        return "kept"

    with nats_cluster() as servers:
        async with peers(servers) as (caller, worker):
            handler = CallHandler(OperationRegistry([add, wait, count, keep]), worker.transport)
            pending = PendingRequestMap(caller.transport, timeout=60)
            assert (await pending.call("work.add", {"number": 0}, wait=True)).data == 1
            running = [asyncio.create_task(pending.call("work.wait")) for _ in range(20)]
            stored = asyncio.create_task(pending.call("work.keep", durable=True, wait=True))
            stream = pending.subscribe("work.count")
            items = [(await anext(stream)).data for _ in range(10)]
            await until(lambda: handler.in_flight == 22, seconds=60)  # JetStream elects its leaders first
            servers[0].announce_shutdown()
            calls = 0
            while not (caller.transport.reconnects and worker.transport.reconnects):
                assert (await pending.call("work.add", {"number": calls})).data == calls + 1
                calls += 1
            for number in range(200):
                assert (await pending.call("work.add", {"number": number})).data == number + 1
            gate.set()
            assert [(await call).data for call in running] == ["done"] * 20
            assert (await stored).data == "kept"
            items += [envelope.data async for envelope in stream]
            assert items == list(range(2_000))
            assert (caller.lost, worker.lost) == ([], [])
            assert (pending.counters.duplicate, handler.counters.duplicate) == (0, 0)
            await until(lambda: not caller.transport._moving and not worker.transport._moving)
            # After the move, the old server can be killed without any effect.
            servers[0].kill()
            assert (await pending.call("work.add", {"number": 1})).data == 2
            assert (caller.lost, worker.lost) == ([], [])
            await handler.close()


async def test_without_another_server_the_connection_stays_until_it_is_closed() -> None:
    @operation(id="work.add")
    async def add(number: int) -> int:
        return number + 1

    with nats_server() as server:
        async with peers([server]) as (caller, worker):
            handler = CallHandler(OperationRegistry([add]), worker.transport)
            pending = PendingRequestMap(caller.transport, timeout=20)
            server.announce_shutdown()
            await until(lambda: caller.transport._moving is not None and worker.transport._moving is not None)
            assert (await pending.call("work.add", {"number": 1}, wait=True)).data == 2
            assert caller.lost == []
            server.kill()
            await until(lambda: bool(caller.lost) and bool(worker.lost))
            server.start()
            assert (await pending.call("work.add", {"number": 2}, wait=True, retry=True)).data == 3
            await until(lambda: not caller.transport._moving and not worker.transport._moving)
            await handler.close()


async def test_the_congestion_of_the_old_connection_ends_with_a_move() -> None:
    changes: list[bool] = []
    with nats_cluster() as servers:
        async with connect(servers[0].url, **QUICK) as transport:
            transport.watch_congestion(changes.append)
            old = transport._connection
            assert old is not None
            old.pause_writing()  # as the loop does when much is unsent
            assert changes == [True]
            servers[0].announce_shutdown()
            await until(lambda: transport.reconnects == 1, seconds=60)
            assert changes == [True, False]
            old.pause_writing()
            assert changes == [True, False]
            await until(lambda: not transport._moving, seconds=60)


async def test_a_transport_that_is_closed_during_a_move_leaves_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    baseline = len(asyncio.all_tasks())
    with nats_server() as server:
        async with connect(server.url, **QUICK) as transport:
            server.announce_shutdown()
            await until(lambda: transport._moving is not None)
        assert transport._moving is None
    await until(lambda: len(asyncio.all_tasks()) <= baseline)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_messages_that_come_by_two_connections_pass_once_and_repeated_ones_as_often_as_sent() -> None:
    got: list[bytes] = []
    readers = [NatsParser(None) for _ in range(2)]  # type: ignore[arg-type]
    duplicates = DuplicateFilter()
    for reader in readers:
        reader.receivers[b"1"] = lambda words, headers, data: got.append(data)
        reader.receivers[b"2"] = whole(lambda message: got.append(message.data))
        duplicates.watch(reader, [b"1", b"2"])
    old, new = readers
    for reader, data in ((old, b"a"), (old, b"a"), (new, b"a"), (new, b"b"), (new, b"a"), (new, b"a"), (old, b"b")):
        reader.receivers[b"1"]([b"subject", b"1", b"%d" % len(data)], b"", data)
    assert got == [b"a", b"a", b"b", b"a"]
    for reader in readers:
        reader.receivers[b"2"]([b"subject", b"2", b"reply", b"1"], b"", b"c")
    assert got[4:] == [b"c"]
