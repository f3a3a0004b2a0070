"""Credentials go to the origins that the user named, never to one that only a document or a redirect names."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from operations import CallError, ErrorCode, OperationContext, OperationRegistry
from operations.sources.mcp import MCPClientConfig, MCPOAuth, create_mcp_client
from operations.sources.openapi import (
    HTTPAuth,
    HTTPCallOptions,
    HTTPServiceConfig,
    from_openapi,
    from_openapi_file,
    from_openapi_url,
)
from operations.sources.openapi.origins import CredentialOrigins, show_origin
from operations.testing import error_of
from tests.asgi_server import serving

SECRET = "s3cret"
BEARER = HTTPAuth(type="bearer", token=SECRET)
KEY = HTTPAuth(type="api_key", token=SECRET, header_name="key", location="query")
MACHINE = HTTPAuth(type="oauth2", client_id="id", client_secret=SECRET)


class Server:
    """One origin that records every request, and can serve a document, tokens and redirects."""

    def __init__(self) -> None:
        self.url = ""
        self.document: dict[str, Any] = {}
        self.target = ""
        """Where `/moved` and `/moved.json` redirect to."""
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}
        """Status, headers and body by path."""
        self.requests: list[str] = []

    async def record(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.url} {dict(request.headers)} {await request.body()!r}")
        if request.url.path in self.answers:
            status, headers, body = self.answers[request.url.path]
            return JSONResponse(body, status, headers)
        if request.url.path.endswith("openapi.json"):
            return JSONResponse(self.document)
        if request.url.path.startswith("/moved"):
            return RedirectResponse(self.target, status_code=307)
        if request.url.path == "/token":
            return JSONResponse({"access_token": f"token-of-{SECRET}"})
        if request.url.path == "/events":
            return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")
        return JSONResponse({"authorization": request.headers.get("authorization"), "query": request.url.query})

    @property
    def has_secret(self) -> bool:
        return any(SECRET in request or "authorization" in request for request in self.requests)


def _serve(server: Server) -> Iterator[Server]:
    routes = [Route("/{path:path}", server.record, methods=["GET", "POST"])]
    with serving(Starlette(routes=routes)) as url:
        server.url = url
        yield server


@pytest.fixture
def api() -> Iterator[Server]:
    """The API that the user named."""
    yield from _serve(Server())


@pytest.fixture
def other() -> Iterator[Server]:
    """An origin that only a document or a redirect names."""
    yield from _serve(Server())


def describe(server: str | None = None, *, token_url: str | None = None, own: str | None = None) -> dict[str, Any]:
    whoami: dict[str, Any] = {"operationId": "whoami"}
    if own is not None:
        whoami["servers"] = [{"url": own}]
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {
            "/whoami": {"get": whoami},
            "/moved": {"get": {"operationId": "moved"}, "post": {"operationId": "post_moved", "requestBody": BODY}},
            "/events": {"get": {"operationId": "events", "responses": {"200": {"content": {"text/event-stream": {}}}}}},
        },
    }
    if server is not None:
        document["servers"] = [{"url": server}]
    if token_url is not None:
        flows = {"clientCredentials": {"tokenUrl": token_url, "scopes": {}}}
        document["components"] = {"securitySchemes": {"machine": {"type": "oauth2", "flows": flows}}}
        document["security"] = [{"machine": []}]
    return document


BODY = {"content": {"application/json": {"schema": {"type": "object", "properties": {"pin": {"type": "string"}}}}}}


def settings(**options: Any) -> HTTPServiceConfig:
    return HTTPServiceConfig(namespace="api", **options)


async def call(operations: Any, name: str = "whoami", input: Any = None, **options: Any) -> Any:
    context = OperationContext(metadata={"http": HTTPCallOptions(**options)}) if options else None
    try:
        return (await OperationRegistry(operations).execute(f"api.{name}", input, context)).data
    finally:
        await operations.close()


def assert_withheld(error: CallError, server: Server, *advice: str) -> None:
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert isinstance(error.details, dict)
    assert error.details["origin"] == server.url
    assert error.details["executed"] == "no"
    for text in (server.url, "credential_origins", *advice):
        assert text in error.message
    assert SECRET not in str(error)
    assert not server.has_secret


# Token endpoints


@pytest.mark.parametrize("auth", [MACHINE, {"machine": MACHINE}])
async def test_a_token_endpoint_that_only_the_document_names_gets_no_secret(
    api: Server, other: Server, auth: Any
) -> None:
    document = describe(token_url=f"{other.url}/token")
    error = await error_of(call(from_openapi(document, settings(base_url=api.url, auth=auth))))
    assert_withheld(error, other, "token_url")
    assert other.requests == api.requests == []


@pytest.mark.parametrize("named", ["token_url", "credential_origins"])
async def test_a_token_endpoint_that_the_user_names_is_used(api: Server, other: Server, named: str) -> None:
    address = f"{other.url}/token"
    if named == "token_url":
        auth = HTTPAuth(type="oauth2", client_id="id", client_secret=SECRET, token_url=address)
        config = settings(base_url=api.url, auth=auth)
    else:
        config = settings(base_url=api.url, auth=MACHINE, credential_origins=[f"{other.url}/"])
    data = await call(from_openapi(describe(token_url=address), config))
    assert data["authorization"] == f"Bearer token-of-{SECRET}"
    assert other.has_secret


async def test_a_token_endpoint_of_the_api_itself_is_used(api: Server) -> None:
    config = settings(base_url=api.url, auth=MACHINE)
    data = await call(from_openapi(describe(token_url="/token"), config))
    assert data["authorization"] == f"Bearer token-of-{SECRET}"


async def test_a_relative_token_url_is_not_trusted_at_a_server_that_only_the_document_names(
    api: Server, other: Server
) -> None:
    api.document = describe(other.url)
    auth = HTTPAuth(type="oauth2", client_id="id", client_secret=SECRET, token_url="/token")
    operations = await from_openapi_url(f"{api.url}/openapi.json", settings(auth=auth))
    assert_withheld(await error_of(call(operations)), other)
    assert other.requests == []


# Servers


@pytest.mark.parametrize("options", [{"auth": BEARER}, {"auth": KEY}, {"headers": {"X-Api-Key": SECRET}}])
@pytest.mark.parametrize("source", ["document", "file", "url"])
async def test_a_server_that_only_the_document_names_gets_no_credentials(
    api: Server, other: Server, source: str, options: Any, tmp_path: Any
) -> None:
    api.document = describe(other.url)
    if source == "url":
        operations = await from_openapi_url(f"{api.url}/openapi.json", settings(**options))
    elif source == "file":
        path = tmp_path / "openapi.json"
        path.write_bytes(JSONResponse(api.document).body)
        operations = await from_openapi_file(path, settings(**options))
    else:
        operations = from_openapi(api.document, settings(**options))
    assert_withheld(await error_of(call(operations)), other, "base_url")
    assert other.requests == []


@pytest.mark.parametrize("named", ["base_url", "credential_origins"])
async def test_a_server_that_the_user_names_gets_the_credentials(api: Server, other: Server, named: str) -> None:
    options: dict[str, Any] = {"base_url": other.url} if named == "base_url" else {"credential_origins": [other.url]}
    headers = {"X-Api-Key": SECRET}
    operations = from_openapi(describe(other.url), settings(auth=BEARER, headers=headers, **options))
    assert (await call(operations))["authorization"] == f"Bearer {SECRET}"
    assert f"'x-api-key': '{SECRET}'" in other.requests[0]


async def test_the_origin_that_the_document_was_requested_from_gets_the_credentials(api: Server) -> None:
    for server in (api.url, "/", None):
        api.document = describe(server)
        operations = await from_openapi_url(f"{api.url}/openapi.json", settings(auth=BEARER))
        assert (await call(operations))["authorization"] == f"Bearer {SECRET}"


async def test_the_origin_that_a_document_was_redirected_to_gets_no_credentials(api: Server, other: Server) -> None:
    api.target = f"{other.url}/openapi.json"
    other.document = describe("/")
    operations = await from_openapi_url(f"{api.url}/moved.json", settings(auth=BEARER))
    assert operations.service.base_url == f"{other.url}/"
    assert_withheld(await error_of(call(operations)), other, "base_url")
    operations = await from_openapi_url(f"{api.url}/moved.json", settings(auth=BEARER, credential_origins=[other.url]))
    assert (await call(operations))["authorization"] == f"Bearer {SECRET}"


async def test_an_operations_own_server_gets_no_credentials_unless_the_user_names_it(
    api: Server, other: Server, caplog: pytest.LogCaptureFixture
) -> None:
    api.document = describe("/", own=other.url)
    options: dict[str, Any] = {"auth": BEARER, "headers": {"X-Api-Key": SECRET}}
    operations = await from_openapi_url(f"{api.url}/openapi.json", settings(**options))
    with caplog.at_level(logging.WARNING, "operations"):
        assert (await call(operations))["authorization"] is None
    assert not other.has_secret
    assert other.url in caplog.text
    assert SECRET not in caplog.text
    options["credential_origins"] = [other.url]
    operations = await from_openapi_url(f"{api.url}/openapi.json", settings(**options))
    assert (await call(operations))["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("options", [{"auth": BEARER}, {"headers": {"Authorization": SECRET}}])
async def test_credentials_of_one_call_go_to_no_other_origin_either(other: Server, options: Any) -> None:
    error = await error_of(call(from_openapi(describe(other.url), settings()), **options))
    assert_withheld(error, other)
    named = settings(credential_origins=[other.url])
    assert SECRET in (await call(from_openapi(describe(other.url), named), **options))["authorization"]


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_path_cannot_continue_the_host_or_port_of_the_base_url(other: Server, is_own: bool) -> None:
    named, rest = other.url[:-3], other.url[-3:]  # http://127.0.0.1:34 and 567
    whoami: dict[str, Any] = {"operationId": "whoami"}
    document = {**describe(), "paths": {f"{rest}/whoami": {"post": whoami}}}
    if is_own:
        # The document of another registry.
        document["x-operations"] = {"version": 1}
        whoami["x-operations"] = {"id": "whoami.post"}
    config = settings(base_url=named, headers={"x-key": SECRET}, auth=BEARER, retry={"attempts": 1})
    operations = from_openapi(document, config)
    error = await error_of(call(operations, operations[0].id.removeprefix("api.")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert other.requests == []


async def test_a_call_without_credentials_goes_to_the_documents_server(other: Server) -> None:
    headers = {"User-Agent": "mine", "Accept": "application/json"}
    operations = from_openapi(describe(other.url), settings(headers=headers))
    assert (await call(operations))["authorization"] is None
    assert "'user-agent': 'mine'" in other.requests[0]


async def test_a_stream_sends_no_credentials_to_a_server_that_only_the_document_names(other: Server) -> None:
    operations = from_openapi(describe(other.url), settings(auth=BEARER))
    with pytest.raises(CallError) as raised:
        async for _ in OperationRegistry(operations).subscribe("api.events"):
            pass
    await operations.close()
    assert_withheld(raised.value, other)


# Redirects


@pytest.mark.parametrize("auth", [BEARER, KEY])
async def test_a_redirect_elsewhere_carries_no_credentials_unless_the_user_names_its_target(
    api: Server, other: Server, auth: HTTPAuth
) -> None:
    api.target = f"{other.url}/whoami"
    options: dict[str, Any] = {"base_url": api.url, "auth": auth, "headers": {"X-Api-Key": SECRET}}
    assert await call(from_openapi(describe(), settings(**options)), "moved") == {"authorization": None, "query": ""}
    assert not other.has_secret
    options["credential_origins"] = [other.url]
    data = await call(from_openapi(describe(), settings(**options)), "moved")
    assert SECRET in f"{data['authorization']} {data['query']}"
    assert f"'x-api-key': '{SECRET}'" in other.requests[-1]


async def test_a_body_follows_a_redirect_to_a_named_origin_only(api: Server, other: Server) -> None:
    api.target = f"{other.url}/whoami"
    operations = from_openapi(describe(), settings(base_url=api.url))
    error = await error_of(call(operations, "post_moved", {"pin": "1234"}))
    assert isinstance(error.details, dict)
    assert error.details["statusCode"] == 307
    assert other.requests == []
    operations = from_openapi(describe(), settings(base_url=api.url, credential_origins=[other.url]))
    await call(operations, "post_moved", {"pin": "1234"})
    assert "1234" in other.requests[0]


# Origins


@pytest.mark.parametrize(
    "url",
    [
        "https://api.test.evil.test/",
        "https://api.test:8443/",
        "http://api.test/",
        "https://evil.test\\@api.test/",
        "https://user@api.test/",
        "https://api.test\t/",
        "https://api.test./",
        "//api.test/",
        "/",
    ],
)
def test_addresses_that_are_not_of_the_named_origin(url: str) -> None:
    assert url not in CredentialOrigins("https://api.test/v1", None, ())


def test_addresses_of_a_named_origin() -> None:
    origins = CredentialOrigins("https://api.test/v1", "https://docs.test/openapi.json", ["http://127.0.0.1:8080"])
    for url in ("https://API.test:443/x?q=a@b", "https://api.test", "http://127.0.0.1:8080/token"):
        assert url in origins
    assert "https://docs.test/" not in origins  # base_url takes precedence
    assert show_origin("https://api.test:443/x") == "https://api.test"
    assert show_origin("http://[::1]:8080/x") == "http://[::1]:8080"


@pytest.mark.parametrize(
    "given",
    [
        "https://api.test",
        ["api.test"],
        ["https://api.test/path"],
        ["https://u:p@api.test"],
        ["ftp://api.test"],
        ["*"],
        [1],
    ],
)
def test_a_setting_that_is_not_a_list_of_origins_is_refused(given: Any) -> None:
    with pytest.raises(CallError, match="invalid credential_origins") as raised:
        settings(credential_origins=given)
    assert raised.value.code is ErrorCode.VALIDATION_ERROR


# OAuth of MCP servers


class NamedAuthorizationServer:
    """An MCP server that names an authorisation server of its choice, and what that one receives."""

    def __init__(self, mcp: Server, authorization: Server) -> None:
        self.mcp, self.authorization = mcp, authorization

    def oauth(self, tmp_path: Path, flow: str, issuer: str | None) -> MCPOAuth:
        options: dict[str, Any] = {}
        if flow == "consent":
            options = {"open_url": self._open, "wait_for_redirect": self._redirected}
        return MCPOAuth(storage=tmp_path, client_id="id", client_secret=SECRET, issuer=issuer, **options)

    async def _open(self, url: str) -> None:
        self.state = dict(parse_qsl(urlsplit(url).query))["state"]

    async def _redirected(self) -> str:
        return f"http://localhost:8765/callback?code=c&state={self.state}"

    @property
    def secrets(self) -> int:
        """Number of requests with the client's secret at the authorisation server."""
        pair = base64.b64encode(f"id:{SECRET}".encode()).decode()
        return sum(pair in request or SECRET in request for request in self.authorization.requests)


