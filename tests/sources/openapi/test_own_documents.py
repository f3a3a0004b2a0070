"""Documents of other registries: imported without loss, and read with care."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.envelope import HTTPResponseMeta, LocalResponseMeta, http_envelope, mcp_envelope
from operations.identity.tokens import Principal, StaticTokens
from operations.serving import app
from operations.sources.openapi import (
    HTTPAuth,
    HTTPCallOptions,
    HTTPServiceConfig,
    HTTPServices,
    from_openapi,
    from_openapi_url,
)
from operations.spec import AccessControl
from tests.asgi_server import serving
from tests.serving.clients import shop

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "x-operations": {"version": 1},
    "paths": {
        "/a/b": {
            "get": {"operationId": "a.b:get", "x-operations": {"alias": "a.b"}},
            "post": {
                "operationId": "a.b",
                "requestBody": {"content": {"application/json": {"schema": {"type": "integer"}}}},
                "responses": {"200": {"content": {"application/json": {"schema": {"type": "string"}}}}},
                "x-operations": {"id": "a.b", "type": "query", "version": "2.0", "ways": ["call", "stream"]},
            },
        }
    },
}


@operation(namespace="far", type="query")
async def upstream() -> Any:
    return http_envelope({"a": b"\x00"}, status_code=201, headers={"x-rate": "1"}, content_type="application/json")


@operation(namespace="far", type="query")
async def tool() -> Any:
    return mcp_envelope("no", is_error=True, content=[{"type": "text", "text": "no"}])


@operation(namespace="far", type="query")
async def broken() -> int:
    raise RuntimeError("a secret")


@operation(namespace="far", type="query", access_control=AccessControl(required_scopes=["x"]))
async def closed() -> int:
    return 1


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    registry = OperationRegistry([*shop.registry().operations.values(), upstream, tool, broken, closed])
    with serving(app(registry), lifespan="on") as url:
        yield url


@pytest.fixture
async def far(served: str) -> AsyncIterator[OperationRegistry]:
    operations = await from_openapi_url(f"{served}/openapi.json", HTTPServiceConfig(namespace=None))
    yield OperationRegistry(operations)
    await operations.close()


async def failure(registry: OperationRegistry, operation_id: str, input: Any = None) -> CallError:
    with pytest.raises(CallError) as caught:
        await registry.execute(operation_id, input)
    return caught.value


def test_aliases_are_left_out_and_the_body_is_the_input() -> None:
    (imported,) = from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None, base_url="http://x.test"))
    assert imported.id == "a.b"
    assert imported.spec.to_dict() == {
        "name": "b",
        "namespace": "a",
        "version": "2.0",
        "type": "query",
        "description": "",
        "inputSchema": {"type": "integer"},
        "outputSchema": {"type": "string"},
        "accessControl": {},
    }
    assert imported.handler is not None
    assert imported.stream is not None


def test_a_namespace_is_a_prefix() -> None:
    (imported,) = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="far.away", base_url="http://x.test"))
    assert imported.id == "far.away.a.b"


def test_the_document_can_be_read_as_any_other() -> None:
    foreign = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="x", base_url="http://x.test"), own=False)
    assert [each.spec.annotations["method"] for each in foreign] == ["GET", "POST"]
    with pytest.raises(CallError, match="namespace"):
        from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None), own=False)
    with pytest.raises(CallError, match="namespace"):
        from_openapi({**DOCUMENT, "x-operations": {"version": 2}}, HTTPServiceConfig(namespace=None))


@pytest.mark.parametrize(
    "extension",
    [{"id": "no namespace"}, {"id": "a.b.."}, {"id": "a.b", "type": "other"}, {"id": 3}, [], {"id": "a.b", "ways": 1}],
)
def test_invalid_operations_are_left_out_with_the_reason(extension: Any) -> None:
    post = {**DOCUMENT["paths"]["/a/b"]["post"], "x-operations": extension}
    document = {**DOCUMENT, "paths": {"/a/b": {"post": post}, "/c": {"post": {"operationId": "other"}}}}
    for given in (document, json.dumps(document).encode()):
        operations = from_openapi(given, HTTPServiceConfig(namespace=None, base_url="http://x.test"))
        assert list(operations) == []
        assert "POST /a/b is left out" in operations.diagnostics()[""][0]


async def test_dry_runs_return_the_request() -> None:
    operations = from_openapi(
        DOCUMENT, HTTPServiceConfig(namespace=None, base_url="http://x.test/v1", headers={"X-Own": "1"})
    )
    context = OperationContext(metadata={"http": HTTPCallOptions(dry_run=True, headers={"X-Call": "2"})})
    shown = (await OperationRegistry(operations).execute("a.b", 3, context)).data
    assert (shown["method"], shown["url"], shown["body"]) == ("POST", "http://x.test/v1/a/b", b"3")
    assert dict(map(tuple, shown["headers"])) == {
        "X-Own": "1",
        "X-Call": "2",
        "Accept": "application/vnd.operations.envelope+json",
        "Content-Type": "application/vnd.operations+json",
    }


async def test_meta_of_every_source_comes_back(far: OperationRegistry) -> None:
    envelope = await far.execute("far.upstream")
    assert envelope.data == {"a": b"\x00"}
    assert envelope.meta == HTTPResponseMeta(201, {"x-rate": "1"}, "application/json")
    result = await far.execute("far.tool")
    assert result.meta.source == "mcp"
    assert result.meta.is_error
    local = await far.execute("shop.ping")
    assert isinstance(local.meta, LocalResponseMeta)
    assert local.meta.operation_id == "shop.ping"


async def test_errors_keep_code_details_and_executed(far: OperationRegistry) -> None:
    sold_out = await failure(far, "shop.buy", {"item": 1})
    assert (sold_out.code, sold_out.message, sold_out.details) == ("SOLD_OUT", "no more of these", {"left": 0})
    invalid = await failure(far, "files.store", {"content": "\x1e"})
    assert invalid.code is ErrorCode.VALIDATION_ERROR
    assert invalid.details["executed"] == "no"
    assert invalid.details["errors"][0]["path"] == "/content"
    failed = await failure(far, "far.broken")
    assert failed.code is ErrorCode.EXECUTION_ERROR
    assert "secret" not in f"{failed.message} {failed.details}"


async def test_operations_that_need_other_rights_are_not_listed(far: OperationRegistry) -> None:
    assert "far.closed" not in far.operations


async def test_streams_report_how_they_ended(far: OperationRegistry) -> None:
    assert [envelope.data async for envelope in far.subscribe("shop.countdown", {"start": 2})] == [0, 1]
    data: list[Any] = []

    async def follow() -> None:
        async for envelope in far.subscribe("shop.countdown", {"start": 3}):
            data.append(envelope.data)

    with pytest.raises(CallError) as caught:
        await follow()
    assert (data, caught.value.code, caught.value.details) == ([0, 1, 2], "REFUSED", {"reason": "odd"})


class Scripted:
    """An application that sends the same response to every request."""

    def __init__(self, status: int, content_type: str, body: bytes) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", self.content_type.encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


ENVELOPE = "application/vnd.operations.envelope+json"
PROBLEM = "application/problem+json"


@pytest.mark.parametrize(
    ("status", "content_type", "body", "code", "executed"),
    [
        (200, "application/json", b"1", ErrorCode.EXECUTION_ERROR, "unknown"),
        (200, ENVELOPE, b"{", ErrorCode.EXECUTION_ERROR, "unknown"),
        (200, ENVELOPE, b'{"data": 1, "meta": {"source": "other"}}', ErrorCode.EXECUTION_ERROR, "unknown"),
        (502, "text/html", b"<h1>", ErrorCode.UNAVAILABLE, "unknown"),
        (404, "text/html", b"<h1>", ErrorCode.EXECUTION_ERROR, None),
        (409, PROBLEM, b"[]", ErrorCode.EXECUTION_ERROR, None),
        (409, PROBLEM, b'{"code": 3}', ErrorCode.UNKNOWN_ERROR, None),
        (409, PROBLEM, b'{"code": "X", "details": [1], "errors": 3}', "X", None),
        (422, PROBLEM, b'{"code": "VALIDATION_ERROR", "errors": [1], "executed": "no"}', "VALIDATION_ERROR", "no"),
        (503, PROBLEM, b'{"code": "UNAVAILABLE", "executed": "maybe"}', ErrorCode.UNAVAILABLE, None),
    ],
)
async def test_other_answers_are_errors(
    status: int, content_type: str, body: bytes, code: str, executed: str | None
) -> None:
    with serving(Scripted(status, content_type, body)) as url:
        operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None, base_url=url))
        error = await failure(OperationRegistry(operations), "a.b", 1)
        await operations.close()
    assert error.code == code
    assert (error.details.get("executed") if isinstance(error.details, dict) else None) == executed


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'data: {"data": 1, "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}\n\n', "UNAVAILABLE"),
        (b"event: operations.problem\ndata: nonsense\n\n", "UNKNOWN_ERROR"),
        (b"data: nonsense\n\n", "EXECUTION_ERROR"),
        (b'event: operations.progress\ndata: {"progress": "x"}\n\n', "UNAVAILABLE"),
    ],
)
async def test_interrupted_and_malformed_streams_are_errors(body: bytes, code: str) -> None:
    with serving(Scripted(200, "text/event-stream", body)) as url:
        operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None, base_url=url))
        with pytest.raises(CallError) as caught:
            async for _ in OperationRegistry(operations).subscribe("a.b", 1):
                pass
        await operations.close()
    assert caught.value.code == code


class BreakingOff:
    """An application whose stream is interrupted once, and continues after the client's last event."""

    def __init__(self) -> None:
        self.asked: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        last = dict(scope["headers"]).get(b"last-event-id")
        self.asked.append(last)
        headers = [(b"content-type", b"text/event-stream")]
        event = b'id: %d\ndata: {"data": %d, "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}\n\n'
        body = b"retry: 1\n\n" + event % (1, 1)
        if last is not None:
            body = event % (2, 2) + b"event: operations.complete\ndata: {}\n\n"
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_interrupted_streams_are_resumed_if_configured() -> None:
    application = BreakingOff()
    with serving(application) as url:
        operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None, base_url=url, reconnect=2))
        stream = OperationRegistry(operations).subscribe("a.b", 1)
        assert [envelope.data async for envelope in stream] == [1, 2]
        context = OperationContext(metadata={"lastEventId": "7"})
        stream = OperationRegistry(operations).subscribe("a.b", 1, context)
        assert [envelope.data async for envelope in stream] == [2]
        await operations.close()
    assert application.asked == [None, b"1", b"7"]


