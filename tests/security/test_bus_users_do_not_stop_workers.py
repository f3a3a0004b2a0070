"""Guarantee: what a bus user sends or writes neither stops a worker nor fills its memory."""

from __future__ import annotations

import asyncio
import functools
import gc
import re
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationRegistry, operation
from operations.calls import (
    CallHandler,
    PendingRequestMap,
    announcements,
    codec,
    from_call,
    held_requests,
    liveness,
    replay_protection,
)
from operations.calls.announcements import WorkerDirectory
from operations.calls.endpoint import endpoint_of
from operations.calls.events import AnnouncementPayload, CallRequested, RequestPayload
from operations.calls.signed_transport import SignedTransport
from operations.pubsub import Flushes, Stores, StoresKeys, Transport
from operations.pubsub.framing import join
from operations.pubsub.nats import NatsTransport, connection, parser
from operations.pubsub.nats import connect as connect_nats
from operations.pubsub.nats.wire import publish
from operations.pubsub.redis import RedisTransport, queue_reader
from operations.testing import error_of, stub_operation
from operations.wire import LARGE_MESSAGE
from tests.calls.test_redis_permissions import ByHand, rules
from tests.nats_server import nats_server
from tests.redis_servers import Server, own_server, shared_server
from tests.security.test_bus_permissions import GUIDE
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session, untrusted_bus
from tests.waiting import until

LONG = "x" * (1 << 19)
LAST_ID = f"{(1 << 64) - 1}-{(1 << 64) - 1}"
"""The largest id of an entry: a stream with it takes no further entries."""


@operation(id="shop.price", type="query")
async def price(item: str) -> int:
    return len(item)


@operation(id="shop.order", durable=True)
async def order(item: str) -> str:
    return item


@operation(id="shop.secret", type="query", access_control=AccessControl(required_scopes=["secret"]))
async def secret(values: list[Any]) -> int:
    return len(values)


@operation(id="other.price", type="query")
async def other_price(item: str) -> int:
    return len(item)


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    async with untrusted_bus(request.param) as bus:
        yield bus


def kept() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def request(id: str, to: str, identity: Any) -> bytes:
    payload = {"requestId": id, "operationId": to, "input": {"item": "tea"}}
    event = {"v": 1, "type": "call.requested", "id": id, "to": to, "identity": identity, "payload": payload}
    return msgspec.json.encode(event)


def address_of(transport: Transport, operation_id: str) -> str:
    return endpoint_of(transport).request_address(operation_id)


@pytest.mark.parametrize("field", ["id", "reply", "operation", "identity"])
async def test_long_ids_and_claims_are_not_kept(bus: Bus, field: str) -> None:
    worker, mallory = await bus(), await bus()
    handler = CallHandler(OperationRegistry([price]), worker)
    pending = PendingRequestMap(mallory)
    assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
    tracemalloc.start()
    before = kept()
    for number in range(40):
        long = f"{number}{LONG}"
        id, to = {
            "id": (f"{mallory.peer}-{long}", "shop.price"),
            "reply": (f"{long}-1", "shop.price"),
            "operation": (f"{mallory.peer}-{number}", f"shop.{long}"),
            "identity": (f"{mallory.peer}-{number}", "shop.price"),
        }[field]
        claimed = {"id": long} if field == "identity" else None
        mallory.send(address_of(mallory, "shop.price"), request(id, to, claimed))
        await asyncio.sleep(0)
    # Requests of one caller arrive in order.
    assert (await pending.call("shop.price", {"item": "tea"})).data == 3
    assert kept() - before < 4 << 20
    tracemalloc.stop()
    await handler.close()