@pytest.fixture
def named(api: Server, other: Server) -> NamedAuthorizationServer:
    api.answers["/mcp"] = (401, {"www-authenticate": f'Bearer resource_metadata="{api.url}/resource"'}, {})
    api.answers["/resource"] = (200, {}, {"resource": f"{api.url}/mcp", "authorization_servers": [other.url]})
    metadata = {
        "issuer": other.url,
        "authorization_endpoint": f"{other.url}/authorize",
        "token_endpoint": f"{other.url}/token",
        "registration_endpoint": f"{other.url}/register",
        "response_types_supported": ["code"],
    }
    other.answers["/.well-known/oauth-authorization-server"] = (200, {}, metadata)
    return NamedAuthorizationServer(api, other)


@pytest.mark.parametrize("flow", ["client credentials", "consent"])
@pytest.mark.parametrize("issuer", [None, "http://login.test"])
async def test_an_mcp_server_does_not_choose_who_gets_the_client_secret(
    named: NamedAuthorizationServer, flow: str, issuer: str | None, tmp_path: Path
) -> None:
    oauth = named.oauth(tmp_path, flow, issuer)
    error = await error_of(create_mcp_client("s", MCPClientConfig(url=f"{named.mcp.url}/mcp", oauth=oauth)))
    assert "set issuer" in error.message
    assert named.authorization.url in error.message
    assert named.secrets == 0


@pytest.mark.parametrize("flow", ["client credentials", "consent"])
async def test_the_issuer_that_the_user_names_gets_the_client_secret(
    named: NamedAuthorizationServer, flow: str, tmp_path: Path
) -> None:
    oauth = named.oauth(tmp_path, flow, named.authorization.url)
    await error_of(
        create_mcp_client("s", MCPClientConfig(url=f"{named.mcp.url}/mcp", oauth=oauth))
    )  # 401 for any token
    assert named.secrets > 0
