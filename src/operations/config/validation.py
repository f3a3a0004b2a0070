"""Validation of configuration files: tables against structs, and settings against each other."""

from __future__ import annotations

import base64
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec

from operations.config.documents import ConfigDocument
from operations.config.problems import ConfigProblem, Key, nearest, write_key
from operations.config.settings import (
    AnySource,
    AuthSettings,
    EntryPointSettings,
    HubSettings,
    JWTSettings,
    MCPSettings,
    OpenAPISettings,
    PythonSettings,
    ServeSettings,
    Settings,
    SigningSettings,
    Source,
    SourceSettings,
    TokenSettings,
    TransportSettings,
)
from operations.config.variables import Substituted, variables_in
from operations.errors import CallError, ErrorCode
from operations.spec import NAME_PATTERN, NAMESPACE_PATTERN

S = TypeVar("S", bound=Settings)

_KEY_BYTES = 32
_KEY = rf"(?:[0-9a-fA-F]{{2}}){{{_KEY_BYTES},}}"
_LOCATION = r" - at `\$(.*)`$"
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class Checker:
    """Reads the tables of one file and appends their problems to `problems`."""

    def __init__(self, document: ConfigDocument, problems: list[ConfigProblem]) -> None:
        self.document = document
        self._problems = problems

    def report(self, key: Key, message: str) -> None:
        """Add a problem at a key."""
        self._problems.append(self.problem(key, message))

    def problem(self, key: Key, message: str, *, mention: str = "") -> ConfigProblem:
        """Return a problem at a key; with `mention`, on the line that contains this text."""
        return ConfigProblem(self.document.path, self.document.line(key, mention), write_key(key), message)

    def read(self, kind: type[S], table: Any, key: Key) -> S | None:
        """Return the struct for a table; report problems and return None if it is invalid."""
        if not isinstance(table, Mapping):
            self.report(key, f"expected a table, not {_kind_of(table)}")
            return None
        before = len(self._problems)
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for name in table:
            if name not in fields:
                self.report((*key, name), f"unknown key{nearest(name, fields)}")
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in table:
                values[name] = self._read_value(field.type, table[name], (*key, name))
            elif field.required:
                self.report(key, f"missing required key {name}")
        return kind(**values) if len(self._problems) == before else None

    def _read_value(self, expected: Any, value: Any, key: Key) -> Any:
        kind = _bare(expected)
        if isinstance(kind, type) and issubclass(kind, Settings):
            return self.read(kind, value, key)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType):
            return self._read_union(arguments, expected, value, key)
        if origin is dict and _has_settings(arguments[1]) and isinstance(value, Mapping):
            return {name: self._read_value(arguments[1], item, (*key, name)) for name, item in value.items()}
        if origin is list and _has_settings(arguments[0]) and isinstance(value, list):
            return [self._read_value(arguments[0], item, (*key, number)) for number, item in enumerate(value)]
        if origin is Literal and value not in arguments:
            advice = nearest(str(value), arguments)
            # Quote only near misses: any other value may be a misplaced secret.
            is_slip = isinstance(value, str) and advice.startswith("; did")
            self.report(
                key, f"unknown value {value!r}{advice}" if is_slip else f"expected one of {', '.join(arguments)}"
            )
            return None
        return self._convert(expected, value, key)

    def _read_union(self, union_types: tuple[Any, ...], expected: Any, value: Any, key: Key) -> Any:
        """Read the value of a union: a table as the union's table type, any other value as the other type."""
        tables = [member for member in union_types if _has_settings(member)]
        others = [member for member in union_types if member is not type(None) and member not in tables]
        if tables and (isinstance(value, Mapping) or not others):
            return self._read_value(tables[0], value, key)
        if tables and typing.get_origin(_bare(others[0])) is list and not isinstance(value, list):
            self.report(key, f"expected a list or a table, got {_kind_of(_plain(value))}")
            return None
        return self._read_value(others[0], value, key) if len(others) == 1 else self._convert(expected, value, key)

    def _convert(self, expected: Any, value: Any, key: Key) -> Any:
        try:
            return msgspec.convert(_plain(value), expected, strict=not _is_substituted(value))
        except msgspec.ValidationError as error:
            # The message names types, never values.
            match = re.search(_LOCATION, str(error))
            message = re.sub(r"`([^`]+)`", _name_types, re.sub(_LOCATION, "", str(error)))
            suffix = match[1] if match else ""
            where = f"at {suffix.lstrip('.')}: " if suffix and suffix != "[...]" else ""
            self.report(key, f"{where}{message[:1].lower()}{message[1:]}")
            return None


def _name_types(found: re.Match[str]) -> str:
    """Return words for the type names in a message of msgspec, such as `a number` for `float`."""
    return " or ".join(_TYPE_NAMES.get(name, name) for name in found[1].split(" | "))


def _bare(expected: Any) -> Any:
    return typing.get_args(expected)[0] if typing.get_origin(expected) is Annotated else expected


