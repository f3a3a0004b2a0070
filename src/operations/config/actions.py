"""The actions of a configuration that need trust: commands, imports, sent variables, stored tokens, connections."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec

from operations.config.redaction import variables_of, written_without_secrets
from operations.config.settings import Config, EntryPointSettings, MCPSettings, PythonSettings, Source
from operations.config.trust import is_trusted, require_own_files, trust_hint
from operations.errors import CallError, ErrorCode
from operations.local_files import read_regular

_HARMLESS = frozenset(
    {
        *("namespace", "allow", "deny", "rename", "policy", "disabled", "type", "trace", "protocol", "cache"),
        *("open_timeout", "import_timeout", "timeout", "connect_timeout", "idle_timeout"),
        *("max_message_bytes", "retry", "limits", "reconnect"),
    }
)
"""Source settings that affect neither the code that runs nor the destination of sent variables."""
_NOT_SENT = frozenset({"token", "key", "key_file", "keys", "certificate", "http", "host", "port", "console", "jobs"})
"""Settings of `[access]`, `[hub]` and `[serve]` whose values a hub or server does not send to others."""
_PLAIN = r"[^\s'\"\\]+"
_MAX_SHOWN = 4
_MAX_LENGTH = 200


class Action(msgspec.Struct, frozen=True):
    """An action of a configuration that needs trust."""

    name: str
    """The name of the source or transport."""
    text: str
    """The action, without secrets, such as `start npx …` or `send ${TOKEN} to https://…`."""


def actions_of(config: Config) -> list[Action]:
    """Return the actions that require trust; empty if the configuration needs none."""
    found = [Action(name, text) for name, source in config.sources.items() for text in _source_actions(source)]
    tables = config.written.get("transports", {})
    # A transport with an unset variable is only in `written`; its connection needs trust too.
    urls = {name: str(table.get("url")) for name, table in tables.items()}
    urls |= {name: transport.url for name, transport in config.transports.items()}
    for name, url in urls.items():
        if not url.startswith("memory:"):
            written = written_without_secrets(tables.get(name, {}), ("transports", name))
            found.append(Action(name, f"connect to {written.get('url', url)}"))
    return found + list(_sent_by_serving(config))


def digest_actions(config: Config) -> str:
    """Return a digest of the actions of a configuration; empty if there are none.

    The digest covers the tables of sources and transports as written. The source settings in `_HARMLESS` are covered
    only if they contain variables. The digest also covers the variables that a server or hub sends, and the values of
    variables from variable files. It does not cover the values of environment variables, because only the user sets
    environment variables.
    """
    if not actions_of(config):
        return ""
    covered = {
        "sources": [_covered(source) for source in config.sources.values()],
        "transports": config.written.get("transports", {}),
        "variables": config.file_variables,
        "sent": [action.text for action in _sent_by_serving(config)],
    }
    text = msgspec.json.encode(covered, enc_hook=str, order="deterministic")
    return blake2b(text, digest_size=16).hexdigest()


def describe_actions(config: Config) -> str:
    """Return the first four actions of a configuration in one line, with the number of further ones."""
    texts = list(dict.fromkeys(action.text for action in actions_of(config)))
    more = f"; and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
    shown = (" ".join(text.split()) for text in texts[:_MAX_SHOWN])
    return "; ".join(text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…" for text in shown) + more


def require_trust(config: Config, environ: Mapping[str, str] | None = None) -> None:
    """Raise `ACCESS_DENIED` if the user does not trust the actions, or if a file belongs to another user."""
    require_own_files(config.files)
    if not is_trusted(config.path, digest_actions(config), environ):
        message = f"{config.path} is not trusted; it would {describe_actions(config)}"
        raise CallError(ErrorCode.ACCESS_DENIED, message, {"hint": trust_hint(config.path)})


def _source_actions(source: Source) -> Iterator[str]:
    settings = source.settings
    written = written_without_secrets(source.written, ())
    variables = variables_of(source.written)
    if isinstance(settings, PythonSettings):
        yield f"import {written.get('python')}"
    elif isinstance(settings, EntryPointSettings):
        yield f"run the source {written.get('entry_point')!r} of an installed package"
    elif isinstance(settings, MCPSettings) and settings.command is not None:
        import shlex

        # Variables such as NODE_OPTIONS and PYTHONPATH decide what a program runs.
        environment = (f"{name}={value}" for name, value in dict(written.get("env") or {}).items())
        words = [*environment, str(written.get("command")), *map(str, written.get("args") or ())]
        yield f"start {' '.join(word if re.fullmatch(_PLAIN, word) else shlex.quote(word) for word in words)}"
    elif variables:
        key = "url" if isinstance(settings, MCPSettings) else "openapi"
        address = written.get("base_url") or written.get(key)
        yield f"send {_named(variables)} to {address}"
    if isinstance(settings, MCPSettings) and settings.oauth is not None and settings.oauth.storage is not None:
        yield f"store tokens in {settings.oauth.storage}"


def _sent_by_serving(config: Config) -> Iterator[Action]:
    """Yield an action for each destination to which a server or hub sends variables: the issuer, or the callers."""
    tables = {name: config.written.get(name) for name in ("access", "hub", "serve")}
    serve = tables["serve"]
    issuer = serve.get("issuer") if isinstance(serve, Mapping) else None
    if isinstance(serve, Mapping) and isinstance(issuer, Mapping) and (names := variables_of(issuer)):
        written = written_without_secrets(issuer, ("serve", "issuer"))
        yield Action("serve", f"send {_named(names)} to {written.get('keys_url') or written.get('url')}")
        tables["serve"] = {**serve, "issuer": None}
    for name, table in tables.items():
        if names := variables_of(_without_kept(table)):
            yield Action(name, f"send {_named(names)} from [{name}] to callers")


def _without_kept(value: Any) -> Any:
    """Return a tree without the settings in `_NOT_SENT` whose values are strings."""
    if isinstance(value, Mapping):
        return {
            key: _without_kept(item) for key, item in value.items() if key not in _NOT_SENT or not isinstance(item, str)
        }
    return [_without_kept(item) for item in value] if isinstance(value, (list, tuple)) else value


def _named(variables: Iterable[str]) -> str:
    return ", ".join(f"${{{name}}}" for name in variables)


def _covered(source: Source) -> dict[str, Any]:
    covered: dict[str, Any] = {
        "name": source.name,
        "folder": os.path.realpath(source.directory),
        "table": {key: value for key, value in source.written.items() if key not in _HARMLESS or variables_of(value)},
    }
    if isinstance(source.settings, MCPSettings):
        path = source.settings.env_file_path(source.directory)
        covered["env_file"] = b""
        with suppress(OSError):  # a missing file
            covered["env_file"] = b"" if path is None else read_regular(path)
    return covered
