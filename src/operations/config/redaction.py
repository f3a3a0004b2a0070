"""Removal of secrets from configurations and messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from operations.config.settings import Config
from operations.redaction import REDACTED

_SECRET_NAME = r"(?i)token|secret|passw|pwd|api[-_]?key|apikey|credential|auth|cookie|bearer|private|session"
_SECRET_PARAMETER = r"(?i)(.*[-_.])?(key|sig|signature|code)"
"""Pattern of further names of secret query parameters, in addition to `_SECRET_NAME`."""
_SECRET_TABLES = frozenset({"headers", "env", "security"})
_PUBLIC = frozenset(
    {"type", "location", "header_name", "prefix", "token_url", "scopes", "client_id", "issuer", "scope"}
)
_SECRET_KEYS = (("jwt", "key"), ("signing", "key"))
_NAMES_ONLY = frozenset({"access", "rename", "allow", "deny"})
_FLAG = r"(?s)(--?[\w-]+)(=)?"
_HEADER_FLAG = r"--?(H|header|headers|e|env|u|user)$"
_ASSIGNED = r"(?s)([\w.-]+)(\s*[:=]\s*)(.+)"
_USER_IN_URL = r"(?<=://)[^/?#\s]+(?=@)"
_QUERY = r"([?&])([^=&#\s]+)=([^&#\s]*)"
_VARIABLE = r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)[^}]*\}"

Hide = Callable[[str], str]


def describe_config(config: Config) -> dict[str, Any]:
    """Return the configuration for display: variables as `${NAME}`, other secrets as `[redacted]`."""
    described: dict[str, Any] = {"path": str(config.path)}
    if config.policy is not None:
        described["policy"] = config.policy
    described["sources"] = {
        name: {"kind": source.kind, **written_without_secrets(source.written, ())}
        for name, source in config.sources.items()
    }
    described |= {name: _walk(value, (name,), _hide) for name, value in config.written.items() if value}
    return described


def written_without_secrets(table: Mapping[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    """Return a table for display: variables as `${NAME}`, other secrets as `[redacted]`."""
    return {name: _walk(value, (*key, name), _hide) for name, value in table.items()}


def variables_of(value: Any) -> list[str]:
    """Return the names of the variables in the strings of a value, such as a table."""
    if isinstance(value, str):
        return [match[1] for match in re.finditer(_VARIABLE, value)]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return list(dict.fromkeys(name for item in items for name in variables_of(item)))


def redact(text: str, config: Config) -> str:
    """Remove the configuration's secrets from external text, such as an error or a log line."""
    for secret in secret_values(config):
        text = text.replace(secret, REDACTED)
    return text


def secret_values(config: Config) -> list[str]:
    """Return the secrets of a configuration, longest first, without values that are too short to redact."""
    found: set[str] = set()

    def note(text: str) -> str:
        found.add(text)
        return text

    for source in config.sources.values():
        _walk(msgspec.to_builtins(source.settings), (), note)
    for transport in config.transports.values():
        _walk(msgspec.to_builtins(transport), (), note)
    if config.hub is not None:
        _walk(msgspec.to_builtins(config.hub), ("hub",), note)
    if config.serve is not None:
        _walk(msgspec.to_builtins(config.serve), ("serve",), note)
    named = secret_variables(config)
    found.update(value for name, value in config.variables.items() if name in named)
    # The secret may be a part of a value: the token in `Bearer abc`, the password in `user:password`, a cookie's value.
    found.update(word for text in list(found) for word in re.split(r"[\s:;=]+", text))
    return sorted(filter(_may_be_secret, found), key=len, reverse=True)


def _may_be_secret(text: str) -> bool:
    """Whether a value is long enough to be redacted in messages.

    A short value may be an ordinary word such as `error` or `true`, which must stay readable in messages.
    """
    return len(text) >= 8 or (len(text) >= 4 and any(map(str.isdigit, text)))


