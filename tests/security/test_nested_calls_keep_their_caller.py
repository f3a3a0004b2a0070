"""Guarantee: a nested call has its caller's identity, at any depth and time; a worker's own rights need `as_worker`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.testing import error_of, stub_operation
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

SECRET = AccessControl(required_scopes=["secret"])


class Vault:
    """Operations that need a scope, and a record of their callers."""

    def __init__(self) -> None:
        self.callers: list[str | None] = []

        @operation(id="vault.read", type="query", access_control=SECRET)
        async def read(context: OperationContext) -> str:
            self.note(context)
            return "the secret"

        @operation(id="vault.look", type="query")
        async def look(context: OperationContext) -> str | None:
            self.note(context)
            return self.callers[-1]

        self.operations = [read, look]

    def note(self, context: OperationContext) -> None:
        self.callers.append(context.identity.id if context.identity is not None else None)


class Desk:
    """A worker with every right, and what its handlers do."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.errors: list[CallError] = []

        @operation(id="desk.outer", type="query")
        async def outer(target: str, context: OperationContext) -> Any:
            return (await context.env["desk"]["inner"](target=target)).data

        @operation(id="desk.inner", type="query")
        async def inner(target: str, context: OperationContext) -> Any:
            return (await context.env["desk"]["innermost"](target=target)).data

        @operation(id="desk.innermost", type="query")
        async def innermost(target: str, context: OperationContext) -> Any:
            return (await context.env["vault"][target]()).data

        @operation(id="desk.tidy", type="query")
        async def tidy(target: str, context: OperationContext) -> None:
            try:
                self.started.set()
                await asyncio.Event().wait()
            finally:
                try:
                    await context.env["vault"][target]()
                except CallError as error:
                    self.errors.append(error)
                self.ended.set()

        self.operations = [outer, inner, innermost, tidy]


class Scene:
    def __init__(self, hub: Hub, vault: Vault, desk: Desk, worker: CallHandler) -> None:
        self.hub = hub
        self.vault = vault
        self.desk = desk
        self.worker = worker


@contextlib.asynccontextmanager
async def set_up(*, speaks_for_callers: bool = True, closing_seconds: float = 1.0) -> AsyncIterator[Scene]:
    tokens = StaticTokens(
        {
            "caller": Principal(Identity("caller")),
            "desk": Principal(Identity("desk", ("secret",)), ("desk",), speaks_for_callers=speaks_for_callers),
            "vault": Principal(Identity("vault"), ("vault",)),
        }
    )
    vault, desk = Vault(), Desk()
    async with (
        Hub(tokens, closing_seconds=closing_seconds) as hub,
        Spoke(hub.url, token="vault") as first,
        Spoke(hub.url, token="desk") as second,
        contextlib.AsyncExitStack() as stack,
    ):
        for spoke, operations in ((first, vault.operations), (second, desk.operations)):
            worker = CallHandler(OperationRegistry(operations), spoke)
            stack.push_async_callback(worker.close)
            await worker.registered()
        yield Scene(hub, vault, desk, worker)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with set_up() as scene:
        yield scene


@pytest.mark.parametrize("depth", ["outer", "inner", "innermost"])
@pytest.mark.parametrize("speaks_for_callers", [True, False])
async def test_a_caller_without_a_right_does_not_get_it_through_a_worker(depth: str, speaks_for_callers: bool) -> None:
    async with set_up(speaks_for_callers=speaks_for_callers) as scene, Spoke(scene.hub.url, token="caller") as spoke:
        pending = PendingRequestMap(spoke)
        error = await error_of(pending.call(f"desk.{depth}", {"target": "read"}))
        assert error.code is ErrorCode.ACCESS_DENIED
        assert scene.vault.callers == []
        expected = "caller" if speaks_for_callers else "desk"
        assert (await pending.call(f"desk.{depth}", {"target": "look"})).data == expected


async def request_and_abort(peer: RawPeer, number: int) -> None:
    """A request and its abort in one write."""
    request_id = f"request-{number}"
    payload = {"requestId": request_id, "operationId": "desk.outer", "input": {"target": "look"}}
    peer.send_event("call.requested", payload, id=request_id, to="desk.outer")
    peer.send_event("call.aborted", {"requestId": request_id}, id=request_id)


