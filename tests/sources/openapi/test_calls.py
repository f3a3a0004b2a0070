"""Operations of a document called against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import mmap
import os
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from operations import (
    CallError,
    ErrorCode,
    HTTPResponseMeta,
    OperationContext,
    OperationRegistry,
    OperationType,
    operation,
)
from operations.http.httpx2_client import Httpx2Client
from operations.http.pyreqwest import socket_abort
from operations.sources.openapi import (
    APIOperations,
    HTTPAuth,
    HTTPCallOptions,
    HTTPLimits,
    HTTPRetry,
    HTTPServiceConfig,
    HTTPServices,
    Pagination,
    from_openapi,
    from_openapi_url,
    iterate_items,
    iterate_pages,
)
from operations.sources.openapi.pagination import next_link
from operations.sources.openapi.responses import read_data
from operations.testing import error_of, stub_operation
from tests.asgi_server import serving
from tests.http.servers import Exchange, raw_server, response
from tests.sources.openapi.shop import Shop


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop.application()) as base:
        shop.document["components"]["securitySchemes"]["machine"]["flows"]["clientCredentials"]["tokenUrl"] = (
            f"{base}/token"
        )
        yield base


class Client:
    """A registry of the shop's operations, with the configuration of one test."""

    def __init__(self, shop: Shop, url: str, **options: Any) -> None:
        settings: dict[str, Any] = {"namespace": "shop", "base_url": url, "retry": HTTPRetry(first_delay=0.001)}
        config = HTTPServiceConfig(**settings | options)
        self.operations: APIOperations = from_openapi(shop.document, config)
        self.registry = OperationRegistry(self.operations)

    async def call(self, name: str, input: Any = None, **options: Any) -> Any:
        return await self.registry.execute(f"shop.{name}", input, call_with(**options))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.operations.close()


def call_with(deadline: int | None = None, **options: Any) -> OperationContext:
    return OperationContext(deadline=deadline, metadata={"http": HTTPCallOptions(**options)} if options else {})


@pytest.fixture(params=["pyreqwest", "httpx2"])
async def client(request: pytest.FixtureRequest, shop: Shop, url: str) -> AsyncIterator[Client]:
    own = Httpx2Client() if request.param == "httpx2" else None
    async with Client(shop, url, client=own) as made:
        yield made
    if own is not None:
        await own.close()


async def test_the_description_becomes_a_spec(client: Client) -> None:
    spec = client.registry.get_spec("shop.list_items")
    assert spec is not None
    assert (spec.version, spec.type, spec.title, spec.tags) == ("1.2.3", OperationType.QUERY, "List items", ["items"])
    assert spec.annotations == {"method": "GET", "path": "/items", "sourceName": "list items"}
    created = client.registry.get_spec("shop.createItem")
    assert created is not None
    assert created.type is OperationType.MUTATION
    document = created.input_schema.document
    assert isinstance(document, dict)
    assert set(document["properties"]) == {"name", "price", "tags"}
    assert document["required"] == ["name", "price"]


async def test_an_answer_is_normalised_and_its_meta_kept(client: Client) -> None:
    envelope = await client.call("getItem", {"id": 5})
    assert envelope.data == {"id": 5, "name": "tea", "price": 2.5, "tags": []}
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert envelope.meta.status_code == 200
    assert envelope.meta.content_type == "application/json"
    assert envelope.meta.headers["content-length"]


async def test_a_body_is_sent_member_by_member(client: Client, shop: Shop) -> None:
    envelope = await client.call("createItem", {"name": "tea", "price": 2.5})
    assert envelope.data == {"id": 7, "name": "tea", "price": 2.5, "tags": []}
    assert envelope.meta.status_code == 201
    assert envelope.meta.headers["location"] == "/items/7"
    assert shop.requests[-1]["headers"]["content-type"] == "application/json"


