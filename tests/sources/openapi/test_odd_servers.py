"""Unusual servers, redirects, tokens, streams and files, through the public API."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.http import HTTPRequest
from operations.http.httpx2_client import Httpx2Client
from operations.sources.openapi import (
    HTTPAuth,
    HTTPCallOptions,
    HTTPRetry,
    HTTPServiceConfig,
    Pagination,
    from_openapi,
    iterate_items,
    own_documents,
)
from operations.sources.openapi import exchange as exchange_module
from operations.sources.openapi.service import TURN_BYTES
from operations.sources.openapi.sse import SSEParser
from operations.testing import error_of
from tests.http.servers import Exchange, answering, raw_server, response

JSON = b"Content-Type: application/json\r\n"
NUMBER = {"name": "z", "in": "query", "schema": {"type": "integer"}}
CURSOR = {"name": "cursor", "in": "query", "schema": {}}
RESUMED = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}


def described(**more: Any) -> dict[str, Any]:
    """A document of one query and one stream."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {
            "/p": {"get": {"operationId": "get", "parameters": [NUMBER, CURSOR]}},
            "/e": {
                "get": {
                    "operationId": "watch",
                    "parameters": [RESUMED],
                    "responses": {"200": {"content": {"text/event-stream": {}}}},
                }
            },
        },
        **more,
    }


def registry(base: str | None, document: dict[str, Any] | None = None, **options: Any) -> OperationRegistry:
    config = HTTPServiceConfig(namespace="api", base_url=base, **options)
    return OperationRegistry(from_openapi(document or described(), config))


def call_with(**options: Any) -> OperationContext:
    return OperationContext(metadata={"http": HTTPCallOptions(**options)})


def lines(heads: list[bytes], name: bytes) -> list[list[bytes]]:
    """The values of a header in each request."""
    return [
        [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.lower().startswith(name)]
        for head in heads
    ]


@pytest.mark.parametrize("input", [{}, {"z": 1}])
@pytest.mark.parametrize(
    ("base", "expected"),
    [("/v1?tenant=7", "/v1/p?tenant=7"), ("/v1/?a=1#top", "/v1/p?a=1"), ("?a=1", "/p?a=1"), ("/v1/#top", "/v1/p")],
)
async def test_the_query_of_a_server_is_in_every_request(base: str, expected: str, input: dict[str, Any]) -> None:
    heads: list[bytes] = []
    async with raw_server(answering(response(b"{}", headers=JSON), heads=heads)) as server:
        address = f"{server.url}{base}"
        given = registry(address)
        told = registry(None, described(servers=[{"url": address}]))
        await given.execute("api.get", input)
        await told.execute("api.get", input)
        dry = await told.execute("api.get", input, call_with(dry_run=True))
    more = ("&" if "?" in expected else "?") + "z=1" if input else ""
    assert [head.split()[1].decode() for head in heads] == [expected + more] * 2
    assert dry.data["url"] == f"{server.url}{expected}{more}"


@pytest.mark.parametrize("base", ["localhost:8000", "http://[", "http://host:99999", "/v1", ""])
def test_a_missing_base_url_is_refused_immediately(base: str) -> None:
    with pytest.raises(Exception, match="invalid base_url") as raised:
        registry(base)
    assert getattr(raised.value, "code", None) is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("location", [b"http://[bad", b"http://host:99999/"])
async def test_a_redirect_to_an_invalid_location_is_not_followed(location: bytes) -> None:
    reply = response(b"", status="302 Found", headers=b"Location: %s\r\n" % location)
    async with raw_server(answering(reply)) as server:
        error = await error_of(registry(server.url).execute("api.get"))
    assert error.details["statusCode"] == 302
    assert error.details["headers"]["location"] == location.decode()


