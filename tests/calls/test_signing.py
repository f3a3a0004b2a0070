"""Signed requests on a shared bus: which callers are accepted, and which forgeries are refused."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    Identity,
    OperationContext,
    OperationRegistry,
    local_envelope,
    operation,
)
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.events import CallRequested
from operations.calls.signature_format import RootRequest
from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSecret, SigningSession
from operations.context import Grant
from operations.identity import JWTTokens
from operations.pubsub import Transport, Undelivered
from operations.pubsub.memory import MemoryTransport
from operations.recent import Recent
from operations.testing import error_of
from tests.security.untrusted_bus import KEY, SECRET, TOKENS, Bus, token, untrusted_bus
from tests.waiting import until


@operation(id="who.am_i", type="query")
async def who_am_i(context: OperationContext) -> str | None:
    return context.identity.id if context.identity is not None else None


@operation(id="secret.read", type="query", access_control=AccessControl(required_scopes=("read",)))
async def read_secret(number: int = 0) -> int:
    return 42 + number


@operation(id="chain.ask", type="query")
async def ask(context: OperationContext) -> Any:
    return (await context.env["who"]["am_i"]()).data


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus on which no peer is trusted."""
    async with untrusted_bus(request.param) as bus:
        yield bus


class Yard:
    """A worker that verifies signatures, and its callers."""

    def __init__(self, bus: Bus, worker: SignedTransport, handler: CallHandler) -> None:
        self.bus = bus
        self.worker = worker
        self.handler = handler

    async def call(self, operation_id: str, session: SigningSession | None = None, **options: Any) -> Any:
        transport = await self.bus()
        if session is not None:
            transport = SignedTransport(transport, session=session)
        pending = PendingRequestMap(transport)
        return (await pending.call(operation_id, options.pop("input", None), wait=True, **options)).data


@pytest.fixture
async def yard(bus: Bus) -> AsyncIterator[Yard]:
    async with serving(bus, TOKENS) as yard:
        yield yard


class serving:
    def __init__(self, bus: Bus, tokens: Any, *, required: bool = False) -> None:
        self._bus, self._tokens, self._required = bus, tokens, required

    async def __aenter__(self) -> Yard:
        signed = SignedTransport(await self._bus(), secret=SECRET, tokens=self._tokens, required=self._required)
        registry = OperationRegistry([who_am_i, read_secret])
        self._handler = CallHandler(registry, signed, identify=signed.identify)
        return Yard(self._bus, signed, self._handler)

    async def __aexit__(self, *problem: object) -> None:
        await self._handler.close()


async def test_the_identity_of_a_signed_call_is_that_of_its_token(yard: Yard) -> None:
    session = SECRET.session(token())
    assert await yard.call("who.am_i", session) == "ada"
    assert await yard.call("secret.read", session) == 42
    assert await yard.call("secret.read", session, input={"number": 1}) == 43
    assert yard.worker.refusals == {}


async def test_without_a_signature_callers_are_anonymous(yard: Yard) -> None:
    assert await yard.call("who.am_i") is None
    error = await error_of(yard.call("secret.read"))
    assert (error.code, error.details["missingScopes"]) == (ErrorCode.ACCESS_DENIED, ["read"])


async def test_signatures_can_be_required(bus: Bus) -> None:
    async with serving(bus, TOKENS, required=True) as yard:
        error = await error_of(yard.call("who.am_i"))
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "UNSIGNED")
        assert yard.worker.refusals == {"unsigned": 1}


async def test_an_identity_in_a_payload_is_not_accepted(bus: Bus, yard: Yard) -> None:
    liar = await bus()
    capabilities = msgspec.structs.replace(liar.capabilities, claims_identity=True)
    liar.capabilities = capabilities  # type: ignore[misc]
    pending = PendingRequestMap(liar)
    claimed = Identity("root", scopes=("read",))
    assert (await pending.call("who.am_i", identity=claimed, wait=True)).data is None
    assert (await error_of(pending.call("secret.read", identity=claimed))).code is ErrorCode.ACCESS_DENIED
    assert yard.handler.counters.forged == 2


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": 1}, "expired"),
        ({"aud": "elsewhere"}, "Audience doesn't match"),
        ({"nbf": 4_102_444_800}, "not yet valid"),
    ],
)
async def test_a_token_that_is_not_valid_is_refused(yard: Yard, claims: dict[str, Any], says: str) -> None:
    error = await error_of(yard.call("who.am_i", SECRET.session(token(**claims))))
    assert (error.code, error.details) == (ErrorCode.ACCESS_DENIED, {"reason": "INVALID", "executed": "no"})
    assert says in error.message
    assert yard.worker.refusals == {"invalid": 1}


