"""The protocol on a plain bus: dropped messages are counted, and no message stops the reader."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operations import CallError, ErrorCode, OperationContext, OperationRegistry, local_envelope, operation
from operations.calls import (
    CALL_EVENT_SCHEMAS,
    CallEventSchema,
    CallHandler,
    PendingRequestMap,
    from_call,
    outside_request,
    serve_registry,
)
from operations.calls.codec import JSON, MSGPACK, CodecName, transcode
from operations.calls.endpoint import endpoint_of
from operations.calls.events import (
    VERSION,
    CallRequested,
    CallResponded,
    RequestPayload,
    ResponsePayload,
    WorkerAlive,
    WorkerPayload,
)
from operations.calls.hub.router import Router
from operations.calls.hub.session import HubSession
from operations.context import Identity
from operations.identity import Principal
from operations.pubsub import Arrival, Capabilities, connect
from operations.pubsub.memory import MemoryTransport
from operations.testing import error_of, stub_operation
from tests.contracts.operations_under_test import Sleeper, Ticker, add, count
from tests.receiving import into
from tests.waiting import stays, until

BLIND = Capabilities(tracks_peers=False, identity="none", heartbeat=0.2)
"""Capabilities of a bus that does not report lost peers, with short heartbeats."""


class Wire:
    """A worker on an encoded bus, and a peer that writes its messages by hand."""

    def __init__(self, *operations: Any, **options: Any) -> None:
        self.end = MemoryTransport(direct=False)
        self.worker = self.end.join()
        self.handler = CallHandler(OperationRegistry(operations), self.worker, **options)
        self.messages: list[dict[str, Any]] = []
        self.end.listen(f"inbox.{self.end.peer}", lambda message, _: self.messages.append(msgspec.json.decode(message)))

    def request(self, number: int, operation_id: str, **payload: Any) -> str:
        request_id = f"{self.end.peer}-{number:x}"
        inner = {"requestId": request_id, "operationId": operation_id, **payload}
        self.send(f"work.{operation_id.rpartition('.')[0]}", "call.requested", request_id, operation_id, inner)
        return request_id

    def send(self, address: str, kind: str, request_id: str, to: str, payload: Any, **outside: Any) -> None:
        event = {"v": 1, "type": kind, "id": request_id, "to": to, "payload": payload, **outside}
        self.end.send(address, msgspec.json.encode(event))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]


@pytest.fixture
async def wires() -> AsyncIterator[Any]:
    made: list[Wire] = []

    def make(*operations: Any, **options: Any) -> Wire:
        made.append(Wire(*operations, **options))
        return made[-1]

    yield make
    for wire in made:
        await wire.handler.close()


async def test_every_event_on_the_wire_matches_its_schema(wires: Any) -> None:
    ticker = Ticker(pause=0.01)
    wire = wires(add, count, ticker.operation)
    wire.request(1, "math.add", input={"a": 1, "b": 2})
    wire.request(2, "math.add", input={"a": "x"})
    request_id = f"{wire.end.peer}-3"
    payload = {"requestId": request_id, "operationId": "math.count", "input": {"to": 2}}
    wire.send("work.math", "call.requested", request_id, "math.count", payload, stream=True)
    await until(lambda: bool(wire.of("call.completed")))
    assert {message["type"] for message in wire.messages} == {"call.responded", "call.error", "call.completed"}
    for message in wire.messages:
        assert CALL_EVENT_SCHEMAS[message["type"]].errors(message) == []
        assert CallEventSchema.check(message)
    assert [message["payload"]["sequence"] for message in wire.of("call.responded")[1:]] == [0, 1]
    assert wire.of("call.completed")[0]["payload"]["sequence"] == 2


async def test_an_error_has_a_message_on_the_wire_even_if_it_is_empty(wires: Any) -> None:
    @operation("math.fail")
    async def fail() -> None:
        raise CallError("OUT_OF_NUMBERS")

    wire = wires(fail)
    request_id = wire.request(1, "math.fail")
    await until(lambda: bool(wire.of("call.error")))
    assert wire.of("call.error")[0]["payload"] == {"requestId": request_id, "code": "OUT_OF_NUMBERS", "message": ""}


async def test_a_duplicate_request_runs_once(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation)
    wire.request(1, "slow.sleep")
    wire.request(1, "slow.sleep")
    await until(lambda: wire.handler.counters.duplicate == 1)
    sleeper.let_go.set()
    await until(lambda: len(wire.of("call.responded")) == 1)
    wire.request(1, "slow.sleep")
    await until(lambda: wire.handler.counters.duplicate == 2)
    assert sleeper.runs == 1


async def test_a_query_may_be_sent_again_after_its_response_was_lost(wires: Any) -> None:
    wire = wires(add, stub_operation("do.change", type="mutation"))
    wire.request(1, "math.add", input={"a": 1, "b": 2})
    wire.request(2, "do.change")
    await until(lambda: len(wire.of("call.responded")) == 2)
    wire.request(1, "math.add", input={"a": 1, "b": 2}, attempt=1)
    wire.request(2, "do.change", attempt=1)
    await until(lambda: len(wire.of("call.responded")) == 3)
    await until(lambda: wire.handler.counters.duplicate == 1)


async def test_a_mutation_that_is_sent_again_after_it_ended_gets_an_error(wires: Any) -> None:
    runs: list[int] = []
    may_end = asyncio.Event()

    @operation(id="do.change", type="mutation")
    async def change() -> None:
        runs.append(1)
        await may_end.wait()

    wire = wires(change)
    wire.request(1, "do.change")
    wire.request(1, "do.change", attempt=1)
    await until(lambda: wire.handler.counters.duplicate == 1)
    may_end.set()
    await until(lambda: len(wire.of("call.responded")) == 1)
    for attempt in (1, 2, 2, 3):
        wire.request(1, "do.change", attempt=attempt)
    await until(lambda: wire.handler.counters.duplicate == 5)
    errors = [message["payload"] for message in wire.of("call.error")]
    assert [(error["code"], error["details"]["reason"]) for error in errors] == [("UNAVAILABLE", "NOT_REPEATED")] * 3
    assert runs == [1]


async def test_a_caller_does_not_repeat_a_request_that_is_not_run_again() -> None:
    bus = MemoryTransport(direct=False)
    requests: list[Any] = []

    def answer(message: bytes, _: Any) -> None:
        event: Any = JSON.decode_any(message)
        requests.append(event)
        details = {"executed": "unknown", **({"reason": "NOT_REPEATED"} if len(requests) > 1 else {})}
        inbox = f"inbox.{event.id.rpartition('-')[0]}"
        error = CallError("UNAVAILABLE", "lost", details)
        bus.send(inbox, endpoint_of(bus).write_error(event.id, error, JSON, event.id))

    bus.listen("work.x", answer)
    error = await error_of(PendingRequestMap(bus.join()).call("x.y", retry=True))
    assert error.details["reason"] == "NOT_REPEATED"
    assert [request.payload.attempt for request in requests] == [0, 1]


async def test_each_attempt_of_a_query_runs_once(wires: Any) -> None:
    wire = wires(add)
    for number, attempt in enumerate((0, 0, 7, 7, 3, 10_000, 10_000), 1):
        wire.request(1, "math.add", input={"a": 1, "b": 2}, attempt=attempt)
        await until(lambda: len(wire.of("call.responded")) + wire.handler.counters.duplicate == number)  # noqa: B023
    wire.request(2, "math.add", input={"a": 1, "b": 2})
    await until(lambda: len(wire.of("call.responded")) == 4)
    assert wire.handler.counters.duplicate == 4


async def test_refused_requests_are_not_stored(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation, concurrency=1, queue=0)
    wire.request(1, "slow.sleep")
    wire.request(2, "slow.sleep")
    await until(lambda: len(wire.of("call.error")) == 1)
    sleeper.let_go.set()
    await until(lambda: len(wire.of("call.responded")) == 1)
    wire.request(2, "slow.sleep")
    await until(lambda: len(wire.of("call.responded")) == 2)
    assert sleeper.runs == 2


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_an_error_that_cannot_be_encoded_unchanged_is_sent_anyway(
    codec: CodecName, caplog: pytest.LogCaptureFixture
) -> None:
    # The worker logs these errors; pytest-xdist cannot send a report with a lone surrogate.
    caplog.set_level(logging.CRITICAL, logger="operations")
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    errors = [
        ValueError("no file \udcff"),
        CallError("DOMAIN_\udcff", "half \ud800 a character"),
        CallError("DOMAIN", "it holds itself", {"loop": loop}),
        CallError("DOMAIN", "it is deep", deep),
        CallError("DOMAIN", "it has no form", {"a": object()}),
        CallError("DOMAIN", "it is large", {"a": 2**70}),
    ]

    @operation(id="bad.luck")
    async def fail(number: int) -> None:
        raise errors[number]

    bus = MemoryTransport(direct=False)
    async with serve_registry(OperationRegistry([fail]), bus):
        pending = PendingRequestMap(bus.join(), codec=codec, timeout=5)
        told = [await error_of(pending.call("bad.luck", {"number": number})) for number in range(len(errors))]
    assert [(str(error.code), error.message) for error in told] == [
        ("EXECUTION_ERROR", "bad.luck: ValueError: no file ?"),
        ("DOMAIN_?", "half ? a character"),
        ("DOMAIN", "it holds itself"),
        ("DOMAIN", "it is deep"),
        ("DOMAIN", "it has no form"),
        ("DOMAIN", "it is large"),
    ]
    assert [error.details for error in told[2:]] == [None, None, None, {"a": 2**70}]


async def test_a_call_is_aborted_for_a_reason_that_cannot_be_encoded_unchanged(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation)
    pending = PendingRequestMap(wire.end)
    call = asyncio.create_task(pending.call("slow.sleep"))
    await until(lambda: sleeper.runs == 1)
    (request_id,) = endpoint_of(wire.end).pending
    pending.abort(request_id, "half \ud800 a character")
    assert (await error_of(call)).code is ErrorCode.ABORTED
    await until(lambda: wire.handler.in_flight == 0)


async def test_a_long_call_reports_its_worker(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation)
    request_id = wire.request(1, "slow.sleep")
    await until(lambda: bool(wire.of("call.accepted")))
    worker = wire.of("call.accepted")[0]["payload"]["workerId"]
    assert worker == wire.handler.worker_id
    wire.send(f"inbox.{worker.partition('.')[0]}", "call.aborted", request_id, "", {"requestId": request_id})
    await sleeper.cancelled.wait()
    assert wire.of("call.error") == []


async def test_clocks_that_differ_give_a_clear_error(wires: Any) -> None:
    wire = wires(add)
    now = int(time.time() * 1000)
    ten_minutes = 600_000
    wire.request(1, "math.add", input={"a": 1, "b": 1}, deadline=now - ten_minutes + 30_000, sentAt=now - ten_minutes)
    wire.request(2, "math.add", input={"a": 1, "b": 1}, deadline=now + ten_minutes + 30_000, sentAt=now + ten_minutes)
    await until(lambda: len(wire.messages) == 2)
    (error,) = wire.of("call.error")
    assert error["payload"]["code"] == "TIMEOUT"
    assert error["payload"]["details"].keys() >= {"deadline", "sentAt", "workerTime", "executed"}
    assert len(wire.of("call.responded")) == 1


async def test_late_duplicate_and_foreign_responses_are_counted() -> None:
    bus = MemoryTransport(direct=False)
    requests: list[CallRequested] = []
    bus.listen("work.x", lambda message, _: requests.append(JSON.decode_any(message)))  # type: ignore[arg-type]
    caller = bus.join()
    pending, answering = PendingRequestMap(caller), PendingRequestMap(bus)
    call = asyncio.create_task(pending.call("x.y"))
    await until(lambda: len(requests) == 1)
    envelope = local_envelope(1, "x.y")
    answering.respond(requests[0].id, envelope)
    answering.respond(requests[0].id, envelope)
    assert await call == envelope
    answering.respond(requests[0].id, envelope)
    await until(lambda: pending.counters.duplicate == 2)
    error = await error_of(pending.call("x.y", deadline=int(time.time() * 1000) + 30))
    assert error.code is ErrorCode.TIMEOUT
    answering.respond(requests[1].id, envelope)
    await until(lambda: pending.counters.late == 1)
    answering.respond(f"{caller.peer}-ffff", envelope)
    bus.send(f"inbox.{caller.peer}", JSON.encode(CallResponded(VERSION, "other-1", "", ResponsePayload("other-1"))))
    await until(lambda: pending.counters.foreign == 2)


async def test_respond_refuses_values_other_than_envelopes_and_abort_and_errors_end_a_call() -> None:
    bus = MemoryTransport(direct=False)
    requests: list[Any] = []
    bus.listen("work.x", lambda message, _: requests.append(JSON.decode_any(message)))
    pending, answering = PendingRequestMap(bus.join()), PendingRequestMap(bus)
    with pytest.raises(CallError, match="expected a response envelope, not dict"):
        answering.respond("x-1", {"data": 1})
    calls = [asyncio.create_task(pending.call("x.y")) for _ in range(4)]
    await until(lambda: len(requests) == 4)
    answering.emit_error(requests[0].id, CallError("MINE", "text", {"a": 1}))
    answering.abort(requests[1].id, "no time")
    pending.abort(requests[2].id, "changed my mind")
    answering.complete(requests[3].id)
    errors = [await error_of(call) for call in calls]
    assert [str(error.code) for error in errors] == ["MINE", "ABORTED", "ABORTED", "EXECUTION_ERROR"]
    assert pending.in_flight == 0


async def test_a_gap_in_a_stream_is_an_error() -> None:
    bus = MemoryTransport(direct=False)
    requests: list[Any] = []
    bus.listen("work.x", lambda message, _: requests.append(JSON.decode_any(message)))
    pending, answering = PendingRequestMap(bus.join()), PendingRequestMap(bus)
    stream: Any = pending.subscribe("x.y")
    await until(lambda: len(requests) == 1)
    for sequence in (0, 0, 1, 3):
        answering.respond(requests[0].id, local_envelope(sequence, "x.y"), sequence=sequence)
    assert [(await anext(stream)).data, (await anext(stream)).data] == [0, 1]
    with pytest.raises(CallError, match="expected number 2, got 3") as caught:
        await anext(stream)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert pending.counters.duplicate == 1
    missing_end: Any = pending.subscribe("x.y")
    await until(lambda: len(requests) == 2)
    answering.complete(requests[1].id, sequence=5)
    with pytest.raises(CallError, match="items are missing"):
        await anext(missing_end)


async def test_workers_on_a_bus_without_peer_tracking_send_heartbeats() -> None:
    blind = Capabilities(tracks_peers=False, identity="none", claims_identity=False)
    bus = MemoryTransport(direct=False, capabilities=blind)
    heard: list[Any] = []
    bus.listen("workers", lambda message, _: heard.append(JSON.decode_any(message)))
    async with serve_registry(OperationRegistry([add, count]), bus.join()):
        await until(lambda: any(type(event).__name__ == "WorkerAlive" for event in heard))
        pending = PendingRequestMap(bus.join())
        assert (await pending.call("math.add", {"a": 1, "b": 1})).data == 2
        assert [envelope.data async for envelope in pending.subscribe("math.count", {"to": 3})] == [0, 1, 2]
    with pytest.raises(CallError, match="identity= is not possible"):
        await pending.call("math.add", identity=Identity("x"))


async def test_a_worker_without_heartbeats_loses_its_calls() -> None:
    bus = MemoryTransport(direct=False, capabilities=BLIND)
    requests: list[Any] = []
    stop = bus.listen("work.x", lambda message, _: requests.append(JSON.decode_any(message)))
    pending = PendingRequestMap(bus.join())
    error = await error_of(pending.call("x.y"))
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
    stream: Any = pending.subscribe("x.y")
    error = await error_of(anext(stream))
    assert error.code is ErrorCode.UNAVAILABLE
    retried = asyncio.create_task(pending.call("x.y", retry=True))
    await until(lambda: len(requests) == 3)
    stop()
    async with serve_registry(OperationRegistry([stub_operation("x.y", returns=1)]), bus.join()):
        assert (await retried).data == 1


async def test_heartbeats_are_received_only_while_calls_are_pending() -> None:
    bus = MemoryTransport(direct=False, capabilities=BLIND)
    bus.listen("work.x", lambda message, _: None)
    end = bus.join()
    pending = PendingRequestMap(end)
    heard: list[Any] = []
    endpoint_of(end).notice_handlers.append(heard.append)

    delivered = asyncio.Event()
    bus.listen("marker", lambda message, _: delivered.set())

    async def is_heard() -> bool:
        heard.clear()
        delivered.clear()
        bus.send("workers", JSON.encode(WorkerAlive(VERSION, "", "workers", WorkerPayload("w.1", behind=("x",)))))
        bus.send("marker", b"delivered after it")
        await delivered.wait()
        return bool(heard)

    assert not await is_heard()
    waiting = asyncio.create_task(pending.call("x.y"))
    await until(lambda: pending.in_flight == 1)
    assert await is_heard()
    waiting.cancel()
    async with asyncio.timeout(30):
        while await is_heard():
            pass


async def test_an_unaccepted_call_waits_while_its_workers_report_a_backlog() -> None:
    bus = MemoryTransport(direct=False, capabilities=BLIND)
    for namespace in ("x", "other"):
        bus.listen(f"work.{namespace}", lambda message, _: None)
    end = bus.join()
    pending = PendingRequestMap(end)
    waiting = asyncio.create_task(error_of(pending.call("x.y")))
    other = asyncio.create_task(error_of(pending.call("other.y")))

    def beat(*behind: str) -> None:
        bus.send("workers", JSON.encode(WorkerAlive(VERSION, "", "workers", WorkerPayload("w.1", behind=behind))))

    while not other.done():
        beat("x")
        await asyncio.sleep(0.01)  # as often as a heartbeat
    assert (await other).code is ErrorCode.UNAVAILABLE
    for _ in range(30):
        beat("x")
        await asyncio.sleep(0.01)
    assert not waiting.done()
    while not waiting.done():  # the worker reports no backlog any more, and never accepted the call
        beat()
        await asyncio.sleep(0.01)
    assert ((await waiting).code, (await waiting).details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")


async def test_a_draining_worker_keeps_its_calls_and_offers_no_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("operations.calls.request_handler._ACCEPT_SECONDS", 0.01)
    bus = MemoryTransport(direct=False, capabilities=BLIND)
    sleeper = Sleeper()
    handler = CallHandler(OperationRegistry([sleeper.operation]), bus.join())
    caller = bus.join()
    async with from_call(caller) as remote:
        await remote.ready(sleeper.operation.id)
        call = asyncio.create_task(PendingRequestMap(caller).call(sleeper.operation.id))
        await sleeper.started.wait()
        draining = asyncio.create_task(handler.drain())
        await until(lambda: not remote.ids)
        # For six heartbeats the draining worker keeps its call, and its operations are not imported again.
        await stays(lambda: not call.done() and not remote.ids, seconds=0.3)
        sleeper.let_go.set()
        assert (await call).data == "awake"
        await draining


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"{",
    b"null",
    b"[]",
    b'{"v":1}',
    b'{"v":1,"type":"call.requested","id":"x-1","to":"math.add","payload":3}',
    b'{"v":1,"type":"call.responded","id":"x-1","to":"","payload":{"requestId":"x-1","output":NaN}}',
    b'{"v":1,"type":"from.the.future","id":"","to":"","payload":{}}',
    b'{"a":' * 10_000,
    b"[" * 100_000,
    b'{"v":' + b"9" * 5_000 + b"}",
    b"\x81\xa1v",
    msgspec.msgpack.encode({"v": 1, "type": "call.requested"}),
    b"\0\0\0\0\xff",
    b"\0",
    b"\0" * 5,
    b"\0\xff\xff\xff\xff",
    b"\0\0\x10\0\0" + bytes(4 << 16),
    b"\0\0\0\0\1\0\0\0\0",
    b"\0\0\0\0\2\xff\xff\xff\xff\xff\xff\xff\xffab",
]


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_message_is_counted_and_the_next_call_works(wires: Any, message: bytes) -> None:
    wire = wires(add)
    endpoint = endpoint_of(wire.worker)
    endpoint.receive(message, Arrival(""))
    counters = endpoint.counters
    assert counters.malformed + counters.dropped == 1
    wire.request(1, "math.add", input={"a": 1, "b": 2})
    await until(lambda: len(wire.of("call.responded")) == 1)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from([*CALL_EVENT_SCHEMAS, "worker.announced", "worker.gone", "worker.asked", "hub.hello", "other"])
EVENTS = st.fixed_dictionaries(
    {"v": st.integers(0, 3), "type": KINDS, "id": st.text(max_size=6), "to": st.text(max_size=8)},
    optional={
        "payload": JSON_VALUES
        | st.fixed_dictionaries(
            {"requestId": st.text(max_size=6)},
            optional={
                "operationId": st.text(max_size=6),
                "workerId": st.text(max_size=4),
                "sequence": st.integers(-5, 5),
            },
        ),
        "identity": JSON_VALUES,
        "stream": st.booleans(),
    },
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), EVENTS.map(msgspec.json.encode), EVENTS.map(msgspec.msgpack.encode)),
        max_size=8,
    )
)
def test_fuzzed_events_never_stop_a_reader(messages: list[bytes]) -> None:
    async def scenario() -> None:
        bus = MemoryTransport(direct=False)
        handler = CallHandler(OperationRegistry([add]), bus)
        router = Router()
        session = HubSession("s", Principal(Identity("x"), ("*",)), lambda message: None)
        router.join(session)
        endpoint = endpoint_of(bus)
        for message in messages:
            endpoint.receive(message, Arrival(""))
            router.receive(message, session)
        assert (await PendingRequestMap(bus.join()).call("math.add", {"a": 1, "b": 2})).data == 3
        await handler.close()

    with contextlib.suppress(UnicodeEncodeError):
        asyncio.run(scenario())


def test_events_survive_a_change_of_codec() -> None:
    event = CallRequested(
        VERSION, "a-1", "x.y", RequestPayload("a-1", "x.y", JSON.raw({"file": b"\x00", "big": 2**70}))
    )
    there = transcode(JSON.encode(event), MSGPACK)
    assert MSGPACK.read(MSGPACK.decode_any(there).payload.input) == {"file": b"\x00", "big": 2**70}  # type: ignore[union-attr]
    assert JSON.read(JSON.decode_any(transcode(there, JSON)).payload.input) == {"file": b"\x00", "big": 2**70}  # type: ignore[union-attr]


async def test_messagepack_is_used_when_requested() -> None:
    bus = MemoryTransport(direct=False)
    seen: list[bytes] = []
    bus.listen("work.any", into(seen.append))
    handler = CallHandler(OperationRegistry([add]), bus.join())
    pending = PendingRequestMap(bus.join(), codec="msgpack")
    assert (await pending.call("math.add", {"a": 1, "b": 2})).data == 3
    with pytest.raises(CallError):
        await pending.call("any.thing", {"file": b"x"}, deadline=int(time.time() * 1000) + 30)
    assert seen[0][:1] != b"{"
    await handler.close()


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_metadata_arrives_in_its_json_form(codec: CodecName) -> None:
    @operation(id="meta.get")
    async def get(context: OperationContext) -> Any:
        return {key: [type(value).__name__, value] for key, value in context.metadata.items()}

    bus = MemoryTransport(direct=False)
    async with serve_registry(OperationRegistry([get]), bus):
        pending = PendingRequestMap(bus.join(), codec=codec)
        moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        given: Any = {"at": moment, "id": uuid.UUID(int=7), 3: "three", "list": (1, 2), "large": [2**70]}
        assert (await pending.call("meta.get", metadata=given)).data == {
            "at": ["str", "2026-01-02T00:00:00Z"],
            "id": ["str", "00000000-0000-0000-0000-000000000007"],
            "3": ["str", "three"],
            "list": ["list", [1, 2]],
            "large": ["list", [2**70]],
        }
        error = await error_of(pending.call("meta.get", metadata={"what": object()}))
        assert error.code is ErrorCode.VALIDATION_ERROR
        assert error.message.startswith("cannot encode the request")


async def test_serve_registry_refuses_a_concurrency_of_zero() -> None:
    with pytest.raises(ValueError, match="concurrency is 0: expected a whole number of at least 1"):
        await serve_registry(OperationRegistry(), MemoryTransport(), concurrency=0)


async def test_nested_calls_do_not_need_a_second_slot() -> None:
    @operation(id="deep.outer")
    async def outer(context: OperationContext) -> Any:
        return (await context.env["math"]["add"](a=1, b=2)).data

    for direct in (True, False):
        bus = MemoryTransport(direct=direct)
        async with serve_registry(OperationRegistry([outer, add]), bus, concurrency=1):
            assert (await PendingRequestMap(bus).call("deep.outer")).data == 3


@pytest.mark.parametrize("end", ["run", "expire", "abort"])
async def test_slots_are_released_however_a_long_queue_ends(wires: Any, end: str) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation, add, concurrency=1)
    first = wire.request(0, "slow.sleep")
    await until(sleeper.started.is_set)
    now = int(time.time() * 1000)
    deadline = {"deadline": now + 2_000, "sentAt": now} if end == "expire" else {}
    queued = [wire.request(number, "math.add", input={"a": number, "b": 1}, **deadline) for number in range(1, 2001)]
    await until(lambda: wire.handler.in_flight == 2001)
    if end == "abort":
        for request_id in queued:
            wire.send("control.math", "call.aborted", request_id, "math.add", {"requestId": request_id})
    if end != "run":
        await until(lambda: wire.handler.in_flight == 1)
    wire.send("control.slow", "call.aborted", first, "slow.sleep", {"requestId": first})
    await until(lambda: not wire.handler.in_flight)
    again = wire.request(3000, "math.add", input={"a": 1, "b": 1})
    await until(lambda: any(message["id"] == again for message in wire.of("call.responded")))
    assert len(wire.of("call.responded")) == (2001 if end == "run" else 1)
    assert len(wire.of("call.error")) == (2000 if end == "expire" else 0)


async def test_an_abort_that_arrives_together_with_its_request_cancels_the_call(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation)
    request_id = wire.request(1, "slow.sleep")
    for _ in range(2):
        wire.send("control.slow", "call.aborted", request_id, "slow.sleep", {"requestId": request_id})
    await until(sleeper.cancelled.is_set)
    await until(lambda: not wire.handler.in_flight)
    assert wire.messages == []
    assert wire.handler.counters.dropped == 0
    wire.send("control.slow", "call.aborted", request_id, "slow.sleep", {"requestId": request_id})
    await until(lambda: wire.handler.counters.dropped == 1)


async def test_requests_that_ended_in_the_queue_make_room_for_others(wires: Any) -> None:
    sleeper = Sleeper()
    wire = wires(sleeper.operation, concurrency=1, queue=1)
    wire.request(0, "slow.sleep")
    await until(sleeper.started.is_set)
    for number in range(1, 4):
        queued = wire.request(number, "slow.sleep")
        await until(lambda: wire.handler.in_flight == 2)
        wire.send("control.slow", "call.aborted", queued, "slow.sleep", {"requestId": queued})
        await until(lambda: wire.handler.in_flight == 1)
    assert wire.handler.counters.rejected == 0
    assert wire.of("call.error") == []


async def test_queued_calls_that_expire_while_the_loop_is_blocked_never_run(wires: Any) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()

    @operation(id="busy.first")
    async def first() -> None:
        begun.append("first")
        await go_on.wait()
        time.sleep(0.2)  # noqa: ASYNC251  # on purpose: nobody's clock is looked at meanwhile

    @operation(id="busy.second")
    async def second() -> None:
        begun.append("second")

    wire = wires(first, second, concurrency=1)
    wire.request(0, "busy.first")
    await until(lambda: bool(begun))
    now = int(time.time() * 1000)
    wire.request(1, "busy.second", deadline=now + 100, sentAt=now)
    await until(lambda: wire.handler.in_flight == 2)
    go_on.set()
    await until(lambda: bool(wire.of("call.error")) and not wire.handler.in_flight)
    [error] = wire.of("call.error")
    assert (error["payload"]["code"], error["payload"]["details"]["executed"]) == ("TIMEOUT", "no")
    assert begun == ["first"]


async def test_a_closing_worker_waits_for_cleanup_and_reports_calls_that_never_ran(wires: Any) -> None:
    cleaned: list[bool] = []
    begun: list[bool] = []

    @operation(id="tidy.up")
    async def tidy_up() -> None:
        begun.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    wire = wires(tidy_up, concurrency=1)
    wire.request(0, "tidy.up")
    await until(lambda: bool(begun))
    wire.request(1, "tidy.up")
    await until(lambda: wire.handler.in_flight == 2)
    await wire.handler.close()
    assert (begun, cleaned) == ([True], [True])
    await until(lambda: len(wire.of("call.error")) == 2)
    assert {error["id"][-1]: error["payload"]["details"]["executed"] for error in wire.of("call.error")} == {
        "0": "unknown",
        "1": "no",
    }


async def test_a_handler_may_close_its_own_worker() -> None:
    bus = MemoryTransport(direct=False)
    handlers: list[CallHandler] = []

    @operation(id="admin.stop")
    async def stop() -> None:
        await asyncio.sleep(0)
        await handlers[0].close()

    handlers.append(CallHandler(OperationRegistry([stop]), bus))
    error = await error_of(PendingRequestMap(bus.join()).call("admin.stop"))
    assert error.code == ErrorCode.UNAVAILABLE
    assert not handlers[0].in_flight


async def test_calls_that_end_together_in_one_process_release_their_slots() -> None:
    sleeper = Sleeper()
    bus = MemoryTransport()
    async with serve_registry(OperationRegistry([sleeper.operation, add]), bus, concurrency=1):
        pending = PendingRequestMap(bus)
        calls = [asyncio.create_task(pending.call("slow.sleep")) for _ in range(3)]
        await sleeper.started.wait()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        async with asyncio.timeout(30):
            assert (await pending.call("math.add", {"a": 1, "b": 2})).data == 3
    assert sleeper.runs == 1


@pytest.mark.parametrize("direct", [True, False])
async def test_a_memory_bus_works_from_the_event_loop_of_another_thread(direct: bool) -> None:
    bus = MemoryTransport(direct=direct)
    handler = CallHandler(OperationRegistry([add, later]), bus)
    pending = PendingRequestMap(bus.join())

    async def call() -> list[Any]:
        added = await pending.call("math.add", {"a": 1, "b": 2})
        return [added.data, (await pending.call("math.later", {"number": 4})).data]

    assert await call() == [3, 4]
    assert await asyncio.to_thread(asyncio.run, call()) == [3, 4]
    assert await call() == [3, 4]
    await handler.close()


@operation(id="math.later", type="query")
async def later(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


FORKED = """
import asyncio, os
from operations import OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.memory import MemoryTransport
from operations.testing import stub_operation

