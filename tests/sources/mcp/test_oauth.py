"""Stored tokens, and the SDK's provider for a config; the conformance suite tests the flows."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from operations import CallError, ErrorCode
from operations.sources.mcp import MCPOAuth
from operations.sources.mcp.oauth import FileTokenStorage, oauth_provider

URL = "https://mcp.example.com/mcp"


async def test_tokens_are_stored_in_a_private_file(tmp_path: Path) -> None:
    directory = tmp_path / "tokens"
    storage = FileTokenStorage(directory, URL)
    assert await storage.get_tokens() is None
    await storage.set_tokens(OAuthToken(access_token="a", refresh_token="r"))
    await storage.set_client_info(OAuthClientInformationFull(client_id="c"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()] == [0o600]
    again = FileTokenStorage(directory, URL)
    tokens, client = await again.get_tokens(), await again.get_client_info()
    assert tokens is not None
    assert client is not None
    assert (tokens.access_token, tokens.refresh_token, client.client_id) == ("a", "r", "c")
    assert await FileTokenStorage(directory, "https://other.example.com/mcp").get_tokens() is None


def test_an_open_directory_is_made_private_and_a_broken_file_has_no_tokens(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    storage = FileTokenStorage(tmp_path, URL)
    storage.path.write_text("{broken")
    assert asyncio.run(storage.get_tokens()) is None
    asyncio.run(storage.set_tokens(OAuthToken(access_token="a")))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


async def test_concurrently_stored_tokens_do_not_corrupt_the_file(tmp_path: Path) -> None:
    storage = FileTokenStorage(tmp_path, URL)
    await asyncio.gather(*(storage.set_tokens(OAuthToken(access_token=f"t{n}")) for n in range(20)))
    tokens = await storage.get_tokens()
    assert tokens is not None
    assert tokens.access_token.startswith("t")


async def show(url: str) -> None:
    raise AssertionError(url)


async def redirected() -> str:
    return "http://localhost:8765/callback?code=c&state=s"


async def test_the_provider_depends_on_the_settings(tmp_path: Path) -> None:
    user = oauth_provider(
        URL, MCPOAuth(storage=tmp_path, open_url=show, wait_for_redirect=redirected, client_id="known")
    )
    assert isinstance(user, OAuthClientProvider)
    known = await user.context.storage.get_client_info()
    assert known is not None
    assert known.client_id == "known"
    machine = MCPOAuth(storage=tmp_path, client_id="i", client_secret="s", issuer="https://auth.example.com")
    assert isinstance(oauth_provider(URL, machine), ClientCredentialsOAuthProvider)


@pytest.mark.parametrize("settings", [MCPOAuth(), MCPOAuth(client_id="x"), MCPOAuth(open_url=show)])
def test_an_incomplete_config_is_refused(settings: MCPOAuth) -> None:
    with pytest.raises(CallError) as caught:
        oauth_provider(URL, settings)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_refused_consent_is_reported(tmp_path: Path) -> None:
    async def refused() -> str:
        return "http://localhost:8765/callback?error=access_denied"

    provider = oauth_provider(URL, MCPOAuth(storage=tmp_path, open_url=show, wait_for_redirect=refused))
    assert isinstance(provider, OAuthClientProvider)
    assert provider.context.callback_handler is not None
    with pytest.raises(CallError, match="access_denied"):
        await provider.context.callback_handler()
