"""On a bus with signed requests a worker's nested calls are its caller's, at any depth, and end with the request."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    OperationContext,
    OperationRegistry,
    operation,
)
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.replay_protection import STORED_SECONDS
from operations.calls.signature_format import RootRequest, join
from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSession
from operations.context import Grant, current_grant
from operations.pubsub import Stores, Transport, TransportWrapper, Undelivered
from operations.pubsub.memory import MemoryTransport
from operations.testing import error_of
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session, untrusted_bus
from tests.waiting import until

ADA, BOB, WORKER = session("ada"), session("bob", "vault"), session("worker", "vault")


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus on which no peer is trusted."""
    async with untrusted_bus(request.param) as bus:
        yield bus


@operation(id="vault.read", type="query", access_control=AccessControl(required_scopes=("vault",)))
async def read_vault() -> str:
    return "the secret"


@operation(id="vault.who", type="query")
async def who(context: OperationContext) -> Any:
    return [context.identity.id if context.identity is not None else None, context.deadline]


@operation(id="vault.keep", durable=True)
async def keep(context: OperationContext) -> Any:
    return context.identity.id if context.identity is not None else None


@operation(id="vault.watch")
async def watch(context: OperationContext) -> AsyncIterator[str | None]:
    yield context.identity.id if context.identity is not None else None


class Front:
    """A worker with its own rights, between callers and the vault."""

    def __init__(self, transport: SignedTransport) -> None:
        self.late: asyncio.Task[Any] | None = None
        self.cleanup: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()

        @operation(id="front.call")
        async def call(context: OperationContext, to: str) -> Any:
            namespace, _, name = to.partition(".")
            return (await context.env[namespace][name]({})).data

        @operation(id="front.deep")
        async def deep(context: OperationContext, to: str, depth: int) -> Any:
            """Call operations of this process, then a remote one."""
            if depth:
                return (await context.env["front"]["deep"]({"to": to, "depth": depth - 1})).data
            return (await context.env["front"]["call"]({"to": to})).data

        @operation(id="front.direct")
        async def direct(to: str, durable: bool = False) -> Any:
            """Call without the context, through the worker's PendingRequestMap."""
            return (await self.handler.pending.call(to, durable=durable)).data

        @operation(id="front.watch")
        async def watch_nested() -> Any:
            return [envelope.data async for envelope in self.handler.pending.subscribe("vault.watch")]

        @operation(id="front.as_worker")
        async def as_worker() -> Any:
            return (await self.handler.pending.call("vault.read", as_worker=True)).data

        @operation(id="front.leave")
        async def leave() -> None:
            ended = asyncio.Event()
            grant = current_grant.get()

            async def later() -> Any:
                await ended.wait()
                assert grant is not None
                assert grant.ended
                return await self.handler.pending.call("vault.read")

            self.late = asyncio.create_task(later())
            asyncio.get_running_loop().call_later(0.05, ended.set)

        @operation(id="front.clean")
        async def clean() -> None:
            try:
                self.started.set()
                await asyncio.Event().wait()
            finally:
                self.cleanup.set_result(await error_of(self.handler.pending.call("vault.read")))

        operations = [call, deep, direct, watch_nested, as_worker, leave, clean]
        self.handler = CallHandler(OperationRegistry(operations), transport, identify=transport.identify)


class Scene:
    def __init__(self, bus: Bus, front: Front, vault: SignedTransport) -> None:
        self.bus, self.front, self.vault = bus, front, vault

    async def call(self, session: SigningSession | None, name: str, input: Any = None, **options: Any) -> Any:
        end = await self.bus()
        pending = PendingRequestMap(end if session is None else SignedTransport(end, session=session))
        return (await pending.call(f"front.{name}", input, wait=True, **options)).data


@pytest.fixture
async def scene(bus: Bus) -> AsyncIterator[Scene]:
    front = Front(SignedTransport(await bus(), secret=SECRET, tokens=TOKENS, session=WORKER))
    behind = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS)
    vault = CallHandler(OperationRegistry([read_vault, who, keep, watch]), behind, identify=behind.identify)
    scene = Scene(bus, front, behind)
    # From here on both workers can be called.
    await scene.call(ADA, "call", {"to": "vault.who"})
    yield scene
    await front.handler.close()
    await vault.close()


@pytest.mark.parametrize("depth", [0, 1, 4])
async def test_rights_are_the_root_callers_at_any_depth(scene: Scene, depth: int) -> None:
    to = {"to": "vault.read", "depth": depth}
    assert await scene.call(BOB, "deep", to) == "the secret"
    for caller in (ADA, None):
        error = await error_of(scene.call(caller, "deep", to))
        assert (error.code, error.details["missingScopes"]) == (ErrorCode.ACCESS_DENIED, ["vault"])
    assert (await scene.call(ADA, "deep", to | {"to": "vault.who"}))[0] == "ada"
    assert (await scene.call(None, "deep", to | {"to": "vault.who"}))[0] is None


async def test_calls_past_the_context_are_the_callers_too(scene: Scene) -> None:
    assert await scene.call(BOB, "direct", {"to": "vault.read"}) == "the secret"
    error = await error_of(scene.call(ADA, "direct", {"to": "vault.read"}))
    assert error.code is ErrorCode.ACCESS_DENIED
    assert await scene.call(ADA, "watch") == ["ada"]
    if scene.vault.capabilities.durable:
        assert await scene.call(ADA, "direct", {"to": "vault.keep", "durable": True}) == "ada"