async def test_members_of_one_name_in_several_places_are_kept_apart(client: Client) -> None:
    spec = client.registry.get_spec("shop.putItem")
    assert spec is not None
    document = spec.input_schema.document
    assert isinstance(document, dict)
    assert set(document["properties"]) == {"path_id", "query_id", "name", "price", "tags"}
    data = (await client.call("putItem", {"path_id": 1, "query_id": "q", "name": "n", "price": 1})).data
    assert (data["path"], data["query"], data["body"]) == ("/items/1", "id=q", {"name": "n", "price": 1})


async def test_every_place_of_a_parameter_is_filled(client: Client) -> None:
    data = (
        await client.call(
            "echo", {"name": "a/../b?c#d", "X-Trace": "t", "session": "s", "filter": {"a": 1}, "body": "grün"}
        )
    ).data
    assert data["path"] == "/echo/a%2F..%2Fb%3Fc%23d"
    assert data["query"] == "filter%5Ba%5D=1"
    assert (data["headers"]["x-trace"], data["cookies"], data["body"]) == ("t", {"session": "s"}, "grün")


async def test_an_empty_response_is_none(client: Client) -> None:
    envelope = await client.call("deleteItem", {"id": 1})
    assert (envelope.data, envelope.meta.status_code) == (None, 204)


async def test_an_error_status_is_a_call_error_with_the_whole_response(client: Client) -> None:
    error = await error_of(client.call("getItem", {"id": 404}))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message == "GET /items/{id} returned 404 Not Found: no such item"
    assert error.details["statusCode"] == 404
    assert error.details["headers"]["x-why"] == "gone"
    assert error.details["body"] == {"message": "no such item", "id": 404}
    problem = await error_of(client.call("problem"))
    assert problem.details["contentType"] == "application/problem+json"
    assert problem.details["body"]["title"] == "out of tea"


async def test_text_bytes_and_malformed_json_are_returned_unchanged(client: Client) -> None:
    assert (await client.call("text")).data == "grün"
    assert (await client.call("blob")).data == bytes(range(256)) * 4_000
    assert (await client.call("brokenJson")).data == '{"a": '


async def test_an_answer_that_violates_its_schema_is_data_and_one_warning(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "operations"):
        envelope = await client.call("violates")
    assert envelope.data == {"id": "seven", "name": "tea", "price": 1, "tags": []}
    assert len(caplog.records) == 1
    assert "shop.violates" in caplog.text
    assert "/id" in caplog.text


async def test_a_response_outside_the_schema_is_unchanged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "operations"):
        assert (await client.call("accepted")).data == {"job": 1}
    assert caplog.records == []


async def test_invalid_input_never_reaches_the_server(client: Client, shop: Shop) -> None:
    error = await error_of(client.call("createItem", {"price": "much", "tags": "green"}))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert len(error.details["errors"]) == 3
    assert shop.requests == []


async def test_a_broken_description_is_explained_and_affects_no_other(client: Client) -> None:
    error = await error_of(client.call("lost"))
    assert "unresolved reference #/components/parameters/Nowhere" in error.message
    assert list(client.operations.diagnostics()) == ["shop.lost"]
    assert (await client.call("text")).data == "grün"


async def test_an_upload_arrives_byte_for_byte(client: Client, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    file = tmp_path / "photo.bin"
    file.write_bytes(content)
    expected = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "note": "hé"}
    sent = {"file": {"filename": "photo.bin", "content": content}, "note": "hé"}
    assert (await client.call("upload", {"file": content, "note": "hé"})).data.items() >= expected.items()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        data = (await client.call("upload", {**sent, "file": view})).data
        view.release()
    assert data.items() >= expected.items()


async def test_a_download_goes_to_a_file(client: Client, tmp_path: Path) -> None:
    target = tmp_path / "blob.bin"
    envelope = await client.call("blob", download_to=str(target))
    assert envelope.data == {"path": str(target), "size": 256 * 4_000}
    assert target.read_bytes() == bytes(range(256)) * 4_000
    assert os.listdir(tmp_path) == ["blob.bin"]


