"""The interface of transports: the addresses of messages, optional parts, and wrappers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSecret
from operations.pubsub import (
    Arrival,
    Delivery,
    Flushes,
    InProcess,
    ReportsBacklog,
    ReportsConnection,
    Stores,
    Transport,
    TransportWrapper,
)
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.nats import connect as connect_nats
from operations.pubsub.redis import RedisTransport
from operations.testing import RecordingTransport
from tests import nats_server
from tests.contracts.buses import guide_transport
from tests.redis_servers import shared_server
from tests.waiting import until

End = Callable[[str], Awaitable[Transport]]
HEARTBEAT = 0.25
SECRET = SigningSecret(os.urandom(32))


@pytest.fixture
async def end(request: pytest.FixtureRequest) -> AsyncIterator[End]:
    """Ends of a bus, each with a name: `end("ada")`."""
    prefix = f"t{os.urandom(8).hex()}"
    memory = MemoryTransport(direct=False)
    async with contextlib.AsyncExitStack() as stack:

        async def end(name: str) -> Transport:
            if request.param == "memory":
                return memory.join()
            if request.param == "redis":
                url = shared_server("redis").url
                return await stack.enter_async_context(
                    RedisTransport(url, name=name, prefix=prefix, heartbeat=HEARTBEAT)
                )
            url = nats_server.shared_server().url
            transport = connect_nats(url, name=name, prefix=prefix, heartbeat=HEARTBEAT, ack_wait=1.0)
            return await stack.enter_async_context(transport)

        yield end


def on(*buses: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("end", buses, indirect=True)


async def flush(transport: Transport) -> None:
    """Return once the server knows what this end listens to."""
    flushes = transport.optional(Flushes)
    if flushes is not None:
        await flushes.flush()


@on("memory", "redis", "nats")
async def test_a_message_arrives_with_its_address_and_the_sender_where_the_broker_knows_it(
    end: End, request: pytest.FixtureRequest
) -> None:
    worker, ada = await end("worker"), await end("ada")
    arrivals: list[Arrival] = []
    for address, group in (("work.shop.tea", "w"), ("control.shop", None), (f"inbox.{worker.peer}", None)):
        worker.listen(address, lambda message, arrival: arrivals.append(arrival), group=group)
    await flush(worker)
    names_operations = ada.capabilities.addresses_operations
    work = "work.shop.tea/look" if names_operations else "work.shop.tea"
    for address in (work, work, "control.shop", f"inbox.{worker.peer}"):
        before = len(arrivals)
        ada.send(address, b"m")
        await until(lambda before=before: len(arrivals) > before)  # type: ignore[misc]
    sender = "ada" if names_operations else None
    assert arrivals == [
        Arrival(work, sender),
        Arrival(work, sender),
        Arrival("control.shop"),
        Arrival(f"inbox.{worker.peer}"),
    ]
    assert arrivals[0] is arrivals[1], "made once"


@on("nats")
async def test_a_request_can_go_to_one_worker_of_a_group(end: End) -> None:
    workers, ada = [await end("stock") for _ in range(3)], await end("ada")
    got: dict[str, list[Arrival]] = {worker.peer: [] for worker in workers}
    stops = []
    for worker in workers:
        own = got[worker.peer]
        stops.append(worker.listen("work.shop.tea", lambda m, arrival, own=own: own.append(arrival), group="w"))  # type: ignore[misc]
        await flush(worker)
    chosen = workers[1].peer
    told: list[str] = []
    for _ in range(20):
        ada.send(f"direct.{chosen}/shop.tea/look", b"m", told.append)
    await until(lambda: len(got[chosen]) == 20)
    assert {peer for peer, arrivals in got.items() if arrivals} == {chosen}
    assert set(got[chosen]) == {Arrival("work.shop.tea/look", "ada")}
    assert told == []
    stops[1]()
    await flush(workers[1])
    for absent in (f"{chosen}/shop.tea/look", f"{workers[0].peer}/other/look"):
        told.clear()
        ada.send(f"direct.{absent}", b"m", told.append)
        await until(lambda: told != [])
        assert "no listener" in told[0]


@on("redis", "nats")
async def test_a_stored_message_arrives_with_its_address_and_keeps_its_sender_when_it_is_delivered_again(
    end: End,
) -> None:
    worker, ada = await end("worker"), await end("ada")
    arrivals: list[tuple[int, Arrival]] = []

    def take(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
        arrivals.append((delivery.number, arrival))
        if len(arrivals) == 1:
            delivery.release()
        else:
            delivery.done()

    takes, stores = worker.optional(Stores), ada.optional(Stores)
    assert takes is not None
    assert stores is not None
    stop = takes.take("queue.shop", take, limit=2)
    stores.store("queue.shop", b"m", key="1", stored=lambda: None, undelivered=pytest.fail)
    await until(lambda: len(arrivals) == 2)
    stop()
    sender = "ada" if ada.capabilities.addresses_operations else None
    assert {arrival for _, arrival in arrivals} == {Arrival("queue.shop", sender)}


def parts_of(transport: Transport) -> list[type]:
    return [
        kind
        for kind in (Stores, InProcess, Flushes, ReportsBacklog, ReportsConnection)
        if transport.optional(kind) is not None
    ]


@on("redis", "nats")
async def test_capabilities_of_a_transport_with_a_server(end: End) -> None:
    transport = await end("ada")
    assert parts_of(transport) == [Stores, Flushes, ReportsBacklog, ReportsConnection]
    assert transport.capabilities.heartbeat == HEARTBEAT


def test_capabilities_of_the_memory_transport() -> None:
    assert parts_of(MemoryTransport()) == [InProcess]
    assert parts_of(MemoryTransport(direct=False)) == []


@operation(id="shop.order", durable=True)
async def order(item: str) -> str:
    return f"{item} ordered"


@pytest.mark.parametrize(
    "wrap", [RecordingTransport, TransportWrapper, lambda inner: SignedTransport(inner, secret=SECRET)]
)
@on("redis", "nats")
async def test_a_wrapper_keeps_durable_operations_and_the_heartbeat(
    end: End, wrap: Callable[[Transport], Transport]
) -> None:
    worker, caller = wrap(await end("worker")), wrap(await end("ada"))
    assert parts_of(worker) == [Stores, Flushes, ReportsBacklog, ReportsConnection]
    assert worker.capabilities.heartbeat == HEARTBEAT
    assert worker.capabilities.durable
    handler = CallHandler(OperationRegistry([order]), worker)
    assert "operations_transport_reconnects_total" in {measure.name for measure in handler.measures()}
    await flush(worker)
    async with asyncio.timeout(20):
        answer = await PendingRequestMap(caller).call("shop.order", {"item": "tea"}, durable=True)
    assert answer.data == "tea ordered"
    await handler.close()
    if isinstance(caller, RecordingTransport) and isinstance(worker, RecordingTransport):
        stored = [message for message in caller.messages if message.address == "queue.shop"]
        assert [message.direction for message in stored] == ["sent"]
        assert stored[0].message in [each.message for each in worker.messages if each.direction == "received"]


@pytest.mark.parametrize("wrap", [RecordingTransport, lambda inner: SignedTransport(inner, secret=SECRET)])
def test_nothing_passes_a_recording_or_signing_wrapper_by_reference(wrap: Callable[[Transport], Transport]) -> None:
    assert parts_of(wrap(MemoryTransport())) == []
    assert parts_of(TransportWrapper(MemoryTransport())) == [InProcess]


async def test_a_wrapper_around_a_transport_without_storage_raises() -> None:
    wrapper = TransportWrapper(MemoryTransport())
    assert wrapper.optional(Stores) is None
    with pytest.raises(TypeError, match="MemoryTransport cannot store messages"):
        wrapper.take("queue.shop", lambda message, delivery, arrival: None, limit=1)


def test_a_wrapper_shares_the_attachment_of_the_transport_whose_inbox_it_shares() -> None:
    inner = MemoryTransport()
    wrappers = [TransportWrapper(inner), TransportWrapper(inner)]
    wrappers[0].attachment = "shared"
    assert (inner.attachment, wrappers[1].attachment) == ("shared", "shared")


def test_the_transport_of_the_guide_is_short() -> None:
    assert len(guide_transport().splitlines()) < 100
