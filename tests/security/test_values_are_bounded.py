"""Guarantee: the number of values in a message of a caller without rights is bounded before they are decoded."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from typing import Annotated, Any, Literal

import msgspec
import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, codec
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.calls.signed_transport import SignedTransport
from operations.context import Grant
from operations.dispatch import Dispatcher, Request
from operations.identity import Principal, StaticTokens
from operations.pubsub import Arrival, Transport
from operations.serving import Limits, app
from operations.testing import error_of
from operations.wire import (
    LARGE_MESSAGE,
    MAX_VALUES,
    check_json_values,
    check_msgpack_values,
    decode_msgpack,
    encode_msgpack,
    encode_portable,
)
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session, untrusted_bus
from tests.serving.asgi_client import request
from tests.serving.http_server import running
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import SDK_ONLY, message, post
from tests.waiting import until

TOO_MANY: list[Any] = [[]] * (MAX_VALUES + 1)
FORMATS = ["json", "msgpack"]
PEOPLE = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "ada": Principal(Identity("ada", ("shop",))),
        "reader": Principal(Identity("reader", (), {"shop:1": ["read"]})),
        "shop": Principal(Identity("shop"), ("shop",)),
    }
)


@operation(id="shop.count", type="query")
async def count(values: list[Any]) -> int:
    return len(values)


@operation(id="shop.store", durable=True)
async def store(values: list[Any]) -> int:
    return len(values)


@operation(id="shop.secret", durable=True, access_control=AccessControl(required_scopes=["secret"]))
async def secret(values: list[Any]) -> int:
    return len(values)


REGISTRY = OperationRegistry([count, store, secret])


def assert_refused(error: CallError, limit: int = MAX_VALUES) -> None:
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert error.details["reason"] == "TOO_MANY_VALUES"
    assert error.details["executed"] == "no"
    assert f"more than {limit:,} values" in error.message


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the values that the codecs decode."""
    sizes: list[int] = []

    def note(read: Any) -> Any:
        def read_noted(data: bytes) -> Any:
            sizes.append(len(data))
            return read(data)

        return read_noted

    for form in codec.CODECS.values():
        for name in ("_decode_value", "_decode_metadata"):
            monkeypatch.setattr(form, name, note(getattr(form, name)))
    return sizes


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    async with untrusted_bus(request.param) as bus:
        yield bus


@pytest.mark.parametrize("form", FORMATS)
async def test_a_bus_user_without_rights(bus: Bus, form: Any, decoded: list[int]) -> None:
    worker, mallory = await bus(), await bus()
    handler = CallHandler(REGISTRY, worker)
    pending = PendingRequestMap(mallory, codec=form)
    assert (await pending.call("shop.count", {"values": [0] * (MAX_VALUES - 10)}, wait=True)).data == MAX_VALUES - 10
    decoded.clear()
    assert_refused(await error_of(pending.call("shop.count", {"values": TOO_MANY})))
    if mallory.capabilities.durable:
        await pending.call("shop.store", {"values": [[]]}, durable=True)
        assert_refused(await error_of(pending.call("shop.store", {"values": TOO_MANY}, durable=True)))
        denied = await error_of(pending.call("shop.secret", {"values": TOO_MANY}, durable=True))
        assert denied.code is ErrorCode.ACCESS_DENIED
    assert max(decoded, default=0) < LARGE_MESSAGE
    await handler.close()


@pytest.mark.parametrize("form", FORMATS)
async def test_metadata_and_a_claimed_identity_are_bounded_too(bus: Bus, form: Any, decoded: list[int]) -> None:
    worker, mallory = await bus(), await bus()
    handler = CallHandler(REGISTRY, worker)
    pending = PendingRequestMap(mallory, codec=form)
    assert (await pending.call("shop.count", {"values": []}, wait=True)).data == 0
    many = {"values": TOO_MANY}
    error = await error_of(pending.call("shop.count", {"values": []}, metadata=many))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "metadata and identity have more than 65,536 bytes" in error.message
    claims = Identity("mallory", (), {}, {"values": TOO_MANY})
    endpoint = pending._endpoint
    message = repeated_metadata(f"{endpoint.peer}-{'0' * 32}", form, claims)
    before = handler.counters.malformed
    worker_endpoint = handler.endpoint
    worker_endpoint.receive(message, arrival_of(worker, mallory))
    assert handler.counters.malformed == before + 1
    assert max(decoded, default=0) < LARGE_MESSAGE
    await handler.close()