async def test_the_schema_of_a_response_does_not_apply_to_its_download(client: Client, tmp_path: Path) -> None:
    target = tmp_path / "item.json"
    envelope = await client.call("getItem", {"id": 1}, download_to=target)
    assert envelope.data == {"path": str(target), "size": target.stat().st_size}
    assert json.loads(target.read_bytes())["id"] == 1


async def test_a_dry_run_returns_the_request_and_sends_nothing(client: Client, shop: Shop) -> None:
    data = (await client.call("createItem", {"name": "tea", "price": 1}, dry_run=True)).data
    assert (data["method"], data["url"].endswith("/items"), data["body"]) == ("POST", True, b'{"name":"tea","price":1}')
    assert shop.requests == []


async def test_a_call_may_have_its_own_headers(client: Client, shop: Shop) -> None:
    await client.call("getItem", {"id": 1}, headers={"X-Own": "1", "accept": "application/json;q=1"})
    headers = shop.requests[-1]["headers"]
    assert (headers["x-own"], headers["accept"]) == ("1", "application/json;q=1")


async def test_options_sent_as_a_mapping_are_ignored(client: Client, shop: Shop, tmp_path: Path) -> None:
    metadata = {"http": {"download_to": str(tmp_path / "x"), "headers": {"X-Own": "1"}}}
    await client.registry.execute("shop.getItem", {"id": 1}, OperationContext(metadata=metadata))
    assert "x-own" not in shop.requests[-1]["headers"]
    assert os.listdir(tmp_path) == []


async def test_events_are_envelopes_with_their_type_and_id(client: Client) -> None:
    events = [event async for event in client.registry.subscribe("shop.events", {})]
    assert [event.data for event in events] == [*({"n": n} for n in range(1, 7)), "plain text"]
    meta = events[0].meta
    assert isinstance(meta, HTTPResponseMeta)
    assert (meta.content_type, meta.status_code, meta.headers["x-stream"]) == ("text/event-stream", 200, "1")
    assert meta.event is not None
    assert (meta.event.type, meta.event.id) == ("tick", "1")


async def test_leaving_a_stream_closes_its_connection(client: Client, shop: Shop) -> None:
    stream = client.registry.subscribe("shop.events", {})
    assert (await anext(stream)).data == {"n": 1}
    await stream.aclose()


async def test_an_endpoint_may_return_a_stream_or_a_result(client: Client) -> None:
    spec = client.registry.get_spec("shop.chat")
    assert spec is not None
    assert spec.type is OperationType.SUBSCRIPTION
    assert (await client.call("chat", {"stream": False})).data == {"text": "whole", "accept": "application/json"}
    events = [event.data async for event in client.registry.subscribe("shop.chat", {"stream": True})]
    assert events == [{"t": "a"}, "[DONE]"]
    whole = [event.data async for event in client.registry.subscribe("shop.chat", {"stream": False})]
    assert whole == [{"text": "whole", "accept": "text/event-stream"}]
    error = await error_of(client.call("chat", {"stream": True}))
    assert "use subscribe" in error.message


async def test_an_endpoint_that_only_streams_is_not_executed(client: Client) -> None:
    assert (await error_of(client.call("events"))).code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("drop", [1, 2, 4])
async def test_a_dropped_stream_is_resumed(shop: Shop, url: str, drop: int) -> None:
    async with Client(shop, url, reconnect=10) as client:
        stream = client.registry.subscribe("shop.events", {"drop": drop})
        received = []
        async for event in stream:
            received.append(event.data)
            if event.data == "plain text":
                break
        await stream.aclose()
    assert received == [*({"n": n} for n in range(1, 7)), "plain text"]
    assert shop.dropped > 0
    assert "last-event-id" in shop.requests[1]["headers"]