def _has_settings(expected: Any) -> bool:
    kind = _bare(expected)
    if typing.get_origin(kind) in (Union, types.UnionType):
        return any(_has_settings(member) for member in typing.get_args(kind))
    return isinstance(kind, type) and issubclass(kind, Settings)


def _is_substituted(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_substituted, value.values()))
    return any(map(_is_substituted, value)) if isinstance(value, list) else isinstance(value, Substituted)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Substituted) else value


def _kind_of(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), type(value).__name__)


class SourceTable(msgspec.Struct, frozen=True):
    """The unvalidated table of one source."""

    name: str
    key: Key
    table: Any
    directory: Path
    problem: str | None = None
    """Why the source cannot be opened, if this is known from the configuration alone."""


KINDS: dict[str, type[AnySource]] = {
    "python": PythonSettings,
    "command": MCPSettings,
    "url": MCPSettings,
    "openapi": OpenAPISettings,
    "entry_point": EntryPointSettings,
}
"""Struct of each kind of source, by the key that only tables of this kind have."""


def choose_kind(checker: Checker, table: Any, key: Key) -> type[AnySource] | None:
    """Return the struct for a table of `[sources]`.

    Report a problem and return None unless the table has the key of exactly one kind.
    """
    if not isinstance(table, Mapping):
        checker.report(key, "expected a table")
        return None
    named = [name for name in KINDS if name in table]
    if len({KINDS[name] for name in named}) == 1:
        return KINDS[named[0]]
    if named:
        checker.report(key, f"{' and '.join(named)} belong to different kinds of sources: keep one of them")
        return None
    common = {*SourceSettings.__struct_fields__, *MCPSettings.__struct_fields__}
    strange = [name for name in table if name not in common]
    advice = nearest(strange[0], KINDS) if strange else ""
    if advice.startswith("; did"):
        checker.report((*key, strange[0]), f"unknown key{advice}")
    else:
        checker.report(key, f"unknown kind of source: expected one of the keys {', '.join(KINDS)}")
    return None


def source_problem(source: Source) -> str | None:
    """Return the inconsistency in a source's settings; None if there is none."""
    settings = source.settings
    if settings.namespace is not None and not re.fullmatch(NAMESPACE_PATTERN, settings.namespace):
        return "invalid namespace: expected segments of letters, digits, _ and -, joined by dots"
    for new in settings.rename.values():
        segments = new.replace("*", "x").split(".")
        if not all(re.fullmatch(NAME_PATTERN, segment) for segment in segments):
            return f"rename: invalid name {new!r}: expected letters, digits, _, / and -"
    if source.problem is not None:
        return None
    try:
        if isinstance(settings, MCPSettings):
            check_mcp(settings, source.directory)
        elif isinstance(settings, OpenAPISettings):
            check_openapi(settings)
    except CallError as error:
        return error.message
    return None


def check_mcp(settings: MCPSettings, directory: Path) -> None:
    """Raise if the settings of an MCP server are contradictory or incomplete."""
    if settings.type is not None and (settings.type == "stdio") != (settings.command is not None):
        raise _invalid(f"type {settings.type} conflicts with {'a command' if settings.command else 'a url'}")
    if settings.command is not None and settings.url is not None:
        message = "command and url are both set: an MCP server has either a command (stdio) or a url (streamable HTTP)"
        raise _invalid(message)
    oauth = settings.oauth
    if oauth is not None and not oauth.asks_user and (oauth.client_id is None or oauth.client_secret is None):
        raise _invalid("oauth: client_credentials requires client_id and client_secret")
    if settings.auth is not None:
        check_auth(settings.auth)
    headers = auth_headers(settings.auth) or settings.headers
    has_oauth = oauth is not None or (settings.auth is not None and settings.auth.type == "oauth2")
    variables = variables_in(settings.env_file_path(directory)) or settings.env
    if settings.url is None:
        other: dict[str, Any] = {"headers": headers, "oauth": has_oauth}
    else:
        other = {"args": settings.args, "env": variables, "cwd": settings.cwd}
    misplaced = [name for name, value in other.items() if value]
    if misplaced:
        kind = "a command" if settings.url is None else "a url"
        raise _invalid(f"{', '.join(misplaced)} cannot be used by an MCP server with {kind}")


def check_openapi(settings: OpenAPISettings) -> None:
    """Raise if the credentials of an API are contradictory or incomplete."""
    if settings.auth is not None and settings.security:
        raise _invalid("auth and security are both set: use auth for every request, or security for each scheme")
    for auth in (settings.auth, *settings.security.values()):
        if auth is not None:
            check_auth(auth)


def check_auth(auth: AuthSettings) -> None:
    """Raise if credentials lack a setting that their type requires."""
    needed = {
        "bearer": ("token",),
        "api_key": ("token",),
        "basic": ("username", "password"),
        "oauth2": ("client_id", "client_secret"),
    }[auth.type]
    missing = [name for name in needed if getattr(auth, name) is None]
    if missing:
        raise _invalid(f"{auth.type} requires {' and '.join(missing)}")


