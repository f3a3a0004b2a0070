"""`Config` (a loaded configuration) and the structs for the tables of its file.

The published schema is generated from these structs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from operations.config.problems import DIRECT_FILE
from operations.schema import Policy

_NOT_IN_NAMES = r"[^A-Za-z0-9_-]+"

Patterns = list[str]
Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Heartbeat = Annotated[float, Meta(ge=0.001, le=1e9)]


SourceKind = Literal["python", "mcp", "openapi", "entry-point"]
ShowConsent = Callable[[str, str], Awaitable[None] | None]
"""Function that shows or opens the consent URL (second argument) of a source (first argument)."""
CONSENT_SECONDS = 300.0
"""Seconds within which a user must give consent."""


class SourceCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions of a program that answer servers' questions and observe HTTP requests."""

    show_consent: ShowConsent | None = None
    elicit: Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]] | None = None
    """Receives the name of an MCP server and the parameters of its question; returns the result that MCP defines."""
    on_request: Callable[[Any], None] | None = None
    """Receives each `HTTPRequest` to an API or an MCP server before it is sent."""
    on_response: Callable[[Any, int, Sequence[tuple[str, str]]], None] | None = None
    """Receives the request, the status and the response headers after each response."""


NO_CALLBACKS = SourceCallbacks()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; its repr has no values, because they may be secret."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class AuthSettings(Settings, frozen=True, kw_only=True):
    """Credentials of one type."""

    type: Annotated[Literal["bearer", "api_key", "basic", "oauth2"], Meta(description="Type of the credentials.")]
    token: Annotated[str | None, Meta(description="Bearer token or API key.")] = None
    header_name: Annotated[
        str | None, Meta(description="Name of the header, query parameter or cookie with the credentials.")
    ] = None
    location: Annotated[
        Literal["header", "query", "cookie"], Meta(description="Location of the API key; for OpenAPI sources.")
    ] = "header"
    prefix: Annotated[str | None, Meta(description="Prefix of the token; for bearer tokens `Bearer` by default.")] = (
        None
    )
    username: Annotated[str | None, Meta(description="User name, for basic.")] = None
    password: Annotated[str | None, Meta(description="Password, for basic.")] = None
    token_url: Annotated[str | None, Meta(description="URL where oauth2 fetches tokens; for OpenAPI sources.")] = None
    client_id: Annotated[str | None, Meta(description="Client id, for oauth2 (client credentials grant).")] = None
    client_secret: Annotated[str | None, Meta(description="Client secret, for oauth2 (client credentials grant).")] = (
        None
    )
    scopes: Annotated[list[str], Meta(description="Scopes that oauth2 requests.")] = []


class RetrySettings(Settings, frozen=True, kw_only=True):
    """Retries of HTTP calls."""

    attempts: Annotated[Count, Meta(description="Maximum number of attempts.")] = 3
    statuses: Annotated[tuple[int, ...], Meta(description="Status codes that are retried.")] = (
        429,
        502,
        503,
        504,
    )
    first_delay: Annotated[float, Meta(ge=0, description="Seconds before the second attempt.")] = 0.25
    longest_delay: Annotated[
        float,
        Meta(
            ge=0,
            description="Longest delay in seconds before a retry. If `Retry-After` is longer, the call is not retried.",
        ),
    ] = 20.0
    mutations: Annotated[bool, Meta(description="Whether calls that are not idempotent are retried.")] = False


class LimitSettings(Settings, frozen=True, kw_only=True):
    """Limits of an API's responses, redirects and connections."""

    response_bytes: Annotated[Count, Meta(description="Maximum size in bytes of a decompressed response body.")] = (
        64 * 1024 * 1024
    )
    event_bytes: Annotated[Count, Meta(description="Maximum size in bytes of an event of a stream.")] = 16 * 1024 * 1024
    redirects: Annotated[Count, Meta(description="Maximum number of redirects.")] = 5
    connections: Annotated[Count, Meta(description="Maximum number of connections.")] = 100