def arrival_of(worker: Transport, caller: Transport) -> Arrival:
    name = "work.shop/count" if worker.capabilities.addresses_operations else "work.shop"
    return Arrival(name, caller.peer.partition(".")[0] if worker.capabilities.addresses_operations else None)


def repeated_metadata(request_id: str, form: str, claims: Identity) -> bytes:
    """Return a request with a large claimed identity and with metadata that occurs many times."""
    encode = codec.CODECS[form].encode
    payload = {"requestId": request_id, "operationId": "shop.count", "input": {"values": []}}
    event = {"v": 1, "type": "call.requested", "id": request_id, "to": "shop.count", "payload": payload}
    if form == "msgpack":
        return msgspec.msgpack.encode(event | {"payload": payload | {"identity": msgspec.to_builtins(claims)}})
    text = encode(event | {"payload": payload | {"identity": claims}})  # type: ignore[arg-type]
    again = b'"metadata":{"values":[' + b"[]," * 20_000 + b"[]]},"
    return text.replace(b'"payload":{', b'"payload":{' + again * 8)


@pytest.mark.parametrize("form", FORMATS)
async def test_signed_callers_with_rights_are_not_limited(bus: Bus, form: Any) -> None:
    inner = await bus()
    worker = SignedTransport(inner, secret=SECRET, tokens=TOKENS)
    handler = CallHandler(REGISTRY, worker, identify=worker.identify)
    ada = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "shop")), codec=form)
    eve = PendingRequestMap(SignedTransport(await bus(), session=session("eve")), codec=form)
    assert (await ada.call("shop.count", {"values": TOO_MANY}, wait=True)).data == len(TOO_MANY)
    assert_refused(await error_of(eve.call("shop.count", {"values": TOO_MANY}, wait=True)))
    await handler.close()


@pytest.mark.parametrize("form", FORMATS)
async def test_spokes_of_a_hub(form: Any) -> None:
    async with Hub(PEOPLE) as hub, Spoke(hub.url, token="shop") as shop:
        handler = CallHandler(REGISTRY, shop)
        await handler.registered()
        await check_people(hub.url, form)
        await handler.close()


@pytest.mark.parametrize("form", FORMATS)
async def test_the_websocket_of_a_served_registry(form: Any) -> None:
    async with running(app(REGISTRY, mcp=False, authenticator=PEOPLE)) as (host, port):
        await check_people(f"ws://{host}:{port}/ws", form)


async def check_people(url: str, form: Any) -> None:
    """Check that only the callers without rights are limited."""
    for token in ("ada", "reader", "mallory"):
        async with Spoke(url, token=token) as spoke:
            pending = PendingRequestMap(spoke, codec=form)
            if token == "mallory":
                assert_refused(await error_of(pending.call("shop.count", {"values": TOO_MANY}, wait=True)))
            else:
                assert (await pending.call("shop.count", {"values": TOO_MANY}, wait=True)).data == len(TOO_MANY)