def secret_variables(config: Config) -> set[str]:
    """Return the names of variables that are secret: by their names, or by the settings that they are used in."""
    found = {name for name in config.variables if re.search(_SECRET_NAME, name)}

    def note(text: str) -> str:
        found.update(match[1] for match in re.finditer(_VARIABLE, text))
        return text

    for source in config.sources.values():
        _walk(dict(source.written), (), note)
    for name, table in config.written.items():
        _walk(table, (name,), note)
    return found


def _walk(value: Any, key: tuple[str, ...], hide: Hide) -> Any:
    """Return a tree with each secret string replaced by `hide(string)`."""
    if isinstance(value, Mapping):
        return {name: _walk(item, (*key, str(name)), hide) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        if key and key[-1] == "args":
            return _walk_arguments([str(item) for item in value], hide)
        return [_walk(item, key, hide) for item in value]
    if _is_secret(key):
        return value if isinstance(value, bool) or value is None else hide(str(value))
    return _walk_text(value, hide) if isinstance(value, str) else value


def _is_secret(key: tuple[str, ...]) -> bool:
    """Whether a key is secret, such as `auth.token`: every string at this key is then redacted as a whole."""
    if not key or key[0] in _NAMES_ONLY:
        return False
    if key[-2:] in _SECRET_KEYS:
        return True
    in_auth = any(part in ("auth", "oauth", "security", "hub", "serve") for part in key[:-1])
    if key[-1] in _PUBLIC and (in_auth or len(key) == 1):
        return False
    if any(part in _SECRET_TABLES for part in key[:-1]):
        return True
    return re.search(_SECRET_NAME, key[-1]) is not None and key[-1] not in ("oauth", "auth", "tokens")


def _walk_text(text: str, hide: Hide) -> str:
    """Redact the secrets within a string that is not itself secret, such as a URL."""
    text = re.sub(_USER_IN_URL, lambda match: hide(match[0]), text)

    def parameter(match: re.Match[str]) -> str:
        is_secret = re.search(_SECRET_NAME, match[2]) or re.fullmatch(_SECRET_PARAMETER, match[2])
        return f"{match[1]}{match[2]}={hide(match[3]) if is_secret else match[3]}"

    return re.sub(_QUERY, parameter, text)


def _walk_arguments(arguments: Iterable[str], hide: Hide) -> list[str]:
    """Redact command arguments: values of flags with secret names, headers, and credentials in other arguments."""
    walked: list[str] = []
    after_flag = False
    for argument in arguments:
        flag = re.match(_FLAG, argument)
        assigned = re.fullmatch(_ASSIGNED, argument)
        if after_flag:
            walked.append(hide(argument))
        elif assigned is not None and "://" not in assigned[1] + assigned[2] and re.search(_SECRET_NAME, assigned[1]):
            walked.append(f"{assigned[1]}{assigned[2]}{hide(assigned[3])}")
        else:
            walked.append(_walk_text(argument, hide))
        sounds_secret = flag is not None and (re.search(_SECRET_NAME, flag[1]) or re.fullmatch(_HEADER_FLAG, flag[1]))
        after_flag = bool(sounds_secret) and "=" not in argument
    return walked


def _hide(text: str) -> str:
    """Return the replacement of a secret: its variables (`${NAME}`), or `[redacted]` if it has none.

    If the secret contains variables and other text, the replacement is `[redacted]` and the variables.
    """
    names = [f"${{{match[1]}}}" for match in re.finditer(_VARIABLE, text)]
    if not names:
        return REDACTED
    rest = re.sub(_VARIABLE, "", text)
    if rest == ":":  # user name and password in a URL
        return re.sub(_VARIABLE, lambda match: f"${{{match[1]}}}", text)
    return f"{REDACTED} {' '.join(names)}" if rest.strip() not in ("", "Bearer", "Basic", "Token") else " ".join(names)