class OAuthSettings(Settings, frozen=True, kw_only=True):
    """OAuth for an MCP server over HTTP: by a user's consent, or by client credentials."""

    grant: Annotated[
        Literal["authorization_code", "client_credentials"] | None,
        Meta(description="User consent or client credentials; by default client credentials if client_secret is set."),
    ] = None
    client_id: Annotated[str | None, Meta(description="Client id; without one, the client registers itself.")] = None
    client_secret: Annotated[str | None, Meta(description="Client secret.")] = None
    scope: Annotated[str | None, Meta(description="Requested scopes, separated by spaces.")] = None
    issuer: Annotated[
        str | None,
        Meta(description="The only authorisation server that gets the client secret; by default the MCP server."),
    ] = None
    storage: Annotated[str | None, Meta(description="Directory where tokens are stored.")] = None
    redirect_uri: Annotated[str, Meta(description="URL on this machine that the browser is redirected to.")] = (
        "http://localhost:8765/callback"
    )

    @property
    def asks_user(self) -> bool:
        """Whether a user's consent is required."""
        return (
            self.grant or ("client_credentials" if self.client_secret else "authorization_code")
        ) != "client_credentials"


class SourceSettings(Settings, frozen=True, kw_only=True):
    """Settings that all kinds of sources have."""

    namespace: Annotated[
        str | None,
        Meta(
            description="Namespace of the operations of an MCP server or API. For other sources, a prefix of their ids."
        ),
    ] = None
    allow: Annotated[Patterns, Meta(description="Patterns of the operations to register.")] = []
    deny: Annotated[Patterns, Meta(description="Patterns of operations to leave out.")] = []
    rename: Annotated[
        dict[str, str], Meta(description="New names by patterns of old names; `*` matches any characters.")
    ] = {}
    policy: Annotated[Policy | None, Meta(description="Policy for normalising results to their output schema.")] = None
    disabled: Annotated[bool, Meta(description="Whether the source is ignored.")] = False
    open_timeout: Annotated[Seconds, Meta(description="Time limit in seconds for opening the source.")] = 60.0


class PythonSettings(SourceSettings, frozen=True, kw_only=True):
    """Operations in Python modules."""

    kind: ClassVar[SourceKind] = "python"

    python: Annotated[Text, Meta(description="A directory, a file or an importable package.")]
    pythonpath: Annotated[tuple[str, ...], Meta(description="Directories added to `sys.path`.")] = ()
    import_timeout: Annotated[Seconds, Meta(description="Time limit in seconds for importing one module.")] = 30.0


class MCPSettings(SourceSettings, frozen=True, kw_only=True):
    """The tools of an MCP server: a command (stdio) or a url (streamable HTTP)."""

    kind: ClassVar[SourceKind] = "mcp"

    type: Annotated[
        Literal["stdio", "http", "streamable-http", "sse"] | None,
        Meta(description="Type as in editors' files; must match `command` or `url`. `sse` is the older transport."),
    ] = None
    command: Annotated[Text | None, Meta(description="Program to start.")] = None
    args: Annotated[list[str], Meta(description="Arguments of the program.")] = []
    env: Annotated[dict[str, str], Meta(description="Variables added to the program's environment.")] = {}
    env_file: Annotated[str | None, Meta(description="File with further variables.")] = None
    cwd: Annotated[str | None, Meta(description="Working directory; by default the directory of this file.")] = None
    url: Annotated[Text | None, Meta(description="URL of a server over HTTP.")] = None
    headers: Annotated[dict[str, str], Meta(description="Headers of every request.")] = {}
    auth: Annotated[AuthSettings | None, Meta(description="Credentials of every request.")] = None
    oauth: Annotated[OAuthSettings | None, Meta(description="OAuth authorisation.")] = None
    timeout: Annotated[Seconds, Meta(description="Time limit in seconds for calls without a deadline.")] = 300.0
    connect_timeout: Annotated[
        Seconds, Meta(description="Time limit in seconds for starting and initialising the server.")
    ] = 30.0
    max_message_bytes: Annotated[Count, Meta(description="Maximum message size in bytes.")] = 256 * 1024 * 1024
    protocol: Annotated[str, Meta(description="`auto`, `legacy` or a protocol version.")] = "auto"
    trace: Annotated[bool, Meta(description="Whether the trace context is sent to the server.")] = True
    identity_fields: Annotated[
        list[str], Meta(description="Fields of the caller's identity that are sent to the server.")
    ] = []

    def env_file_path(self, directory: Path) -> Path | None:
        """Return the path of `env_file`; a relative path starts at `directory`. Return None if it is not set."""
        return None if self.env_file is None else directory / Path(self.env_file).expanduser()

    @property
    def asks_user(self) -> bool:
        """Whether opening the server may require a user's consent."""
        return self.oauth is not None and self.oauth.asks_user