async def test_a_token_of_another_issuer_is_refused(yard: Yard) -> None:
    error = await error_of(yard.call("who.am_i", SECRET.session(token("another key" * 4))))
    assert error.details["reason"] == "INVALID"


async def test_a_token_that_expires_during_its_use_is_refused_from_then_on(bus: Bus) -> None:
    async with serving(bus, JWTTokens(KEY, algorithms=["HS256"], audience="shop", leeway=0)) as yard:
        expiry = int(time.time()) + 3
        session = SECRET.session(token(exp=expiry))
        assert await yard.call("who.am_i", session) == "ada"
        await until(lambda: time.time() > expiry)
        error = await error_of(yard.call("who.am_i", session))
    assert error.details["reason"] == "EXPIRED"
    assert yard.worker.refusals == {"expired": 1}


async def test_a_stolen_token_is_refused_without_its_key(yard: Yard) -> None:
    error = await error_of(yard.call("who.am_i", SigningSession(token(), os.urandom(32))))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "FORGED")
    stolen = SigningSession(token(sub="root"), SECRET.session(token()).key)
    assert (await error_of(yard.call("who.am_i", stolen))).details["reason"] == "FORGED"
    assert yard.worker.refusals == {"forged": 2}


class Tampering:
    """A bus on which an attacker changes or repeats requests."""

    def __init__(self, transport: Transport, change: Callable[[CallRequested], None]) -> None:
        self._transport = transport
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        if address.startswith("work."):
            start = message.index(b'{"type":')
            head, event = message[:start], JSON.decode_any(message[start:])
            assert isinstance(event, CallRequested)
            self._change(event)
            message = head + JSON.encode(event)
        self._transport.send(address, message, undelivered)


def swap_input(event: CallRequested) -> None:
    event.payload.input = msgspec.Raw(b'{"number":1000}')


def swap_operation(event: CallRequested) -> None:
    event.to = event.payload.operation_id = "secret.read"


def swap_operation_of_the_namespace(event: CallRequested) -> None:
    event.to = event.payload.operation_id = "secret.write"


def move_deadline(event: CallRequested) -> None:
    event.payload.deadline = int((time.time() + 300) * 1000)


def renumber(event: CallRequested) -> None:
    event.payload.attempt = 5


@pytest.mark.parametrize(
    "change", [swap_input, swap_operation, swap_operation_of_the_namespace, move_deadline, renumber]
)
async def test_a_request_that_was_changed_in_transit_is_refused(
    bus: Bus, yard: Yard, change: Callable[[CallRequested], None]
) -> None:
    tampering: Any = Tampering(await bus(), change)
    pending = PendingRequestMap(SignedTransport(tampering, session=SECRET.session(token())))
    called = "who.am_i" if change is swap_operation else "secret.read"
    error = await error_of(pending.call(called, wait=True))
    by_address = change is swap_operation_of_the_namespace and yard.worker.capabilities.addresses_operations
    reason = "WRONG_ADDRESS" if change is swap_operation or by_address else "FORGED"
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, reason)


