"""The tables of a configuration file as structs, from which its schema is made; Config: a file that was read."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from operations.schema import Policy

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")

Patterns = list[str]
Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Heartbeat = Annotated[float, Meta(ge=0.001, le=1e9)]


SourceKind = Literal["python", "mcp", "openapi", "entry-point"]
ShowConsent = Callable[[str, str], Awaitable[None] | None]
"""Shows a user the address at which consent for a source (the first argument) is given: opens or prints it."""
CONSENT_SECONDS = 300.0
"""Time limit for a user's consent."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; what it holds may be secret, so its text names it and shows nothing."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class AuthSettings(Settings, frozen=True, kw_only=True):
    """Credentials of one kind."""

    type: Annotated[Literal["bearer", "api_key", "basic", "oauth2"], Meta(description="How the credentials are shown.")]
    token: Annotated[str | None, Meta(description="The bearer token or the API key.")] = None
    header_name: Annotated[
        str | None, Meta(description="The header, query parameter or cookie that an API key goes in.")
    ] = None
    location: Annotated[
        Literal["header", "query", "cookie"], Meta(description="Where an API key goes; for OpenAPI sources.")
    ] = "header"
    prefix: Annotated[str | None, Meta(description="What stands before the token; `Bearer` for a bearer token.")] = None
    username: Annotated[str | None, Meta(description="For basic.")] = None
    password: Annotated[str | None, Meta(description="For basic.")] = None
    token_url: Annotated[str | None, Meta(description="Where oauth2 fetches tokens; for OpenAPI sources.")] = None
    client_id: Annotated[str | None, Meta(description="For oauth2, the client credentials grant.")] = None
    client_secret: Annotated[str | None, Meta(description="For oauth2, the client credentials grant.")] = None
    scopes: Annotated[list[str], Meta(description="The scopes that oauth2 asks for.")] = []


class RetrySettings(Settings, frozen=True, kw_only=True):
    """When an HTTP call is made again."""

    attempts: Annotated[Count, Meta(description="How often a call is made at most.")] = 3
    statuses: Annotated[tuple[int, ...], Meta(description="The answers that are worth another attempt.")] = (
        429,
        502,
        503,
        504,
    )
    first_delay: Annotated[float, Meta(ge=0, description="Seconds before the second attempt.")] = 0.25
    longest_delay: Annotated[float, Meta(ge=0, description="The longest wait, a `Retry-After` included.")] = 20.0
    mutations: Annotated[bool, Meta(description="Repeat calls that are not idempotent as well.")] = False


class LimitSettings(Settings, frozen=True, kw_only=True):
    """How much of an HTTP answer is too much."""

    response_bytes: Annotated[Count, Meta(description="The largest body.")] = 64 * 1024 * 1024
    event_bytes: Annotated[Count, Meta(description="The largest event of a stream.")] = 16 * 1024 * 1024
    redirects: Annotated[Count, Meta(description="How many redirects are followed.")] = 5
    connections: Annotated[Count, Meta(description="How many connections are kept.")] = 100


class OAuthSettings(Settings, frozen=True, kw_only=True):
    """How an MCP server over HTTP authorises this client: by a user's consent, or by the client's own secret."""

    grant: Annotated[
        Literal["authorization_code", "client_credentials"] | None,
        Meta(description="A user's consent, or the client's secret; if not said, the latter where there is a secret."),
    ] = None
    client_id: Annotated[str | None, Meta(description="The client's id; without one it registers itself.")] = None
    client_secret: Annotated[str | None, Meta(description="The client's secret.")] = None
    scope: Annotated[str | None, Meta(description="The scope asked for.")] = None
    issuer: Annotated[str | None, Meta(description="The authorisation server the credentials belong to.")] = None
    storage: Annotated[str | None, Meta(description="The folder tokens are kept in.")] = None
    redirect_uri: Annotated[
        str, Meta(description="Where the user's browser is sent back to: an address of this machine.")
    ] = "http://localhost:8765/callback"

    @property
    def asks_user(self) -> bool:
        """Whether a user's consent is needed."""
        return (
            self.grant or ("client_credentials" if self.client_secret else "authorization_code")
        ) != "client_credentials"