async def test_a_redirect_that_is_not_percent_encoded_is_encoded() -> None:
    targets: list[bytes] = []

    async def behaviour(exchange: Exchange) -> None:
        targets.append((await exchange.head()).split()[1])
        moved = response(status="302 Found", headers="Location: /käse und brot\r\nConnection: close\r\n".encode())
        found = response(b"{}", headers=JSON + b"Connection: close\r\n")
        await exchange.write(moved if targets[-1] == b"/p" else found)

    async with raw_server(behaviour) as server:
        assert (await registry(server.url, client=Httpx2Client()).execute("api.get")).data == {}
        assert targets == [b"/p", b"/k%C3%A4se%20und%20brot"]
        # The default client cannot read such a header, so the redirect is not followed.
        error = await error_of(registry(server.url).execute("api.get"))
    assert error.details["statusCode"] == 302
    assert targets[2:] == [b"/p"]


@pytest.mark.parametrize("given", ["input", "header"])
async def test_a_stream_resumes_after_its_last_event_not_at_its_first_position(given: str) -> None:
    heads: list[bytes] = []
    event = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nid: 5\ndata: 1\n\n"
    async with raw_server(answering(event, heads=heads)) as server:
        own = registry(server.url, reconnect=1)
        input = {"Last-Event-ID": "3"} if given == "input" else {}
        context = call_with(headers={"Last-Event-ID": "3"} if given == "header" else {})
        assert [event.data async for event in own.subscribe("api.watch", input, context)] == [1, 1]
    assert lines(heads, b"last-event-id") == [[b"3"], [b"5"]]


async def test_conditional_requests_of_the_caller_get_the_servers_response() -> None:
    heads: list[bytes] = []
    tagged = response(b"{}", headers=JSON + b'ETag: "1"\r\n')
    async with raw_server(answering(tagged, heads=heads)) as server:
        own = registry(server.url, cache=True)
        for _ in range(2):
            await own.execute("api.get", {}, call_with(headers={"If-None-Match": '"0"'}))
    assert lines(heads, b"if-none-match") == [[b'"0"'], [b'"0"']]


async def test_cached_responses_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "_MAX_BYTES", 1_000)
    heads: list[bytes] = []
    tagged = response(b'"%b"' % (b"x" * 400), headers=JSON + b'ETag: "1"\r\n')
    async with raw_server(answering(tagged, heads=heads)) as server:
        own = registry(server.url, cache=True)
        for number in (1, 1, 2, 3, 1, 3):
            await own.execute("api.get", {}, call_with(headers={"X-Number": str(number)}))
    assert [len(each) for each in lines(heads, b"if-none-match")] == [0, 1, 0, 0, 0, 1]


async def test_a_cursor_may_be_an_object_and_be_found_in_a_list() -> None:
    async def behaviour(exchange: Exchange) -> None:
        first = b"?" not in (await exchange.head()).split()[1]
        page = b'{"links": [{"next": {"k": 1}}], "items": [1]}' if first else b'{"links": [], "items": [2]}'
        await exchange.write(response(page, headers=JSON + b"Connection: close\r\n"))

    cursor = Pagination(kind="cursor", parameter="cursor", cursor="/links/0/next", items="/items")
    async with raw_server(behaviour) as server:
        found = [item async for item in iterate_items(registry(server.url), "api.get", pagination=cursor)]
    assert found == [1, 2]


async def test_a_repeated_cursor_is_an_error() -> None:
    cursor = Pagination(kind="cursor", parameter="cursor", cursor="/next", items="/items")
    async with raw_server(answering(response(b'{"next": {"k": 1}, "items": []}', headers=JSON))) as server:
        error = await error_of(_all(iterate_items(registry(server.url), "api.get", pagination=cursor)))
    assert "was already read" in error.message


@pytest.mark.parametrize("value", [b"\xb2", b"Mon, 99999999999999999999 Jan 2020 00:00:00 +0000"])
async def test_an_invalid_retry_after_is_ignored(value: bytes) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        busy.append(True)
        asked = b"Connection: close\r\nRetry-After: " + value + b"\r\n"
        await exchange.write(response(status="503 Busy" if len(busy) == 1 else "204 No Content", headers=asked))

    busy: list[bool] = []
    async with raw_server(behaviour) as server:
        own = registry(server.url, client=Httpx2Client(), retry=HTTPRetry(first_delay=0.001))
        assert (await own.execute("api.get")).data is None