def auth_headers(auth: AuthSettings | None) -> dict[str, str]:
    """Return the header with the credentials for an MCP server; empty without credentials and for `oauth2`."""
    if auth is None or auth.type == "oauth2":
        return {}
    if auth.type == "basic":
        pair = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
        return {auth.header_name or "Authorization": f"{auth.prefix or 'Basic'} {pair}"}
    if auth.type == "bearer":
        return {auth.header_name or "Authorization": f"{auth.prefix or 'Bearer'} {auth.token}"}
    if auth.location != "header":
        raise _invalid("the API key of an MCP server must be in a header")
    return {auth.header_name or "X-API-Key": f"{auth.prefix} {auth.token}" if auth.prefix else str(auth.token)}


def _invalid(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)


def check_source(document: ConfigDocument, given: SourceTable) -> None:
    """Raise if a source's table is invalid; called before the table is written to the file."""
    problems: list[ConfigProblem] = []
    checker = Checker(document, problems)
    kind = choose_kind(checker, given.table, given.key)
    settings = None if kind is None else checker.read(kind, given.table, given.key)
    if settings is not None:
        source = Source(
            name=given.name,
            settings=settings,
            directory=given.directory,
            file=document.path,
            locate=lambda: 0,
            written=given.table,
        )
        inconsistency = source_problem(source)
        if inconsistency is not None:
            checker.report(given.key, inconsistency)
    if problems:
        # The table has no lines in the file.
        message = "\n".join(f"{problem.key}: {problem.message}" for problem in problems)
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def check_transport(checker: Checker, transport: TransportSettings, key: Key) -> None:
    """Report an invalid transport URL and invalid signing settings."""
    from operations.pubsub import check_address  # most files have no transports

    try:
        check_address(transport.url)
    except CallError as error:
        checker.report((*key, "url"), error.message)
    if transport.signing is not None:
        if transport.url.partition(":")[0].lower() in ("ws", "wss", "memory"):
            checker.report((*key, "signing"), "signing is only for Redis and NATS: a hub authenticates callers itself")
        _check_signing(checker, transport.signing, (*key, "signing"))


def _check_signing(checker: Checker, signing: SigningSettings, key: Key) -> None:
    """Check secrets and keys; messages never quote them."""
    accepted = [("accepted_secrets", text) for text in signing.accepted_secrets]
    for name, text in (("secret", signing.secret), *accepted, ("key", signing.key)):
        if text is not None and re.fullmatch(_KEY, text) is None:
            source = "use the key that belongs to the token" if name == "key" else f"run openssl rand -hex {_KEY_BYTES}"
            message = f"expected at least {_KEY_BYTES} random bytes in hexadecimal: {source}"
            checker.report((*key, name), message)
    if signing.secret is None and (signing.token is None or signing.key is None):
        checker.report(key, "missing keys: set secret for a worker, or token and key for a caller")
    if accepted and signing.secret is None:
        checker.report(key, "accepted_secrets requires secret")
    if signing.jwt is not None:
        _check_jwt(checker, signing.jwt, (*key, "jwt"))


def _check_jwt(checker: Checker, jwt: JWTSettings, key: Key) -> None:
    if (jwt.key is None) == (jwt.key_file is None):
        checker.report(key, "expected exactly one of key and key_file")


def check_hub(checker: Checker, hub: HubSettings, key: Key) -> None:
    """Report duplicate tokens and an invalid JWT table."""
    if hub.jwt is not None:
        _check_jwt(checker, hub.jwt, (*key, "jwt"))
    _check_tokens(checker, hub.tokens, key)


def _check_tokens(checker: Checker, known: Sequence[TokenSettings], key: Key) -> None:
    tokens = [token.token for token in known]
    for number, token in enumerate(tokens):
        if token in tokens[:number]:
            checker.report((*key, "tokens", number), "duplicate token")


def check_serve(checker: Checker, serve: ServeSettings, key: Key) -> None:
    """Report duplicate tokens, invalid addresses, and settings that are incomplete or contradict each other."""
    if serve.jwt is not None:
        _check_jwt(checker, serve.jwt, (*key, "jwt"))
        if serve.jwt.audience is None and serve.public_url is None:
            checker.report(
                (*key, "jwt"),
                "expected an audience or a public_url: without one, tokens for other servers would be accepted",
            )
    _check_tokens(checker, serve.tokens, key)
    for number, each in enumerate(serve.tokens):
        if each.namespaces and not serve.websocket:
            problem = "operations are registered only over the WebSocket: set websocket = true, or remove namespaces"
            checker.report((*key, "tokens", number, "namespaces"), problem)
    public = serve.public_url
    if public is not None and (not public.startswith(("https://", "http://")) or public.endswith("/")):
        checker.report((*key, "public_url"), "expected an address such as https://api.example.com")
    if serve.issuer is not None and not serve.issuer.audience and public is None:
        checker.report(
            (*key, "issuer"),
            "expected an audience or a public_url: without one, tokens for other servers would be accepted",
        )
    for number, origin in enumerate(serve.origins):
        if not re.fullmatch(r"https?://[^/?#]+", origin):
            checker.report((*key, "origins", number), "expected an origin such as https://app.example.com")