LONG_FIELDS: dict[str, dict[str, Any]] = {
    "unknown": {"unknown": LONG},
    "unknown in the payload": {"payload": {"unknown": LONG}},
    "claimed identity": {"identity": {"id": LONG}},
    "claimed identity in the payload": {"payload": {"identity": {"id": "mallory", "claims": {"many": [[]] * 20_000}}}},
    "job": {"payload": {"job": {"key": LONG, "keep": 1, "owner": LONG}}},
    "grant": {"grant": LONG},
    "parent": {"parent": LONG},
    "parent in the payload": {"payload": {"parentRequestId": LONG}},
    "operation in the payload": {"payload": {"operationId": LONG}},
}


@pytest.mark.parametrize("field", LONG_FIELDS)
async def test_no_field_of_a_request_takes_memory_while_the_request_runs(bus: Bus, field: str) -> None:
    ended = asyncio.Event()

    @operation(id="shop.wait")
    async def wait(item: str) -> None:
        await ended.wait()

    worker, mallory = await bus(), await bus()
    handler = CallHandler(OperationRegistry([price, wait]), worker)
    pending = PendingRequestMap(mallory)
    assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
    tracemalloc.start()
    before = kept()
    for number in range(40):
        id = f"{mallory.peer}-{number:032}"
        payload = {"requestId": id, "operationId": "shop.wait", "input": {"item": "tea"}}
        event = {"v": 1, "type": "call.requested", "id": id, "to": "shop.wait", "payload": payload}
        outside = dict(LONG_FIELDS[field])
        payload.update(outside.pop("payload", {}))
        mallory.send(address_of(mallory, "shop.wait"), msgspec.json.encode(event | outside))
        await asyncio.sleep(0)
    # Requests of one caller arrive in order.
    assert (await pending.call("shop.price", {"item": "tea"})).data == 3
    assert kept() - before < 4 << 20
    tracemalloc.stop()
    ended.set()
    await handler.close()


@pytest.mark.parametrize("name", ["w" * 63, "w" * 64])
async def test_names_of_the_greatest_length_can_call(name: str) -> None:
    url, prefix = shared_server("redis").url, name
    async with (
        RedisTransport(url, prefix=prefix, name=name) as worker,
        RedisTransport(url, prefix=prefix, name=name) as caller,
    ):
        handler = CallHandler(OperationRegistry([price]), worker)
        assert (await PendingRequestMap(caller).call("shop.price", {"item": "tea"}, wait=True)).data == 3
        await handler.close()