async def test_a_worker_does_not_lend_its_own_rights(scene: Scene) -> None:
    error = await error_of(scene.call(ADA, "as_worker"))
    assert error.code is ErrorCode.VALIDATION_ERROR
    direct = scene.front.handler.pending
    assert (await direct.call("vault.read", as_worker=True)).data == "the secret"
    assert (await error_of(direct.call("vault.read"))).details["reason"] == "AS_WORKER"


async def test_a_call_after_its_request_ended_is_refused(scene: Scene) -> None:
    await scene.call(BOB, "leave")
    assert scene.front.late is not None
    with pytest.raises(CallError) as caught:
        await scene.front.late
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.ACCESS_DENIED, "GRANT_ENDED")


async def test_calls_in_finally_after_an_abort_are_the_callers(scene: Scene) -> None:
    call = asyncio.create_task(scene.call(ADA, "clean"))
    async with asyncio.timeout(20):
        await scene.front.started.wait()
        call.cancel()
        error = await scene.front.cleanup
    assert error.code is ErrorCode.ACCESS_DENIED


async def test_a_nested_call_ends_with_the_deadline_of_its_root(scene: Scene) -> None:
    until = int(time.time() * 1000) + 5_000
    assert await scene.call(ADA, "direct", {"to": "vault.who"}, deadline=until) == ["ada", until]


def nested(scene: Scene, root: RootRequest) -> PendingRequestMap:
    """Calls for a root that no request of this test has."""
    return PendingRequestMap(scene.vault.for_grant(Grant(signature=root), as_worker=False))


async def test_a_root_whose_deadline_has_passed_is_refused(scene: Scene) -> None:
    token, now = BOB.token.encode(), int(time.time() * 1000)
    assert (await nested(scene, RootRequest(token, bytes(16), now + 5_000)).call("vault.read")).data == "the secret"
    error = await error_of(nested(scene, RootRequest(token, bytes(16), now - 1)).call("vault.read"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "EXPIRED")


@pytest.mark.parametrize("late", [False, True])
async def test_a_root_stores_no_requests_much_later_than_its_deadline(scene: Scene, *, late: bool) -> None:
    """A worker that keeps a root can state any time as the time at which it stored a request."""
    end = scene.vault.for_grant(
        Grant(signature=RootRequest(BOB.token.encode(), bytes(16), int((time.time() - 600) * 1000))), as_worker=False
    )
    stores = end.optional(Stores)
    if stores is None:
        return
    request_id, expires = f"{end.peer}-{os.urandom(16).hex()}", time.time() + STORED_SECONDS - (0 if late else 900)
    payload = {"requestId": request_id, "operationId": "vault.keep", "sentAt": 0, "notAfter": int(expires * 1000)}
    event = {"v": 1, "type": "call.requested", "id": request_id, "to": "vault.keep", "payload": payload}
    answers: list[bytes] = []
    end.listen(f"inbox.{end.peer}", lambda message, arrival: answers.append(message))
    stores.store(
        "queue.vault", msgspec.json.encode(event), key=request_id, stored=lambda: None, undelivered=pytest.fail
    )
    await until(lambda: any(request_id.encode() in each for each in answers))
    assert (b"EXPIRED" in answers[-1], b"bob" in answers[-1]) == ((True, False) if late else (False, True))


class Tampering(TransportWrapper):
    """Changes one byte of every request."""

    def __init__(self, inner: Transport, place: int) -> None:
        super().__init__(inner)
        self._place = place

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        if address.startswith("work."):
            changed = bytearray(message)
            changed[self._place] ^= 1
            message = bytes(changed)
        super().send(address, message, undelivered)


@pytest.mark.parametrize("part", ["id", "deadline", "proof"])
async def test_nothing_of_a_root_can_be_changed(scene: Scene, part: str) -> None:
    token = BOB.token.encode()
    start = 4 + len(token)
    place = {"id": start, "deadline": start + 23, "proof": start + 24}[part]
    tampering = SignedTransport(Tampering(await scene.bus(), place), secret=SECRET)
    root = RootRequest(token, bytes(16), int(time.time() * 1000) + 60_000)
    pending = PendingRequestMap(tampering.for_grant(Grant(signature=root), as_worker=False))
    error = await error_of(pending.call("vault.read"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "FORGED")


class SignedAsWorker(TransportWrapper):
    """Signs as workers of an early version did, on behalf of any identity."""

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        if address.startswith("work."):
            message = join(2, b"", b"", os.urandom(16), message)
        super().send(address, message, undelivered)


async def test_a_missing_signature_gives_no_identity(scene: Scene) -> None:
    error = await error_of(PendingRequestMap(SignedAsWorker(await scene.bus())).call("vault.who"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "FORGED")


async def test_a_request_that_came_by_another_bus_has_no_rights_here(scene: Scene) -> None:
    elsewhere = MemoryTransport(direct=False)

    @operation(id="gate.read")
    async def gate() -> Any:
        return (await scene.front.handler.pending.call("vault.read")).data

    handler = CallHandler(OperationRegistry([gate]), elsewhere)
    error = await error_of(PendingRequestMap(elsewhere.join()).call("gate.read"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "FOREIGN_GRANT")
    await handler.close()