async def test_progress_is_passed_on() -> None:
    body = (
        b'event: operations.progress\ndata: {"progress": 1, "total": 2, "message": "half"}\n\n'
        b"event: operations.complete\ndata: {}\n\n"
    )
    told: list[Any] = []
    with serving(Scripted(200, "text/event-stream", body)) as url:
        operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace=None, base_url=url))
        context = OperationContext(progress=lambda *progress: told.append(progress))
        assert [each async for each in OperationRegistry(operations).subscribe("a.b", 1, context)] == []
        await operations.close()
    assert told == [(1, 2, "half")]


async def test_credentials_stay_with_the_origin_that_the_document_came_from() -> None:
    document = {
        **DOCUMENT,
        "servers": [{"url": "http://elsewhere.test"}],
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }
    document["paths"]["/a/b"]["post"]["security"] = [{"bearer": []}]
    body = json.dumps(document).encode()
    with serving(Scripted(200, "application/json", body)) as url:
        config = HTTPServiceConfig(namespace=None, auth=HTTPAuth(type="bearer", token="secret"))
        operations = await from_openapi_url(f"{url}/openapi.json", config)
        error = await failure(OperationRegistry(operations), "a.b", 1)
        await operations.close()
    assert "elsewhere.test" in error.message
    assert "credential_origins" in error.message


