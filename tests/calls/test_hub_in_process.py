"""A worker in the hub's own process gets small requests decoded; everything else is as for encoded messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from operations import AccessControl, CallError, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import CODECS, read_event
from operations.calls.endpoint import Endpoint
from operations.calls.events import CallRequested
from operations.calls.hub import Hub
from operations.calls.hub.route_observer import RouteObserver
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.pubsub import Transport, TransportWrapper
from operations.pubsub.protocols import InRouterProcess
from operations.testing import RecordingTransport
from operations.wire import LARGE_MESSAGE
from tests.contracts.operations_under_test import Sleeper, count
from tests.waiting import until

TOKENS = StaticTokens({"ada": Principal(Identity("ada", scopes=("read",))), "bob": Principal(Identity("bob"))})


@operation(id="shop.echo", type="query")
async def echo(value: Any) -> Any:
    return value


@operation(id="shop.add", type="query")
async def add(a: int, b: int) -> int:
    return a + b


@operation(id="shop.caller", access_control=AccessControl(required_scopes=("read",)))
async def caller(context: OperationContext) -> list[Any]:
    assert context.identity is not None
    nested = await context.env.shop.add(a=1, b=2)
    return [context.identity.id, context.identity.scopes, context.deadline, nested.data]


@operation(id="shop.fail")
async def fail() -> None:
    raise CallError("SOLD_OUT", "no tea is left", {"item": "tea"})


class Routes(RouteObserver):
    """The notifications of a hub about routed calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def began(self, call: Any, identity: Any, parent: Any, header: Any, codec: Any) -> None:
        self.seen.append(("began", call.operation_id, identity.id, codec.name))

    def item(self, call: Any) -> None:
        self.seen.append(("item", call.operation_id))

    def ended(self, call: Any, code: str) -> None:
        self.seen.append(("ended", call.operation_id, code))

    def refused(self, session: Any, request_id: str, operation_id: str, code: str) -> None:
        self.seen.append(("refused", operation_id, code))


class Scene:
    """A hub with a worker in its own process, and a spoke that writes its messages by hand."""

    def __init__(self, hub: Hub, spoke: Spoke, transport: Transport, sleeper: Sleeper) -> None:
        self.hub, self.spoke, self.sleeper = hub, spoke, sleeper
        hub.router.observers = (routes := Routes(),)
        self.routes = routes
        registry = OperationRegistry([echo, add, caller, fail, count, sleeper.operation])
        self.handler = CallHandler(registry, transport)
        self.messages: list[dict[str, Any]] = []
        spoke.listen("", lambda message, _: self.messages.append(read_event(message)))

    def request(self, number: int, to: str, input: Any, codec: str = "msgpack", **changed: Any) -> None:
        request_id = f"{self.spoke.peer}-{number:032x}"
        payload = {"requestId": request_id, "operationId": to, "input": input, "deadline": DEADLINE} | changed
        self.send("call.requested", request_id, to, payload, codec, stream=to == "math.count", deadline=DEADLINE)

    def send(self, kind: str, request_id: str, to: str, payload: Any, codec: str = "msgpack", **outside: Any) -> None:
        event: Any = {"v": 1, "type": kind, "id": request_id, "to": to, "payload": payload, **outside}
        self.spoke.send("", CODECS[codec].encode(event))

    async def outcome(self) -> list[Any]:
        """Send requests of every kind; return their responses, the counters and the notifications."""
        self.request(1, "shop.echo", {"value": [1, 2.5, None, "é", b"\0", {"a": {}}]})
        self.request(2, "shop.add", {"a": 1, "b": "x"})
        self.request(3, "shop.caller", {}, metadata={"traceparent": "00-1"})
        self.request(4, "shop.fail", {})
        self.request(5, "shop.echo", {"value": "x" * (LARGE_MESSAGE + 1)})
        self.request(6, "shop.echo", {"value": [1, "é"]}, "json")
        self.request(7, "shop.add", {"a": 1, "b": 2}, requestId="another")
        self.request(8, "shop.add", {"a": 1, "b": 2}, operationId=3)
        self.request(9, "shop.missing", {})
        self.request(10, "math.count", {"to": 3})
        self.request(11, "shop.add", {"a": 1, "b": 2}, deadline=1)
        self.request(12, "shop.add", None)
        self.request(13, "shop.add", {"a": 1, "b": 2}, identity={"id": "root"})
        await until(lambda: len(self.messages) >= 16)
        self.request(1, "shop.add", {"a": 1, "b": 2})
        self.request(14, "slow.sleep", {})
        self.request(14, "slow.sleep", {})
        await until(self.sleeper.started.is_set)
        request_id = f"{self.spoke.peer}-{14:032x}"
        self.send("call.aborted", request_id, "", {"requestId": request_id})
        await until(self.sleeper.cancelled.is_set)
        await until(lambda: not self.handler.in_flight)
        counters = [self.hub.counters.to_dict(), self.handler.counters.to_dict()]
        # A worker sends `call.accepted` if a call takes longer than 0.1 s.
        responses = sorted(self.plain(each) for each in self.messages if each["type"] != "call.accepted")
        return [responses, counters, sorted(map(str, self.routes.seen))]

    def plain(self, message: dict[str, Any]) -> str:
        """Return a message as text, without the random and timed parts."""
        text = re.sub(r"'(timestamp|workerTime)': \d+", r"'\1': 0", str(message)).replace(self.spoke.peer, "peer")
        text = re.sub(r"\bs\d+-[0-9a-f]{32}", "request", text)
        return text.replace(self.handler.worker_id, "worker")


