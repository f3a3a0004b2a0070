"""One test for each row of the audit of the public interface: wrong, missing, different, frictions, surprises."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import datetime
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import operations
from operations import (
    RESPONSE_SOURCES,
    AccessControl,
    CallError,
    ErrorCode,
    MCPContentBlockSchema,
    MCPImageContent,
    MCPTextContent,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationSpecSchema,
    OperationType,
    ResponseEnvelope,
    ResponseEnvelopeSchema,
    ResponseMetaSchema,
    ResponseSource,
    from_schema,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    operation,
    unwrap,
)
from operations.calls import CallHandler, PendingRequestMap, from_call, read_event, serve_registry
from operations.pubsub.memory import MemoryTransport
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from operations.sources.openapi import (
    HTTPAuth,
    HTTPCallOptions,
    HTTPServiceConfig,
    OpenAPIOperation,
    OpenAPIParameter,
    OpenAPISpec,
    from_openapi,
    from_openapi_file,
)
from operations.sources.scanner import scan_operations
from operations.testing import error_of
from tests.sources.openapi.answers import PreparedClient

JSON, EVENTS = "application/json", "text/event-stream"


@operation(id="shop.quote", type="query")
async def quote(item: str, count: int = 1) -> str:
    return f"{count} {item}"


def by_bytes() -> MemoryTransport:
    return MemoryTransport(direct=False)


def document(*, method: str = "get", **description: Any) -> OpenAPISpec:
    """A document of one operation, `api.send`."""
    described: OpenAPIOperation = {"operationId": "send", **description}  # type: ignore[typeddict-item]
    return {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "paths": {"/things": {method: described}},
    }


def api(client: PreparedClient | None = None, *, config: Any = (), **description: Any) -> OperationRegistry:
    settings = {"namespace": "api", "base_url": "http://api.test", "client": client or PreparedClient(), **dict(config)}
    return OperationRegistry(from_openapi(document(**description), settings))


def responses(kind: str, schema: Any = None) -> dict[str, Any]:
    return {"200": {"content": {kind: {} if schema is None else {"schema": schema}}}}


# Wrong


@pytest.mark.parametrize("transport", [MemoryTransport, by_bytes])
async def test_wrong_1_access_control_given_as_a_mapping_is_read(transport: Any) -> None:
    given: Any = {"required_scopes": ["admin"]}

    @operation(id="shop.guarded", access_control=given)
    async def guarded() -> None: ...

    assert guarded.spec.access_control == AccessControl(required_scopes=["admin"])
    with pytest.raises(CallError, match="list of scopes"):
        AccessControl(required_scopes="admin")
    bus = transport()
    async with serve_registry(OperationRegistry([guarded]), bus):
        caller = PendingRequestMap(bus)
        error = await error_of(caller.call("shop.guarded", identity=operations.Identity(id="ada")))
    assert (error.code, "admin" in error.message) == (ErrorCode.ACCESS_DENIED, True)


async def test_wrong_2_credentials_are_checked_and_spelled_as_in_openapi() -> None:
    auth = HTTPAuth(type="apiKey", token="K", header_name="X-Key")
    assert auth == HTTPAuth(type="api_key", token="K", header_name="X-Key")
    client = PreparedClient()
    await api(client, config={"auth": auth}).execute("api.send")
    assert ("X-Key", "K") in client.requests[0].headers
    unusable: list[dict[str, Any]] = [
        {"type": "digest", "token": "t"},
        {"type": "bearer"},
        {"type": "bearer", "token": ""},
        {"type": "api_key"},
        {"type": "basic"},
        {"type": "oauth2"},
        {"type": "bearer", "token": 5},
        {"type": "api_key", "token": "t", "location": "body"},
    ]
    for settings in unusable:
        with pytest.raises(CallError) as as_object:
            HTTPAuth(**settings)
        with pytest.raises(CallError) as as_mapping:
            HTTPServiceConfig(namespace="api", auth=settings)
        assert as_object.value.code is as_mapping.value.code is ErrorCode.VALIDATION_ERROR


async def test_wrong_3_an_undeclared_event_stream_can_be_read() -> None:
    registry = api(PreparedClient(b'data: {"left": 2}\n\ndata: end\n\n', EVENTS), responses=responses(JSON, {}))
    assert "use subscribe" in (await error_of(registry.execute("api.send"))).message
    assert [event.data async for event in registry.subscribe("api.send")] == [{"left": 2}, "end"]
    plain = api(PreparedClient(b"[1]"), responses=responses(JSON, {}))
    assert [item.data async for item in plain.subscribe("api.send")] == [[1]]
    assert plain["api.send"].spec.type is OperationType.QUERY


LEFT = {"type": "object", "properties": {"left": {"type": "integer"}}}


@pytest.mark.parametrize("schema", [LEFT, {"type": "array", "items": LEFT}])
async def test_wrong_4_the_schema_of_events_is_used(schema: Any) -> None:
    client = PreparedClient(b'data: {"left": "2", "more": 1}\n\n', EVENTS)
    registry = api(client, responses=responses(EVENTS, schema))
    assert [event.data async for event in registry.subscribe("api.send")] == [{"left": 2}]
    text = api(client, responses=responses(EVENTS, {"type": "string"}))
    assert [event.data async for event in text.subscribe("api.send")] == [{"left": "2", "more": 1}]


async def test_wrong_5_an_async_generator_given_as_handler_is_the_stream() -> None:
    async def numbers(value: Any, context: OperationContext) -> AsyncIterator[int]:
        yield 1

    spec = OperationSpec(name="numbers", namespace="a", type=OperationType.SUBSCRIPTION)
    registry = OperationRegistry([Operation(spec=spec, handler=numbers)])
    assert [item.data async for item in registry.subscribe("a.numbers")] == [1]


def test_wrong_6_unwrap_takes_an_envelope_as_a_mapping() -> None:
    assert unwrap(local_envelope(5, "a.b").to_dict()) == 5
    with pytest.raises(CallError, match="not an envelope"):
        unwrap({"data": 5})


@pytest.mark.parametrize(
    ("kind", "status", "data"),
    [
        ("text/plain", 200, ""),
        ("application/xml", 200, ""),
        ("application/octet-stream", 200, b""),
        (JSON, 200, None),
        ("", 200, None),
        ("text/plain", 204, None),
    ],
)
async def test_wrong_7_empty_text_and_bytes_stay_empty(
    kind: str, status: int, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = api(PreparedClient(b"", kind, status), responses=responses("text/plain", {"type": "string"}))
    assert (await registry.execute("api.send")).data == data
    assert caplog.text == ""


# Missing


async def test_missing_1_a_registry_is_served() -> None:
    from operations.serving import app

    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"item": "tea"}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/shop/quote",
        "raw_path": b"/shop/quote",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(OperationRegistry([quote]))(scope, receive, send)
    assert sent[0]["status"] == 200
    assert json.loads(b"".join(message.get("body", b"") for message in sent[1:])) == "1 tea"


def test_missing_2_the_scanner_warns_about_unusable_modules(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    spec = {
        "name": "later",
        "namespace": "shop",
        "version": "1",
        "type": "query",
        "inputSchema": {},
        "outputSchema": {},
    }
    (tmp_path / "specs.py").write_text(f"SPEC = {spec!r}\nWRONG = {spec | {'type': 'get'}!r}")
    manifest = scan_operations(tmp_path)
    assert [found.id for found in manifest.specs] == ["shop.later"]
    assert len(manifest.skipped) == 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert any("broken.py" in line and "ZeroDivisionError" in line for line in warned)
    assert any("WRONG is not an operation spec" in line for line in warned)


def test_missing_3_the_sources_and_documents_have_types() -> None:
    assert RESPONSE_SOURCES == get_args(ResponseSource) == ("local", "http", "mcp")
    parameter: OpenAPIParameter = {"name": "page", "in": "query", "schema": {"type": "integer"}}
    typed: OpenAPIOperation = {"operationId": "list", "parameters": [parameter]}
    whole: OpenAPISpec = {"openapi": "3.1.0", "info": {}, "paths": {"/": {"get": typed}}}
    assert [found.id for found in from_openapi(whole, HTTPServiceConfig(namespace="api"))] == ["api.list"]


# Different


NAMED = {"type": "object", "properties": {"name": {"type": "string"}, "id": {"type": "integer", "readOnly": True}}}


async def test_different_1_inputs_may_have_additional_properties_of_an_open_body() -> None:
    client = PreparedClient()
    described: dict[str, Any] = {"method": "post", "requestBody": {"content": {JSON: {"schema": NAMED}}}}
    await api(client, **described).execute("api.send", {"name": "a", "colour": "red"})
    assert client.requests[0].body == b'{"name":"a","colour":"red"}'
    assert "read-only" in (await error_of(api(**described).execute("api.send", {"id": 1}))).message
    closed: dict[str, Any] = {"requestBody": {"content": {JSON: {"schema": {**NAMED, "additionalProperties": False}}}}}
    error = await error_of(api(method="post", **closed).execute("api.send", {"name": "a", "colour": "red"}))
    assert (error.code, "colour" in error.message) == (ErrorCode.VALIDATION_ERROR, True)


async def test_different_2_malformed_json_is_text_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert (await api(PreparedClient(b"{oops")).execute("api.send")).data == "{oops"
    assert "not valid JSON" in caplog.text


async def test_different_3_a_malformed_event_is_reported_before_the_stream_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = api(PreparedClient(b"retry: soon\ndata: 1\n\ndata: 2\n\n", EVENTS), responses=responses(EVENTS))
    stream = registry.subscribe("api.send")
    assert (await anext(stream)).data == 1
    assert "malformed field" in caplog.text
    await stream.aclose()


def test_different_4_schema_and_detection_agree() -> None:
    for meta in ({"timestamp": 5.0}, {"timestamp": 5, "event": None}):
        value = {"data": 1, "meta": {"source": "local", "operationId": "a.b", **meta}}
        assert ResponseEnvelopeSchema.check(value)
        assert ResponseEnvelope.from_dict(value).meta.to_dict()["timestamp"] == 5
        assert is_response_envelope(value)


async def test_different_5_waiting_for_remote_operations_ends() -> None:
    async with from_call(MemoryTransport()) as remote:
        for waiting in (remote.ready("a.b", timeout=0.01), remote.until(lambda: False, timeout=0.01)):
            assert (await error_of(waiting)).code is ErrorCode.TIMEOUT


async def test_different_6_a_registry_that_changes_while_it_is_served_is_announced() -> None:
    bus, registry = by_bytes(), OperationRegistry()
    async with serve_registry(registry, bus), from_call(bus) as remote:
        registry.register(quote)
        await remote.ready("shop.quote", timeout=10)
        registry.unregister("shop.quote")
        await remote.until(lambda: not remote.ids, timeout=10)


async def test_different_7_a_dry_run_names_its_operation() -> None:
    context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True)})
    envelope = await api().execute("api.send", {}, context)
    assert envelope.meta.to_dict()["operationId"] == "api.send"


def test_different_8_one_and_one_point_zero_are_one_number() -> None:
    cast = from_schema({"type": "number"}).cast(1)
    assert (cast, type(cast)) == (1, int)
    assert from_schema({"type": "integer"}).check(1.0)


# Frictions


@pytest.mark.parametrize("wrong", [{"namespace": "api", "timeout": "5"}, {"namespace": "api", "tiemout": 5}, {}, 5])
def test_friction_1_settings_of_an_api_are_checked_where_they_are_given(wrong: Any) -> None:
    with pytest.raises(CallError) as caught:
        from_openapi(document(), wrong)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert from_openapi(document(), {"namespace": "api", "timeout": 5})[0].id == "api.send"


async def test_friction_1_other_settings_are_checked_where_they_are_given() -> None:
    for wrong in ({"url": "http://a", "timeout": "5"}, {"command": ["a"]}, {}, 5, {"command": "a", "disabled": True}):
        given: Any = wrong
        assert (await error_of(create_mcp_client("x", given))).code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(CallError, match="connect_timeout"):
        MCPClientConfig(command="a", connect_timeout=0)
    with pytest.raises(CallError, match="timeout"):
        HTTPCallOptions(timeout=-1)
    context: Any = {}
    assert "OperationContext" in str(await error_of(OperationRegistry([quote]).execute("shop.quote", {}, context)))


def test_friction_2_a_type_given_as_a_schema_is_that_type() -> None:
    given: Any = int
    spec = OperationSpec(name="a", namespace="b", type=OperationType.QUERY, output_schema=given)
    assert (spec.output_schema.check(1), spec.output_schema.check("x")) == (True, False)


async def test_friction_3_time_limits_are_in_seconds() -> None:
    registry = OperationRegistry([quote])
    assert (await registry.execute("shop.quote", {"item": "tea"}, timeout=30)).data == "1 tea"
    late: Any = time.time() + 5
    error = await error_of(registry.execute("shop.quote", {"item": "tea"}, OperationContext(deadline=late)))
    assert "timeout=" in error.message


async def test_friction_3_time_limits_of_a_bus_are_in_seconds() -> None:
    @operation(id="shop.nap")
    async def nap() -> None:
        await asyncio.sleep(60)

    bus = by_bytes()
    async with serve_registry(OperationRegistry([quote, nap]), bus):
        caller = PendingRequestMap(bus)
        assert (await error_of(caller.call("shop.nap", timeout=0.05))).code is ErrorCode.TIMEOUT
        assert "timeout=" in (await error_of(_later(caller, time.time() + 5))).message


async def _later(caller: PendingRequestMap, deadline: float) -> Any:
    return await caller.call("shop.quote", {"item": "tea"}, deadline=deadline)


@pytest.mark.parametrize("transport", [MemoryTransport, by_bytes])
async def test_friction_4_a_caller_takes_the_function_and_refuses_invalid_ids(transport: Any) -> None:
    @operation(id="shop.item")
    async def item(name: str) -> AccessControl:
        return AccessControl(required_scopes=[name])

    bus = transport()
    async with serve_registry(OperationRegistry([quote, item]), bus):
        caller = PendingRequestMap(bus)
        assert (await caller.call(quote, {"item": "tea"})).data == "1 tea"
        typed = (await caller.call(item, {"name": "a"})).data
        assert isinstance(typed, AccessControl)
        assert list(typed.required_scopes) == ["a"]
        for wrong in ("sp", "", 5, quote.function):
            given: Any = wrong
            with pytest.raises(CallError, match="expected an id such as") as caught:
                await caller.call(given)
            assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_friction_5_a_worker_can_wait_for_being_registered() -> None:
    async with serve_registry(OperationRegistry([quote]), by_bytes()) as handler:
        await handler.registered(timeout=5)
        assert handler.rejected == {}


async def test_friction_6_a_plain_function_calls_others_and_waits() -> None:
    @operation(id="shop.offer")
    def offer(item: str, context: OperationContext) -> str:
        return f"offer: {context.env.shop.quote(item=item).data}"

    registry = OperationRegistry([quote, offer])
    assert (await registry.execute("shop.offer", {"item": "tea"})).data == "offer: 1 tea"


async def test_friction_6_handlers_call_functions_and_streams_of_other_workers() -> None:
    @operation(id="stock.count")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @operation(id="office.offer")
    async def offer(context: OperationContext, item: str) -> str:
        numbers = [each.data async for each in context.env[count](to=2)]
        return f"{(await context.call(quote, item=item)).data} {numbers}"

    @operation(id="office.wait")
    def wait(context: OperationContext, item: str) -> str:
        numbers = [each.data for each in context.env.stock.count.subscribe(to=2)]
        return f"{context.env[quote](item=item).data} {numbers} {[each.data for each in context.env[count](to=1)]}"

    bus = by_bytes()
    async with (
        serve_registry(OperationRegistry([quote, count]), bus.join()),
        serve_registry(OperationRegistry([offer, wait]), bus.join()),
    ):
        caller = PendingRequestMap(bus)
        assert (await caller.call("office.offer", {"item": "tea"})).data == "1 tea [0, 1]"
        assert (await caller.call("office.wait", {"item": "tea"})).data == "1 tea [0, 1] [0]"


async def test_friction_7_requests_can_be_answered_by_hand() -> None:
    bus = by_bytes()
    server, caller = PendingRequestMap(bus), PendingRequestMap(bus.join(), codec="msgpack")

    def receive(message: bytes, arrival: Any) -> None:
        request = read_event(message)["payload"]
        if request["operationId"] == "shop.quote":
            server.respond(request["requestId"], local_envelope(request["input"]["item"], "shop.quote"))
        elif request["operationId"] == "shop.watch":
            server.respond(request["requestId"], local_envelope(1, "shop.watch"), sequence=0)
            server.complete(request["requestId"], sequence=1)
        elif request["operationId"] == "shop.leave":
            server.abort(request["requestId"])
        else:
            server.emit_error(request["requestId"], CallError("OUT", "no tea"))

    bus.listen("work.shop", receive)
    assert (await caller.call("shop.quote", {"item": "tea"})).data == "tea"
    assert [item.data async for item in caller.subscribe("shop.watch")] == [1]
    assert (await error_of(caller.call("shop.other"))).code == "OUT"
    assert (await error_of(caller.call("shop.leave"))).code is ErrorCode.ABORTED
    with pytest.raises(CallError, match="not an event"):
        read_event(b"{}")


async def test_friction_8_a_positional_argument_of_env_is_the_whole_input() -> None:
    @operation(id="shop.buy")
    async def buy(context: OperationContext) -> list[Any]:
        env = context.env.shop
        wrong = [await error_of(call) for call in (env.quote("tea"),)]
        with pytest.raises(CallError, match="positional argument is the whole input"):
            env.quote("tea", count=2)
        return [(await env.quote({"item": "tea"}, count=2)).data, wrong[0].code]

    registry = OperationRegistry([quote, buy])
    assert (await registry.execute("shop.buy")).data == ["2 tea", "VALIDATION_ERROR"]


def test_friction_9_a_registry_takes_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "tea.py").write_text("from operations import operation\n@operation\ndef pour() -> int: return 1\n")
    assert list(OperationRegistry(scan_operations(tmp_path))) == ["tea.pour"]


def test_friction_10_the_schemas_take_the_objects_themselves() -> None:
    block = MCPTextContent(text="tea")
    for envelope in (
        local_envelope(1, "a.b"),
        http_envelope(b"raw", status_code=200, headers={"Content-Type": "a/b"}),
        mcp_envelope([1], content=[block, MCPImageContent(data="aGk=", mime_type="image/png")]),
    ):
        assert ResponseEnvelopeSchema.check(envelope)
        assert ResponseEnvelopeSchema.errors(envelope) == []
        assert ResponseMetaSchema.check(envelope.meta)
    assert MCPContentBlockSchema.check(block)
    assert OperationSpecSchema.check(quote.spec)
    assert not ResponseEnvelopeSchema.check(block)


async def test_friction_11_error_details_are_sent_as_far_as_they_can_be(caplog: pytest.LogCaptureFixture) -> None:
    @operation(id="shop.fail")
    async def fail(strange: bool) -> None:
        details = {"when": datetime(2024, 5, 17), "kinds": {1}}
        raise CallError("OUT", "no tea", {**details, "module": object()} if strange else details)

    bus = by_bytes()
    async with serve_registry(OperationRegistry([fail]), bus):
        for strange in (False, True):
            error = await error_of(PendingRequestMap(bus).call("shop.fail", {"strange": strange}))
            assert error.details == {"when": "2024-05-17T00:00:00", "kinds": [1]}
    assert "only ['kinds', 'when'] are sent" in caplog.text


def test_friction_12_the_classes_of_blocks_are_public() -> None:
    names = {"Annotations", "AudioContent", "EmbeddedResource", "ImageContent", "ResourceContent", "ResourceLink"}
    assert {f"MCP{name}" for name in names | {"TextContent"}} <= set(operations.__all__)


def test_friction_13_a_connection_is_not_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    from operations.pubsub.limited_log import LimitedLog

    logger = logging.getLogger("operations.websocket.test")
    logger.setLevel(logging.INFO)
    LimitedLog(logger, "connections").info("connected")
    LimitedLog(logger, "connections").warning("broken frame")
    assert [record.getMessage() for record in caplog.records] == ["broken frame"]


# Surprises


def test_surprise_1_msgspec_writes_every_envelope_as_to_json_does() -> None:
    block = MCPTextContent(text="tea")
    for envelope in (
        local_envelope(1, "a.b"),
        http_envelope("x", status_code=200, headers={"Content-Type": "a/b"}),
        mcp_envelope([1], content=[block], structured_content={"a": 1}, extensions={"b": 2}),
        mcp_envelope(None, is_error=True),
    ):
        assert json.loads(msgspec.json.encode(envelope)) == json.loads(envelope.to_json())


async def test_surprise_2_the_registry_comes_first_and_the_transport_has_one_name() -> None:
    for serves in (serve_registry, CallHandler):
        assert list(signature(serves).parameters)[:2] == ["registry", "transport"]
    for calls in (from_call, PendingRequestMap):
        parameters = list(signature(calls).parameters.values())
        assert parameters[0].name == "transport"
        assert all(each.kind is each.KEYWORD_ONLY for each in parameters[1:])


async def test_surprise_3_source_functions_are_awaitable_and_context_managers(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    file.write_text(json.dumps(document()))
    async with from_openapi_file(file, {"namespace": "api"}) as operations:
        assert len(operations) == 1
    assert len(await from_openapi_file(file, {"namespace": "api"})) == 1
    assert len(await asyncio.create_task(from_openapi_file(file, {"namespace": "api"}))) == 1
    with pytest.raises(CallError, match="No such file"):
        async with from_openapi_file(tmp_path / "none.json", {"namespace": "api"}):
            raise AssertionError("it was opened")
    assert inspect.iscoroutinefunction(from_call(MemoryTransport()).close)


async def test_surprise_3_everything_that_opens_is_closed_by_a_block() -> None:
    async with OperationRegistry([quote]) as registry, from_openapi(document(), {"namespace": "api"}) as found:
        assert "shop.quote" in registry
        assert len(found) == 1


def test_surprise_4_a_registry_is_read_like_a_mapping() -> None:
    registry = OperationRegistry([quote])
    assert (list(registry), registry["shop.quote"]) == (["shop.quote"], quote)


async def test_surprise_5_a_plain_function_is_refused_everywhere_in_the_same_way() -> None:
    def plain() -> None: ...

    given: Any = plain
    registry = OperationRegistry()
    with pytest.raises(CallError, match="decorate it with @operation") as registering:
        registry.register(given)
    calling = await error_of(registry.execute(given))
    assert registering.value.code is calling.code is ErrorCode.VALIDATION_ERROR


def test_surprise_6_modules_declare_their_exports() -> None:
    from operations import blocking, testing

    assert operations.__version__
    for module in (testing, blocking):
        assert all(hasattr(module, name) for name in module.__all__)
    assert "error_of" in testing.__all__


def test_surprise_7_pages_and_items_have_telling_names() -> None:
    from operations.sources import openapi

    assert {"iterate_items", "iterate_pages"} <= set(openapi.__all__)
    assert not hasattr(openapi, "items")