async def test_a_resent_request_does_not_run_again(bus: Bus) -> None:
    runs = []

    @operation(id="money.move")
    async def move(amount: int) -> int:
        runs.append(amount)
        return amount

    async with serving(bus, TOKENS) as yard:
        yard.handler.registry.register(move)
        yard.handler.refresh()
        eavesdropper = await bus()
        heard: list[tuple[str, bytes]] = []

        class Recording(Tampering):
            def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
                if address.startswith("work."):
                    heard.append((address, message))
                self._transport.send(address, message, undelivered)

        recording: Any = Recording(await bus(), lambda event: None)
        pending = PendingRequestMap(SignedTransport(recording, session=SECRET.session(token())))
        assert (await pending.call("money.move", {"amount": 5}, wait=True)).data == 5
        # A worker that no longer stores the request id, as after many other requests, still recognises the signed
        # request.
        yard.handler._requests._attempts = Recent(1)
        eavesdropper.send(*heard[-1])
        assert (await pending.call("money.move", {"amount": 6})).data == 6
        assert runs == [5, 6]
        assert yard.worker.refusals == {"replayed": 1}


async def test_a_request_with_a_deadline_beyond_the_replay_record_is_refused(yard: Yard) -> None:
    session = SECRET.session(token())
    assert await yard.call("who.am_i", session, deadline=int((time.time() + 60) * 1000)) == "ada"
    error = await error_of(yard.call("who.am_i", session, deadline=int((time.time() + 7_200) * 1000)))
    assert error.details["reason"] == "REPLAYED"


async def test_nested_calls_of_workers_have_the_callers_identity(bus: Bus, yard: Yard) -> None:
    signed = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS)
    handler = CallHandler(OperationRegistry([ask]), signed, identify=signed.identify)
    assert await yard.call("chain.ask", SECRET.session(token())) == "ada"
    assert await yard.call("chain.ask") is None
    assert yard.handler.counters.forged == 0
    await handler.close()


async def test_nested_calls_signed_with_another_secret_are_refused(bus: Bus, yard: Yard) -> None:
    stranger = SignedTransport(await bus(), secret=SigningSecret(os.urandom(32)))
    error = await error_of(nested(stranger).call("who.am_i", wait=True))
    assert error.details["reason"] == "FORGED"


def nested(worker: SignedTransport, seconds: float = 60) -> PendingRequestMap:
    """Return a transport that signs nested calls of a worker, without a request that they are nested in."""
    root = RootRequest(token().encode(), os.urandom(16), int((time.time() + seconds) * 1000))
    return PendingRequestMap(worker.for_grant(Grant(signature=root), as_worker=False))


async def test_the_secret_alone_gives_no_identity(bus: Bus, yard: Yard) -> None:
    worker = PendingRequestMap(SignedTransport(await bus(), secret=SECRET))
    assert (await worker.call("who.am_i", wait=True)).data is None
    error = await error_of(worker.call("who.am_i", identity=Identity("root")))
    assert error.code is ErrorCode.VALIDATION_ERROR
    error = await error_of(worker.call("who.am_i", as_worker=True))
    assert (error.code, "session" in error.message) == (ErrorCode.VALIDATION_ERROR, True)


async def test_a_worker_calls_as_itself_only_on_request(bus: Bus, yard: Yard) -> None:
    session = SECRET.session(token(sub="worker"))
    signed = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS, session=session)
    handler = CallHandler(OperationRegistry([ask]), signed, identify=signed.identify)
    assert (await handler.pending.call("who.am_i", as_worker=True, wait=True)).data == "worker"
    error = await error_of(handler.pending.call("who.am_i"))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "AS_WORKER")
    assert await yard.call("chain.ask", SECRET.session(token())) == "ada"
    assert await yard.call("chain.ask") is None
    await handler.close()


def pem(key: Any) -> bytes:
    return bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


ED = Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(65_537, 2048)


