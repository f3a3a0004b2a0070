"""Stored calls whose response is lost, because the worker reconnects before its caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from operations import CallError, ErrorCode, OperationRegistry, local_envelope, operation
from operations.calls import PendingRequestMap, serve_registry
from operations.calls.codec import Codec
from operations.calls.endpoint import Endpoint, endpoint_of
from operations.calls.stored_requests import RecentResponses
from operations.deadlines import now_ms
from operations.jobs import Jobs
from operations.pubsub import Stop, Stores, Take, Undelivered, connect
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.protocols import Part
from operations.testing import error_of
from tests.nats_server import NatsServer
from tests.receiving import into
from tests.redis_servers import Server
from tests.waiting import stays, until


@pytest.fixture(params=["redis", "nats"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | NatsServer]:
    made = Server("redis", "--appendonly", "yes") if request.param == "redis" else NatsServer()
    try:
        yield made.start()
    finally:
        made.remove()


async def test_a_response_sent_before_the_caller_reconnects_is_sent_again(server: Server | NatsServer) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @operation(id="orders.place", durable=True)
    async def place() -> str:
        begun.set()
        await go_on.wait()
        return "placed"

    async with (
        connect(server.url, shortest_delay=0.01, longest_delay=0.02) as worker,
        connect(server.url, shortest_delay=2.0, longest_delay=2.0) as caller,
        serve_registry(OperationRegistry([place]), worker),
    ):
        call = asyncio.create_task(PendingRequestMap(caller).call("orders.place", durable=True, wait=True))
        await begun.wait()
        server.kill()
        await until(lambda: not worker.is_up and not caller.is_up)
        await asyncio.to_thread(server.start)
        await until(lambda: bool(worker.is_up))
        assert not caller.is_up
        go_on.set()
        async with asyncio.timeout(20):
            assert (await call).data == "placed"


async def test_a_sender_does_not_choose_the_creation_time_of_a_dead_letter(server: Server | NatsServer) -> None:
    @operation(id="orders.place", durable=True)
    async def place() -> str:
        return "placed"

    before = now_ms()
    async with (
        connect(server.url) as worker,
        connect(server.url) as caller,
        serve_registry(OperationRegistry([place]), worker) as handler,
        Jobs(worker) as jobs,
        asyncio.timeout(30),
    ):
        pending, store = PendingRequestMap(caller), caller.optional(Stores)
        assert store is not None
        await pending.call("orders.place", durable=True, wait=True)
        for number, sent_at in enumerate(((1 << 63) - 1, before + 10**9, -5)):
            id = f"{caller.peer}-{number}"
            payload = {"requestId": id, "operationId": "orders.place", "sentAt": sent_at, "notAfter": 1}
            event = {"v": 1, "type": "call.requested", "id": id, "to": "orders.place", "payload": payload}
            message = msgspec.json.encode(event)
            store.store("queue.orders", message, key=id, stored=lambda: None, undelivered=pytest.fail)
        await until(lambda: handler.counters.dead_lettered == 3)
        found = await jobs.dead()
        for _ in range(200):
            if len(found) == 3:  # NATS stores them a little later
                break
            await asyncio.sleep(0.05)
            found = await jobs.dead()
    assert [before <= job.created_at <= now_ms() for job in found] == [True, True, False]
    assert found[2].created_at == 0


async def test_an_unreadable_stored_request_is_dead_lettered_and_its_caller_gets_an_error(
    server: Server | NatsServer,
) -> None:
    @operation(id="orders.place", durable=True)
    async def place() -> str:
        return "placed"

    async with (
        connect(server.url) as worker,
        connect(server.url) as caller,
        serve_registry(OperationRegistry([place]), worker) as handler,
    ):
        pending = PendingRequestMap(caller)
        error = await error_of(pending.call("orders.place", durable=True, parent_request_id=5))  # type: ignore[arg-type]
        assert (error.code, error.details) == (ErrorCode.VALIDATION_ERROR, {"reason": "UNREADABLE", "executed": "no"})
        assert handler.counters.malformed == 1
        assert (await pending.call("orders.place", durable=True)).data == "placed"


async def test_the_error_of_a_stored_call_is_encoded_once_and_kept_like_a_result(
    server: Server | NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    kept: list[bytes] = []
    write, keep = Endpoint.write_error, RecentResponses.keep

    def count_written(endpoint: Endpoint, request_id: str, error: CallError, codec: Codec, *rest: str) -> bytes:
        written.append(write(endpoint, request_id, error, codec, *rest))
        return written[-1]

    def count_kept(answers: RecentResponses, request_id: str, message: bytes) -> None:
        kept.append(message)
        keep(answers, request_id, message)

    monkeypatch.setattr(Endpoint, "write_error", count_written)
    monkeypatch.setattr(RecentResponses, "keep", count_kept)

    @operation(id="orders.place", durable=True)
    async def place() -> str:
        raise CallError("SOLD_OUT", "none left")

    async with (
        connect(server.url) as worker,
        connect(server.url) as caller,
        serve_registry(OperationRegistry([place]), worker),
    ):
        error = await error_of(PendingRequestMap(caller).call("orders.place", durable=True))
        assert (error.code, error.message) == ("SOLD_OUT", "none left")
    assert len(written) == 1
    assert written == kept


class Flaky(MemoryTransport):
    """A bus whose connection a test can lose and restore."""

    up: Callable[[], None]
    down: Callable[[str], None]

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Callable[[], None]:
        self.up, self.down = up, down
        return lambda: None


async def test_responses_are_kept_only_for_lost_connections_and_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("operations.calls.stored_requests.RECONNECTED_WITHIN", 0.01)
    monkeypatch.setattr("operations.calls.stored_requests._IN_FLIGHT_SECONDS", 0.05)
    bus = Flaky(direct=False)
    heard: list[bytes] = []
    bus.listen("inbox.ada", into(heard.append))
    answers = RecentResponses(endpoint_of(bus))
    answers.watch()
    answers.keep("ada-1", b"long ago")
    await asyncio.sleep(0.1)  # longer than an answer may be in flight
    bus.down("cut")
    answers.keep("ada-2", b"x" * (5 << 20))
    answers.keep("ada-3", b"missed")
    bus.up()
    await until(lambda: bool(heard))
    await stays(lambda: heard == [b"missed"], seconds=0.05)
    answers.close()


class Storing(Flaky):
    """A bus that passes stored messages to the test instead of storing them."""

    def __init__(self) -> None:
        super().__init__(direct=False)
        self.capabilities = msgspec.structs.replace(self.capabilities, durable=True)
        self.tries: list[tuple[Callable[[], None], Undelivered]] = []

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        self.tries.append((stored, undelivered))

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        return lambda: None

    def optional(self, kind: type[Part]) -> Part | None:
        return self if isinstance(self, kind) else None


async def test_a_failed_attempt_to_store_does_not_fail_the_next_one() -> None:
    bus = Storing()
    pending = PendingRequestMap(bus)
    call = asyncio.create_task(pending.call("orders.place", durable=True))
    await until(lambda: len(bus.tries) == 1)
    bus.up()  # the first attempt had no connection; this makes the second one
    (_, failed), (stored, _) = bus.tries
    stored()
    failed("there was no connection")
    await asyncio.sleep(0)
    assert not call.done()
    pending.respond(next(iter(endpoint_of(bus).pending)), local_envelope("placed", "orders.place"))
    assert (await call).data == "placed"


async def test_a_call_with_a_possibly_stored_attempt_is_not_reported_as_not_executed() -> None:
    bus = Storing()
    deadline = int((time.time() + 0.3) * 1000)
    call = asyncio.create_task(PendingRequestMap(bus).call("orders.place", durable=True, deadline=deadline))
    await until(lambda: len(bus.tries) == 1)
    bus.up()
    bus.tries[0][1]("there was no connection")
    error = await error_of(call)
    assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "unknown")
