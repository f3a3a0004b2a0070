"""Streams whose connection is lost: the caller gets an error, and the worker's slot is free."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.calls import PendingRequestMap, serve_registry
from operations.pubsub import connect
from tests.nats_server import NatsServer
from tests.redis_servers import Server
from tests.waiting import until


@pytest.fixture(params=["redis", "nats"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | NatsServer]:
    made = Server("redis") if request.param == "redis" else NatsServer(jetstream=False)
    try:
        yield made.start()
    finally:
        made.remove()


class Feed:
    """A stream with one item that then waits, and notes when it is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

        @operation(id="feed.follow")
        async def follow() -> AsyncIterator[str]:
            try:
                yield "begun"
                await asyncio.Event().wait()
            finally:
                self.closed.set()

        self.operation = follow


@pytest.mark.parametrize("later", ["caller", "worker"])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_stream_lost_with_the_server_releases_its_slot_after_reconnecting(
    server: Server | NatsServer, later: str, is_known: bool
) -> None:
    feed = Feed()
    quick, slow = {"shortest_delay": 0.01, "longest_delay": 0.02}, {"shortest_delay": 2.4, "longest_delay": 2.4}
    delays = {"worker": slow, "caller": quick} if later == "worker" else {"worker": quick, "caller": slow}
    async with (
        connect(server.url, **delays["worker"]) as worker,
        connect(server.url, **delays["caller"]) as caller,
        serve_registry(OperationRegistry([feed.operation]), worker, concurrency=1, queue=0) as handler,
    ):
        await worker.flush()  # until then the server may not know that the worker listens
        stream = PendingRequestMap(caller).subscribe("feed.follow")
        assert (await anext(stream)).data == "begun"
        if not is_known:
            stream._reader.worker = None  # type: ignore[attr-defined]
        server.kill()
        with pytest.raises(CallError) as caught:
            await anext(stream)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        await until(lambda: not worker.is_up and not caller.is_up)
        assert not feed.closed.is_set()
        await asyncio.to_thread(server.start)
        await until(lambda: worker.is_up or caller.is_up)
        assert not (worker.is_up and caller.is_up)
        async with asyncio.timeout(15):  # half of a lease
            await feed.closed.wait()
        await until(lambda: handler.in_flight == 0)
        await until(lambda: bool(caller.is_up and worker.is_up))
        await worker.flush()
        again = PendingRequestMap(caller).subscribe("feed.follow")
        async with asyncio.timeout(15), contextlib.aclosing(again):  # type: ignore[type-var]
            assert (await anext(again)).data == "begun"


async def test_a_caller_that_disconnects_alone_frees_the_slot_too(server: Server | NatsServer) -> None:
    feed = Feed()
    async with (
        connect(server.url) as worker,
        connect(server.url) as caller,
        serve_registry(OperationRegistry([feed.operation]), worker) as handler,
    ):
        await worker.flush()
        pending = PendingRequestMap(caller)
        stream = pending.subscribe("feed.follow")
        assert (await anext(stream)).data == "begun"
        caller.drop_connection()
        with pytest.raises(CallError):
            await anext(stream)
        async with asyncio.timeout(15):
            await feed.closed.wait()
        await until(lambda: handler.in_flight == 0)
        # The abort is sent once more, for workers that reconnect later, and then no more.
        endpoint = pending._endpoint
        await until(lambda: not endpoint._late_aborts)
        assert handler.counters.dropped <= 1
