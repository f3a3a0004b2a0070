"""Redirects of calls and documents: unchanged within trusted origins, without secrets elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.http import HTTPRequest
from operations.sources.openapi import HTTPAuth, HTTPServiceConfig, from_openapi, from_openapi_url
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.exchange import RedirectChain
from operations.sources.openapi.origins import CredentialOrigins
from operations.testing import error_of
from tests.asgi_server import serving

HOME = "https://api.test"
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.0",
    "info": {"title": "t", "version": "1"},
    "servers": [{"url": "../api"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}},
    "paths": {
        "/seen": {"get": {"operationId": "seen"}},
        "/moved": {"get": {"operationId": "moved", "parameters": [{"name": "q", "in": "query", "schema": {}}]}},
        "/abroad": {"get": {"operationId": "abroad"}},
    },
}


class Api:
    """An API whose document and endpoints redirect, within its origin and to another one."""

    def __init__(self) -> None:
        self.abroad = ""
        self.headers: list[dict[str, str]] = []
        self.queries: list[str] = []

    async def seen(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        self.queries.append(request.url.query)
        return JSONResponse({"query": request.url.query, "headers": dict(request.headers)})

    async def document(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        return JSONResponse(DOCUMENT)

    def application(self) -> Starlette:
        def to(target: str) -> Any:
            return lambda request: RedirectResponse(target.replace("ABROAD", self.abroad), status_code=302)

        async def never(request: Request) -> Response:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            return Response()

        return Starlette(
            routes=[
                Route("/old.json", to("/v2/openapi.json")),
                Route("/away.json", to("ABROAD/v2/openapi.json")),
                Route("/loop.json", to("/loop.json")),
                Route("/gone.json", to("/nowhere.json")),
                Route("/odd.json", to("ftp://elsewhere/openapi.json")),
                Route("/v2/openapi.json", self.document),
                Route("/api/seen", self.seen),
                Route("/api/moved", to("/api/seen?page=2")),
                Route("/api/abroad", to("ABROAD/api/seen")),
                Route("/token", never, methods=["POST"]),
            ]
        )


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def url(api: Api) -> Iterator[str]:
    with serving(api.application()) as base:
        api.abroad = base.replace("127.0.0.1", "localhost")
        yield base


def _config(**options: Any) -> HTTPServiceConfig:
    return HTTPServiceConfig(namespace="api", **options)


async def test_a_moved_document_is_found_by_its_redirect(api: Api, url: str) -> None:
    operations = await from_openapi_url(f"{url}/old.json", _config())
    assert operations.service.document_url == f"{url}/v2/openapi.json"
    # Its servers are relative to where it was found.
    assert (await OperationRegistry(operations).execute("api.seen")).data["query"] == ""
    await operations.close()


async def test_no_secret_follows_a_redirect_of_a_document_to_another_origin(api: Api, url: str) -> None:
    auth = HTTPAuth(type="bearer", token="secret")
    operations = await from_openapi_url(f"{url}/away.json", _config(auth=auth, headers={"X-Key": "secret"}))
    assert operations.service.document_url == f"{api.abroad}/v2/openapi.json"
    assert "secret" not in str(api.headers)
    await operations.close()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/loop.json", "more than 5 redirects"),
        ("/gone.json?secret", "/nowhere.json (redirected from "),
        (
            "/odd.json",
            "returned 302 instead of an OpenAPI document; the redirect to ftp://elsewhere/openapi.json is not followed",
        ),
    ],
)
async def test_a_missing_document_is_reported_with_its_url(url: str, path: str, reason: str) -> None:
    error = await error_of(from_openapi_url(f"{url}{path}", _config()))
    assert reason in error.message
    assert "secret" not in error.message


async def test_a_key_in_the_query_is_kept_only_within_the_origin(api: Api, url: str) -> None:
    auth = HTTPAuth(type="api_key", token="se cret")
    operations = from_openapi(DOCUMENT, _config(auth=auth, base_url=f"{url}/api"))
    registry = OperationRegistry(operations)
    assert (await registry.execute("api.moved", {"q": "x"})).data["query"] == "page=2&key=se%20cret"
    assert (await registry.execute("api.abroad")).data["query"] == ""
    assert "se%20cret" not in str(api.queries[-1])
    await operations.close()


def _moved(method: str, status: int, location: str = "/b") -> Any:
    request = HTTPRequest(method=method, url=f"{HOME}/a", headers=[("Authorization", "s"), ("Accept", "a")], body=b"x")
    trail = RedirectChain(HOME, CredentialOrigins(HOME, None, ()), Body(None, b"x"))
    return trail.follow(request, status, location)


def test_only_a_post_becomes_a_get_when_it_is_moved() -> None:
    def moved(method: str, status: int) -> Any:
        followed = _moved(method, status)
        return followed.method, followed.body

    assert moved("POST", 301) == ("GET", None)
    assert moved("POST", 303) == ("GET", None)
    assert moved("DELETE", 303) == ("GET", None)
    for status in (301, 302, 307, 308):
        assert moved("PUT", status) == ("PUT", b"x")
        assert moved("DELETE", status) == ("DELETE", b"x")
    assert moved("POST", 307) == ("POST", b"x")


def test_redirects_that_are_not_followed() -> None:
    assert _moved("GET", 302, "") is None
    assert _moved("GET", 302, "http://api.test/b") is None
    assert _moved("GET", 302, "javascript:alert(1)") is None
    assert _moved("POST", 307, "https://other.test/b") is None


def test_a_redirect_back_home_gets_no_credentials() -> None:
    trail = RedirectChain(HOME, CredentialOrigins(HOME, None, ()), None, [("key", "s")])
    request = HTTPRequest(method="GET", url=f"{HOME}/a?key=s", headers=[("Authorization", "s"), ("Accept", "a")])
    at_home = trail.follow(request, 302, "/b?key=other")
    assert at_home is not None
    assert at_home.url == f"{HOME}/b?key=other"
    assert len(at_home.headers) == 2
    away = trail.follow(at_home, 302, "https://other.test/c")
    assert away is not None
    back = trail.follow(away, 302, f"{HOME}/d")
    assert back is not None
    assert (back.url, list(back.headers)) == (f"{HOME}/d", [("Accept", "a")])


async def test_a_token_is_not_waited_for_longer_than_the_call(url: str) -> None:
    auth = HTTPAuth(type="oauth2", client_id="a", client_secret="b", token_url=f"{url}/token")
    operations = from_openapi(DOCUMENT, _config(auth=auth, base_url=f"{url}/api", timeout=0.2))
    registry = OperationRegistry(operations)
    ends = await asyncio.gather(*(error_of(registry.execute("api.seen")) for _ in range(3)))
    assert {end.code for end in ends} == {ErrorCode.TIMEOUT}
    await operations.close()
    operations = from_openapi(DOCUMENT, _config(auth=auth, base_url=f"{url}/api", timeout=300))
    registry = OperationRegistry(operations)
    deadline = OperationContext(deadline=int(time.time() * 1000) + 200)
    assert (await error_of(registry.execute("api.seen", None, deadline))).code is ErrorCode.TIMEOUT
    await operations.close()