DEADLINE = 4_000_000_000_000


async def play(token: str, wrap: Callable[[Transport], Transport]) -> list[Any]:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token=token) as spoke:
        scene = Scene(hub, spoke, wrap(hub.transport()), Sleeper())
        try:
            return await scene.outcome()
        finally:
            await scene.handler.close()


@pytest.mark.parametrize("token", ["ada", "bob"])
async def test_a_worker_in_the_process_of_the_hub_responds_as_one_that_gets_encoded_messages(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    accept = Endpoint._accept

    def note(self: Endpoint, header: Any, codec: Any, arrival: Any) -> None:
        decoded.append(header.to)
        accept(self, header, codec, arrival)

    monkeypatch.setattr(Endpoint, "_accept", note)
    encoded = await play(token, TransportWrapper)
    assert decoded == []
    assert await play(token, lambda transport: transport) == encoded
    assert {"shop.echo", "shop.add", "math.count", "slow.sleep"} <= set(decoded)


async def test_a_wrapper_and_a_second_listener_see_every_message() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada") as spoke:
        inner = hub.transport()
        assert isinstance(inner.optional(InRouterProcess), type(inner))
        assert RecordingTransport(inner).optional(InRouterProcess) is None
        handler, pending = CallHandler(OperationRegistry([add]), inner), PendingRequestMap(spoke)
        received: list[bytes] = []
        assert (await pending.call("shop.add", {"a": 1, "b": 2}, wait=True)).data == 3
        stop = inner.listen("", lambda message, _: received.append(message))
        assert (await pending.call("shop.add", {"a": 1, "b": 2})).data == 3
        assert [read_event(message)["to"] for message in received] == ["shop.add"]
        stop()
        assert (await pending.call("shop.add", {"a": 1, "b": 2})).data == 3
        assert len(received) == 1
        await handler.close()


async def test_the_limits_of_a_caller_apply_to_responses_from_the_process_of_the_hub() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada", max_payload=4_000) as spoke:
        transport = hub.transport()

        @operation(id="shop.repeat", type="query")
        async def repeat(times: int) -> str:
            return "x" * times

        handler = CallHandler(OperationRegistry([repeat]), transport)
        pending = PendingRequestMap(spoke)
        assert (await pending.call("shop.repeat", {"times": 3}, wait=True)).data == "xxx"
        results = await asyncio.gather(pending.call("shop.repeat", {"times": 9_000}), return_exceptions=True)
        assert isinstance(results[0], CallError)
        assert results[0].details["executed"] == "yes"
        await until(lambda: not hub.counters.in_flight)
        await handler.close()


async def test_the_begin_of_a_call_is_observed_before_its_end() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada") as spoke:
        scene = Scene(hub, spoke, hub.transport(), Sleeper())
        try:
            await PendingRequestMap(spoke).call("shop.add", {"a": 1, "b": 2})
            assert [kind for kind, *_ in scene.routes.seen] == ["began", "ended"]
        finally:
            await scene.handler.close()


async def test_a_response_to_an_ended_call_from_the_process_of_the_hub_is_late() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada") as spoke:
        scene = Scene(hub, spoke, hub.transport(), Sleeper())
        try:
            scene.request(1, "slow.sleep", {})
            await until(scene.sleeper.started.is_set)
            call = next(call for session in hub.router.sessions.values() for call in session.running.values())
            assert hub.router.cancel(call, "cancelled by the console")
            hub.router.respond(call, b"late")
            assert hub.counters.late == 1
            await until(lambda: [each["type"] for each in scene.messages][-1:] == ["call.error"])
        finally:
            await scene.handler.close()


async def test_a_worker_in_the_process_of_the_hub_never_gets_the_identity_that_a_spoke_claims() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada") as spoke:
        transport = hub.transport()
        seen: list[bytes] = []

        def identify(event: CallRequested) -> Identity | None:
            seen.append(bytes(event.identity))
            return None

        handler = CallHandler(OperationRegistry([add]), transport, identify=identify)
        messages: list[dict[str, Any]] = []
        spoke.listen("", lambda message, _: messages.append(read_event(message)))
        request_id = f"{spoke.peer}-{1:032x}"
        payload: Any = {"requestId": request_id, "operationId": "shop.add", "input": {"a": 1, "b": 2}}
        event: Any = {"v": 1, "type": "call.requested", "id": request_id, "to": "shop.add", "payload": payload}
        spoke.send("", CODECS["msgpack"].encode({**event, "identity": {"id": "root", "scopes": ["*"]}}))  # type: ignore[arg-type]
        await until(lambda: bool(messages))
        assert messages[0]["type"] == "call.responded"
        assert seen == [b"null"]
        assert hub.counters.forged == 1
        await handler.close()


async def test_a_hub_keeps_no_second_in_which_no_call_expires() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="ada") as spoke:
        handler = CallHandler(OperationRegistry([add]), hub.transport())
        pending, expiring = PendingRequestMap(spoke), hub.router._expiring
        await pending.call("shop.add", {"a": 1, "b": 2}, deadline=DEADLINE, wait=True)
        assert not any(expiring.values())
        await until(lambda: not expiring)
        await handler.close()