class OpenAPISettings(SourceSettings, frozen=True, kw_only=True):
    """The endpoints of an OpenAPI document."""

    kind: ClassVar[SourceKind] = "openapi"

    openapi: Annotated[Text, Meta(description="Path or URL of the document.")]
    base_url: Annotated[str | None, Meta(description="Base URL, instead of the document's servers.")] = None
    server_variables: Annotated[dict[str, str], Meta(description="Values of the servers' variables.")] = {}
    headers: Annotated[dict[str, str], Meta(description="Headers of every request.")] = {}
    auth: Annotated[AuthSettings | None, Meta(description="Credentials of every request.")] = None
    security: Annotated[
        dict[str, AuthSettings], Meta(description="Credentials by the document's security scheme names.")
    ] = {}
    credential_origins: Annotated[
        list[str], Meta(description="Further origins that receive the credentials, such as a token endpoint's.")
    ] = []
    timeout: Annotated[Seconds, Meta(description="Time limit in seconds for each request of a call.")] = 30.0
    idle_timeout: Annotated[
        Seconds | None, Meta(description="Time limit in seconds between pieces of an event stream or download.")
    ] = None
    retry: Annotated[RetrySettings, Meta(description="Retries.")] = RetrySettings()
    limits: Annotated[LimitSettings, Meta(description="Limits of responses, redirects and connections.")] = (
        LimitSettings()
    )
    proxy: Annotated[str | None, Meta(description="URL of the proxy.")] = None
    reconnect: Annotated[Count, Meta(description="Maximum number of reconnections of an event stream.")] = 0
    cache: Annotated[bool, Meta(description="Whether responses to GET requests are cached and revalidated.")] = False

    @property
    def is_remote(self) -> bool:
        """Whether the document is fetched over HTTP."""
        return self.openapi.startswith(("http://", "https://"))

    def document_path(self, directory: Path) -> Path:
        """Return the absolute path of the document; a relative path starts at `directory`."""
        return Path(os.path.abspath(directory / Path(self.openapi.removeprefix("file://")).expanduser()))


class EntryPointSettings(SourceSettings, frozen=True, kw_only=True):
    """A source from another package's entry point."""

    kind: ClassVar[SourceKind] = "entry-point"

    entry_point: Annotated[Text, Meta(description="Name in the entry-point group `operations.sources`.")]
    options: Annotated[dict[str, Any], Meta(description="Keyword arguments of the entry point's function.")] = {}


AnySource = PythonSettings | MCPSettings | OpenAPISettings | EntryPointSettings


class AccessRule(Settings, frozen=True, kw_only=True):
    """Requirements for callers of the operations that match a pattern."""

    scopes: Annotated[list[str], Meta(description="Scopes that are all required.")] = []
    any: Annotated[list[str], Meta(description="Scopes of which one is required.")] = []
    resource_type: Annotated[
        str | None,
        Meta(description="Type of the required resource. Without an action, a resource of this type is enough."),
    ] = None
    resource_action: Annotated[
        str | None,
        Meta(description="Action that must be allowed on the resource. Without a type, on a resource of any type."),
    ] = None


class JWTSettings(Settings, frozen=True, kw_only=True):
    """Signed tokens (JWT) that a hub, server or worker accepts."""

    key: Annotated[str | None, Meta(description="Secret or public key.")] = None
    key_file: Annotated[str | None, Meta(description="File with the key.")] = None
    algorithms: Annotated[list[str], Meta(description="Accepted signature algorithms.", min_length=1)]
    issuer: Annotated[str | None, Meta(description="Required issuer.")] = None
    audience: Annotated[str | None, Meta(description="Required audience.")] = None