async def test_a_dropped_stream_is_an_error_without_reconnecting(client: Client) -> None:
    with pytest.raises(CallError) as caught:
        async for _ in client.registry.subscribe("shop.events", {"drop": 2}):
            pass
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_query_is_tried_again_and_a_mutation_is_not(client: Client, shop: Shop) -> None:
    assert (await client.call("flaky", {"key": "a"})).data == {"attempts": 3}
    error = await error_of(client.call("flakyPost", {"key": "b"}))
    assert error.details["statusCode"] == 503
    assert shop.seen == {"a": 3, "b": 1}


async def test_a_mutation_is_retried_if_configured(shop: Shop, url: str) -> None:
    async with Client(shop, url, retry=HTTPRetry(mutations=True, first_delay=0.001)) as client:
        assert (await client.call("flakyPost", {"key": "c"})).data == {"attempts": 3}


async def test_the_delay_of_a_retry_grows_to_its_limit_and_not_beyond(shop: Shop, url: str) -> None:
    async with Client(shop, url, retry=HTTPRetry(first_delay=0.01, longest_delay=0.01)) as client:
        assert (await client.call("flaky", {"key": "d"})).data == {"attempts": 3}


async def test_a_refused_connection_is_unavailable(shop: Shop) -> None:
    async with Client(shop, "http://127.0.0.1:9", retry=HTTPRetry(attempts=1)) as client:
        error = await error_of(client.call("getItem", {"id": 1}))
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details["executed"] == "no"


async def test_a_slow_answer_is_a_timeout(client: Client) -> None:
    assert (await error_of(client.call("slow", timeout=0.05))).code is ErrorCode.TIMEOUT
    soon = int(time.time() * 1000) + 50
    assert (await error_of(client.call("slow", deadline=soon))).code is ErrorCode.TIMEOUT


