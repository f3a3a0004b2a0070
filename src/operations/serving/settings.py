"""Settings: how a registry is served, and what follows from that for hosts, audiences and challenges."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from operations.context import Identity
from operations.identity.tokens import AnyAuthenticator
from operations.serving.admission import LOOPBACK_HOSTS
from operations.serving.audit import Audit
from operations.serving.http.idempotency import IdempotencyStore
from operations.serving.limits import Limits

MCP_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a registry is served."""

    authenticator: AnyAuthenticator | None = None
    allow_anonymous: bool | None = None
    """Whether requests without credentials are admitted; by default where there is no authenticator."""
    anonymous: Identity | None = None
    """Who an anonymous caller is."""
    allow: Iterable[str] = ()
    deny: Iterable[str] = ()
    read_only: bool = False
    mcp: bool = True
    websocket: bool = True
    title: str = "operations"
    version: str = "1.0.0"
    hosts: Iterable[str] = LOOPBACK_HOSTS
    origins: Iterable[str] = ()
    public_url: str | None = None
    """The address that callers use, without a slash at its end: the audience of their tokens."""
    audiences: Iterable[str] = ()
    authorization_servers: Iterable[str] = ()
    limits: Limits = Limits()
    state_key: bytes | None = None
    """32 bytes that seal the states of MCP calls that wait for an answer; processes that share them continue calls."""
    audit: Audit | None = None
    store: IdempotencyStore | None = None
    """Where the answers to mutations with an `Idempotency-Key` are kept; in memory by default."""

    @property
    def accepted_hosts(self) -> tuple[str, ...]:
        """The names that this server is reached by; that of the public address is one."""
        if self.public_url is None:
            return tuple(self.hosts)
        return (*self.hosts, urlsplit(self.public_url).netloc.lower())

    @property
    def accepted_audiences(self) -> tuple[str, ...]:
        """The audiences that every door accepts."""
        return (*self.audiences, *((self.public_url,) if self.public_url is not None else ()))

    @property
    def mcp_audience(self) -> str | None:
        """The audience that only the MCP door accepts."""
        return None if self.public_url is None else self.public_url + MCP_PATH

    @property
    def challenge(self) -> str:
        """What `WWW-Authenticate` says."""
        return self._challenge("")

    @property
    def mcp_challenge(self) -> str:
        """What `WWW-Authenticate` of the MCP door says: the metadata of a resource has the resource's path."""
        return self._challenge(MCP_PATH)

    def _challenge(self, path: str) -> str:
        if self.public_url is None or not self.authorization_servers:
            return "Bearer"
        return f'Bearer resource_metadata="{self.public_url}{METADATA_PATH}{path}"'