class SourceSettings(Settings, frozen=True, kw_only=True):
    """What every source may say."""

    namespace: Annotated[
        str | None,
        Meta(description="The namespace of an MCP server's or an API's operations; put before the ids of others."),
    ] = None
    allow: Annotated[Patterns, Meta(description="Only operations that one of these patterns matches.")] = []
    deny: Annotated[Patterns, Meta(description="No operation that one of these patterns matches.")] = []
    rename: Annotated[dict[str, str], Meta(description="New names by old ones; `*` stands for any text.")] = {}
    policy: Annotated[Policy | None, Meta(description="How results are fitted to their output schema.")] = None
    disabled: Annotated[bool, Meta(description="Leave the source out.")] = False
    open_timeout: Annotated[Seconds, Meta(description="Seconds until a source that does not open is given up.")] = 60.0


class PythonSettings(SourceSettings, frozen=True, kw_only=True):
    """Operations in Python modules."""

    kind: ClassVar[SourceKind] = "python"

    python: Annotated[Text, Meta(description="A folder, a file or an importable package.")]
    pythonpath: Annotated[tuple[str, ...], Meta(description="Directories put on `sys.path`.")] = ()
    import_timeout: Annotated[Seconds, Meta(description="Seconds that one module may take to import.")] = 30.0


class MCPSettings(SourceSettings, frozen=True, kw_only=True):
    """The tools of an MCP server: a command (stdio) or a url (streamable HTTP)."""

    kind: ClassVar[SourceKind] = "mcp"

    type: Annotated[
        Literal["stdio", "http", "streamable-http"] | None,
        Meta(description="As editors write it; it must fit the rest, which says as much."),
    ] = None
    command: Annotated[Text | None, Meta(description="The program to start.")] = None
    args: Annotated[list[str], Meta(description="Its arguments.")] = []
    env: Annotated[dict[str, str], Meta(description="Variables added to its environment.")] = {}
    env_file: Annotated[str | None, Meta(description="A file with more of them.")] = None
    cwd: Annotated[str | None, Meta(description="Where it runs; the file's own folder if not said.")] = None
    url: Annotated[Text | None, Meta(description="The address of a server over HTTP.")] = None
    headers: Annotated[dict[str, str], Meta(description="Headers of every request.")] = {}
    auth: Annotated[AuthSettings | None, Meta(description="Credentials of every request.")] = None
    oauth: Annotated[OAuthSettings | None, Meta(description="Authorisation by client credentials.")] = None
    timeout: Annotated[Seconds, Meta(description="Seconds for a call without a deadline.")] = 300.0
    connect_timeout: Annotated[Seconds, Meta(description="Seconds for starting and greeting the server.")] = 30.0
    max_message_bytes: Annotated[Count, Meta(description="The largest message.")] = 256 * 1024 * 1024
    protocol: Annotated[str, Meta(description="`auto`, `legacy` or a version of the protocol.")] = "auto"
    trace: Annotated[bool, Meta(description="Whether the trace context travels to the server.")] = True
    identity_fields: Annotated[list[str], Meta(description="What of the caller's identity the server is told.")] = []

    def env_file_path(self, folder: Path) -> Path | None:
        """Return the file of `env_file`; a relative path starts from `folder`."""
        return None if self.env_file is None else folder / Path(self.env_file).expanduser()

    @property
    def asks_user(self) -> bool:
        """Whether opening the server may need a user's consent."""
        return self.oauth is not None and self.oauth.asks_user