@pytest.mark.parametrize("closing_seconds", [0.0, 1.0])
async def test_a_request_that_is_aborted_in_the_same_write_gives_no_rights(closing_seconds: float) -> None:
    async with set_up(closing_seconds=closing_seconds) as scene:
        peer = await RawPeer.join(scene.hub.port, "caller")
        for number in range(20):
            await request_and_abort(peer, number)
        async with Spoke(scene.hub.url, token="caller") as spoke:
            for _ in range(20):
                assert (await PendingRequestMap(spoke).call("desk.outer", {"target": "look"})).data == "caller"
        await until(lambda: scene.worker.in_flight == 0)
        assert set(scene.vault.callers) == {"caller"}
        await peer.close()


@pytest.mark.parametrize("way", ["abort", "cut"])
@pytest.mark.parametrize("target", ["look", "read"])
async def test_clean_up_after_an_abort_is_the_callers(scene: Scene, way: str, target: str) -> None:
    async with Spoke(scene.hub.url, token="caller", shortest_delay=30) as spoke:
        call = asyncio.create_task(PendingRequestMap(spoke).call("desk.tidy", {"target": target}))
        await scene.desk.started.wait()
        if way == "abort":
            call.cancel()
        else:
            spoke.drop_connection()
        async with asyncio.timeout(10):
            await scene.desk.ended.wait()
        await asyncio.gather(call, return_exceptions=True)
    assert scene.vault.callers == (["caller"] if target == "look" else [])
    assert [error.code for error in scene.desk.errors] == ([] if target == "look" else [ErrorCode.ACCESS_DENIED])


async def test_clean_up_calls_are_refused_if_the_hub_allows_no_time_for_them() -> None:
    async with set_up(closing_seconds=0.0) as scene, Spoke(scene.hub.url, token="caller") as spoke:
        call = asyncio.create_task(PendingRequestMap(spoke).call("desk.tidy", {"target": "look"}))
        await scene.desk.started.wait()
        call.cancel()
        async with asyncio.timeout(10):
            await scene.desk.ended.wait()
        await asyncio.gather(call, return_exceptions=True)
        assert scene.vault.callers == []
        assert [error.details["reason"] for error in scene.desk.errors] == ["GRANT_ENDED"]