def jwks(kid: str) -> dict[str, Any]:
    from jwt.algorithms import OKPAlgorithm

    return {"keys": [{**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": kid, "alg": "EdDSA", "use": "sig"}]}


@pytest.mark.parametrize(
    ("key", "algorithm", "accepted"),
    [(ED, "EdDSA", lambda: pem(ED)), (RSA, "RS256", lambda: pem(RSA)), (ED, "EdDSA", lambda: jwks("one"))],
    ids=["EdDSA", "RS256", "JWKS"],
)
async def test_tokens_may_be_signed_with_keys_that_workers_do_not_have(
    bus: Bus, key: Any, algorithm: str, accepted: Callable[[], Any]
) -> None:
    tokens = JWTTokens(accepted(), algorithms=[algorithm], audience="shop")
    async with serving(bus, tokens) as yard:
        session = SECRET.session(token(key, algorithm, {"kid": "one"}))
        assert await yard.call("secret.read", session) == 42
        if algorithm == "EdDSA":
            other = SECRET.session(token(Ed25519PrivateKey.generate(), algorithm, {"kid": "two"}))
            assert (await error_of(yard.call("who.am_i", other))).details["reason"] == "INVALID"


@pytest.mark.parametrize("message", [b"\x01", b"\x01\x01\xff\xff" + b"x" * 40, b"\x01\x01\x00\x02\xff\xff" + b"x" * 40])
async def test_malformed_messages_are_counted_and_the_next_call_works(bus: Bus, yard: Yard, message: bytes) -> None:
    session = SECRET.session(token())
    assert await yard.call("who.am_i", session) == "ada"
    stranger = await bus()
    stranger.send("work.who/am_i" if stranger.capabilities.addresses_operations else "work.who", message)
    assert await yard.call("who.am_i", session) == "ada"
    assert sum(yard.worker.refusals.values()) == 1


async def test_a_session_may_be_renewed(bus: Bus, yard: Yard) -> None:
    sessions = (SECRET.session(token(sub=name)) for name in ("one", "two"))
    pending = PendingRequestMap(SignedTransport(await bus(), session=lambda: next(sessions)))
    assert (await pending.call("who.am_i", wait=True)).data == "one"
    assert (await pending.call("who.am_i")).data == "two"


OLD, NEW = os.urandom(32), os.urandom(32)


async def test_a_further_accepted_secret_verifies_and_never_signs(bus: Bus) -> None:
    both = SigningSecret(NEW, accepts=[OLD])
    assert both.session("t") == SigningSecret(NEW).session("t")
    worker = SignedTransport(await bus(), secret=both, tokens=TOKENS)
    handler = CallHandler(OperationRegistry([who_am_i]), worker, identify=worker.identify)
    same = token()
    callers = [SigningSecret(secret).session(same) for secret in (OLD, NEW, OLD)]
    for session in callers:  # of one token, whose keys take turns
        pending = PendingRequestMap(SignedTransport(await bus(), session=session))
        assert (await pending.call("who.am_i", wait=True)).data == "ada"
    for secret in (OLD, NEW):
        other = SignedTransport(await bus(), secret=SigningSecret(secret))
        assert (await nested(other).call("who.am_i", wait=True)).data == "ada"
    strange = PendingRequestMap(SignedTransport(await bus(), session=SECRET.session(same)))
    assert (await error_of(strange.call("who.am_i"))).details["reason"] == "FORGED"
    worker.rotate(SigningSecret(NEW))
    late = PendingRequestMap(SignedTransport(await bus(), session=callers[0]))
    assert (await error_of(late.call("who.am_i"))).details["reason"] == "FORGED"
    assert worker.refusals == {"forged": 2}
    await handler.close()


@operation(id="front.ask")
async def ask_behind(context: OperationContext) -> str:
    data: str = (await context.env["who"]["am_i"]({})).data
    return data


async def test_secrets_rotate_under_load_and_no_call_is_refused(bus: Bus) -> None:
    """Two workers that call each other, callers with renewed sessions, and a rotation under load."""
    session = SigningSecret(OLD).session(token())
    front, behind = [
        SignedTransport(await bus(), secret=SigningSecret(OLD), tokens=TOKENS, required=True) for _ in range(2)
    ]
    handlers = [
        CallHandler(OperationRegistry([ask_behind]), front, identify=front.identify),
        CallHandler(OperationRegistry([who_am_i]), behind, identify=behind.identify),
    ]
    pending = PendingRequestMap(SignedTransport(await bus(), session=lambda: session))
    answered, stop = [0], asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            assert (await pending.call("front.ask", wait=True)).data == "ada"
            answered[0] += 1

    callers = [asyncio.create_task(load()) for _ in range(8)]

    async def some_calls() -> None:
        enough = answered[0] + 40
        await until(lambda: answered[0] >= enough or any(caller.done() for caller in callers))

    await some_calls()
    for secret in (SigningSecret(OLD, accepts=[NEW]), SigningSecret(NEW, accepts=[OLD])):
        for worker in (front, behind):
            worker.rotate(secret)
            await some_calls()
    session = SigningSecret(NEW).session(token())  # the issuer has it from now on
    await some_calls()
    for worker in (front, behind):
        worker.rotate(SigningSecret(NEW))
        await some_calls()
    stop.set()
    await asyncio.gather(*callers)
    assert front.refusals == behind.refusals == {}
    for handler in handlers:
        await handler.close()


async def test_a_caller_has_no_secret_to_rotate(bus: Bus) -> None:
    caller = SignedTransport(await bus(), session=SECRET.session(token()))
    with pytest.raises(ValueError, match="pass a function as session="):
        caller.rotate(SECRET)


def test_a_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 random bytes"):
        SigningSecret(NEW, accepts=[b"short"])
    with pytest.raises(ValueError, match="at least 32 random bytes"):
        SigningSecret(b"short")
    with pytest.raises(ValueError, match="needs session="):
        SignedTransport(MemoryTransport())


def test_a_session_does_not_show_its_key() -> None:
    assert "key" not in repr(SECRET.session(token()))


async def test_an_unsigned_in_process_caller_cannot_bypass_a_signed_worker() -> None:
    bus = MemoryTransport()
    signed = SignedTransport(bus, secret=SECRET, tokens=TOKENS)
    handler = CallHandler(OperationRegistry([read_secret]), signed, identify=signed.identify)
    with pytest.raises(CallError):
        await PendingRequestMap(bus.join()).call("secret.read", identity=Identity("root", scopes=("read",)))
    await handler.close()


async def test_a_worker_that_cannot_verify_signatures_reports_it(bus: Bus) -> None:
    @operation(id="who.keep", durable=True)
    async def keep() -> None: ...

    worker = await bus()
    handler = CallHandler(OperationRegistry([who_am_i, keep]), worker)
    caller = PendingRequestMap(SignedTransport(await bus(), session=SECRET.session(token())))
    error = await error_of(caller.call("who.am_i", wait=True))
    assert (error.code, error.details) == (ErrorCode.ACCESS_DENIED, {"reason": "UNVERIFIABLE", "executed": "no"})
    assert "SignedTransport" in error.message
    if worker.capabilities.durable:
        error = await error_of(caller.call("who.keep", durable=True))
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "UNVERIFIABLE")
    assert handler.counters.malformed == 0
    await handler.close()


async def test_one_connection_carries_the_calls_of_several_sessions(bus: Bus, yard: Yard) -> None:
    shared = await bus()
    sessions = [SECRET.session(token(sub=name)) for name in ("ada", "bob")]
    pendings = [PendingRequestMap(SignedTransport(shared, session=session)) for session in sessions]
    names = [(await pending.call("who.am_i", wait=True)).data for pending in [*pendings, *pendings]]
    assert names == ["ada", "bob", "ada", "bob"]
    assert yard.handler.counters.duplicate == 0
    assert [str(pending.counters) for pending in pendings] == ["<counters all 0>"] * 2


async def test_endpoints_on_one_connection_have_separate_counters(bus: Bus, yard: Yard) -> None:
    shared = await bus()
    one, two = (
        PendingRequestMap(SignedTransport(shared, session=SECRET.session(token(sub=name)))) for name in ("ada", "bob")
    )
    ids: list[str] = []
    for pending in (one, two):
        await pending.call("who.am_i", wait=True)
        ids.extend(request_id for request_id, _ in pending._endpoint.ended.items())
    assert ids[0] != ids[1]
    answer = local_envelope("again", operation_id="who.am_i")
    worker = yard.handler.pending
    for again in (ids[0], ids[1], ids[1], f"{shared.peer}-fff", f"{shared.peer}-1.fff", f"{shared.peer}-1.none"):
        worker.respond(again, answer)
    await until(lambda: two.counters.foreign == 3)
    assert (one.counters.duplicate, two.counters.duplicate) == (1, 2)
    assert (one.counters.foreign, one.counters.late) == (3, 0)