class OpenAPISettings(SourceSettings, frozen=True, kw_only=True):
    """The endpoints of an API document."""

    kind: ClassVar[SourceKind] = "openapi"

    openapi: Annotated[Text, Meta(description="The path or the url of the document.")]
    base_url: Annotated[str | None, Meta(description="In place of the document's servers.")] = None
    server_variables: Annotated[dict[str, str], Meta(description="Values of the variables of its servers.")] = {}
    headers: Annotated[dict[str, str], Meta(description="Headers of every request.")] = {}
    auth: Annotated[AuthSettings | None, Meta(description="Credentials of every request.")] = None
    security: Annotated[
        dict[str, AuthSettings], Meta(description="Credentials by the names of the document's security schemes.")
    ] = {}
    credential_origins: Annotated[
        list[str], Meta(description="Origins that get the credentials too, such as that of a token endpoint.")
    ] = []
    timeout: Annotated[Seconds, Meta(description="Seconds for a call.")] = 30.0
    idle_timeout: Annotated[Seconds | None, Meta(description="Seconds that a stream may be silent.")] = None
    retry: Annotated[RetrySettings, Meta(description="When a call is made again.")] = RetrySettings()
    limits: Annotated[LimitSettings, Meta(description="How much of an answer is too much.")] = LimitSettings()
    proxy: Annotated[str | None, Meta(description="The proxy's address.")] = None
    reconnect: Annotated[Count, Meta(description="How often a broken stream of events is taken up again.")] = 0
    cache: Annotated[bool, Meta(description="Ask conditionally for what was answered before.")] = False

    @property
    def is_remote(self) -> bool:
        """Whether the document is fetched over HTTP."""
        return self.openapi.startswith(("http://", "https://"))

    def document_path(self, folder: Path) -> Path:
        """Return the file of the document; a relative path starts from `folder`."""
        return Path(os.path.abspath(folder / Path(self.openapi.removeprefix("file://")).expanduser()))


class EntryPointSettings(SourceSettings, frozen=True, kw_only=True):
    """A source that another package brings."""

    kind: ClassVar[SourceKind] = "entry-point"

    entry_point: Annotated[Text, Meta(description="Its name in the entry-point group `operations.sources`.")]
    options: Annotated[dict[str, Any], Meta(description="The keyword arguments of its function.")] = {}


AnySource = PythonSettings | MCPSettings | OpenAPISettings | EntryPointSettings


class AccessRule(Settings, frozen=True, kw_only=True):
    """What a caller must hold for the operations that a pattern matches."""

    scopes: Annotated[list[str], Meta(description="All of these scopes.")] = []
    any: Annotated[list[str], Meta(description="At least one of these scopes.")] = []
    resource_type: Annotated[str | None, Meta(description="A resource of this type…")] = None
    resource_action: Annotated[str | None, Meta(description="…on which this action is allowed.")] = None


class JWTSettings(Settings, frozen=True, kw_only=True):
    """Signed tokens that a hub or a worker accepts."""

    key: Annotated[str | None, Meta(description="The secret or the public key.")] = None
    key_file: Annotated[str | None, Meta(description="The file it is in.")] = None
    algorithms: Annotated[list[str], Meta(description="The signatures that are accepted.", min_length=1)]
    issuer: Annotated[str | None, Meta(description="Who must have signed.")] = None
    audience: Annotated[str | None, Meta(description="Who it must be for.")] = None


class SigningSettings(Settings, frozen=True, kw_only=True):
    """How requests on a bus that many can write to are signed: what workers check with, what a caller signs with."""

    secret: Annotated[
        str | None, Meta(description="Of workers and the issuer of tokens: at least 32 random bytes, hexadecimal.")
    ] = None
    accepted_secrets: Annotated[
        list[str], Meta(description="Secrets that are believed beside it, while one takes the place of another.")
    ] = []
    jwt: Annotated[JWTSettings | None, Meta(description="The tokens that a worker accepts.")] = None
    required: Annotated[bool, Meta(description="Whether a worker refuses requests that nobody signed.")] = False
    token: Annotated[str | None, Meta(description="The token of a caller.")] = None
    key: Annotated[
        str | None, Meta(description="The key that was issued with it, hexadecimal; not needed beside the secret.")
    ] = None


class TransportSettings(Settings, frozen=True, kw_only=True):
    """A bus of the call protocol."""

    url: Annotated[Text, Meta(description="`memory:`, `ws://…`, `wss://…`, `redis://…` or `nats://…`.")]
    token: Annotated[
        str | None, Meta(description="Shown to the hub or the broker; a Redis takes it as its password.")
    ] = None
    options: Annotated[dict[str, Any], Meta(description="Keyword arguments of the transport.")] = {}
    signing: Annotated[SigningSettings | None, Meta(description="Signed identities, on Redis and NATS.")] = None