class SigningSettings(Settings, frozen=True, kw_only=True):
    """Signing on a shared transport: the secret with which a worker checks signatures, or a caller's token and key."""

    secret: Annotated[
        str | None,
        Meta(description="Secret of workers and of the token issuer: at least 32 random bytes, hexadecimal."),
    ] = None
    accepted_secrets: Annotated[list[str], Meta(description="Further secrets that are accepted, for rotation.")] = []
    jwt: Annotated[JWTSettings | None, Meta(description="Tokens that a worker accepts.")] = None
    required: Annotated[bool, Meta(description="Whether a worker rejects unsigned requests.")] = False
    token: Annotated[str | None, Meta(description="Token of a caller.")] = None
    key: Annotated[
        str | None, Meta(description="Key issued with the token, hexadecimal; not required if secret is set.")
    ] = None


class TransportSettings(Settings, frozen=True, kw_only=True):
    """A transport of the call protocol."""

    url: Annotated[Text, Meta(description="The URL, such as `memory:`, `wss://…`, `redis://…` or `nats://…`.")]
    token: Annotated[str | None, Meta(description="Token for the hub or broker; the password for Redis.")] = None
    options: Annotated[dict[str, Any], Meta(description="Keyword arguments of the transport.")] = {}
    signing: Annotated[SigningSettings | None, Meta(description="Signed identities, on Redis and NATS.")] = None


class TokenSettings(Settings, frozen=True, kw_only=True):
    """A token that a hub or server accepts, and the identity of callers with this token."""

    token: Annotated[Text, Meta(description="The token.")]
    identity: Annotated[Text, Meta(description="Id of the token's identity.")]
    scopes: Annotated[list[str], Meta(description="Scopes of the identity.")] = []
    namespaces: Annotated[
        list[str], Meta(description="Namespaces where the identity may register operations; `*` for all.")
    ] = []
    resources: Annotated[dict[str, list[str]], Meta(description="Allowed actions on resources, by `type:id`.")] = {}


class TLSSettings(Settings, frozen=True, kw_only=True):
    """The TLS certificate of a hub or server."""

    certificate: Annotated[Text, Meta(description="File with the certificate chain.")]
    key: Annotated[Text, Meta(description="File with the private key.")]


