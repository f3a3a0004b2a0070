"""OAuth for HTTP servers: the SDK's provider, with tokens in a private file."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, BaseModel, ValidationError

from operations.errors import CallError, ErrorCode
from operations.local_files import write_atomically
from operations.sources.mcp.config import MCPOAuth

_MAX_SHOWN = 100
Stored = TypeVar("Stored", bound=BaseModel)


class FileTokenStorage:
    """Tokens and registration of one server in one private file (0600 in a directory of 0700)."""

    def __init__(self, directory: str | Path, url: str) -> None:
        host = urlsplit(url).hostname or "server"
        self.known_client: OAuthClientInformationFull | None = None
        """A client that the user has registered; it is not stored in the file."""
        self.path = Path(directory).expanduser() / f"{host}-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens, or None."""
        return _read(OAuthToken, (await asyncio.to_thread(self._load)).get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        await self._save("tokens", tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the known client, or the stored registration, or None."""
        if self.known_client is not None:
            return self.known_client
        return _read(OAuthClientInformationFull, (await asyncio.to_thread(self._load)).get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store a registration."""
        await self._save("client", client_info)

    async def _save(self, name: str, value: OAuthToken | OAuthClientInformationFull) -> None:
        plain = value.model_dump(by_alias=True, mode="json", exclude_none=True)
        await asyncio.to_thread(self._store, name, plain)

    def _load(self) -> dict[str, Any]:
        try:
            stored = msgspec.json.decode(self.path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return {}
        return stored if isinstance(stored, dict) else {}

    def _store(self, name: str, value: dict[str, Any]) -> None:
        """Store a value under a name; the file is replaced atomically."""
        directory = self.path.parent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.chmod(0o700)
        content = msgspec.json.encode({**self._load(), name: value})
        write_atomically(self.path, content, is_private=True)


class _UserConsent(OAuthClientProvider):
    """The SDK's provider for a user's consent; a client secret is sent only to `issuer`."""

    issuer: str | None = None

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return advertised[0] if self.issuer is None else _choose_server(advertised, self.issuer)


class _ClientCredentials(ClientCredentialsOAuthProvider):
    """The SDK's provider for client credentials, which are sent only to the authorisation server `issuer`."""

    def _select_authorization_server(self, advertised: list[str]) -> str:
        assert self._issuer is not None
        return _choose_server(advertised, self._issuer)


def _choose_server(advertised: list[str], issuer: str) -> str:
    """Return the advertised server that is the issuer; raise `OAuthFlowError` if none is, to protect the secret."""
    for server in advertised:
        if issuers_match(server, issuer):
            return server
    named = ", ".join(server[:_MAX_SHOWN] for server in advertised[:3])
    message = (
        f"the client secret is for {issuer}, but the MCP server names the authorisation server {named}: "
        "to send the secret there, set issuer to that server"
    )
    raise OAuthFlowError(message)


def _issuer_of(url: str, settings: MCPOAuth) -> str:
    """Return the authorisation server that may get the client secret: `settings.issuer`, else the origin of `url`."""
    parts = urlsplit(url)
    return settings.issuer or f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def oauth_provider(url: str, settings: MCPOAuth) -> httpx2.Auth:
    """Return the SDK's provider: with a user's consent if `open_url` is set, else with client credentials."""
    storage = FileTokenStorage(settings.storage, url)
    if settings.open_url is None:
        return _client_credentials(url, settings, storage)
    wait = settings.wait_for_redirect
    if wait is None:
        raise CallError(ErrorCode.VALIDATION_ERROR, "oauth: open_url requires wait_for_redirect")

    async def callback() -> AuthorizationCodeResult:
        return _read_redirect(await wait())

    metadata = OAuthClientMetadata(
        client_name=settings.client_name,
        redirect_uris=[AnyUrl(settings.redirect_uri)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        scope=settings.scope,
        token_endpoint_auth_method=None if settings.client_secret is None else "client_secret_basic",
    )
    issuer = None if settings.client_secret is None else _issuer_of(url, settings)
    if settings.client_id is not None:
        storage.known_client = OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            issuer=issuer,
            **metadata.model_dump(exclude_none=True),
        )
    provider = _UserConsent(
        url,
        metadata,
        storage,
        redirect_handler=settings.open_url,
        callback_handler=callback,
        client_metadata_url=settings.client_metadata_url,
    )
    provider.issuer = issuer
    return provider


def _client_credentials(url: str, settings: MCPOAuth, storage: FileTokenStorage) -> httpx2.Auth:
    if settings.client_id is None or settings.client_secret is None:
        message = "oauth: set open_url and wait_for_redirect for user consent, or client_id and client_secret"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    issuer = _issuer_of(url, settings)
    return _ClientCredentials(
        url, storage, settings.client_id, settings.client_secret, scope=settings.scope, issuer=issuer
    )


def _read_redirect(address: str) -> AuthorizationCodeResult:
    query = parse_qs(urlsplit(address).query)
    values = {name: values[0] for name, values in query.items()}
    if "code" not in values:
        reason = values.get("error", "the redirect has no code")
        raise CallError(ErrorCode.ACCESS_DENIED, f"authorisation failed: {reason}")
    return AuthorizationCodeResult(code=values["code"], state=values.get("state"), iss=values.get("iss"))


def _read(kind: type[Stored], stored: Any) -> Stored | None:
    try:
        return None if stored is None else kind.model_validate(stored)
    except ValidationError:
        return None
