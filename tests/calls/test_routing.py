"""Routing of a hub: a request has the same result at the hub's own process and at a spoke."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import AccessControl, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import CODECS, MSGPACK, codec_of
from operations.calls.hub import Hub
from operations.calls.hub.route_observer import RouteObserver
from operations.calls.hub.session import HubSession, RoutedCall
from operations.calls.hub.spoke import Spoke
from operations.errors import CallError
from operations.identity import Principal, StaticTokens
from operations.pubsub import Arrival, Receive, Stop, Transport, Undelivered
from operations.testing import stub_operation
from operations.wire import decode_json, decode_msgpack

NAMELESS = b"c" * 16 + b"-000000"
"""Placeholder for the id of a request, of the same length."""
ROOT = {"id": "root", "scopes": ["all"]}


@operation(id="hub.look", type="query")
async def look(context: OperationContext, value: Any = None) -> Any:
    identity = context.identity
    return {"who": identity and identity.id, "value": value, "parent": context.parent_request_id}


@operation(id="hub.secret", type="query", access_control=AccessControl(required_scopes=["all"]))
async def secret() -> str:
    return "42"


@operation(id="hub.count")
async def count() -> AsyncIterator[int]:
    for number in range(3):
        yield number


class Joined:
    """A spoke without a connection: its messages are routed immediately."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.peer = name * 16
        self.attachment: object | None = None
        self.capabilities = Spoke("ws://nowhere").capabilities
        self._hub = hub
        self.session = HubSession(name, Principal(Identity(name), ("*",)), lambda message: None)
        self.session.peer = self.peer
        hub.router.join(self.session)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        self._hub.router.receive(message, self.session)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        self.session.deliver = lambda message: receive(message, Arrival(""))
        return lambda: None

    def watch(self, up: Any, down: Any) -> Stop:
        return lambda: None

    def optional(self, kind: Any) -> Any:
        return None

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class Desk:
    """A hub, a worker in its process or at a spoke, a spoke that serves `shop.echo`, and a caller."""

    def __init__(self, *, own: bool = True) -> None:
        self.hub = Hub(StaticTokens({}))
        transport: Transport = self.hub.transport() if own else Joined(self.hub, "s")
        self.handler = CallHandler(OperationRegistry([look, secret, count]), transport)
        self.worker, self.forwarded = self._join("w", "*")
        self.caller, self.answers = self._join("c")
        operations = [stub_operation("shop.echo").spec.to_dict()]
        claim = {"workerId": f"{self.worker.peer}.1", "generation": 1, "operations": operations}
        self._send(self.worker, {"v": 1, "type": "worker.announced", "id": "", "to": "", "payload": claim})
        assert "shop.echo" in self.hub.operations
        self.forwarded.clear()
        self._number = 0

    def _join(self, name: str, *namespaces: str) -> tuple[HubSession, list[bytes]]:
        came: list[bytes] = []
        session = HubSession(name, Principal(Identity(name), namespaces), came.append)
        session.peer = name * 16
        self.hub.router.join(session)
        return session, came

    def _send(self, session: HubSession, event: dict[str, Any]) -> None:
        self.hub.router.receive(msgspec.json.encode(event), session)

    async def ask(self, message: bytes) -> list[Any]:
        """Return the response to a request."""
        self._number += 1
        request_id = f"{self.caller.peer}-{self._number:06x}"
        self.answers.clear()
        self.forwarded.clear()
        self.hub.router.receive(message.replace(NAMELESS, request_id.encode()), self.caller)
        for _ in range(5):
            await asyncio.sleep(0)
        came = [answer.replace(request_id.encode(), NAMELESS) for answer in (*self.answers, *self.forwarded)]
        return [codec_of(each).name for each in came] + [_without_time(each) for each in came]


def _without_time(message: bytes) -> Any:
    event = decode_json(message) if message[:1] == b"{" else decode_msgpack(message)
    payload = event["payload"]
    payload.pop("workerId", None)
    if event["type"] == "call.requested":
        event |= {"id": "made by the hub", "grant": bool(event["grant"])}
    if (payload.get("details") or {}).get("reason") == "UNREADABLE":
        payload.pop("requestId")  # the worker knows only the id that the hub made
    if "output" in payload:
        payload["output"]["meta"].pop("timestamp")
    elif isinstance(payload.get("details"), dict):
        payload["details"].pop("workerTime", None)
    return event