class HubSettings(Settings, frozen=True, kw_only=True):
    """The hub that `ops hub` runs."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port; 0 for any free port.")] = 8700
    heartbeat: Annotated[Heartbeat | None, Meta(description="Seconds between heartbeats.")] = None
    max_payload: Annotated[AtLeastOne | None, Meta(description="Maximum message size in bytes.")] = None
    tokens: Annotated[list[TokenSettings], Meta(description="Accepted tokens.")] = []
    jwt: Annotated[JWTSettings | None, Meta(description="Accepted signed tokens.")] = None
    tls: Annotated[TLSSettings | None, Meta(description="TLS certificate.")] = None
    console: Annotated[str | None, Meta(description="Address of the console: `host:port` or a port of loopback.")] = (
        None
    )
    console_hosts: Annotated[list[str], Meta(description="Further host names of the console.")] = []


class IssuerSettings(Settings, frozen=True, kw_only=True):
    """An OAuth or OpenID issuer whose tokens are accepted."""

    url: Annotated[Text, Meta(description="URL of the issuer, as in the claim `iss` of its tokens; https.")]
    audience: Annotated[
        list[str],
        Meta(description="Accepted audiences of its tokens; by default `public_url`, for MCP also with `/mcp`."),
    ] = []
    keys_url: Annotated[
        str | None, Meta(description="URL of the issuer's keys; by default the URL in the issuer's metadata.")
    ] = None


class ServeLimitSettings(Settings, frozen=True, kw_only=True):
    """Limits for callers."""

    body_bytes: Annotated[AtLeastOne, Meta(description="Maximum size of a request body.")] = 4 * 1024 * 1024
    body_seconds: Annotated[Seconds, Meta(description="Time limit in seconds for receiving a request body.")] = 30.0
    incoming_bytes: Annotated[
        AtLeastOne,
        Meta(description="Maximum total size of the request bodies of one identity that have not arrived completely."),
    ] = 64 * 1024 * 1024
    values: Annotated[
        AtLeastOne,
        Meta(description="Maximum number of values in a body over 64 KiB of a caller without scopes and resources."),
    ] = 100_000
    response_bytes: Annotated[AtLeastOne, Meta(description="Maximum size of a response body.")] = 64 * 1024 * 1024
    deadline_seconds: Annotated[Seconds, Meta(description="Time limit in seconds for a call, except for streams.")] = (
        60.0
    )
    calls: Annotated[
        AtLeastOne,
        Meta(description="Maximum number of running and waiting calls of one identity, for HTTP and MCP each."),
    ] = 256
    streams: Annotated[AtLeastOne, Meta(description="Maximum number of open streams of one identity over HTTP.")] = 64
    all_streams: Annotated[
        AtLeastOne, Meta(description="Maximum number of open streams of all callers over HTTP and MCP.")
    ] = 10_000
    connections: Annotated[AtLeastOne, Meta(description="Maximum number of open connections.")] = 20_000
    failures: Annotated[
        AtLeastOne, Meta(description="Maximum number of invalid credentials from one address per minute.")
    ] = 30
    rate: Annotated[Seconds | None, Meta(description="Maximum number of requests of one identity per second.")] = None
    burst: Annotated[
        AtLeastOne | None, Meta(description="Maximum number of requests that one identity may send at once.")
    ] = None
    replay_seconds: Annotated[
        float, Meta(ge=0, description="Seconds for which a stream can be resumed after its client disconnected.")
    ] = 0.0


class ServeSettings(Settings, frozen=True, kw_only=True):
    """Settings of `ops serve`."""

    http: Annotated[str | None, Meta(description="The address: `host:port`, `:port` or a port of loopback.")] = None
    mcp: Annotated[bool, Meta(description="Whether MCP is served at `/mcp`.")] = True
    jobs: Annotated[
        str | None,
        Meta(description="Where calls run as jobs: `memory`, or the name of a transport that stores messages."),
    ] = None
    search: Annotated[
        bool | None,
        Meta(
            description="Whether MCP clients get three tools (search, describe, call) instead of a tool for each "
            "operation; by default for callers with more than 200 tools."
        ),
    ] = None
    code: Annotated[
        bool,
        Meta(description="Whether MCP clients get one tool that runs scripts instead of a tool for each operation."),
    ] = False
    websocket: Annotated[bool, Meta(description="Whether the call protocol is served at `/ws`.")] = True
    console: Annotated[bool, Meta(description="Whether the console is served at `/console/`.")] = True
    console_bodies: Annotated[
        bool, Meta(description="Whether the console stores inputs and outputs of calls, without secrets.")
    ] = False
    metrics: Annotated[bool, Meta(description="Whether Prometheus metrics are served at `/metrics`.")] = True
    allow: Annotated[Patterns, Meta(description="Patterns of the operations to serve; all by default.")] = []
    deny: Annotated[Patterns, Meta(description="Patterns of operations to leave out.")] = []
    read_only: Annotated[bool, Meta(description="Whether mutations are left out.")] = False
    title: Annotated[Text, Meta(description="Name of the server, for OpenAPI and MCP clients.")] = "operations"
    version: Annotated[Text, Meta(description="Version of the server, for OpenAPI and MCP clients.")] = "1.0.0"
    public_url: Annotated[str | None, Meta(description="URL that callers use; the audience of their tokens.")] = None
    hosts: Annotated[list[str], Meta(description="Further host names that callers use.")] = []
    origins: Annotated[list[str], Meta(description="Web origins that may send requests (CORS).")] = []
    proxies: Annotated[
        list[str],
        Meta(description="Addresses or networks of trusted proxies; their `X-Forwarded-For` names the client."),
    ] = []
    tokens: Annotated[list[TokenSettings], Meta(description="Accepted tokens.")] = []
    keys: Annotated[str | None, Meta(description="The file of API keys that `ops keys` writes.")] = None
    jwt: Annotated[JWTSettings | None, Meta(description="Accepted signed tokens.")] = None
    issuer: Annotated[IssuerSettings | None, Meta(description="Issuer whose tokens are accepted.")] = None
    anonymous: Annotated[bool, Meta(description="Whether requests without credentials are accepted as well.")] = False
    insecure: Annotated[bool, Meta(description="Whether a server without credentials may listen beyond loopback.")] = (
        False
    )
    tls: Annotated[TLSSettings | None, Meta(description="TLS certificate.")] = None
    limits: Annotated[ServeLimitSettings, Meta(description="Limits for callers.")] = ServeLimitSettings()


class FileSettings(Settings, frozen=True, kw_only=True):
    """The whole configuration file."""

    env_file: Annotated[
        str | list[str] | None, Meta(description="Files with variables for `${…}`; the environment takes precedence.")
    ] = None
    include: Annotated[
        list[str],
        Meta(description="Further files: TOML like this one, or editors' JSON with `mcpServers` or `servers`."),
    ] = []
    policy: Annotated[Policy | None, Meta(description="Policy for normalising results to their output schema.")] = None
    sources: Annotated[dict[str, Any], Meta(description="Sources of operations, by name.")] = {}
    access: Annotated[
        dict[str, list[str] | AccessRule],
        Meta(description="Access rules by pattern of ids: required scopes, or a table."),
    ] = {}
    transports: Annotated[
        dict[str, TransportSettings], Meta(description="Transports of the call protocol, by name.")
    ] = {}
    interceptors: Annotated[
        list[dict[str, Any]], Meta(description="Interceptors around every call, the first outermost.")
    ] = []
    hub: Annotated[HubSettings | None, Meta(description="The hub that `ops hub` runs.")] = None
    serve: Annotated[ServeSettings | None, Meta(description="Settings of `ops serve`.")] = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A source: name, settings, and its location in the file."""

    name: str
    settings: AnySource
    directory: Path
    """Directory to which relative paths in the settings refer."""
    file: Path
    locate: Callable[[], int]
    """Function that returns the line of the source in the file."""
    written: Mapping[str, Any]
    """The table of the source as written in the file: its variables (`${…}`) are not replaced."""
    problem: str | None = None
    """Why the source cannot be opened, if this is known from the configuration alone."""

    @property
    def kind(self) -> SourceKind:
        """The kind of source."""
        return self.settings.kind

    @property
    def line(self) -> int:
        """The line of the source in the file."""
        return self.locate()

    @property
    def namespace(self) -> str:
        """The namespace for operations without one: the setting `namespace`; by default, the name of the source, with
        `_` for invalid characters.
        """
        segments = (re.sub(_NOT_IN_NAMES, "_", segment) or "_" for segment in self.name.split("."))
        return self.settings.namespace or ".".join(segments)

    @property
    def is_direct(self) -> bool:
        """Whether the command line defines the source: its file does not exist."""
        return self.file.name == DIRECT_FILE

    def __repr__(self) -> str:
        return f"Source(name={self.name!r}, kind={self.kind!r})"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded, valid configuration: sources, access rules, transports, hub, serving. Its repr has no values."""

    path: Path
    sources: Mapping[str, Source] = {}
    access: Mapping[str, AccessRule] = {}
    interceptors: tuple[Any, ...] = ()
    """The settings of `[[interceptors]]`, in their order."""
    transports: Mapping[str, TransportSettings] = {}
    hub: HubSettings | None = None
    serve: ServeSettings | None = None
    policy: Policy | None = None
    files: tuple[Path, ...] = ()
    """Every file that was read: the configuration, included files, variable files."""
    variables: Mapping[str, str] = {}
    """The variables that were inserted for `${…}`, from the environment or a variable file; values may be secret."""
    file_variables: Mapping[str, str] = {}
    """The variables in `variables` that a variable file set."""
    unset_variables: frozenset[str] = frozenset()
    """Names of the variables in `${…}` that are not set, including those with a default (`${NAME:-default}`)."""
    unusable: Mapping[str, str] = {}
    """Why a table cannot be used: the problem of a variable in the table.

    The keys are `transports.<name>`, `hub` and `serve`.
    """
    written: Mapping[str, Any] = {}
    """The tables other than sources as written in the file: their variables (`${…}`) are not replaced."""

    def __repr__(self) -> str:
        return f"Config(path={str(self.path)!r}, sources={list(self.sources)!r})"