async def main():
    bus = MemoryTransport(direct=False)
    handler = CallHandler(OperationRegistry([stub_operation("shop.price", returns=7)]), bus)
    pending = PendingRequestMap(bus.join())

    async def call():
        return (await pending.call("shop.price")).data

    answers = [await call()]
    child = os.fork()
    if not child:
        try:
            os._exit(asyncio.run(call()))
        finally:
            os._exit(1)
    answers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*answers, await call())
    await handler.close()

asyncio.run(main())
"""


def test_a_memory_bus_works_in_a_forked_child() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["7", "7", "7"], done.stderr


@pytest.mark.parametrize("direct", [True, False])
def test_a_memory_bus_outlives_the_event_loop_it_was_created_in(direct: bool) -> None:
    bus = MemoryTransport(direct=direct)
    handlers: list[CallHandler] = []

    async def begin() -> Any:
        handlers.append(CallHandler(OperationRegistry([add, count, Sleeper().operation]), bus))
        return (await PendingRequestMap(bus).call("math.add", {"a": 1, "b": 2})).data

    async def go_on() -> Any:
        pending = PendingRequestMap(bus.join())
        now = int(time.time() * 1000)
        error = await error_of(pending.call("slow.sleep", deadline=now + 50))
        counted = [event.data async for event in pending.subscribe("math.count", {"to": 3})]
        await handlers[0].drain()
        return error.code, counted

    assert asyncio.run(begin()) == 3
    assert asyncio.run(go_on()) == (ErrorCode.TIMEOUT, [0, 1, 2])


async def test_a_call_that_found_no_worker_was_not_executed() -> None:
    pending = PendingRequestMap(MemoryTransport(direct=False))
    error = await error_of(pending.call("math.add", deadline=int(time.time() * 1000) + 100, wait=True))
    assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "no")
    assert "before any worker was available" in error.message


@pytest.mark.parametrize("direct", [True, False])
async def test_a_deadline_may_be_a_fraction_of_a_millisecond(direct: bool) -> None:
    bus = MemoryTransport(direct=direct)
    async with serve_registry(OperationRegistry([add, count]), bus):
        pending, deadline = PendingRequestMap(bus.join()), time.time() * 1000 + 10_000.5
        assert (await pending.call("math.add", {"a": 1, "b": 2}, deadline=deadline)).data == 3
        assert [event.data async for event in pending.subscribe("math.count", {"to": 2}, deadline=deadline)] == [0, 1]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("options", [{}, {"wait": True}, {"retry": True}])
async def test_a_handler_counts_as_executed_although_its_nested_call_was_not(
    direct: bool, options: dict[str, Any]
) -> None:
    runs: list[str] = []

    @operation(id="shop.order", type="query")
    async def order(context: OperationContext) -> Any:
        runs.append("order")
        return (await context.env["bank"]["pay"]()).data

    @operation(id="shop.follow")
    async def follow(context: OperationContext) -> AsyncIterator[Any]:
        yield (await context.env["bank"]["pay"]()).data

    bus = MemoryTransport(direct=direct)
    async with serve_registry(OperationRegistry([order, follow]), bus):
        pending = PendingRequestMap(bus.join())
        error = await error_of(pending.call("shop.order", **options))
        stream = pending.subscribe("shop.follow")
        assert (await error_of(anext(stream))).details["executed"] == "yes"
    assert (error.code, error.details["operationId"]) == (ErrorCode.UNAVAILABLE, "bank.pay")
    assert error.details["executed"] == "yes"
    assert runs == ["order"]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_task_that_outlives_its_request_cannot_call_unless_it_left_the_request(direct: bool) -> None:
    tasks: list[asyncio.Task[Any]] = []
    ended = asyncio.Event()
    bus = MemoryTransport(direct=direct)
    pending = PendingRequestMap(bus.join())

    async def later() -> Any:
        await ended.wait()
        return (await pending.call("who.calls")).data

    @operation(id="who.calls")
    async def who_calls(context: OperationContext) -> str | None:
        return context.identity.id if context.identity is not None else None

    @operation(id="spawn.tasks")
    async def spawn() -> Any:
        tasks.append(asyncio.create_task(later()))
        with outside_request():
            tasks.append(asyncio.create_task(later()))
        return (await pending.call("who.calls")).data

    async with serve_registry(OperationRegistry([who_calls, spawn]), bus):
        assert (await pending.call("spawn.tasks", identity=Identity("ada"))).data == "ada"
        ended.set()
        error = await error_of(tasks[0])
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "GRANT_ENDED")
        assert await tasks[1] is None


async def test_a_worker_cannot_use_its_own_rights_within_a_request() -> None:
    bus = MemoryTransport(direct=False)
    pending = PendingRequestMap(bus.join())

    @operation(id="as.worker")
    async def as_worker() -> Any:
        return (await pending.call("as.worker", as_worker=True)).data

    async with serve_registry(OperationRegistry([as_worker]), bus):
        error = await error_of(pending.call("as.worker"))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "outside any request" in error.message


def test_what_is_not_an_open_transport_is_refused() -> None:
    for value in ("redis://127.0.0.1", connect("memory:"), OperationRegistry()):
        with pytest.raises(TypeError, match=r"invalid transport of type \w+: expected an open transport, such as"):
            PendingRequestMap(value)  # type: ignore[arg-type]
