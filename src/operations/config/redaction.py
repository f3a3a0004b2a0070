"""Configurations and messages without their secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from operations.config.settings import Config

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(
    r"token|secret|passw|pwd|api[-_]?key|apikey|credential|auth|cookie|bearer|private|session", re.I
)
_SECRET_PARAMETER = re.compile(r"(.*[-_.])?(key|sig|signature|code)", re.I)
"""Names that are secret in the query of an address, beside those that are everywhere."""
_SECRET_TABLES = frozenset({"headers", "env", "security"})
_PUBLIC = frozenset(
    {"type", "location", "header_name", "prefix", "token_url", "scopes", "client_id", "issuer", "scope"}
)
_SECRET_KEYS = (("jwt", "key"), ("signing", "key"))
_NAMES_ONLY = frozenset({"access", "rename", "allow", "deny"})
_FLAG = re.compile(r"(--?[\w-]+)(=)?", re.S)
_HEADER_FLAG = re.compile(r"--?(H|header|headers|e|env|u|user)$")
_ASSIGNED = re.compile(r"([\w.-]+)(\s*[:=]\s*)(.+)", re.S)
_USER_IN_URL = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
_QUERY = re.compile(r"([?&])([^=&#\s]+)=([^&#\s]*)")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)[^}]*\}")

Hide = Callable[[str], str]


def describe_config(config: Config) -> dict[str, Any]:
    """The configuration as plain data to print: variables as `${NAME}`, other secrets as `[redacted]`."""
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
    """Return a table of the file to print: variables as `${NAME}`, other secrets as `[redacted]`."""
    return {name: _walk(value, (*key, name), _hide) for name, value in table.items()}


def variables_of(value: Any) -> list[str]:
    """Return the names of the variables in the strings of a table."""
    if isinstance(value, str):
        return [match[1] for match in _VARIABLE.finditer(value)]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return list(dict.fromkeys(name for item in items for name in variables_of(item)))


def redact(text: str, config: Config) -> str:
    """A text of somebody else's making (an error, a log line) without the configuration's secrets."""
    for secret in secret_values(config):
        text = text.replace(secret, REDACTED)
    return text


def secret_values(config: Config) -> list[str]:
    """The secrets of a configuration, the longest first; what is plainly none is left out."""
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
    found.update(value for name, value in config.variables.items() if _SECRET_NAME.search(name))
    # The last word of `Bearer abc`, and what follows the colon in an address, is the secret itself.
    found.update(word for text in list(found) for word in re.split(r"[\s:]+", text))
    return sorted(filter(_may_be_secret, found), key=len, reverse=True)


def _may_be_secret(text: str) -> bool:
    """Whether a text is worth hiding in texts of others: `error` or `true` in a variable is only a word."""
    return len(text) >= 8 or (len(text) >= 4 and any(map(str.isdigit, text)))


def secret_variables(config: Config) -> set[str]:
    """The names of the variables that are secret: by where they stand, or by what they are called."""
    found = {name for name in config.variables if _SECRET_NAME.search(name)}

    def note(text: str) -> str:
        found.update(match[1] for match in _VARIABLE.finditer(text))
        return text

    for source in config.sources.values():
        _walk(dict(source.written), (), note)
    for name, table in config.written.items():
        _walk(table, (name,), note)
    return found


def _walk(value: Any, key: tuple[str, ...], hide: Hide) -> Any:
    """A tree with every secret text replaced by what `hide` makes of it."""
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
    """Whether what is at a key is secret whatever it is."""
    if not key or key[0] in _NAMES_ONLY:
        return False
    if key[-2:] in _SECRET_KEYS:
        return True
    in_auth = any(part in ("auth", "oauth", "security", "hub") for part in key[:-1])
    if key[-1] in _PUBLIC and (in_auth or len(key) == 1):
        return False
    if any(part in _SECRET_TABLES for part in key[:-1]):
        return True
    return _SECRET_NAME.search(key[-1]) is not None and key[-1] not in ("oauth", "auth", "tokens")


def _walk_text(text: str, hide: Hide) -> str:
    """A text that is no secret itself but may hold one: an address."""
    text = _USER_IN_URL.sub(lambda match: hide(match[0]), text)

    def parameter(match: re.Match[str]) -> str:
        is_secret = _SECRET_NAME.search(match[2]) or _SECRET_PARAMETER.fullmatch(match[2])
        return f"{match[1]}{match[2]}={hide(match[3]) if is_secret else match[3]}"

    return _QUERY.sub(parameter, text)


def _walk_arguments(arguments: Iterable[str], hide: Hide) -> list[str]:
    """Arguments of a command: what follows or belongs to a flag that sounds secret, and headers written out."""
    walked: list[str] = []
    after_flag = False
    for argument in arguments:
        flag = _FLAG.match(argument)
        assigned = _ASSIGNED.fullmatch(argument)
        if after_flag:
            walked.append(hide(argument))
        elif assigned is not None and "://" not in assigned[1] + assigned[2] and _SECRET_NAME.search(assigned[1]):
            walked.append(f"{assigned[1]}{assigned[2]}{hide(assigned[3])}")
        else:
            walked.append(_walk_text(argument, hide))
        sounds_secret = flag is not None and (_SECRET_NAME.search(flag[1]) or _HEADER_FLAG.fullmatch(flag[1]))
        after_flag = bool(sounds_secret) and "=" not in argument
    return walked


def _hide(text: str) -> str:
    """What is shown of a secret: the names of the variables it is made of, where it is."""
    names = [f"${{{match[1]}}}" for match in _VARIABLE.finditer(text)]
    if not names:
        return REDACTED
    rest = _VARIABLE.sub("", text)
    if rest == ":":  # a name and a password, or a password alone, in an address
        return _VARIABLE.sub(lambda match: f"${{{match[1]}}}", text)
    return f"{REDACTED} {' '.join(names)}" if rest.strip() not in ("", "Bearer", "Basic", "Token") else " ".join(names)
