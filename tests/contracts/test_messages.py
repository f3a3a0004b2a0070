"""Unexpected messages on every bus: duplicate, late, foreign, malformed, or from a clock that differs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from operations import CallError, OperationContext, ResponseEnvelope, local_envelope, operation
from operations.calls import PendingRequestMap
from operations.calls.endpoint import endpoint_of
from operations.pubsub import InProcess, Transport
from tests.calls.test_protocol import HOSTILE
from tests.contracts.buses import Bus
from tests.contracts.conftest import Serve
from tests.contracts.deadlines import until_timed_out
from tests.contracts.operations_under_test import Sleeper, add, echo
from tests.waiting import until

_numbers = itertools.count(0x1000)


class Hand:
    """A peer that writes its messages by hand and reads its inbox."""

    def __init__(self, end: Transport) -> None:
        self.end = end
        self.pending = PendingRequestMap(end)
        self.inbox: list[dict[str, Any]] = []
        end.listen(f"inbox.{end.peer}", lambda message, _: self.inbox.append(msgspec.json.decode(message)))

    def request(
        self, operation_id: str, number: int | None = None, outside: dict[str, Any] | None = None, **payload: Any
    ) -> str:
        request_id = f"{self.end.peer}-{next(_numbers) if number is None else number:x}"
        inner = {"requestId": request_id, "operationId": operation_id, **payload}
        event = {"v": 1, "type": "call.requested", "id": request_id, "to": operation_id, "payload": inner}
        event |= outside or {}
        self.end.send(endpoint_of(self.end).request_address(operation_id), msgspec.json.encode(event))
        return request_id

    def answers(self, request_id: str, kind: str = "call.responded") -> list[dict[str, Any]]:
        return [event for event in self.inbox if event["id"] == request_id and event["type"] == kind]


@pytest.fixture
async def hand(bus: Bus) -> Hand:
    return Hand(await bus.end())


def counter_of(bus: Bus, *ends: Transport) -> Callable[[str], int]:
    """Return the sum of a counter at these peers and at the hub, if there is one."""
    hub = getattr(bus, "hub", None)
    counters = [*(endpoint_of(end).counters for end in ends), *([hub.counters] if hub is not None else [])]
    return lambda names: sum(getattr(each, name) for each in counters for name in names.split())


@pytest.mark.fault(11)
async def test_a_request_that_is_received_twice_runs_once(bus: Bus, serve: Serve, hand: Hand) -> None:
    sleeper = Sleeper()
    handler = await serve(sleeper.operation)
    count = counter_of(bus, handler.transport)
    first = hand.request("slow.sleep", 7)
    await until(sleeper.started.is_set)
    hand.request("slow.sleep", 7)
    await until(lambda: count("duplicate rejected foreign") == 1)
    sleeper.let_go.set()
    await until(lambda: len(hand.answers(first)) == 1)
    hand.request("slow.sleep", 7)
    await until(lambda: count("duplicate rejected foreign") == 2)
    assert sleeper.runs == 1
    assert len(hand.answers(first)) == 1


@pytest.mark.fault(12, 13, 14)
async def test_a_duplicate_late_or_unexpected_response_is_counted(
    bus: Bus, serve: Serve, caller: PendingRequestMap
) -> None:
    ids: list[str] = []

    @operation(id="odd.note", type="query")
    async def note(seconds: float, context: OperationContext) -> str:
        ids.append(context.request_id)
        await asyncio.sleep(seconds)
        return "noted"

    handler = await serve(note)
    end = caller._transport
    count = counter_of(bus, end, handler.transport)
    again = "duplicate late dropped foreign rejected"
    assert (await caller.call("odd.note", {"seconds": 0})).data == "noted"
    if end.optional(InProcess) is not None:
        return  # a call by reference has no response message
    answer = local_envelope("forged", "odd.note")
    for number in (1, 2):
        handler.pending.respond(ids[0], answer)
        await until(lambda number=number: count(again) >= number)  # type: ignore[misc]
    await until_timed_out(
        lambda deadline: caller.call("odd.note", {"seconds": 60}, deadline=deadline), lambda: len(ids) == 2
    )
    before = count(again)
    handler.pending.respond(ids[1], answer)
    await until(lambda: count(again) > before)
    # A hub does not keep ended ids: a response without a pending call counts as late.
    nobodys = "foreign late" if hasattr(bus, "hub") else "foreign"
    before = count(nobodys)
    handler.pending.respond(f"{end.peer}-ffffff", answer)
    await until(lambda: count(nobodys) > before)
    assert (await caller.call("odd.note", {"seconds": 0})).data == "noted"


@pytest.mark.fault(15, 16)
async def test_messages_that_are_not_events_are_counted_and_calls_continue(
    bus: Bus, serve: Serve, caller: PendingRequestMap, hand: Hand
) -> None:
    handler = await serve(add)
    end = caller._transport
    count = counter_of(bus, end, handler.transport, hand.end)
    counted = "malformed dropped foreign rejected"
    foreign = [
        b'{"hello": 1}',
        msgspec.json.encode({"v": 1, "type": "order.created", "id": "a", "to": "", "payload": 1}),
    ]
    for message in (*HOSTILE, *foreign):
        for address in (f"inbox.{end.peer}", "work.math", "control.math"):
            if message == b"" and getattr(bus, "hub", None) is not None:
                continue  # a hub's connection ignores an empty frame
            before = count(counted)
            target = address if address != "work.math" else endpoint_of(hand.end).request_address("math.add")
            hand.end.send(target, message)
            await until(lambda before=before: count(counted) > before)  # type: ignore[misc]
        assert (await caller.call("math.add", {"a": 1, "b": 2})).data == 3


@pytest.mark.fault(15)
async def test_a_request_with_a_field_of_another_type_is_refused_immediately(
    bus: Bus, serve: Serve, hand: Hand, caller: PendingRequestMap
) -> None:
    handler = await serve(echo)
    counted = counter_of(bus, handler.transport)
    inside: dict[str, Any] = {
        "parentRequestId": 5,
        "deadline": "soon",
        "idleTimeout": 0.5,
        "identity": "ada",
        "metadata": [],
        "sentAt": 10**400,
        "attempt": None,
        "operationId": 7,
        "requestId": "another one",
    }
    if hasattr(bus, "hub"):
        del inside["requestId"]  # a hub gives each request a new id, and decodes no payload to compare
    outside: dict[str, Any] = {"parent": 5, "stream": "yes", "v": "1", "payload": 3}
    if hasattr(bus, "hub"):
        outside["identity"] = "ada"  # only a hub sets this field; on a bus it is ignored
    asked = [hand.request("any.echo", **{name: value}) for name, value in inside.items()]
    asked += [hand.request("any.echo", outside={name: value}) for name, value in outside.items()]
    await until(lambda: all(hand.answers(request_id, "call.error") for request_id in asked))
    for request_id in asked:
        (answer,) = hand.answers(request_id, "call.error")
        assert answer["payload"]["code"] == "VALIDATION_ERROR"
        assert answer["payload"]["message"].startswith("invalid request: ")
        assert answer["payload"]["details"] == {"reason": "UNREADABLE", "executed": "no"}
    assert "$.parent" in hand.answers(asked[len(inside)], "call.error")[0]["payload"]["message"]
    assert counted("malformed") == len(asked)
    assert (await caller.call("any.echo", {"value": 1})).data == 1


async def test_values_that_json_cannot_hold_have_a_defined_outcome(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(echo)
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    for value in (float("nan"), float("inf"), deep):
        outcomes = await asyncio.gather(caller.call("any.echo", {"value": value}), return_exceptions=True)
        assert isinstance(outcomes[0], (CallError, ResponseEnvelope)), "an answer, or an error that says what is wrong"
    assert (await caller.call("any.echo", {"value": 2**63 - 1})).data == 2**63 - 1


@pytest.mark.fault(26)
@pytest.mark.parametrize("skew", [-600_000, -5_000, 5_000, 600_000])
async def test_clocks_that_differ_are_clamped_or_reported(serve: Serve, hand: Hand, skew: int) -> None:
    await serve(add)
    now = int(time.time() * 1000) + skew
    request_id = hand.request("math.add", input={"a": 1, "b": 1}, deadline=now + 30_000, sentAt=now)
    await until(lambda: len(hand.inbox) == 1)
    if hand.answers(request_id):
        assert skew > -30_000
        return
    (error,) = hand.answers(request_id, "call.error")
    assert (error["payload"]["code"], skew) == ("TIMEOUT", -600_000)
    assert error["payload"]["details"].keys() >= {"deadline", "sentAt", "workerTime", "executed"}


@pytest.mark.fault(41)
async def test_requests_and_items_keep_their_order(serve: Serve, caller: PendingRequestMap) -> None:
    seen: list[int] = []

    @operation(id="order.note")
    async def note(number: int) -> int:
        seen.append(number)
        return number

    await serve(note)
    answers = await asyncio.gather(*(caller.call("order.note", {"number": number}) for number in range(2_000)))
    assert [answer.data for answer in answers] == list(range(2_000))
    assert seen == list(range(2_000)), "one writer, one order"