async def test_a_large_answer_is_refused(shop: Shop, url: str) -> None:
    async with Client(shop, url, limits=HTTPLimits(response_bytes=1_000)) as client:
        error = await error_of(client.call("blob"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "1000" in error.message.replace(",", "")


AUTHS = [
    (HTTPAuth(type="bearer", token="t"), "Bearer t", ""),
    (HTTPAuth(type="bearer", token="t", prefix="Token"), "Token t", ""),
    (HTTPAuth(type="basic", username="ada", password="pw"), "Basic YWRhOnB3", ""),
    (HTTPAuth(type="api_key", token="k"), None, "api_key=k"),
    ({"token": HTTPAuth(type="bearer", token="t")}, "Bearer t", ""),
    ({"key": HTTPAuth(type="api_key", token="k&x")}, None, "api_key=k%26x"),
    ({"other": HTTPAuth(type="bearer", token="t")}, None, ""),
]


@pytest.mark.parametrize(("auth", "authorization", "query"), AUTHS)
async def test_credentials_are_sent_where_the_document_declares(
    shop: Shop, url: str, auth: Any, authorization: str | None, query: str
) -> None:
    async with Client(shop, url, auth=auth) as client:
        data = (await client.call("whoami")).data
    assert (data["authorization"], data["query"]) == (authorization, query)


async def test_an_api_key_may_be_a_header_or_a_cookie(shop: Shop, url: str) -> None:
    for location, header in (("header", "x-key"), ("cookie", "cookie")):
        auth = HTTPAuth(type="api_key", token="k", header_name="X-Key", location=location)  # type: ignore[arg-type]
        async with Client(shop, url, auth=auth) as client:
            assert (await client.call("whoami")).data["headers"][header] in ("k", "X-Key=k")


async def test_a_call_may_have_its_own_credentials(shop: Shop, url: str) -> None:
    async with Client(shop, url, auth=HTTPAuth(type="bearer", token="service")) as client:
        data = (await client.call("whoami", auth=HTTPAuth(type="bearer", token="user"))).data
    assert data["authorization"] == "Bearer user"


async def test_oauth2_fetches_keeps_and_renews_its_token(shop: Shop, url: str) -> None:
    auth = HTTPAuth(type="oauth2", client_id="id", client_secret="secret", scopes=["read"])
    async with Client(shop, url, auth={"machine": auth}) as client:
        answers = await asyncio.gather(*(client.call("whoami") for _ in range(5)), return_exceptions=True)
        assert {reply.data["authorization"] for reply in answers if not isinstance(reply, BaseException)} == {
            "Bearer token-2"
        }
        assert (await client.call("whoami")).data["authorization"] == "Bearer token-2"
    assert shop.tokens >= 2


async def test_credentials_are_never_shown() -> None:
    auth = HTTPAuth(type="bearer", token="very-secret", password="very-secret", client_secret="very-secret")
    assert "very-secret" not in repr(auth)
    assert "very-secret" not in repr(HTTPServiceConfig(namespace="a", auth=auth))


async def test_a_redirect_carries_credentials_only_within_the_origin(shop: Shop, url: str) -> None:
    other = Shop()
    with serving(other.application()) as abroad:
        shop.abroad = abroad.replace("127.0.0.1", "localhost")
        auth = HTTPAuth(type="bearer", token="secret")
        async with Client(shop, url, auth=auth, headers={"X-Api-Key": "secret"}) as client:
            assert (await client.call("moved")).data["authorization"] == "Bearer secret"
            data = (await client.call("abroad")).data
    assert data["authorization"] is None
    assert "secret" not in str(data["headers"])


async def test_a_server_of_another_host_gets_no_credentials(shop: Shop, url: str) -> None:
    other = Shop()
    with serving(other.application()) as abroad:
        document = shop.document
        document["servers"] = [{"url": url}]
        document["paths"]["/whoami"]["get"]["servers"] = [{"url": abroad.replace("127.0.0.1", "localhost")}]
        auth = HTTPAuth(type="bearer", token="secret")
        async with Client(shop, url, base_url=None, auth=auth) as client:
            assert (await client.call("whoami")).data["authorization"] is None


async def test_validators_make_the_second_request_conditional(shop: Shop, url: str) -> None:
    async with Client(shop, url, cache=True) as client:
        first = await client.call("tagged")
        second = await client.call("tagged")
        assert second.data == first.data
        assert second.meta.headers["x-fresh"] == "1"
        assert shop.requests[-1]["headers"]["if-none-match"] == '"v1"'
        other = await client.call("tagged", auth=HTTPAuth(type="bearer", token="other"))
        assert other.data == {"who": "Bearer other"}


@pytest.mark.parametrize(
    "pagination",
    [
        Pagination(),
        Pagination(kind="cursor", parameter="cursor", cursor="X-Next-Cursor"),
        Pagination(kind="page", parameter="page"),
    ],
)
async def test_pages_follow_each_other(client: Client, pagination: Pagination) -> None:
    found = [page.data async for page in iterate_pages(client.registry, "shop.list_items", pagination=pagination)]
    assert [page[0]["id"] for page in found] == [10, 20, 30]
    single = [item["id"] async for item in iterate_items(client.registry, "shop.list_items", pagination=pagination)]
    assert single == [10, 11, 20, 21, 30, 31]


async def test_pages_that_never_end_are_an_error(client: Client) -> None:
    with pytest.raises(CallError, match="did not end within 2 pages: raise max_pages"):
        async for _ in iterate_pages(client.registry, "shop.list_items", pagination=Pagination(max_pages=2)):
            pass


@pytest.mark.parametrize("iterate", [iterate_items, iterate_pages])
async def test_a_page_whose_list_is_not_found_is_an_error(iterate: Any) -> None:
    calls: list[int] = []

    @operation(id="shop.listed", type="query")
    async def listed(page: int) -> dict[str, Any]:
        calls.append(page)
        return {"total": 2, "items": [page] if page < 3 else []}

    registry = OperationRegistry([listed])
    with pytest.raises(CallError, match=r"no list at '': pass the JSON pointer .*, for example '/items'"):
        async for _ in iterate(registry, "shop.listed", pagination=Pagination(kind="page")):
            pass
    assert calls == [1]
    pages = Pagination(kind="page", items="/items")
    assert len([each async for each in iterate(registry, "shop.listed", pagination=pages)]) == 2


async def test_hooks_see_every_request_and_response(shop: Shop, url: str) -> None:
    seen: list[Any] = []

    async def on_request(request: Any) -> Any:
        return msgspec.structs.replace(request, headers=[*request.headers, ("X-Hook", "1")])

    def on_response(request: Any, status: int, headers: Any) -> None:
        seen.append((request.method, status))

    async with Client(shop, url, on_request=on_request, on_response=on_response) as client:
        await client.call("getItem", {"id": 1})
        await client.call("flaky", {"key": "h"})
    assert shop.requests[-1]["headers"]["x-hook"] == "1"
    assert seen == [("GET", 200), ("GET", 503), ("GET", 503), ("GET", 200)]


async def test_a_document_is_loaded_from_its_url(shop: Shop, url: str) -> None:
    operations = await from_openapi_url(f"{url}/openapi.json", HTTPServiceConfig(namespace="shop"))
    registry = OperationRegistry(operations)
    assert (await registry.execute("shop.text")).data == "grün"
    await operations.close()
    with pytest.raises(CallError, match="returned 404"):
        await from_openapi_url(f"{url}/nothing?secret=1", HTTPServiceConfig(namespace="shop"))


async def test_services_come_and_go(shop: Shop, url: str, tmp_path: Path) -> None:
    registry = OperationRegistry()
    file = tmp_path / "api.json"
    file.write_bytes(msgspec.json.encode(shop.document))
    async with HTTPServices(registry) as services:
        await services.add(shop.document, HTTPServiceConfig(namespace="one", base_url=url))
        await services.add(file, HTTPServiceConfig(namespace="two", base_url=url))
        await services.add(f"{url}/openapi.json", HTTPServiceConfig(namespace="three"))
        assert services.list() == ["one", "three", "two"]
        assert {(await registry.execute(f"{name}.text")).data for name in services.list()} == {"grün"}
        with pytest.raises(CallError, match="already exists"):
            await services.add(shop.document, HTTPServiceConfig(namespace="one"))
        await services.remove("two")
        assert "two.text" not in registry
        assert services.get("two") is None
        with pytest.raises(CallError, match="unknown service 'two'"):
            await services.remove("two")
    assert len(registry) == 0


async def test_a_service_is_kept_if_its_replacement_is_refused(shop: Shop, url: str) -> None:
    registry = OperationRegistry()
    async with HTTPServices(registry) as services:
        first = await services.add(shop.document, HTTPServiceConfig(namespace="one", base_url=url))
        registry.register(stub_operation("one.other"))
        path = {"get": {"operationId": "other", "responses": {"200": {"description": "fine"}}}}
        clashing = {**shop.document, "paths": {**shop.document["paths"], "/other": path}}
        with pytest.raises(CallError, match=r"one\.other"):
            await services.add(clashing, HTTPServiceConfig(namespace="one", base_url=url), replace=True)
        assert services.get("one") is first
        assert (await registry.execute("one.text")).data == "grün"
        registry.unregister("one.other")
        second = await services.add(clashing, HTTPServiceConfig(namespace="one", base_url=url), replace=True)
        assert services.get("one") is second
        assert "one.other" in registry
        assert (await registry.execute("one.text")).data == "grün"


@pytest.mark.slow
async def test_a_thousand_concurrent_calls_half_of_them_cancelled(shop: Shop, url: str) -> None:
    async with Client(shop, url) as client:
        answers = await asyncio.gather(*(client.call("getItem", {"id": n}) for n in range(1_000) if n != 404))
        assert {reply.data["id"] for reply in answers} == set(range(1_000)) - {404}
        tasks = [
            asyncio.create_task(client.call("slow" if n % 2 else "getItem", {} if n % 2 else {"id": 1}))
            for n in range(200)
        ]
        done = [task for n, task in enumerate(tasks) if n % 2 == 0]
        await asyncio.gather(*done)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) == 100


@pytest.mark.skipif(not socket_abort.CAN_ABORT, reason="sockets are marked on Linux only")
@pytest.mark.slow
async def test_a_thousand_calls_half_of_them_cancelled_leave_no_connection(shop: Shop) -> None:
    release = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        if b"/slow" in await exchange.head():
            await exchange.gone()
            return
        await release.wait()
        await exchange.write(response(b"[]", headers=b"Content-Type: application/json\r\n"))
        await exchange.gone()

    async with raw_server(behaviour) as server:
        async with Client(shop, server.url, timeout=300.0, limits=HTTPLimits(connections=1_000)) as client:
            kept = [asyncio.create_task(client.call("list_items")) for _ in range(500)]
            given_up = [asyncio.create_task(client.call("slow")) for _ in range(500)]
            await server.until_open(1_000)
            for task in given_up:
                task.cancel()
            await asyncio.wait(given_up)
            assert all(task.cancelled() for task in given_up)
            await server.until_open(500)
            release.set()
            assert [envelope.data for envelope in await asyncio.gather(*kept)] == [[]] * 500
        await server.until_open(0)


async def test_an_event_without_end_is_a_clear_error(shop: Shop, url: str) -> None:
    async with Client(shop, url, limits=HTTPLimits(event_bytes=5)) as client:
        with pytest.raises(CallError) as caught:
            async for _ in client.registry.subscribe("shop.events", {}):
                pass
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert "5" in caught.value.message


async def test_a_call_cannot_be_sent_to_another_origin(client: Client, shop: Shop) -> None:
    for address in ("http://localhost:1/items", "https://127.0.0.1/items", "//evil.test/x"):
        error = await error_of(client.call("getItem", {"id": 1}, url=address))
        assert error.code is ErrorCode.VALIDATION_ERROR
    assert shop.requests == []


async def outcome(client: Client, input: dict[str, Any]) -> Any:
    """The request that would be sent, or the error that refuses it."""
    try:
        return (await client.call("echo", input, dry_run=True)).data
    except CallError as error:
        return error


@pytest.mark.parametrize("value", ["..", ".", "%2e%2e", "../admin", "a/b", "a?b", "a#b", "a\r\nX: 1", "a\x00b", "ü"])
async def test_a_path_value_never_leaves_its_segment(client: Client, url: str, value: str) -> None:
    sent = await outcome(client, {"name": value})
    if isinstance(sent, CallError):
        assert sent.code is ErrorCode.VALIDATION_ERROR
    else:
        segment = sent["url"].removeprefix(f"{url}/echo/")
        assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", segment)
        assert unquote(segment) == value
        assert segment.strip(".") != ""


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\x00", "a; admin=1"])
@pytest.mark.parametrize("name", ["X-Trace", "session"])
async def test_a_header_or_cookie_value_cannot_inject_others(client: Client, name: str, value: str) -> None:
    sent = await outcome(client, {"name": "n", name: value})
    if isinstance(sent, CallError):
        assert sent.code is ErrorCode.VALIDATION_ERROR
    else:
        held = next(text for header, text in sent["headers"] if header.lower() in (name.lower(), "cookie"))
        assert not set("\r\n\x00") & set(held)
        assert name == "X-Trace" or ";" not in held


async def test_configured_headers_stay_at_home_and_are_sent_once(shop: Shop, url: str) -> None:
    other = Shop()
    with serving(other.application()) as abroad:
        shop.document["servers"] = [{"url": url}]
        elsewhere = [{"url": abroad.replace("127.0.0.1", "localhost")}]
        shop.document["paths"]["/whoami"]["get"]["servers"] = elsewhere
        headers = {"X-Api-Key": "secret", "Accept": "text/x"}
        async with Client(shop, url, base_url=None, headers=headers, credential_origins=[url]) as client:
            assert "secret" not in str((await client.call("whoami")).data["headers"])
            sent = (await client.call("getItem", {"id": 1}, dry_run=True)).data["headers"]
    assert sorted(map(tuple, sent)) == [("Accept", "text/x"), ("X-Api-Key", "secret")]


async def test_a_header_of_the_call_takes_precedence_over_credentials(shop: Shop, url: str) -> None:
    async with Client(shop, url, auth=HTTPAuth(type="bearer", token="service")) as client:
        data = (await client.call("whoami", headers={"Authorization": "Bearer mine"})).data
    assert data["authorization"] == "Bearer mine"


async def test_a_credential_of_the_call_is_sent_where_the_document_declares(shop: Shop, url: str) -> None:
    shop.document["paths"]["/whoami"]["get"]["security"] = [{"key": []}]
    async with Client(shop, url) as client:
        data = (await client.call("whoami", auth=HTTPAuth(type="api_key", token="k"))).data
    assert (data["query"], data["authorization"]) == ("api_key=k", None)


async def test_changes_to_a_cached_response_are_not_kept(shop: Shop, url: str, tmp_path: Path) -> None:
    async with Client(shop, url, cache=True) as client:
        first = await client.call("tagged")
        first.data["poison"] = True
        assert (await client.call("tagged")).data == {"who": None}
        target = tmp_path / "answer.json"
        assert (await client.call("tagged", download_to=str(target))).data["size"] == target.stat().st_size
        assert (await client.call("tagged")).data == {"who": None}


async def test_an_upload_may_have_a_name_and_a_type(client: Client) -> None:
    file = {"filename": "tea.png", "content": b"\x00\xff", "contentType": "image/png"}
    assert (await client.call("upload", {"file": file})).data["filename"] == "tea.png"


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ("application/json; charset=iso-8859-1", '{"a": "é"}'.encode("latin-1"), {"a": "é"}),
        ("application/json; charset=nonsense", b'{"a": 1}', {"a": 1}),
        ("application/json", 2 * b"\xef\xbb\xbf" + b"{}", "\ufeff\ufeff{}"),
        ("application/json", b"\xef\xbb\xbf", None),
        ("text/plain; charset=undefined", b"\xe9", "é"),
        ("text/plain; charset=hex", b"61", "61"),
    ],
)
def test_json_in_other_clothes_is_read(content_type: str, body: bytes, data: Any) -> None:
    assert read_data(content_type, body) == data


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"\xef\xbb\xbf" * 1_000_000),
        ("text/plain; charset=idna", b"xn--" + b"a" * 2_000_000),
        ("text/plain; charset=PunyCode", b"a" * 1_000_000 + b"-" + b"b" * 1_000_000),
    ],
)
def test_a_body_takes_linear_time_and_memory(content_type: str, body: bytes) -> None:
    tracemalloc.start()
    try:
        assert isinstance(read_data(content_type, body), str)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('</a>; rel="prev", </b>; title="x, y"; rel="last next"', "/b"),
        ("</a>;rel=NEXT", "/a"),
        ('</a>; rel="nextish"', None),
        ("<" * 400_000, None),
        ('</a>; rel="' + "next " * 80_000, None),
    ],
)
def test_the_next_page_of_a_link_header_is_found_in_linear_time(header: str, expected: str | None) -> None:
    start = time.process_time()
    assert next_link(header) == expected
    assert time.process_time() - start < 10  # quadratic time would be minutes


def test_keys_that_are_numbers_are_read_as_text(shop: Shop) -> None:
    described = {"responses": {200: {"content": {"*/*": {"schema": {"type": "integer"}}}}}}
    document = {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": described}}}
    operations = from_openapi(document, HTTPServiceConfig(namespace="api"))
    assert not operations[0].spec.output_schema.check("x")