async def test_the_limit_is_a_setting() -> None:
    async with untrusted_bus("memory") as bus:
        worker, caller = await bus(), await bus()
        pending = PendingRequestMap(caller)
        many: dict[str, list[Any]] = {"values": [[]] * (LARGE_MESSAGE // 2)}
        for most in (1_000, None):
            handler = CallHandler(REGISTRY, worker, max_values=most)
            if most is None:
                assert (await pending.call("shop.count", many, wait=True)).data == LARGE_MESSAGE // 2
            else:
                assert_refused(await error_of(pending.call("shop.count", many, wait=True)), most)
            await handler.close()
        with pytest.raises(ValueError, match="max_values is 0"):
            CallHandler(REGISTRY, worker, max_values=0)


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.operations+json", "multipart/form-data"])
async def test_bodies_over_http(kind: str) -> None:
    served = app(REGISTRY, mcp=False, authenticator=PEOPLE, limits=Limits(values=20_000))
    body = b'{"values":[' + b"[]," * 30_000 + b"[]]}"
    if kind == "multipart/form-data":
        kind += "; boundary=b"
        part = b'--b\r\ncontent-disposition: form-data; name="values"\r\n\r\n[' + b"[]," * 30_000 + b"[]]\r\n"
        body = part + b"--b--\r\n"
    for token in ("ada", "mallory"):
        answer = await request(served, "POST", "/shop/count", body=body, token=token, headers={"content-type": kind})
        if token == "ada":
            assert (answer.status, answer.json) == (200, 30_001)
        else:
            assert (answer.status, answer.json["details"]["reason"]) == (413, "TOO_MANY_VALUES")
            assert "more than 20,000 values" in answer.json["detail"]


@pytest.mark.parametrize("meta", [{}, SDK_ONLY], ids=["fast", "sdk"])
async def test_messages_over_mcp(meta: Any) -> None:
    async with serve_endpoint(REGISTRY, limits=Limits(values=20_000)) as (url, _):
        sent = message("tools/call", {"name": "shop.count", "arguments": {"values": [[]] * 30_000}}, meta=meta)
        status, answer = await post(url, sent)
        assert status == 413
        assert "more than 20,000 values" in answer["error"]["message"]
        _, answer = await post(url, sent, **{"x-caller": "ada shop"})
        assert answer["result"]["isError"] is False


@operation(id="shop.sum", type="query")
async def add_up(values: list[int], unit: Literal["g", "kg"] = "g") -> int:
    return sum(values)


@operation(id="shop.mixed", type="query")
async def mixed(values: list[int] | list[bool]) -> int:
    return len(values)


WRONG: dict[str, tuple[Any, int]] = {
    "few": ({"values": ["x"] * 3}, 3),
    "many": ({"values": ["x"] * 3_000}, 101),
    "many more": ({"values": ["x"] * 50_000}, 2),
    "last": ({"values": [1] * 50_000 + ["x"]}, 2),
    "properties": ({f"p{number}": 1 for number in range(50_000)}, 2),
    "object": ({"values": {f"p{number}": 1 for number in range(50_000)}}, 2),
}


@pytest.mark.parametrize("name", WRONG)
async def test_the_listed_problems_of_an_input_are_bounded(name: str) -> None:
    """The native engine would collect every problem first, and the caller would get its whole input back."""
    registry = OperationRegistry([add_up, mixed])
    dispatcher = Dispatcher(registry)
    input, count = WRONG[name]

    def call(operation_id: str, identity: Identity | None) -> Awaitable[Any]:
        return dispatcher.call(Request(operation_id=operation_id, input=input, grant=Grant(identity=identity)))

    error = await error_of(call("shop.sum", Identity("guest")))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert len(error.details["errors"]) == count
    assert len(msgspec.json.encode(error.details)) < 32_768
    if name == "last":
        assert error.details["errors"][0]["path"] == "/values/50000"
    if count > 3:
        assert "more than 100 problems: the others are not listed" in error.message
    elif count == 2:
        assert "more than 4,000 values: at most one problem is listed" in error.message
    error = await error_of(call("shop.mixed", None))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert len(msgspec.json.encode(error.details)) < 32_768


@pytest.mark.parametrize("identity", [None, Identity("ada", ("read",))])
async def test_trusted_calls_and_callers_with_rights_get_every_problem(identity: Identity | None) -> None:
    registry = OperationRegistry([add_up])
    input = {"values": [1] * 5_000 + ["x"] * 200}
    if identity is None:
        error = await error_of(registry.execute("shop.sum", input))
    else:
        request = Request(operation_id="shop.sum", input=input, grant=Grant(identity=identity))
        error = await error_of(Dispatcher(registry).call(request))
    assert len(error.details["errors"]) == 200


JSON_CASES: list[tuple[bytes, int]] = [
    (b"[" + b"[]," * 999 + b"[]]", 2_000),
    (b'{"a":' + b"[1,2,3]" * 1 + b"}", 5),
    (b'["' + b"a, [b], {c}, " * 1_000 + b'"]', 1),
    (b'["\\\\",",,,,,,,,","\\",,,,\\\\\\"[[[[", "{"]', 4),
    (b'{",":",","[":"{"}', 2),
    (b"[" + b'"",' * 1_000 + b'""]', 1_001),
]


@pytest.mark.parametrize(("text", "values"), JSON_CASES, ids=range(len(JSON_CASES)))
async def test_separators_in_strings_are_not_values(text: bytes, values: int) -> None:
    check_json_values(text, values)
    if values > 1:
        with pytest.raises(CallError, match="values"):
            check_json_values(text, values // 2 - 1)
    packed = msgspec.msgpack.encode(msgspec.json.decode(text))
    check_msgpack_values(packed, 2 * values + 1)


@pytest.mark.parametrize(
    "number", ["1.7976931348623157e-300", "1.7E+304", "22250738585072011E0305", "0." + "0" * 300 + "2225", "9" * 4_000]
)
async def test_a_number_that_takes_long_to_decode_counts_as_several_values(number: str) -> None:
    numbers = f"[{','.join([number] * 1_000)}]".encode()
    with pytest.raises(CallError, match="values"):
        check_json_values(numbers, 10_000)
    check_json_values(msgspec.json.encode(numbers.decode()), 10_000)  # as text, it is one value
    check_json_values(f"[{','.join(['-1234.5678901234567e-12'] * 1_000)}]".encode(), 1_000)


async def test_the_memory_of_a_refused_message_is_bounded() -> None:
    text = b"[" + b'"",' * (1 << 20) + b"1]"
    tracemalloc.start()
    with pytest.raises(CallError):
        check_json_values(text, MAX_VALUES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 << 20  # decoded, it would take 80 bytes a value


@operation(id="shop.take", type="query")
async def take(number: Annotated[int, msgspec.Meta(le=100)]) -> str:
    return f"{number.bit_length()} bits"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("zeros", [30, 4_290, 4_299, 4_300, 5_000, 50_000])
async def test_integers_of_any_length_are_checked(zeros: int, format: Literal["json", "msgpack"]) -> None:
    """The engine that checks schemas accepts any integer of more than 4,300 digits."""
    async with untrusted_bus("memory") as bus:
        worker, mallory = await bus(), await bus()
        handler = CallHandler(OperationRegistry([take]), worker)
        answers: list[Any] = []
        mallory.listen("inbox.mallory", lambda sent, arrival: answers.append(codec.read_event(sent)))
        number = 10**zeros
        input: Any = {"number": msgspec.msgpack.Ext(1, number.to_bytes(number.bit_length() // 8 + 1, signed=True))}
        encode: Any = msgspec.msgpack.encode
        if format == "json":
            input, encode = {"number": msgspec.Raw(b"1" + b"0" * zeros)}, msgspec.json.encode
        payload = {"requestId": "mallory-1", "operationId": "shop.take", "input": input}
        event = {"v": 1, "type": "call.requested", "id": "mallory-1", "to": "shop.take", "payload": payload}
        mallory.send("work.shop", encode(event))
        await until(lambda: bool(answers))
        assert answers[0]["payload"]["code"] == ErrorCode.VALIDATION_ERROR
        assert len(answers[0]["payload"]["message"]) < 500
        await handler.close()


def test_longer_integers_are_not_written() -> None:
    assert decode_msgpack(encode_msgpack(-(10**4_298))) == -(10**4_298)
    for write in (encode_msgpack, encode_portable):
        with pytest.raises(CallError, match="more than 4,299 digits"):
            write([10**4_300])
