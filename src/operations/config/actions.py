"""What a configuration would run: commands it starts, modules it imports, variables it sends, buses it connects to."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from operations.config.redaction import variables_of, written_without_secrets
from operations.config.settings import Config, EntryPointSettings, MCPSettings, PythonSettings, Source
from operations.config.trust import HINT, is_trusted, refusal
from operations.errors import CallError, ErrorCode

_HARMLESS = frozenset(
    {
        *("namespace", "allow", "deny", "rename", "policy", "disabled", "type", "trace", "protocol", "cache"),
        *("open_timeout", "import_timeout", "timeout", "connect_timeout", "idle_timeout"),
        *("max_message_bytes", "retry", "limits", "reconnect"),
    }
)
"""Settings of a source that change nothing of what is run or sent, and where to."""
_PLAIN = re.compile(r"[^\s'\"\\]+")
_MAX_SHOWN = 4
_MAX_LENGTH = 200


class Action(msgspec.Struct, frozen=True):
    """One thing that a configuration would do."""

    name: str
    """The source or transport."""
    text: str
    """What it would do, without secrets: `start npx …`, `import ./shop`, `send ${TOKEN} to https://…`."""


def actions_of(config: Config) -> list[Action]:
    """Return what a configuration would do that its user must agree to; empty for one that needs no trust."""
    found = [Action(name, text) for name, source in config.sources.items() for text in _source_actions(source)]
    for name, transport in config.transports.items():
        if not transport.url.startswith("memory:"):
            written = written_without_secrets(config.written.get("transports", {}).get(name, {}), ("transports", name))
            found.append(Action(name, f"connect to {written.get('url', transport.url)}"))
    return found


def digest_actions(config: Config) -> str:
    """Return a digest that changes with what a configuration would do; empty where that is nothing.

    It covers the tables of sources and transports as written, without `_HARMLESS` settings, and what files of variables
    add to them. Variables of the environment are the user's own.
    """
    if not actions_of(config):
        return ""
    covered = {
        "sources": [_covered(source) for source in config.sources.values()],
        "transports": config.written.get("transports", {}),
        "variables": config.file_variables,
    }
    text = msgspec.json.encode(covered, enc_hook=str, order="deterministic")
    return blake2b(text, digest_size=16).hexdigest()


def describe_actions(config: Config, *, limit: int = _MAX_SHOWN) -> str:
    """Return what a configuration would do, in one line."""
    texts = list(dict.fromkeys(action.text for action in actions_of(config)))
    more = f"; and {len(texts) - limit} more" if len(texts) > limit else ""
    shown = (" ".join(text.split()) for text in texts[:limit])
    return "; ".join(text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…" for text in shown) + more


def require_own_files(config: Config) -> None:
    """Raise where a file of the configuration, an included one too, belongs to another user."""
    for path in config.files:
        reason = refusal(path)
        if reason is not None:
            raise CallError(ErrorCode.ACCESS_DENIED, f"{path} {reason}", {"hint": "copy it, to have one of your own"})


def require_trust(config: Config, environ: Mapping[str, str] | None = None) -> None:
    """Raise where the user has not agreed to what a configuration would do."""
    require_own_files(config)
    if not is_trusted(config.path, digest_actions(config), environ):
        message = f"{config.path} is not trusted: it would {describe_actions(config)}"
        raise CallError(ErrorCode.ACCESS_DENIED, message, {"hint": HINT})


def _source_actions(source: Source) -> Iterator[str]:
    settings = source.settings
    written = written_without_secrets(source.written, ())
    variables = variables_of(source.written)
    if isinstance(settings, PythonSettings):
        yield f"import {written.get('python')}"
    elif isinstance(settings, EntryPointSettings):
        yield f"run the source {written.get('entry_point')!r} of an installed package"
    elif isinstance(settings, MCPSettings) and settings.command is not None:
        words = [str(written.get("command")), *map(str, written.get("args") or ())]
        yield f"start {' '.join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)}"
    elif variables:
        key = "url" if isinstance(settings, MCPSettings) else "openapi"
        address = written.get("base_url") or written.get(key)
        yield f"send {', '.join(f'${{{name}}}' for name in variables)} to {address}"


def _covered(source: Source) -> dict[str, Any]:
    covered: dict[str, Any] = {
        "name": source.name,
        "folder": os.path.realpath(source.folder),
        "table": {key: value for key, value in source.written.items() if key not in _HARMLESS},
    }
    if isinstance(source.settings, MCPSettings):
        path = source.settings.env_file_path(source.folder)
        covered["env_file"] = path.read_bytes() if path is not None and path.is_file() else b""
    return covered