@pytest.mark.parametrize("kind", ["json", "msgpack"])
async def test_a_large_request_is_refused_before_its_input_is_decoded(
    bus: Bus, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def note(data: bytes) -> Any:
        decoded.append(len(data))
        return read(data)

    form = codec.CODECS[kind]
    read = form._decode_value
    monkeypatch.setattr(form, "_decode_value", note)
    worker, mallory = await bus(), await bus()
    handler = CallHandler(OperationRegistry([price, secret]), worker)
    pending = PendingRequestMap(mallory, codec=kind)  # type: ignore[arg-type]
    many: list[Any] = [[]] * (LARGE_MESSAGE + 1)
    error = await error_of(pending.call("shop.secret", {"values": many}, wait=True))
    assert error.code is ErrorCode.ACCESS_DENIED
    error = await error_of(pending.call("shop.unknown", {"values": many}))
    assert error.code is ErrorCode.OPERATION_NOT_FOUND
    error = await error_of(pending.call("shop.price", {"item": "x" * (LARGE_MESSAGE + 1)}, deadline=1.0))
    assert error.code is ErrorCode.TIMEOUT
    assert max(decoded, default=0) < LARGE_MESSAGE
    assert (await pending.call("shop.price", {"item": "x" * (LARGE_MESSAGE + 1)})).data == LARGE_MESSAGE + 1
    assert max(decoded) > LARGE_MESSAGE
    await handler.close()


@pytest.mark.parametrize(
    "input", ["x" * 300_000, [[]] * 10_000, [{}] * 10_000, ["é"] * 10_000], ids=lambda x: str(x)[:6]
)
async def test_queued_and_running_requests_of_a_caller_without_rights_take_limited_memory(
    bus: Bus, input: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "_MOST_BYTES", 1 << 20)
    release = asyncio.Event()

    @operation(id="shop.wait", type="query")
    async def wait(values: Any) -> int:
        await release.wait()
        return len(values)

    @operation(id="shop.watch", type="subscription")
    async def watch(values: Any) -> AsyncIterator[int]:
        await release.wait()
        yield len(values)

    worker, mallory = await bus(), await bus()
    handler = CallHandler(OperationRegistry([wait, watch, price]), worker, concurrency=2)
    pending = PendingRequestMap(mallory)
    assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
    held = handler._requests.held
    async with asyncio.timeout(30):
        calls = [asyncio.ensure_future(pending.call("shop.wait", {"values": input})) for _ in range(12)]
        stream = pending.subscribe("shop.watch", {"values": input})
        item = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait([*calls, item], return_when=asyncio.FIRST_COMPLETED)
        error = await error_of(done.pop())
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        assert handler.in_flight < 8
        calls[0].cancel()
        release.set()
        results = await asyncio.gather(*calls, item, return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) >= 1
        assert {result.code for result in results if isinstance(result, CallError)} == {ErrorCode.UNAVAILABLE}
        await until(lambda: not held.sizes)
        assert (await pending.call("shop.wait", {"values": input})).data == len(input)
    await handler.close()
    assert not held.sizes


async def test_signed_requests_take_limited_memory_unless_their_caller_has_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_requests, "_MOST_BYTES", 1 << 20)
    release = asyncio.Event()

    @operation(id="shop.wait")
    async def wait(item: str) -> int:
        await release.wait()
        return len(item)

    async with untrusted_bus("redis") as bus:
        worker = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS)
        handler = CallHandler(OperationRegistry([wait, price]), worker, identify=worker.identify)
        async with asyncio.timeout(30):
            for scope in ("read", ""):
                release.clear()
                pending = PendingRequestMap(SignedTransport(await bus(), session=session(f"ada{scope}", scope)))
                assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
                tasks = [pending.call("shop.wait", {"item": "x" * 300_000}) for _ in range(8)]
                calls = asyncio.gather(*tasks, return_exceptions=True)
                await until(lambda: handler.in_flight + handler.counters.rejected >= 8)
                release.set()
                results = await calls
                served = [result for result in results if not isinstance(result, BaseException)]
                assert (len(served) == 8) == (scope == "read")
                assert served
        await until(lambda: not handler._requests.held.sizes)
        await handler.close()


MANY = b"[" + b"[]," * 250_000 + b"[]]"
"""A few hundred kilobytes that take more than 15 MiB of memory when they are decoded."""
EVENTS = {
    "worker.announced": b'{"workerId":"m.1.1","generation":1,"operations":[{"many":%b}]}' % MANY,
    "worker.alive": b'{"workerId":"m.1.1","behind":%b}' % MANY.replace(b"[],", b'"a",').replace(b"[]]", b'"a"]'),
    "hub.hello": b'{"peer":"m","generation":1,"codecs":%b}' % MANY.replace(b"[],", b'"a",').replace(b"[]]", b'"a"]'),
    "hub.welcome": b'{"session":"","codecs":[],"heartbeat":1,"maxPayload":1,"identity":{"id":"","claims":{"a":%b}}}'
    % MANY,
    "call.requested": b'{"requestId":"m.1-1","operationId":"shop.secret","input":{},"metadata":{"a":%b}}' % MANY,
}


