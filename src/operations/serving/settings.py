"""AppSettings: the settings of a served application, and the hosts, audiences and challenges computed from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from operations.context import Identity, check_identity
from operations.exports.code_limits import CodeLimits
from operations.identity.tokens import AnyAuthenticator
from operations.jobs import Jobs
from operations.serving.admission import LOOPBACK_HOSTS
from operations.serving.audit import Audit
from operations.serving.console.sources import Sources
from operations.serving.http.idempotency import IdempotencyStore
from operations.serving.limits import Limits

if TYPE_CHECKING:
    from operations.calls.hub import Hub  # not imported by applications without it

MCP_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"


class AppSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a served application."""

    authenticator: AnyAuthenticator | None = None
    allow_anonymous: bool | None = None
    """Whether requests without credentials are admitted; by default, only if there is no authenticator."""
    anonymous: Identity | None = None
    """The identity of anonymous callers."""
    allow: Iterable[str] = ()
    deny: Iterable[str] = ()
    read_only: bool = False
    http: bool = True
    """Whether operations are served at HTTP paths, and described at `/openapi.json` and `/docs`."""
    mcp: bool = True
    websocket: bool = True
    title: str = "operations"
    version: str = "1.0.0"
    hosts: Iterable[str] = LOOPBACK_HOSTS
    origins: Iterable[str] = ()
    public_url: str | None = None
    """The URL that callers use, without a trailing slash; also the audience of the callers' tokens."""
    audiences: Iterable[str] = ()
    authorization_servers: Iterable[str] = ()
    limits: Limits = Limits()
    state_key: bytes | None = None
    """The key (32 bytes) that encrypts the states of suspended MCP calls.

    A process can continue a call that another process with the same key suspended, if the operation allows that.
    """
    search: bool | None = None
    """Whether MCP clients get three tools (search, describe, call) in place of all tools.

    By default, callers with more than 200 tools get the three tools.
    """
    code: CodeLimits | bool = False
    """Whether MCP clients get, in place of all tools, one tool that runs scripts (extra `code`).

    Pass `CodeLimits` in place of True to set limits for the scripts.
    """
    audit: Audit | None = None
    jobs: Jobs | None = None
    """Runs calls with `Prefer: respond-async` (HTTP) and tasks (MCP) as jobs. `app` does not close this object."""
    console: bool = False
    """Whether the console is served at `/console/`; it observes every call of the registry."""
    console_bodies: bool = False
    """Whether the console stores inputs and outputs of calls, without secrets."""
    metrics: bool = False
    """Whether Prometheus metrics are served at `/metrics`; calls are counted and timed."""
    sources: Sources | None = None
    """The sources of the operations, shown in the console; by default, each namespace counts as a source."""
    hub: Hub | None = None
    """A hub whose spokes connect at `/ws`; by default, an internal hub serves the registry there."""
    store: IdempotencyStore | None = None
    """The store of responses to mutations with an `Idempotency-Key`; in memory by default."""

    def __post_init__(self) -> None:
        if self.console and not self.http:
            raise ValueError("invalid console=True with http=False: the console calls operations at their paths")
        for name in ("hosts", "origins", "audiences", "authorization_servers"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ValueError(f"invalid {name} {given!r}: expected a list; pass [{given!r}]")
        if self.anonymous is not None:
            check_identity(self.anonymous)

    @property
    def is_open(self) -> bool:
        """Whether there is no authenticator, so that every caller may watch the server."""
        return self.authenticator is None

    @property
    def admits_anonymous(self) -> bool:
        """Whether requests without credentials are admitted."""
        return self.is_open if self.allow_anonymous is None else self.allow_anonymous

    @property
    def accepted_hosts(self) -> tuple[str, ...]:
        """The accepted host names, including the host of `public_url`."""
        if self.public_url is None:
            return tuple(self.hosts)
        return (*self.hosts, urlsplit(self.public_url).netloc.lower())

    @property
    def accepted_audiences(self) -> tuple[str, ...]:
        """The audiences that every endpoint accepts."""
        return (*self.audiences, *((self.public_url,) if self.public_url is not None else ()))

    @property
    def mcp_audience(self) -> str | None:
        """The audience that only the MCP endpoint accepts; None without `public_url`."""
        return None if self.public_url is None else self.public_url + MCP_PATH

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`."""
        return self._challenge("")

    @property
    def mcp_challenge(self) -> str:
        """The value of `WWW-Authenticate` at the MCP endpoint, whose metadata has a separate path."""
        return self._challenge(MCP_PATH)

    def _challenge(self, path: str) -> str:
        if self.public_url is None or not self.authorization_servers:
            return "Bearer"
        return f'Bearer resource_metadata="{self.public_url}{METADATA_PATH}{path}"'
