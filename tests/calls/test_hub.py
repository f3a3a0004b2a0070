"""The hub's rules: tokens, namespaces, one owner per id, pooling, identities, limits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, announcements, from_call, serve_registry
from operations.calls import worker as worker_module
from operations.calls.caller import random_id
from operations.calls.codec import CODECS, JSON, codec_of
from operations.calls.endpoint import endpoint_of
from operations.calls.events import (
    VERSION,
    AbortPayload,
    CallAborted,
    CallRequested,
    CallResponded,
    RequestPayload,
    ResponsePayload,
)
from operations.calls.hub import Hub, router, server, session
from operations.calls.hub.spoke import Spoke
from operations.identity import JWTTokens, Principal, StaticTokens
from operations.pubsub import Flushes, TransportWrapper
from operations.sources.mcp import create_mcp_client
from operations.testing import RecordingTransport, error_of, stub_operation
from tests.calls.scenes import is_held_back
from tests.contracts.operations_under_test import Sleeper
from tests.http.certificates import Authority
from tests.node_peers import npm_binary
from tests.sources.mcp.peers import hostile
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "ada": Principal(Identity("ada", scopes=("read",))),
        "shop": Principal(Identity("shop", scopes=("everything",)), ("shop",)),
        "shop2": Principal(Identity("shop2"), ("shop",)),
        "deputy": Principal(Identity("deputy"), ("shop",)),
        "tools": Principal(Identity("tools"), ("s",)),
        "stranger": Principal(Identity("stranger", scopes=("everything",)), ("shop",), speaks_for_callers=False),
    }
)


class Field:
    def __init__(self, hub: Hub, stack: contextlib.AsyncExitStack) -> None:
        self.hub = hub
        self.stack = stack

    async def spoke(self, token: str, **options: Any) -> Spoke:
        return await self.stack.enter_async_context(Spoke(self.hub.url, token=token, shortest_delay=0.02, **options))

    async def worker(self, token: str, *operations: Any, **options: Any) -> CallHandler:
        handler = CallHandler(OperationRegistry(operations), await self.spoke(token), **options)
        self.stack.push_async_callback(handler.close)
        return handler


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    async with Hub(TOKENS) as hub, contextlib.AsyncExitStack() as stack:
        yield Field(hub, stack)


def session_of(hub: Hub, spoke: Any) -> session.HubSession:
    (joined,) = [each for each in hub.router.sessions.values() if each.peer == spoke.peer]
    return joined


@pytest.mark.parametrize("token", [None, "", "wrong"])
async def test_a_connection_without_a_valid_token_is_refused_during_the_handshake(
    field: Field, token: str | None
) -> None:
    with pytest.raises(CallError) as caught:
        async with Spoke(field.hub.url, token=token):
            pass
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    assert caught.value.details["status"] == 401
    assert field.hub.connected == []


@pytest.mark.fault(34, on="websocket")
async def test_a_spoke_cannot_register_outside_its_namespace(field: Field) -> None:
    handler = await field.worker(
        "shop", stub_operation("shop.price"), stub_operation("bank.pay"), stub_operation("shops.x")
    )
    await until(lambda: bool(handler.rejected))
    assert field.hub.operations == ["shop.price"]
    assert "may not register in the namespace 'bank'" in handler.rejected["bank.pay"]
    assert handler.rejected.keys() == {"bank.pay", "shops.x"}
    assert field.hub.counters.rejected == 2


@pytest.mark.fault(33, on="websocket")
@pytest.mark.parametrize("own", [True, False], ids=["in the hub", "at a spoke"])
async def test_a_leaving_worker_waits_for_the_hubs_confirmation(
    field: Field, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_ACKNOWLEDGED_WITHIN", 60.0)
    transport = field.hub.transport() if own else await field.spoke("shop")
    handler = CallHandler(OperationRegistry([stub_operation("shop.price", returns=1)]), transport)
    await until(lambda: field.hub.operations == ["shop.price"])
    async with asyncio.timeout(20):
        await handler.drain()
    assert field.hub.operations == []


@pytest.mark.parametrize("lost", ["hub", "bus"])
async def test_a_worker_drains_within_its_grace_if_the_hub_or_bus_is_lost(
    field: Field, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_ACKNOWLEDGED_WITHIN", 600.0)
    monkeypatch.setattr(worker_module, "_FLUSHED_WITHIN", 600.0)
    spoke = await field.spoke("shop")
    handler = CallHandler(OperationRegistry([stub_operation("shop.price")]), NeverFlushes(spoke, lost == "bus"))
    await handler.registered()
    if lost == "hub":
        await field.hub.close()
    async with asyncio.timeout(20):
        await handler.drain(grace=0.05)


class NeverFlushes(TransportWrapper):
    """A bus whose server does not respond, if `flushes`."""

    def __init__(self, inner: Any, flushes: bool) -> None:
        super().__init__(inner)
        self._flushes = flushes

    def optional(self, kind: type[Any]) -> Any:
        return self if kind is Flushes and self._flushes else super().optional(kind)

    async def flush(self) -> None:
        await asyncio.Event().wait()


async def test_a_second_spoke_is_refused_an_id_and_gets_it_when_the_first_leaves(field: Field) -> None:
    first = await field.worker("shop", stub_operation("shop.price", returns=1))
    await until(lambda: field.hub.operations == ["shop.price"])
    second = await field.worker("shop2", stub_operation("shop.price", returns=2))
    await until(lambda: bool(second.rejected))
    assert "another spoke has registered it" in second.rejected["shop.price"]
    pending = PendingRequestMap(await field.spoke("ada"))
    assert (await pending.call("shop.price")).data == 1
    await first.drain()
    await until(lambda: not second.rejected)
    assert (await pending.call("shop.price")).data == 2


async def test_spokes_share_an_id_if_both_set_pool_and_have_the_same_spec(field: Field) -> None:
    await field.worker("shop", stub_operation("shop.price", returns=1), pool=True)
    await field.worker("shop2", stub_operation("shop.price", returns=2), pool=True)
    await until(
        lambda: "shop.price" in field.hub.operations and len(field.hub.router.operations["shop.price"].sessions) == 2
    )
    pending = PendingRequestMap(await field.spoke("ada"))
    assert {(await pending.call("shop.price")).data for _ in range(10)} == {1, 2}
    third = await field.worker("shop2", stub_operation("shop.price", description="other"), pool=True)
    await until(lambda: bool(third.rejected))
    assert "different spec" in third.rejected["shop.price"]


async def test_calls_go_both_ways_and_between_spokes(field: Field) -> None:
    hub_end = field.hub.transport()
    own = CallHandler(OperationRegistry([stub_operation("hub.time", returns="now")]), hub_end)
    await field.worker("shop", stub_operation("shop.price", returns=5))
    await until(lambda: field.hub.operations == ["hub.time", "shop.price"])
    assert (await PendingRequestMap(hub_end).call("shop.price")).data == 5
    ada = PendingRequestMap(await field.spoke("ada"))
    assert (await ada.call("shop.price")).data == 5
    assert (await ada.call("hub.time")).data == "now"
    await own.close()


@operation(id="shop.whoami", type="query")
async def whoami(context: OperationContext) -> Any:
    return context.identity.id if context.identity is not None else None


async def test_a_wrapped_spoke_is_a_second_endpoint_on_its_connection(field: Field) -> None:
    spoke = await field.spoke("shop")
    caller = PendingRequestMap(TransportWrapper(spoke))
    handler = CallHandler(OperationRegistry([stub_operation("shop.echo", returns=lambda input: input)]), spoke)
    await until(lambda: field.hub.operations == ["shop.echo"])
    assert (await caller.call("shop.echo", {"a": 1}, as_worker=True)).data == {"a": 1}
    assert (await PendingRequestMap(await field.spoke("ada")).call("shop.echo", {"a": 2})).data == {"a": 2}
    for counters in (caller.counters, handler.counters, field.hub.counters):
        assert str(counters) == "<counters all 0>"
    await handler.close()


@pytest.mark.fault(34, on="websocket")
async def test_an_identity_claimed_by_a_spoke_is_never_accepted(field: Field) -> None:
    handler = await field.worker("shop", whoami)
    await until(lambda: field.hub.operations == ["shop.whoami"])
    spoke = await field.spoke("ada")
    pending = PendingRequestMap(spoke)
    with pytest.raises(CallError, match="identity= is not possible"):
        await pending.call("shop.whoami", identity=Identity("root"))
    endpoint = endpoint_of(spoke)
    answers: list[Any] = []

    class Catch:
        def responded(self, event: CallResponded, codec: Any, size: int) -> None:
            answers.append(codec.read_envelope(event.payload.output).data)

    request_id = random_id(endpoint.peer)
    endpoint.pending[request_id] = Catch()  # type: ignore[assignment]
    forged = Identity("root", scopes=("everything",))
    payload = RequestPayload(request_id, "shop.whoami", identity=forged)
    spoke.send("", JSON.encode(CallRequested(VERSION, request_id, "shop.whoami", payload, JSON.write_identity(forged))))
    await until(lambda: answers == ["ada"])
    assert field.hub.counters.forged == 1
    assert handler.counters.forged == 1
    del endpoint.pending[request_id]


async def test_the_hubs_own_peer_may_call_with_any_identity(field: Field) -> None:
    await field.worker("shop", whoami)
    await until(lambda: field.hub.operations == ["shop.whoami"])
    pending = PendingRequestMap(field.hub.transport())
    assert (await pending.call("shop.whoami", identity=Identity("bob"))).data == "bob"
    assert (await pending.call("shop.whoami")).data is None


async def test_a_worker_acts_for_its_caller_only_while_it_runs_the_request(field: Field) -> None:
    secret = stub_operation("vault.open", returns="open", access_control=AccessControl(required_scopes=["read"]))
    own = CallHandler(OperationRegistry([secret]), field.hub.transport())
    parents: list[str] = []

    @operation(id="shop.fetch", type="query")
    async def fetch(context: OperationContext) -> Any:
        parents.append(context.request_id)
        return (await context.env["vault"]["open"]()).data

    worker = await field.worker("deputy", fetch)
    await until(lambda: field.hub.operations == ["shop.fetch", "vault.open"])
    ada = PendingRequestMap(await field.spoke("ada"))
    assert (await ada.call("shop.fetch")).data == "open"
    # Outside the request it has only its own rights, and only with as_worker; a parent id gives none.
    error = await error_of(worker.pending.call("vault.open", parent_request_id=parents[0]))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "GRANT_REQUIRED")
    error = await error_of(worker.pending.call("vault.open", parent_request_id=parents[0], as_worker=True))
    assert error.code is ErrorCode.ACCESS_DENIED
    assert error.message.startswith("'deputy' may not call")
    await own.close()


async def test_a_worker_that_is_not_trusted_gains_nothing_from_its_caller_nor_its_caller_from_it(
    field: Field,
) -> None:
    reads = stub_operation("vault.read", access_control=AccessControl(required_scopes=["read"]))
    everything = stub_operation("vault.empty", access_control=AccessControl(required_scopes=["everything"]))

    @operation(id="vault.whoami", type="query")
    async def in_the_vault(context: OperationContext) -> Any:
        assert context.identity is not None
        return [context.identity.id, list(context.identity.scopes), context.identity.claims]

    own = CallHandler(OperationRegistry([reads, everything, in_the_vault]), field.hub.transport())

    @operation(id="shop.try", type="query")
    async def attempt(name: str, context: OperationContext) -> Any:
        return (await context.env["vault"][name]()).data

    await field.worker("stranger", attempt)
    await until(lambda: "shop.try" in field.hub.operations)
    ada = PendingRequestMap(await field.spoke("ada"))
    for name in ("read", "empty"):
        error = await error_of(ada.call("shop.try", {"name": name}))
        assert error.code is ErrorCode.ACCESS_DENIED
        assert error.message.startswith("'stranger' may not call")
    # Its nested calls have its own identity also if the operation requires no scope.
    assert (await ada.call("shop.try", {"name": "whoami"})).data == ["stranger", [], {"onBehalfOf": "ada"}]
    await own.close()


def test_nested_calls_have_the_shared_rights_of_worker_and_caller() -> None:
    caller = Identity("ada", ["read", "buy"], {"file:1": ["read", "write"], "file:2": ["read"]})
    own = Identity("shop", ["buy", "sell"], {"file:1": ["write", "delete"], "file:3": ["read"]})
    worker = Principal(own, speaks_for_callers=False)
    shared = worker.identity_for(caller)
    assert shared == Identity("shop", ["buy"], {"file:1": ["write"]}, {"onBehalfOf": "ada"})
    assert worker.identity_for(None) is None


async def test_responses_to_requests_of_other_peers_are_refused_and_counted(
    field: Field,
) -> None:
    sleeper = Sleeper("shop.sleep")
    await field.worker("shop", sleeper.operation)
    await until(lambda: field.hub.operations == ["shop.sleep"])
    ada, mallory = await field.spoke("ada"), await field.spoke("shop2")
    call = asyncio.create_task(PendingRequestMap(ada).call("shop.sleep"))
    await sleeper.started.wait()
    (request_id,) = endpoint_of(ada).pending
    envelope = {"data": "evil", "meta": {"source": "local", "operationId": "x", "timestamp": 1}}
    answer = ResponsePayload(request_id, JSON.raw(envelope))
    mallory.send("", JSON.encode(CallResponded(VERSION, request_id, "", answer)))
    await until(lambda: field.hub.counters.foreign == 1)
    mallory.send("", JSON.encode(CallAborted(VERSION, request_id, "", AbortPayload(request_id))))
    await until(lambda: field.hub.counters.dropped == 1)
    # A request of mallory with the same id is a separate call and does not affect ada's.
    received: list[bytes] = []
    mallory.listen("", lambda message, arrival: received.append(message))
    mallory.send(
        "", JSON.encode(CallRequested(VERSION, request_id, "shop.sleep", RequestPayload(request_id, "shop.sleep")))
    )
    await until(lambda: sleeper.runs == 2)
    sleeper.let_go.set()
    assert (await call).data == "awake"
    await until(lambda: any(b"awake" in message for message in received))
    assert field.hub.counters.in_flight == 0


async def test_a_worker_cannot_be_announced_for_another_peer(field: Field) -> None:
    spoke = await field.spoke("shop")
    announced = {"workerId": "somebody.1", "generation": 1, "operations": []}
    event = {"v": 1, "type": "worker.announced", "id": "", "to": "workers", "payload": announced}
    spoke.send("", msgspec.json.encode(event))
    await until(lambda: field.hub.counters.foreign == 1)


async def steal_name(field: Field, peer: str) -> None:
    before = field.hub.counters.foreign
    thief = Spoke(field.hub.url, token="ada", shortest_delay=0.02)
    thief.peer = peer
    opening = asyncio.create_task(thief.__aenter__())
    await until(lambda: field.hub.counters.foreign > before)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)


async def test_a_name_that_another_identity_has_is_refused(field: Field) -> None:
    spoke = await field.spoke("shop")
    await steal_name(field, spoke.peer)
    assert spoke.is_up
    # The name stays reserved while its owner is disconnected: it belongs to the identity that used it first.
    await spoke.close()
    await steal_name(field, spoke.peer)
    await steal_name(field, "short")


async def test_forbidden_operations_are_not_listed(field: Field) -> None:
    await field.worker(
        "shop",
        stub_operation("shop.open"),
        stub_operation("shop.safe", access_control=AccessControl(required_scopes=["admin"])),
    )
    async with from_call(await field.spoke("ada")) as remote, asyncio.timeout(30):
        await remote.ready("shop.open")
        assert remote.ids == ["shop.open"]


async def test_a_lost_spoke_loses_its_operations_immediately_and_gets_them_back(field: Field) -> None:
    handler = await field.worker("shop", stub_operation("shop.price", returns=1))
    async with from_call(await field.spoke("ada")) as remote, asyncio.timeout(30):
        await remote.ready("shop.price")
        spoke: Any = handler.transport
        spoke.drop_connection()
        await remote.until(lambda: not remote.ids)
        await remote.ready("shop.price")
        assert (await remote.registry.execute("shop.price")).data == 1
        assert spoke.reconnects == 1


async def test_a_recorded_spoke_handles_each_message_once(field: Field) -> None:
    runs: list[object] = []
    recorder = RecordingTransport(await field.spoke("shop"))
    counted = [stub_operation(f"shop.{name}", returns=runs.append) for name in ("one", "two")]
    handler = CallHandler(OperationRegistry([*counted, stub_operation("shop.more.three")]), recorder)
    await handler.registered()
    pending = PendingRequestMap(await field.spoke("ada"))
    await pending.call("shop.one", {})
    await pending.call("shop.two", {})
    assert runs == [{}, {}]
    received = [each.message for each in recorder.messages if each.direction == "received"]
    assert len([message for message in received if b"call.requested" in message]) == 2
    assert handler.counters.duplicate == 0
    await handler.close()


async def test_a_repeated_call_that_no_worker_responds_to_reports_the_lost_worker(field: Field) -> None:
    sleeper = Sleeper("shop.sleep")
    handler = await field.worker("shop", sleeper.operation)
    caller = await field.spoke("ada")

    @operation(id="own.outer", type="query")
    async def outer(context: OperationContext) -> Any:
        return await context.env.shop.sleep()

    async with from_call(caller) as remote:
        await remote.ready("shop.sleep")
        remote.registry.register(outer)
        context = OperationContext(deadline=int(time.time() * 1000) + 3000)
        calls = [
            asyncio.create_task(error_of(PendingRequestMap(caller).call("shop.sleep", retry=True, timeout=3))),
            asyncio.create_task(error_of(remote.registry.execute("shop.sleep", context=context))),
            asyncio.create_task(error_of(remote.registry.execute("own.outer", context=context))),
        ]
        await until(lambda: sleeper.runs == 3)
        await handler.transport.close()
        *direct, nested = await asyncio.gather(*calls)
        for error in direct:
            assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "unknown")
            assert error.details["reason"] == "WORKER_LOST"
            assert error.message.startswith(
                "shop.sleep: the deadline passed after the worker or the connection was lost"
            )
        assert nested.code is ErrorCode.TIMEOUT


async def test_the_cancellation_of_a_repeated_call_stays_a_cancellation(field: Field) -> None:
    sleeper = Sleeper("shop.sleep")
    handler = await field.worker("shop", sleeper.operation)
    pending = PendingRequestMap(await field.spoke("ada"))
    call = asyncio.create_task(pending.call("shop.sleep", retry=True, timeout=60))
    await sleeper.started.wait()
    await handler.transport.close()
    await until(lambda: is_held_back(pending._transport))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.fault(17, 40, on="websocket")
async def test_payloads_over_the_limits_are_typed_errors_and_the_connection_stays_open() -> None:
    async with (
        Hub(TOKENS, max_payload=10_000) as hub,
        Spoke(hub.url, token="shop") as one,
        Spoke(hub.url, token="ada") as two,
    ):
        registry = OperationRegistry(
            [
                stub_operation("shop.big", returns="x" * 20_000),
                stub_operation("shop.size", returns=lambda input: len(input["text"])),
            ]
        )
        handler = CallHandler(registry, one)
        await until(lambda: len(hub.operations) == 2)
        pending = PendingRequestMap(two)
        request = await error_of(pending.call("shop.size", {"text": "x" * 10_000}))
        assert (request.code, request.details["reason"], request.details["executed"]) == (
            ErrorCode.VALIDATION_ERROR,
            "PAYLOAD_TOO_LARGE",
            "no",
        )
        answer = await error_of(pending.call("shop.big"))
        assert (answer.code, answer.details["reason"], answer.details["executed"]) == (
            ErrorCode.EXECUTION_ERROR,
            "PAYLOAD_TOO_LARGE",
            "yes",
        )
        assert (await pending.call("shop.size", {"text": "x" * 9_000})).data == 9_000
        assert one.reconnects == two.reconnects == 0
        await handler.close()


async def test_hub_and_spokes_use_tls_and_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(authority.issue("hub"))
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with (
        Hub(TOKENS, tls=identity) as hub,
        Spoke(hub.url, token="shop", tls=trusting) as one,
        Spoke(hub.url, token="ada", tls=trusting) as two,
        serve_registry(OperationRegistry([stub_operation("shop.price", returns=5)]), one),
    ):
        assert hub.url.startswith("wss://")
        assert (await PendingRequestMap(two).call("shop.price", wait=True)).data == 5
        with pytest.raises(CallError, match=r"its certificate is not trusted .*; to trust another authority"):
            async with Spoke(hub.url, token="ada", tls=ssl.create_default_context(cafile=str(other.path))):
                pass


BROWSER = """
const peer = crypto.randomUUID().replaceAll("-", "");
const event = (type, id, to, payload) => JSON.stringify({ v: 1, type, id, to, payload });
const socket = new WebSocket(process.argv[1], ["operations.v1", `bearer.${process.argv[2]}`]);
socket.onopen = () => socket.send(event("hub.hello", "", "", { peer, generation: 1 }));
socket.onmessage = ({ data }) => {
  const { type, payload } = JSON.parse(data);
  const id = `${peer}-1`;
  if (type === "hub.welcome")
    socket.send(event("call.requested", id, "shop.whoami", { requestId: id, operationId: "shop.whoami" }));
  else console.log(JSON.stringify(payload.output ?? payload)), socket.close();
};
"""


async def test_a_browser_calls_with_nothing_but_a_web_socket(field: Field) -> None:
    await field.worker("shop", whoami)
    await until(lambda: field.hub.operations == ["shop.whoami"])
    process = await asyncio.create_subprocess_exec(
        npm_binary("node"), "--eval", BROWSER, field.hub.url, "ada", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert msgspec.json.decode(output)["data"] == "ada"


KEY = "a key of at least thirty-two bytes!"


def token(**claims: Any) -> str:
    return jwt.encode({"sub": "ada", "exp": time.time() + 60, **claims}, KEY, algorithm="HS256")


def test_a_signed_token_gives_identity_scopes_and_namespaces() -> None:
    tokens = JWTTokens(KEY, algorithms=["HS256"])
    principal = tokens.authenticate(token(scope="a b", namespaces=["shop"], resources={"file:1": ["read"]}))
    assert principal.identity.id == "ada"
    assert principal.identity.scopes == ("a", "b")
    assert principal.identity.resources == {"file:1": ("read",)}
    assert principal.speaks_for_callers
    assert not tokens.authenticate(token(speaksForCallers=False)).speaks_for_callers
    assert principal.may_register("shop")
    assert principal.may_register("shop.sub")
    assert not principal.may_register("shopping")


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "",
        "x",
        token(exp=1),
        jwt.encode(
            {"sub": "ada", "exp": time.time() + 60}, "another key of thirty-two bytes or more", algorithm="HS256"
        ),
        jwt.encode({"sub": "ada", "exp": time.time() + 60}, "", algorithm="none"),
        jwt.encode({"sub": "ada"}, KEY, algorithm="HS256"),
    ],
    ids=["none", "empty", "no token", "expired", "another key", "unsigned", "without an end"],
)
def test_other_signed_tokens_are_refused(bad: str | None) -> None:
    with pytest.raises(CallError) as caught:
        JWTTokens(KEY, algorithms=["HS256"]).authenticate(bad)
    assert caught.value.code is ErrorCode.ACCESS_DENIED


@pytest.mark.fault(35, on="websocket")
async def test_a_token_that_expires_ends_the_connection_and_a_new_one_is_asked_for() -> None:
    made = 0

    def fresh() -> str:
        nonlocal made
        made += 1
        return token(exp=time.time() + (0.2 if made == 1 else 60), namespaces=["shop"])

    sleeper = Sleeper("shop.sleep")
    async with (
        Hub(JWTTokens(KEY, algorithms=["HS256"], leeway=1)) as hub,
        Spoke(hub.url, token=fresh, shortest_delay=0.02) as spoke,
    ):
        handler = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await until(lambda: hub.operations == ["shop.sleep"])
        call = PendingRequestMap(hub.transport()).call("shop.sleep")
        error = await error_of(call)
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
        await until(lambda: made == 2 and hub.operations == ["shop.sleep"])
        await handler.close()


async def test_a_spoke_with_an_expired_token_reports_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[str] = []
    tokens = JWTTokens(KEY, algorithms=["HS256"], leeway=1)
    async with Hub(tokens) as hub, Spoke(hub.url, token=token(exp=time.time() + 1.2), shortest_delay=0.02) as spoke:
        spoke.watch(lambda: None, lost.append)
        await until(lambda: spoke.failures > 2)
        error = await error_of(PendingRequestMap(spoke).call("shop.sleep"))
    assert lost == ["closed by the peer: the token expired"]
    assert error.code is ErrorCode.UNAVAILABLE
    assert "expired" in error.message
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_a_token_is_accepted_for_the_leeway_after_its_end() -> None:
    tokens = JWTTokens(KEY, algorithms=["HS256"], leeway=60)
    async with Hub(tokens) as hub, Spoke(hub.url, token=token(exp=time.time() - 1)) as spoke:
        assert (await error_of(PendingRequestMap(spoke).call("shop.sleep"))).details["executed"] == "no"
        assert spoke.is_up


@pytest.mark.parametrize("odd", ["s3cret\n", "schl\u00fcssel"])
async def test_a_token_that_no_header_can_contain_is_an_error_immediately_and_never_logged(
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Hub(TOKENS) as hub:
        with pytest.raises(CallError, match="line break") as caught:
            async with Spoke(hub.url, token=odd):
                pass
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    assert odd.strip() not in caught.value.message + caplog.text


@pytest.mark.parametrize(("key", "algorithms"), [(KEY, "HS256"), (KEY, []), ("", ["HS256"])])
def test_settings_that_would_refuse_every_token_are_refused_themselves(key: str, algorithms: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid algorithms|key that verifies"):
        JWTTokens(key, algorithms=algorithms)


async def test_a_json_only_peer_gets_json_from_a_messagepack_caller(field: Field) -> None:
    handler = await field.worker("shop", stub_operation("shop.echo", returns=lambda input: input))
    await until(lambda: field.hub.operations == ["shop.echo"])
    joined = session_of(field.hub, handler.transport)
    joined.codec = JSON
    pending = PendingRequestMap(await field.spoke("ada"), codec="msgpack")
    assert (await pending.call("shop.echo", {"file": b"\x00\x01"})).data == {"file": b"\x00\x01"}
    assert handler.counters.malformed == 0


@pytest.mark.parametrize("reads", [("json", "msgpack"), ("json",)])
async def test_requests_are_messagepack_if_the_hub_supports_it(
    field: Field, monkeypatch: pytest.MonkeyPatch, reads: tuple[str, ...]
) -> None:
    monkeypatch.setattr(server, "CODECS", {name: CODECS[name] for name in reads})
    await field.worker("shop", stub_operation("shop.echo", returns=lambda input: input))
    await until(lambda: field.hub.operations == ["shop.echo"])
    spoke = await field.spoke("ada")
    sent: list[bytes] = []
    send = spoke.send

    def note(address: str, message: bytes, undelivered: Any = None) -> None:
        sent.append(message)
        send(address, message, undelivered)

    monkeypatch.setattr(spoke, "send", note)
    for pending in (PendingRequestMap(spoke), PendingRequestMap(spoke, codec="json")):
        assert (await pending.call("shop.echo", {"a": [1.5, b"b"]})).data == {"a": [1.5, b"b"]}
    assert [codec_of(message) for message in sent] == [CODECS[reads[-1]], JSON]


class Careless:
    """A spoke that sends values that JSON cannot express."""

    def __init__(self, spoke: Spoke) -> None:
        self._spoke = spoke

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spoke, name)

    def send(self, address: str, message: bytes, undelivered: Any = None) -> None:
        half, nan = msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(math.nan)
        self._spoke.send(address, message.replace(half, nan), undelivered)


async def test_a_value_that_the_worker_cannot_receive_is_refused_immediately(field: Field) -> None:
    handler = await field.worker("shop", stub_operation("shop.echo", returns=lambda input: input))
    await until(lambda: field.hub.operations == ["shop.echo"])
    joined = session_of(field.hub, handler.transport)
    joined.codec = JSON
    pending = PendingRequestMap(Careless(await field.spoke("ada")))
    error = await error_of(pending.call("shop.echo", {"a": 0.5}))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert error.details == {"operationId": "shop.echo", "reason": "UNTRANSLATABLE", "executed": "no"}
    assert "shop.echo: the request cannot be encoded: /input/a: JSON has no number nan" in error.message
    assert handler.in_flight == field.hub.counters.in_flight == 0


async def test_a_value_that_the_caller_cannot_receive_fails_its_call_immediately(field: Field) -> None:
    @operation(id="shop.count", type="subscription")
    async def count() -> AsyncIterator[Any]:
        yield 1
        yield 0.5
        yield 3

    operations = stub_operation("shop.get", returns=lambda input: {"a": 0.5}), count
    careless: Any = Careless(await field.spoke("shop"))
    handler = CallHandler(OperationRegistry(operations), careless)
    field.stack.push_async_callback(handler.close)
    await until(lambda: len(field.hub.operations) == 2)
    caller = await field.spoke("ada")
    joined = session_of(field.hub, caller)
    joined.codec = JSON
    pending = PendingRequestMap(caller, codec="msgpack")
    error = await error_of(pending.call("shop.get"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.details == {"operationId": "shop.get", "reason": "UNTRANSLATABLE", "executed": "yes"}
    stream = aiter(pending.subscribe("shop.count"))
    assert (await anext(stream)).data == 1
    error = await error_of(anext(stream))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "shop.count: the response cannot be encoded: /output/data: JSON has no number nan" in error.message
    await until(lambda: handler.in_flight == field.hub.counters.in_flight == 0)


async def test_claims_of_any_size_reach_the_worker(field: Field) -> None:
    @operation(id="shop.who")
    async def who(context: OperationContext) -> Any:
        assert context.identity is not None
        return dict(context.identity.claims)

    await field.worker("shop", who)
    await until(lambda: field.hub.operations == ["shop.who"])
    ada = Identity("ada", claims={"account": 2**70, "team": "a"})
    spoke = await field.spoke("ada")
    joined = session_of(field.hub, spoke)
    joined.principal, joined.caller = Principal(ada), ada
    joined.encoded_identity.clear()
    for codec in ("json", "msgpack"):
        pending = PendingRequestMap(spoke, codec=codec, timeout=5)
        assert (await pending.call("shop.who")).data == ada.claims
        trusted = PendingRequestMap(field.hub.transport(), codec=codec, timeout=5)
        assert (await trusted.call("shop.who", identity=ada)).data == ada.claims


async def test_an_announcement_that_is_not_json_affects_no_other_peer(field: Field) -> None:
    sleeper = Sleeper("shop.sleep")
    handler = await field.worker("shop", sleeper.operation)
    await until(lambda: field.hub.operations == ["shop.sleep"])
    stranger = await field.spoke("shop2")
    description = msgspec.json.decode(field.hub.router.operations["shop.sleep"].announced.description)
    for number, odd in enumerate(({1: 2}, {(1, 2): 3}, {"a": math.nan})):
        operations = [{**description, "inputSchema": {"type": "object", "x-note": odd}}]
        claim = {"workerId": f"{stranger.peer}.{number}", "generation": 1, "operations": operations}
        event = {"v": 1, "type": "worker.announced", "id": "", "to": "", "payload": claim}
        stranger.send("workers", msgspec.msgpack.encode(event))
    await until(lambda: field.hub.counters.malformed == 3)
    call = asyncio.create_task(PendingRequestMap(await field.spoke("ada")).call("shop.sleep"))
    await until(lambda: sleeper.runs == 1)
    handler.transport.drop_connection()  # type: ignore[attr-defined]
    assert (await error_of(call)).code is ErrorCode.UNAVAILABLE


async def test_a_call_that_is_sent_again_uses_a_format_of_the_new_hub(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoke = await field.spoke("ada")
    call = asyncio.create_task(PendingRequestMap(spoke, timeout=10).call("shop.echo", {"file": b"b"}, wait=True))
    await until(lambda: is_held_back(spoke))
    monkeypatch.setattr(server, "CODECS", {"json": JSON})
    spoke.drop_connection()
    await until(lambda: spoke.reconnects == 1)
    # This hub cannot read the other format at all.
    monkeypatch.setattr(router, "CODEC_OF", (JSON,) * 256)
    await field.worker("shop", stub_operation("shop.echo", returns=lambda input: input))
    assert (await call).data == {"file": b"b"}


async def test_the_counters_of_a_caller_have_the_messages_that_its_spoke_did_not_send(field: Field) -> None:
    spoke = await field.spoke("ada")
    counters = PendingRequestMap(spoke).counters
    assert counters.unsent == 0
    sent = asyncio.Event()

    def send_without_connection(reason: str) -> None:
        spoke.send("", b"{}")
        sent.set()

    spoke.watch(lambda: None, send_without_connection)
    spoke.drop_connection()
    async with asyncio.timeout(30):
        await sent.wait()
    assert counters.unsent == 1
    assert {"operations_bus_unsent_total": 1}.items() <= {each.name: each.value for each in counters.measures()}.items()


async def test_a_refused_registration_is_logged_and_raised(field: Field, caplog: pytest.LogCaptureFixture) -> None:
    handler = await field.worker("shop", stub_operation("bank.pay", returns=1))
    with pytest.raises(CallError, match=r"rejected 1 operation: bank\.pay") as caught:
        await handler.registered(timeout=10)
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    assert caught.value.details["rejected"].keys() == {"bank.pay"}
    assert "the hub rejected bank.pay" in caplog.text


async def test_a_changed_list_of_tools_reaches_the_hub(field: Field) -> None:
    client = await create_mcp_client("s", hostile("tools"))
    registry = OperationRegistry()
    client.register_all(registry)
    async with client:
        handler = CallHandler(registry, await field.spoke("tools"))
        await handler.registered(timeout=10)
        await registry.execute("s.grow")
        await until(lambda: "s.grown" in field.hub.operations)
        pending = PendingRequestMap(await field.spoke("ada"))
        assert (await pending.call("s.grown")).data[0]["text"] == "grown"
        await registry.execute("s.shrink")
        await until(lambda: "s.grown" not in field.hub.operations)
        await handler.close()


def test_the_tokens_of_a_hub_are_checked_when_it_is_made() -> None:
    with pytest.raises(TypeError, match=r"invalid authenticator of type dict.*StaticTokens"):
        Hub({"token": Principal(Identity("ada"))})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"invalid principal of type Identity: expected Principal\(Identity"):
        StaticTokens({"token": Identity("ada")})  # type: ignore[dict-item]


async def test_a_worker_that_leaves_registers_nothing_at_a_hub_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = StaticTokens({"worker": Principal(Identity("worker"), ("slow",))})
    sleeper = Sleeper()
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(tokens))
        spoke = await stack.enter_async_context(Spoke(hub.url, token="worker"))
        handler = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await handler.registered()
        call = asyncio.create_task(PendingRequestMap(hub.transport()).call("slow.sleep"))
        await sleeper.started.wait()
        leaving = asyncio.create_task(handler.drain(grace=60))
        await until(lambda: "slow.sleep" not in hub.router.operations)
        await hub.close()
        assert (await error_of(call)).code is ErrorCode.UNAVAILABLE
        restarted = await stack.enter_async_context(Hub(tokens, port=int(hub.url.rstrip("/").rpartition(":")[2])))
        announced, announce = asyncio.Event(), restarted.router.directory.announce

        def note(*given: Any) -> None:
            announce(*given)
            announced.set()

        monkeypatch.setattr(restarted.router.directory, "announce", note)
        async with asyncio.timeout(20):
            await announced.wait()
        assert dict(restarted.router.operations) == {}
        sleeper.let_go.set()
        await leaving