def event(kind: str) -> bytes:
    return b'{"v":1,"type":"%b","id":"m.1-1","to":"shop.secret","payload":%b}' % (kind.encode(), EVENTS[kind])


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("place", ["asks", "control", "peer", "workers", "work"])
async def test_events_are_not_decoded_where_they_are_not_expected(bus: Bus, place: str, kind: str) -> None:
    """A few megabytes of JSON or MessagePack may contain millions of values."""
    worker, mallory = await bus(), await bus()
    handler = CallHandler(OperationRegistry([price, secret]), worker)
    pending, own = PendingRequestMap(mallory), PendingRequestMap(worker)
    assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
    assert (await own.call("shop.price", {"item": "tea"})).data == 3  # the worker listens to heartbeats, too
    address = {"control": "control.shop", "peer": f"peer.{worker.peer}", "work": address_of(worker, "shop.secret")}
    message = event(kind)
    tracemalloc.start()
    mallory.send(address.get(place, place), message)
    if place == "work":  # requests of one caller arrive in order
        assert (await pending.call("shop.price", {"item": "tea"})).data == 3
    else:
        for address_ in ("asks", "workers"):
            flushes = mallory.optional(Flushes)
            if flushes is not None:
                await flushes.flush()
            mallory.send(address_, b"{}")
        await until(lambda: handler.counters.malformed >= 1)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    await handler.close()


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("name", ["redis", "nats"])
async def test_only_requests_are_decoded_from_a_queue_of_stored_requests(name: str, kind: str) -> None:
    async with untrusted_bus(name) as bus:
        worker, mallory = await bus(), await bus()
        handler = CallHandler(OperationRegistry([order]), worker)
        pending = PendingRequestMap(mallory)
        assert (await pending.call("shop.order", {"item": "tea"}, durable=True, wait=True)).data == "tea"
        stores = mallory.optional(Stores)
        assert stores is not None
        before = handler.counters.dead_lettered
        tracemalloc.start()
        stores.store("queue.shop", event(kind), key="1", stored=lambda: None, undelivered=lambda reason: None)
        await until(lambda: handler.counters.dead_lettered > before)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
        tracemalloc.stop()
        await handler.close()