@pytest.mark.parametrize("anonymous", [True, False])
async def test_the_document_is_that_of_the_caller(anonymous: bool) -> None:
    tokens = StaticTokens({"secret": Principal(Identity("me", scopes=["x"]))})
    served = app(OperationRegistry([upstream, closed]), authenticator=tokens, allow_anonymous=anonymous)
    auth = HTTPAuth(type="bearer", token="secret")
    with serving(served, lifespan="on") as url:
        for given in (auth, {"bearer": auth}):
            operations = await from_openapi_url(f"{url}/openapi.json", HTTPServiceConfig(namespace=None, auth=given))
            context = OperationContext(identity=Identity("me", scopes=["x"]))
            assert (await OperationRegistry(operations).execute("far.closed", {}, context)).data == 1
            await operations.close()
        elsewhere = HTTPServiceConfig(namespace=None, auth=auth, base_url="http://elsewhere.test")
        if anonymous:
            found = await from_openapi_url(f"{url}/openapi.json", elsewhere)
            assert [each.id for each in found] == ["far.upstream"]
        else:
            with pytest.raises(CallError, match="returned 401"):
                await from_openapi_url(f"{url}/openapi.json", elsewhere)


async def test_services_take_documents_without_a_namespace(served: str) -> None:
    registry = OperationRegistry()
    async with HTTPServices(registry) as services:
        await services.add(f"{served}/openapi.json", HTTPServiceConfig(namespace=None))
        assert (await registry.execute("shop.ping")).data == "pong"
        assert services.list() == [""]
    assert "shop.ping" not in registry.operations