class Ready:
    """A client whose responses are streams that never wait: their bytes are there before they are read."""

    status = 200
    headers = (("content-type", "text/event-stream"),)
    url = ""
    size = 1 << 20

    def send(self, request: HTTPRequest) -> contextlib.AbstractAsyncContextManager[Ready]:
        return contextlib.nullcontext(self)

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in range(self.size // 4_096):
            yield b": x\n" * 1_024

    async def close(self) -> None:
        """Nothing to release."""


async def test_other_tasks_run_while_a_stream_sends_faster_than_it_is_read() -> None:
    passed = 0

    async def count() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    counting = asyncio.create_task(count())
    async for _ in registry("http://x.test", client=Ready()).subscribe("api.watch"):
        raise AssertionError("a stream of comments has no events")
    assert passed >= Ready.size // TURN_BYTES // 2
    passed = 0
    assert [event async for event in own_documents._events(Ready(), SSEParser())] == []
    assert passed >= Ready.size // TURN_BYTES // 2
    counting.cancel()


@pytest.mark.parametrize("lifetime", ["3600", '"3600"', "3600.5", '"\u00b2"', "null", "{}", "-1", "true"])
@pytest.mark.parametrize("url", ["/token", "SERVER/token"])
async def test_a_token_is_fetched_with_client_credentials(url: str, lifetime: str) -> None:
    heads: list[bytes] = []
    token = response(f'{{"access_token": "T", "expires_in": {lifetime}}}'.encode(), headers=JSON)
    async with raw_server(answering(token, heads=heads)) as server:
        flows = {
            "authorizationCode": {"tokenUrl": f"{server.url}/people"},
            "clientCredentials": {"tokenUrl": url.replace("SERVER", server.url)},
        }
        schemes = {"machine": {"type": "oauth2", "flows": flows}}
        document = described(components={"securitySchemes": schemes}, security=[{"machine": []}])
        own = registry(f"{server.url}/v1", document, auth=HTTPAuth(type="oauth2", client_id="a", client_secret="b"))
        await own.execute("api.get")
        await own.execute("api.get")
    assert [head.split()[1] for head in heads] == [b"/token", b"/v1/p", b"/v1/p"]
    assert lines(heads, b"authorization")[1:] == [[b"Bearer T"]] * 2


async def test_downloads_to_one_path_do_not_meet_and_touch_no_other_file(tmp_path: Path) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        waiting.append(True)
        if len(waiting) == 3:
            together.set()
        await together.wait()
        await exchange.write(response(b"whole", headers=b"Connection: close\r\n"))

    waiting: list[bool] = []
    together = asyncio.Event()
    (tmp_path / "file.part").write_bytes(b"mine")
    async with raw_server(behaviour) as server:
        own = registry(server.url)
        calls = [own.execute("api.get", {}, call_with(download_to=tmp_path / "file")) for _ in range(3)]
        assert [envelope.data["size"] for envelope in await asyncio.gather(*calls)] == [5, 5, 5]
    assert sorted(os.listdir(tmp_path)) == ["file", "file.part"]
    assert ((tmp_path / "file").read_bytes(), (tmp_path / "file.part").read_bytes()) == (b"whole", b"mine")


@pytest.mark.parametrize(("place", "reason"), [("none/file", "No such file or directory"), (".", "it is a directory")])
async def test_a_download_that_cannot_be_written_is_reported(tmp_path: Path, place: str, reason: str) -> None:
    async with raw_server(answering(response(b"whole"))) as server:
        error = await error_of(registry(server.url).execute("api.get", {}, call_with(download_to=tmp_path / place)))
    assert error.message == f"cannot write the response to {tmp_path / place}: {reason}"


@pytest.mark.parametrize(("name", "token"), [("key", "a; admin=1"), ("admin=1; key", "a")])
async def test_a_key_in_a_cookie_brings_no_other_cookie(name: str, token: str) -> None:
    async with raw_server(answering(response(b"{}", headers=JSON))) as server:
        key = HTTPAuth(type="api_key", token=token, location="cookie", header_name=name)
        error = await error_of(registry(server.url).execute("api.get", {}, call_with(auth=key)))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "admin" not in error.message


async def _all(found: Any) -> list[Any]:
    return [item async for item in found]