async def test_false_announcements_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Redis, any caller can send announcements."""
    monkeypatch.setattr(announcements, "_MOST_WORKERS", 20)
    monkeypatch.setattr(announcements, "_MOST_OPERATIONS", 30)
    monkeypatch.setattr(announcements, "_MOST_BYTES", 40 << 10)
    monkeypatch.setattr(liveness, "_MOST_NAMES", 20)
    async with untrusted_bus("memory") as bus:
        caller, mallory = await bus(), await bus()
        changes: list[tuple[str, int]] = []
        directory = WorkerDirectory(endpoint_of(caller), lambda name, specs: changes.append((name, len(specs))))
        monitor = liveness.liveness_of(endpoint_of(caller))

        def announce(name: str, specs: list[Any], part: int = 0, parts: int = 1, generation: int = 1) -> None:
            payload = {"workerId": name, "generation": generation, "operations": specs, "part": part, "parts": parts}
            sent = {"v": 1, "type": "worker.announced", "id": "", "to": "workers", "payload": payload}
            mallory.send("workers", msgspec.json.encode(sent))

        announce("honest.1", [{"name": "a"}])
        for number in range(40):
            announce(f"many.{number}", [{}] * 2)  # up to the limit of operations
        announce("large.1", [{"description": LONG}])
        for part in range(100):
            announce("parts.1", [], part, 1_000)
        alive = {"workerId": "", "generation": 1, "behind": [f"{number}{LONG[:300]}" for number in range(40)]}
        for number in range(40):
            sent = {"v": 1, "type": "worker.alive", "id": "", "to": "workers"}
            mallory.send("workers", msgspec.json.encode(sent | {"payload": alive | {"workerId": f"{number}"}}))
        announce("honest.1", [{"name": "a"}, {"name": "b"}], generation=2)
        announce("honest.1", [{"name": "a"}], generation=3)
        await until(lambda: changes[-1:] == [("honest.1", 1)] and len(changes) > 2)
        assert sum(directory._known[name].number for name in directory._known) == directory._count <= 30
        assert len(directory._silent) == 20
        assert directory._size < 40 << 10
        assert len(monitor._seen) == len(monitor._backlog) == 20
        assert max(map(len, monitor._backlog)) <= 256
        directory._lost("")
        assert (directory._count, directory._size, directory._known) == (0, 0, {})
        directory.close()


async def test_parts_of_an_announcement_expire_without_the_rest() -> None:
    async with untrusted_bus("redis") as bus:
        caller, mallory = await bus(), await bus()
        caller.heartbeat = 0.05  # type: ignore[attr-defined]
        caller.capabilities = msgspec.structs.replace(caller.capabilities, heartbeat=0.05)  # type: ignore[misc]
        directory = WorkerDirectory(endpoint_of(caller), lambda worker_id, announced: None)
        for number in range(3):
            payload = AnnouncementPayload(f"mallory.{number}.1", 1, msgspec.Raw(b"[{}]"), part=0, parts=1_000)
            event = {"v": 1, "type": "worker.announced", "id": "", "to": "workers", "payload": payload}
            mallory.send("workers", msgspec.json.encode(event))
        await until(lambda: len(directory._parts) == 3)
        await until(lambda: directory._parts == {})
        assert directory._silent == {}
        directory.close()


async def test_long_names_of_workers_are_not_kept(bus: Bus) -> None:
    caller, mallory = await bus(), await bus()
    async with from_call(caller):
        endpoint = endpoint_of(caller)
        flushes = caller.optional(Flushes)
        if flushes is not None:
            await flushes.flush()  # the server knows the subscription
        event = {"v": 1, "type": "worker.alive", "id": "", "to": "workers"}
        mallory.send("workers", msgspec.json.encode(event | {"payload": {"workerId": "m" * 161}}))
        await until(lambda: endpoint.counters.malformed == 1)


async def test_a_flood_of_requests_for_announcements_is_answered_once_for_many(bus: Bus) -> None:
    """A worker may have thousands of operations: an announcement is large, and any peer may ask for it."""
    worker, mallory, caller = await bus(), await bus(), await bus()
    handler = CallHandler(OperationRegistry([stub_operation(f"shop.one{number}") for number in range(200)]), worker)
    answers: list[int] = []
    mallory.listen(f"inbox.{mallory.peer}", lambda message, arrival: answers.append(len(message)))
    asked = {"v": 1, "type": "worker.asked", "id": "", "to": "asks", "payload": {"peer": mallory.peer}}
    async with asyncio.timeout(20):
        await PendingRequestMap(mallory).call("shop.one0", wait=True)
        for _ in range(2_000):
            mallory.send("asks", msgspec.json.encode(asked))
        # Others that ask meanwhile get the next announcement to all.
        async with from_call(caller) as imported:
            await until(lambda: len(imported.registry.operations) == 200)
    assert len(answers) < 1_000
    await handler.close()


# What a caller may write on Redis with the permissions of the guide.


@pytest.fixture(params=["redis", "valkey"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with own_server(request.param) as server:
        users = rules()
        if request.param == "valkey":
            users["worker"].append("+blmpop")
        for name, given in users.items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        yield server


def end(server: Server, login: str) -> RedisTransport:
    return RedisTransport(f"redis://{login}@127.0.0.1:{server.port}", heartbeat=0.2)


async def answered(pending: PendingRequestMap, operation_id: str, *, durable: bool) -> None:
    """Call until a call succeeds: the requests in a key that was overwritten are lost."""
    call = functools.partial(pending.call, operation_id, {"item": "tea"}, durable=durable)
    while True:
        try:
            await call(timeout=2)
        except CallError:
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.parametrize(
    "commands",
    [
        [("SET", "operations:{shop}:queue", "x")],
        [("SET", "operations:{shop}:workers", "x")],
        [("SET", "operations:{shop}:stored", "x")],
        [("PEXPIRE", "operations:{shop}:stored", 0)],
        [("PEXPIRE", "operations:{shop}:stored", 0), ("RPUSH", "operations:{shop}:stored", "x")],
        [("PEXPIRE", "operations:{shop}:workers", 0), ("RPUSH", "operations:{shop}:workers", "x")],
        [("XADD", "operations:{shop}:stored", LAST_ID, "message", "x")],
        [("XADD", "operations:{shop}:stored", "MAXLEN", 0, LAST_ID, "message", "x")],
        [("XADD", "operations:{shop}:queue", "*", "a", "b")],
        [("RPUSH", "operations:{shop}:queue", "", "\0", "\1", "\2", "\0" + "\x7f" * 8)],
        [("XADD", "operations:{shop}:stored", "*", "message", "x", "before", "many")],
        [("XADD", "operations:{shop}:stored", "*", "message", "x", "before", "9" * 5_000)],
        [("XADD", "operations:{shop}:stored", "*", "message", "x", "before", "-5")],
        [("XADD", "operations:{shop}:stored", "*", "record", "x" * 1_000)],
        [("XADD", "operations:{shop}:stored", "*", "a", "b")],
    ],
    ids=lambda commands: " ".join(str(word)[:30] for command in commands for word in command),
)
async def test_arbitrary_commands_of_a_redis_caller_do_not_stop_workers(
    redis: Server, commands: list[tuple[str | int, ...]]
) -> None:
    async with end(redis, "worker:w0rker") as worker, end(redis, "ada:s3cret") as ada:
        handler = CallHandler(OperationRegistry([price, order, other_price]), worker)
        pending = PendingRequestMap(ada)
        async with asyncio.timeout(30):
            assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
            assert (await pending.call("shop.order", {"item": "tea"}, durable=True)).data == "tea"
            assert (await pending.call("other.price", {"item": "tea"}, wait=True)).data == 3
            mallory = ByHand(redis, "ada", "s3cret")
            for command in commands:
                reply = await asyncio.to_thread(mallory.ask, *command)
                assert "NOPERM" not in str(reply)
            mallory.close()
            for operation_id, durable in (("shop.price", False), ("shop.order", True), ("other.price", False)):
                await answered(pending, operation_id, durable=durable)
        assert worker.reconnects == 0, "the worker's other calls do not fail"
        await handler.close()


class Turns:
    """Counts the iterations of the event loop in which messages are handled."""

    def __init__(self) -> None:
        self.handled: list[tuple[int, bytes]] = []
        self._iteration = 0

    def note(self, message: bytes, arrival: object = None) -> None:
        self.handled.append((self._iteration, message))

    async def count(self, most: int) -> None:
        """Count iterations until `most` messages were handled."""
        while len(self.handled) < most:
            self._iteration += 1
            await asyncio.sleep(0)

    @property
    def number(self) -> int:
        return len({iteration for iteration, _ in self.handled})


async def test_an_element_of_very_many_requests_is_handled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis caller writes elements of any size: a worker that handled one for seconds would count as lost."""
    monkeypatch.setattr(queue_reader, "_LONGEST_TURN", 0.0)
    monkeypatch.setattr(queue_reader, "_FLUSH_SECONDS", 0.0)
    turns = Turns()
    async with untrusted_bus("redis") as bus, asyncio.timeout(30):
        worker = await bus()
        assert isinstance(worker, RedisTransport)
        worker.listen("work.shop", turns.note, group="workers.shop")
        messages = [b"%d" % number for number in range(100)]
        queue, element = worker.keys.of_namespace("work.shop").queue.decode(), join(messages).decode()
        shared_server("redis").command("RPUSH", queue, element, element, element)
        await turns.count(300)
        assert [message for _, message in turns.handled] == messages * 3
        assert turns.number == 300
        await worker.close()