async def test_a_worker_calls_with_its_own_rights_only_on_request(scene: Scene) -> None:
    error = await error_of(scene.worker.pending.call("vault.read"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "GRANT_REQUIRED")
    assert error.details["executed"] == "no"
    assert "as_worker=True" in error.message
    assert (await scene.worker.pending.call("vault.read", as_worker=True)).data == "the secret"
    assert scene.vault.callers == ["desk"]


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_worker_that_reconnects_needs_as_worker_for_calls_that_waited(scene: Scene, has_left: bool) -> None:
    spoke = scene.worker.transport
    assert isinstance(spoke, Spoke)
    lost = asyncio.Event()
    stop = spoke.watch(lambda: None, lambda reason: lost.set())
    spoke.drop_connection()
    await lost.wait()
    stop()
    if has_left:
        await scene.worker.close()
    error = await error_of(scene.worker.pending.call("vault.read", wait=True))
    assert error.details["reason"] == "GRANT_REQUIRED"
    assert scene.vault.callers == []


async def test_a_worker_whose_operations_are_rejected_still_needs_a_grant(scene: Scene) -> None:
    async with Spoke(scene.hub.url, token="desk") as spoke:
        second = CallHandler(OperationRegistry(scene.desk.operations), spoke)
        assert (await error_of(second.registered())).code is ErrorCode.ACCESS_DENIED
        assert (await error_of(second.pending.call("vault.read"))).details["reason"] == "GRANT_REQUIRED"
        await second.close()
    assert scene.vault.callers == []


def spec(namespace: str, name: str) -> dict[str, Any]:
    return stub_operation(f"{namespace}.{name}").spec.to_dict()


class RawWorker:
    """A worker that sends any grant and identity."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self._number = 0

    @classmethod
    async def join(cls, hub: Hub) -> RawWorker:
        name = "w" * 32
        peer = await RawPeer.join(hub.port, "desk", name)
        announced = {"workerId": f"{name}.1", "generation": 1, "operations": [spec("desk", "raw")]}
        peer.send_event("worker.announced", announced, namespaces=["desk"])
        registered = await peer.read_event()
        assert registered["payload"]["accepted"] == ["desk.raw"]
        return cls(peer)

    async def call(self, operation_id: str, **outside: Any) -> dict[str, Any]:
        """Return the outcome of a call with these header fields."""
        self._number += 1
        request_id = f"nested-{self._number}"
        payload = {"requestId": request_id, "operationId": operation_id, "input": {}}
        self.peer.send_event("call.requested", payload, id=request_id, to=operation_id, **outside)
        while (event := await self.peer.read_event())["id"] != request_id:
            pass
        found: dict[str, Any] = event["payload"]
        return found


@pytest.fixture
async def raw(scene: Scene) -> AsyncIterator[RawWorker]:
    worker = await RawWorker.join(scene.hub)
    yield worker
    await worker.peer.close()


def reason_of(payload: dict[str, Any]) -> str:
    assert payload["code"] == "ACCESS_DENIED"
    assert payload["details"]["executed"] == "no"
    return str(payload["details"]["reason"])


async def test_a_grant_is_valid_for_one_worker_and_one_request(scene: Scene, raw: RawWorker) -> None:
    async with Spoke(scene.hub.url, token="caller") as spoke:
        call = asyncio.create_task(PendingRequestMap(spoke).call("desk.raw"))
        request = await raw.peer.read_event()
        grant = request["grant"]
        assert request["identity"] == {"id": "caller"}
        assert (await raw.call("vault.look", grant=grant))["output"]["data"] == "caller"
        # An identity, a parent id or `asWorker` beside the grant has no effect.
        claims = {"identity": {"id": "root", "scopes": ["secret"]}, "asWorker": True, "parent": "anything"}
        assert (await raw.call("vault.look", grant=grant, **claims))["output"]["data"] == "caller"
        assert reason_of(await raw.call("vault.look", grant="0" * 32)) == "GRANT_ENDED"
        assert reason_of(await raw.call("vault.look", grant="")) == "GRANT_ENDED"
        assert reason_of(await raw.call("vault.look", grant=request["id"])) == "GRANT_ENDED"
        assert reason_of(await raw.call("vault.look", parent=request["id"])) == "GRANT_REQUIRED"
        # Another peer cannot use the grant.
        other = await RawPeer.join(scene.hub.port, "caller", "o" * 32)
        assert reason_of(await RawWorker(other).call("vault.look", grant=grant)) == "GRANT_ENDED"
        await other.close()
        envelope = {"data": 1, "meta": {"source": "local", "operationId": "desk.raw", "timestamp": 1}}
        answer = {"requestId": request["payload"]["requestId"], "output": envelope}
        raw.peer.send_event("call.responded", answer, id=request["id"])
        assert (await call).data == 1
        assert reason_of(await raw.call("vault.look", grant=grant)) == "GRANT_ENDED"
        assert scene.vault.callers == ["caller", "caller"]


async def test_a_grant_ends_when_its_worker_confirms_the_abort(scene: Scene, raw: RawWorker) -> None:
    async with Spoke(scene.hub.url, token="caller") as spoke:
        call = asyncio.create_task(PendingRequestMap(spoke).call("desk.raw"))
        request = await raw.peer.read_event()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        aborted = await raw.peer.read_event()
        assert (aborted["type"], aborted["id"]) == ("call.aborted", request["id"])
        assert (await raw.call("vault.look", grant=request["grant"]))["output"]["data"] == "caller"
        raw.peer.send_event("call.aborted", {"requestId": request["id"]}, id=request["id"])
        assert reason_of(await raw.call("vault.look", grant=request["grant"])) == "GRANT_ENDED"


async def test_a_nested_call_ends_no_later_than_the_request_it_belongs_to(scene: Scene, raw: RawWorker) -> None:
    peer = await RawPeer.join(scene.hub.port, "caller", "c" * 32)
    deadline = 4_000_000_000_000
    payload = {"requestId": "request-1", "operationId": "desk.raw", "deadline": deadline}
    peer.send_event("call.requested", payload, id="request-1", to="desk.raw", deadline=deadline)
    request = await raw.peer.read_event()
    assert request["deadline"] == deadline
    self_call = {"requestId": "nested", "operationId": "desk.raw"}
    for given, expected in ((None, deadline), (deadline + 1, deadline), (deadline - 1, deadline - 1)):
        outside = {"grant": request["grant"]} | ({} if given is None else {"deadline": given})
        raw.peer.send_event("call.requested", self_call, id=f"nested-{expected}-{given}", to="desk.raw", **outside)
        assert (await raw.peer.read_event())["deadline"] == expected
    await peer.close()