class TokenSettings(Settings, frozen=True, kw_only=True):
    """One token that a hub knows, and whose it is."""

    token: Annotated[Text, Meta(description="The token itself.")]
    identity: Annotated[Text, Meta(description="Who shows it.")]
    scopes: Annotated[list[str], Meta(description="What they may do.")] = []
    namespaces: Annotated[list[str], Meta(description="Where they may register operations; `*` is everywhere.")] = []
    resources: Annotated[dict[str, list[str]], Meta(description="Actions by `type:id`.")] = {}


class TLSSettings(Settings, frozen=True, kw_only=True):
    """The certificate that a hub shows."""

    certificate: Annotated[Text, Meta(description="The file of the certificate and its chain.")]
    key: Annotated[Text, Meta(description="The file of its private key.")]


class HubSettings(Settings, frozen=True, kw_only=True):
    """The hub of the call protocol that `ops hub` runs."""

    host: Annotated[str, Meta(description="The address it listens at.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="The port; 0 is any free one.")] = 8700
    heartbeat: Annotated[Heartbeat | None, Meta(description="Seconds between signs of life.")] = None
    max_payload: Annotated[AtLeastOne | None, Meta(description="The largest message in bytes.")] = None
    tokens: Annotated[list[TokenSettings], Meta(description="The tokens it knows.")] = []
    jwt: Annotated[JWTSettings | None, Meta(description="The signed tokens it accepts.")] = None
    tls: Annotated[TLSSettings | None, Meta(description="The certificate it shows.")] = None


class FileSettings(Settings, frozen=True, kw_only=True):
    """The whole file."""

    env_file: Annotated[
        str | list[str] | None, Meta(description="Files with variables for `${…}`; the environment goes first.")
    ] = None
    include: Annotated[
        list[str], Meta(description="More files: TOML like this one, or editors' JSON with `mcpServers` or `servers`.")
    ] = []
    policy: Annotated[Policy | None, Meta(description="How results are fitted to their output schema.")] = None
    sources: Annotated[dict[str, Any], Meta(description="Where operations come from, by name.")] = {}
    access: Annotated[
        dict[str, list[str] | AccessRule],
        Meta(description="By a pattern of ids: the scopes a caller must hold, all of them, or a table that says more."),
    ] = {}
    transports: Annotated[dict[str, TransportSettings], Meta(description="Buses of the call protocol, by name.")] = {}
    hub: Annotated[HubSettings | None, Meta(description="The hub that `ops hub` runs.")] = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One source: its name, its settings, and where the file defines it."""

    name: str
    settings: AnySource
    folder: Path
    """The directory that its relative paths start from."""
    file: Path
    line: int
    written: Mapping[str, Any]
    """The table as written, with `${…}`."""
    problem: str | None = None
    """Why it cannot be opened, where that is known from the file."""

    @property
    def kind(self) -> SourceKind:
        """The kind of source."""
        return self.settings.kind

    @property
    def namespace(self) -> str:
        """The namespace of operations that do not have their own: the setting, or the source's name."""
        segments = (_NOT_IN_NAMES.sub("_", segment) or "_" for segment in self.name.split("."))
        return self.settings.namespace or ".".join(segments)

    def __repr__(self) -> str:
        return f"Source(name={self.name!r}, kind={self.kind!r})"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that was read and checked: sources, access rules, transports, the hub. Its repr has no values."""

    path: Path
    sources: Mapping[str, Source] = {}
    access: Mapping[str, AccessRule] = {}
    transports: Mapping[str, TransportSettings] = {}
    hub: HubSettings | None = None
    policy: Policy | None = None
    files: tuple[Path, ...] = ()
    """Every file that was read: the configuration, included files, files of variables."""
    variables: Mapping[str, str] = {}
    """The variables that `${…}` used, from the environment or a file; they may be secret."""
    file_variables: Mapping[str, str] = {}
    """Those of them that a file of variables set."""
    unset_variables: frozenset[str] = frozenset()
    """The variables that `${…}` needs and that are not set, with or without a default."""
    unusable: Mapping[str, str] = {}
    """What cannot be used for lack of a variable, `transports.<name>` or `hub`, and why."""
    written: Mapping[str, Any] = {}
    """The file's other tables as written, with `${…}`."""

    def __repr__(self) -> str:
        return f"Config(path={str(self.path)!r}, sources={list(self.sources)!r})"
