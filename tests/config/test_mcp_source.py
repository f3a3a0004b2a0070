"""A user's consent for an MCP server, with a real authorisation server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from operations import CallError, ErrorCode
from operations.config import load_config, open_workspace
from operations.config.mcp_source import Consent
from tests.asgi_server import serving
from tests.config.files import problems, write
from tests.ports import free_port


class Authorisations:
    """An authorisation server that always consents and records its clients."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        token = secrets.token_hex(16)
        self.tokens[token] = AccessToken(
            token=token, client_id=client.client_id or "", scopes=authorization_code.scopes
        )
        return OAuthToken(access_token=token, expires_in=3600)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        raise NotImplementedError

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        raise NotImplementedError


@pytest.fixture
def server() -> Iterator[tuple[str, Authorisations]]:
    """The URL of an MCP server that requires a token, and its authorisation server."""
    port = free_port()
    home = f"http://127.0.0.1:{port}"
    authorisations = Authorisations()
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(home),
        resource_server_url=AnyHttpUrl(f"{home}/mcp"),
        client_registration_options=ClientRegistrationOptions(enabled=True),
        validate_token_resource=False,
    )
    mcp = MCPServer("guarded", auth_server_provider=authorisations, auth=settings)

    @mcp.tool()
    def whisper(text: str) -> str:
        return text.lower()

    with serving(mcp.streamable_http_app(), lifespan="on", port=port):
        yield f"{home}/mcp", authorisations


async def test_a_user_allows_it_once_and_the_token_is_kept(tmp_path: Path, server: tuple[str, Authorisations]) -> None:
    url, authorisations = server
    origin = f"http://127.0.0.1:{free_port()}"
    text = f"[sources.guarded]\nurl = '{url}'\noauth = {{ storage = 'tokens', redirect_uri = '{origin}/callback' }}"
    config = load_config(write(tmp_path, text), environ={})
    asked: list[str] = []

    async def show(source: str, address: str) -> None:
        asked.append(source)
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            # A browser also requests other paths.
            stray = await browser.get(f"{origin}/favicon.ico")
            assert stray.status_code == 404
            page = await browser.get(address)
            assert "You may close this page" in page.text

    async with asyncio.timeout(60):
        for _ in range(2):
            async with open_workspace(config, show_consent=show) as workspace:
                assert workspace.reports[0].problem is None
                envelope = await workspace.registry.execute("guarded.whisper", {"text": "HI"})
                assert envelope.data == {"result": "hi"}
        async with open_workspace(config) as workspace:
            assert workspace.reports[0].problem is None
    assert asked == ["guarded"]
    assert len(authorisations.tokens) == 1


async def test_a_required_consent_without_a_user_is_reported(
    tmp_path: Path, server: tuple[str, Authorisations]
) -> None:
    text = f"[sources.guarded]\nurl = '{server[0]}'\noauth = {{ storage = 'tokens' }}"
    async with open_workspace(load_config(write(tmp_path, text), environ={})) as workspace:
        report = workspace.reports[0]
        assert report.state == "failed"
        assert "user consent required" in str(report.problem)


async def test_a_port_in_use_is_named() -> None:
    port = free_port()
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    async with server:
        with pytest.raises(CallError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            await Consent("a", f"http://127.0.0.1:{port}/back", lambda source, url: None).open_url("http://x")
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_the_client_credentials_need_both(tmp_path: Path) -> None:
    path = write(tmp_path, "[sources.a]\nurl = 'x'\noauth = { grant = 'client_credentials', client_id = 'i' }")
    assert problems(path) == [
        "operations.toml:1: sources.a: oauth: client_credentials requires client_id and client_secret"
    ]