def request(to: str = "hub.look", outside: dict[str, Any] | None = None, **inside: Any) -> dict[str, Any]:
    request_id = NAMELESS.decode()
    payload = {"requestId": request_id, "operationId": to, "input": {}} | inside
    return {"v": 1, "type": "call.requested", "id": request_id, "to": to, "payload": payload} | (outside or {})


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": request(input={"value": [1, {"a": None}]}),
    "marked bytes": request(input={"value": {"$bytes": "AAE="}}),
    "what only looks like a mark": request(input={"value": {"$$bytes": "AAE="}}),
    "a dollar and a backslash": request(input={"value": "$ \\ \\u0024"}),
    "a large integer": request(input={"value": 2**63}),
    "an identity outside": request(outside={"identity": ROOT}),
    "an identity inside": request(identity=ROOT),
    "an identity for a secret": request("hub.secret", {"identity": ROOT}, identity=ROOT),
    "an identity with marks": request(outside={"identity": ROOT | {"claims": {"$bytes": "AAE="}}}),
    "an identity that is none": request(outside={"identity": 5}),
    "an identity inside that is none": request(identity=5),
    "a parent": request(outside={"parent": "w-1"}, parentRequestId="w-1"),
    "a parent that is none": request(outside={"parent": 5}),
    "a stream": request("hub.count", {"stream": True}),
    "a call of a stream": request("hub.count"),
    "a stream of a call": request("hub.look", {"stream": True}),
    "a deadline that passed": request(deadline=1),
    "a deadline that is none": request(deadline="soon"),
    "another id inside": request(requestId="other"),
    "no input": request(input=None),
    "a payload that is none": request(outside={"payload": 3}),
    "an input that does not fit": request("hub.secret", input=[1]),
    "no such operation": request("hub.nothing"),
    "nobody": request("nobody.there"),
    "another's": request("shop.echo", input={"value": {"$bytes": "AAE="}}),
    "another's with an identity": request("shop.echo", {"identity": ROOT}),
    "another type": request(outside={"type": "call.credit"}),
    "an unknown member": request(outside={"later": 1}, later=2),
}


@pytest.mark.parametrize("only", [None, *CODECS])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_has_the_same_result_in_the_hubs_process_and_at_a_spoke(name: str, only: str | None) -> None:
    desks = [Desk(own=True), Desk(own=False)]
    for desk in desks:
        desk.caller.codec = desk.worker.codec = CODECS[only] if only is not None else None
    event = REQUESTS[name]
    spelled = msgspec.json.encode(event)
    messages = [
        spelled,
        spelled.replace(b"$", b"\\u0024"),
        spelled.replace(b'{"v":1,', b'{"v":1,"type":"call.aborted",'),
        spelled[:-1] + b',"v":1}',
        b" " + spelled,
        spelled[:-1],
        MSGPACK.encode(event),  # type: ignore[arg-type]
    ]
    for message in messages:
        outcomes = []
        for desk in desks:
            counters = desk.hub.counters, desk.handler.counters
            before = [counted.to_dict() for counted in counters]
            came = await desk.ask(message)
            after = [counted.to_dict() for counted in counters]
            outcomes.append(
                (came, [{key: now[key] - was[key] for key in now} for now, was in zip(after, before, strict=True)])
            )
        assert outcomes[0] == outcomes[1]
    for desk in desks:
        await desk.handler.close()


async def test_forwarded_requests_differ_only_in_id_identity_and_grant() -> None:
    desk = Desk()
    inside = b'{"requestId":"%b","operationId":"shop.echo", "input" : {"a":1.50,"b":"\\u00e9"},"odd":[ ]}' % (
        b"c" * 16 + b"-1"
    )
    message = b'{"v":1,"type":"call.requested","id":"%b","to":"shop.echo","payload":%b}' % (b"c" * 16 + b"-1", inside)
    desk.hub.router.receive(message, desk.caller)
    (forwarded,) = desk.forwarded
    sent = msgspec.json.decode(forwarded)
    expected = message.replace(b'"id":"' + b"c" * 16 + b"-1", b'"id":"' + sent["id"].encode())
    assert forwarded == expected[:-1] + b',"identity":{"id":"c"},"grant":"%b"}' % sent["grant"].encode()
    assert re.fullmatch("c-[0-9a-f]{32}", sent["id"])
    assert re.fullmatch("[0-9a-f]{33}", sent["grant"])
    await desk.handler.close()


class Watcher(RouteObserver):
    """Notes what a hub reports."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []

    def ended(self, call: RoutedCall, code: str) -> None:
        self.noted.append((call.operation_id, code))

    def refused(self, session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        self.noted.append((operation_id, code))


async def test_every_observer_of_a_hub_is_notified_of_the_end_of_each_call() -> None:
    hub = Hub(StaticTokens({}))
    watchers = Watcher(), Watcher()
    hub.router.observers = watchers
    handler = CallHandler(OperationRegistry([look, secret, count]), hub.transport())
    pending = PendingRequestMap(Joined(hub, "c"))
    await pending.call("hub.look")
    with pytest.raises(CallError):
        await pending.call("hub.secret")
    with pytest.raises(CallError):
        await pending.call("hub.unknown")
    assert [item.data async for item in pending.subscribe("hub.count")] == [0, 1, 2]
    for watcher in watchers:
        assert watcher.noted == [
            ("hub.look", "ok"),
            ("hub.secret", "ACCESS_DENIED"),
            ("hub.unknown", "OPERATION_NOT_FOUND"),
            ("hub.count", "ok"),
        ]
    await handler.close()