async def test_a_nats_message_of_very_many_requests_is_handled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that follow on the connection, such as aborts of these requests, are handled after them."""
    monkeypatch.setattr(parser, "LONGEST_TURN", 0.0)
    monkeypatch.setattr(connection, "LONGEST_TURN", 1e-5)
    turns = Turns()
    async with untrusted_bus("nats") as bus, asyncio.timeout(30):
        worker, mallory = await bus(), await bus()
        assert isinstance(worker, NatsTransport)
        assert isinstance(mallory, NatsTransport)
        for address in ("work.shop", "control.shop", f"inbox.{worker.peer}"):
            worker.listen(address, turns.note)
        await worker.flush()
        prefix, expected = worker.capabilities.bus.split()[1], list[bytes]()
        inbox = f"{prefix}.inbox.{worker.peer}"
        counting = asyncio.create_task(turns.count(603))
        for number, subject in enumerate((f"{prefix}.work.mallory.shop.x", f"{prefix}.control.shop", inbox) * 3):
            messages = [b"%d %d" % (number, each) for each in range(1 if "control" in subject else 100)]
            assert mallory.publish(publish(subject.encode(), join(messages)))
            expected += messages
        await mallory.flush()
        await worker.flush()  # the response to this follows the messages
        assert [message for _, message in turns.handled] == expected
        await counting
        assert turns.number > 20
        assert worker.reconnects == 0


# What a caller may send on NATS with the permissions of the guide.


@operation(id="stock.left", type="query")
async def left(item: str) -> int:
    return len(item)


@operation(id="stock.order", durable=True)
async def order_stock(item: str) -> str:
    return item


DEEP = b'{"v":1,"type":"call.requested","id":"ada.1-1","to":"stock.left","payload":' + b"[" * 200_000
HEADERS = b"".join(b"X-%d: y\r\n" % number for number in range(2_000))


@pytest.mark.parametrize(
    ("subject", "data", "headers"),
    [
        (b"calls.v1.work.ada.stock.left", DEEP, b""),
        (b"calls.v1.work.ada.stock.left", b"\0\0\1\0\0" + bytes(4 * 65_536), b""),
        (b"calls.v1.work.ada.stock.left", b"\0\xff\xff\xff\xff", b""),
        (b"calls.v1.work.ada.stock.left", b"\1\3\xff\xff" + b"t" * 70_000, b""),
        (b"calls.v1.work.ada.stock.left", b"\xdf\xff\xff\xff\xff", b""),
        (b"calls.v1.work.ada.stock.left", b"x", HEADERS),
        (b"calls.v1.work.ada.stock." + b"x" * 900, b"{}", b""),
        (b"calls.v1.queue.ada.stock", DEEP, b""),
        (b"calls.v1.queue.ada.stock", b"x", HEADERS),
        (b"calls.v1.queue.ada.stock", b"x", b"Operations-Record: \xff*.>.x\r\n"),
        (b"calls.v1.queue.ada.stock", b"x", b"Operations-Record: " + b"k" * 3_000 + b".l\r\n"),
        (b"calls.v1.control.stock", DEEP, b""),
        (b"calls.v1.asks", b'{"v":1,"type":"worker.asked","id":"","to":"","payload":{"peer":"*.>"}}', b""),
        (b"calls.v1.asks", b'{"v":1,"type":"worker.asked","id":"","to":"","payload":{"peer":"a b\\r\\nPUB x 0"}}', b""),
    ],
    ids=lambda value: value[:40].decode(errors="replace"),
)
async def test_arbitrary_messages_of_a_nats_caller_do_not_stop_workers(
    subject: bytes, data: bytes, headers: bytes
) -> None:
    config = re.search(r"^```conf\n(.*?)^```$", (GUIDE / "nats.md").read_text(), re.M | re.S)
    assert config is not None
    with nats_server(config[1]) as server:
        async with (
            connect_nats(server.url, user="stock", password="s-secret") as worker,
            connect_nats(server.url, user="bob", password="b-secret") as bob,
            connect_nats(server.url, user="ada", password="a-secret") as ada,
        ):
            handler = CallHandler(OperationRegistry([left, order_stock]), worker)
            pending = PendingRequestMap(bob)
            async with asyncio.timeout(60):
                assert (await pending.call("stock.left", {"item": "tea"}, wait=True)).data == 3
                # The first durable call waits until the worker has created the streams.
                assert (await pending.call("stock.order", {"item": "tea"}, durable=True, wait=True)).data == "tea"
                for _ in range(3):
                    assert ada.publish(publish(subject, data, headers=headers))
                await ada.flush()
                assert (await pending.call("stock.left", {"item": "tea"})).data == 3
                assert (await pending.call("stock.order", {"item": "tea"}, durable=True)).data == "tea"
            assert (worker.reconnects, bob.reconnects) == (0, 0)
            await handler.close()


async def test_ids_of_signed_requests_of_a_caller_without_rights_take_limited_memory(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_protection, "_MOST_IDS", 20)
    worker = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS, required=True)
    handler = CallHandler(OperationRegistry([price, secret]), worker, identify=worker.identify)
    mallory = PendingRequestMap(SignedTransport(await bus(), session=session("mallory")), timeout=3_000)
    ada = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "read")), timeout=3_000)
    assert (await mallory.call("shop.price", {"item": "tea"}, wait=True)).data == 3
    for operation_id in ("shop.secret", "shop.unknown", "shop.price"):
        await asyncio.gather(*(error_of(mallory.call(operation_id, {})) for _ in range(10)))
    error = await error_of(mallory.call("shop.price", {"item": "tea"}))
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    assert all([(await ada.call("shop.price", {"item": "tea"})).data == 3 for _ in range(30)])
    await handler.close()


def test_the_ids_of_signed_requests_are_forgotten_after_their_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_protection, "_MOST_IDS", 2)
    seen, now = replay_protection.SeenRequests(), 1_000
    monkeypatch.setattr(time, "time", lambda: float(now))

    def receive(id: str, name: str, seconds: int = 10) -> bool:
        payload = RequestPayload(id, "shop.price", deadline=(now + seconds) * 1_000)
        return seen.is_new(CallRequested(1, id, "shop.price", payload), Identity(name))

    assert [receive("a", "mallory"), receive("a", "mallory"), receive("b", "mallory")] == [True, False, True]
    with pytest.raises(CallError, match="too many unexpired"):
        receive("c", "mallory")
    assert receive("c", "bob", 30)
    now += 12
    assert receive("c", "mallory")
    assert seen._counts == {"mallory": 1, "bob": 1}
    now += 60
    assert receive("d", "ada", 0)
    assert (seen._counts, set(seen._senders)) == ({"ada": 1}, {now})


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_refused_signed_requests_are_not_added_to_the_shared_record(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    @operation(id="shop.change", access_control=AccessControl(required_scopes=["change"]))
    async def change() -> int:
        return 1

    async with untrusted_bus(kind) as bus:
        transport = await bus()
        stored_keys = transport.optional(StoresKeys)
        assert stored_keys is not None
        store_key = stored_keys.store_key

        async def note(key: str, seconds: float, entry: str = "") -> bool:
            keys.append(key)
            return await store_key(key, seconds, entry)

        monkeypatch.setattr(stored_keys, "store_key", note)
        worker = SignedTransport(transport, secret=SECRET, tokens=TOKENS, required=True)
        handler = CallHandler(OperationRegistry([price, change]), worker, identify=worker.identify)
        mallory = PendingRequestMap(SignedTransport(await bus(), session=session("mallory")))
        ada = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "change")))
        assert (await error_of(mallory.call("shop.change", wait=True))).code is ErrorCode.ACCESS_DENIED
        assert keys == []
        assert (await ada.call("shop.change")).data == 1
        assert len(keys) == 1
        await handler.close()
