"""Selection of the configuration: the nearest file, its owner, and whether the user trusts it.

This module does not load configurations. `actions` lists the actions of a configuration, and trust is stored for their
digest.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from operations.errors import CallError, ErrorCode
from operations.local_files import read_regular, write_atomically

FILE_NAME = "operations.toml"
PROJECT_FILE = "pyproject.toml"
VARIABLE = "OPERATIONS_TRUST"
_PLAIN_WORD = r"[A-Za-z0-9_@+:,./-]+"
"""Text without characters that have a meaning in a shell."""


class FoundConfig(NamedTuple):
    """The nearest configuration file."""

    path: Path | None
    refused: str = ""
    """Why a found file is not used."""


class TrustRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A user's stored consent to one configuration."""

    path: str
    digest: str
    """Digest of the configuration's actions (`actions.digest_actions`)."""
    since: float
    """Time of the consent, in epoch seconds."""
    by: str
    """How consent was given: a command, or an answer on a terminal."""


def find_config(start: Path | None = None) -> Path | None:
    """Return the nearest `operations.toml`, or `pyproject.toml` with `[tool.operations]`, in `start` or its parents.

    See `search_config` for the files and directories that are not used.
    """
    return search_config(start).path


def search_config(start: Path | None = None) -> FoundConfig:
    """Search `start` and its parent directories for a configuration.

    The search ends at a file of another user, and at a parent directory that belongs to another user or is writable by
    all. Other users can therefore not decide what runs in `start`. Root does not count as another user.
    """
    directory = Path.cwd() if start is None else Path(start).absolute()
    for place in (directory, *directory.parents):
        if place != directory and _is_shared(place):
            break
        for path in (place / FILE_NAME, place / PROJECT_FILE):
            if path.is_file() and (path.name == FILE_NAME or _mentions_operations(path)):
                refused = refusal(path)
                return FoundConfig(None, f"{path} {refused}") if refused else FoundConfig(path)
    return FoundConfig(None)


def shell_quoted(text: str) -> str:
    """Return text as one word of a command for bash, zsh, fish and sh.

    Backslashes and single quotes are escaped outside quotes, because fish reads `\\'` within single quotes differently.
    """
    if re.fullmatch(_PLAIN_WORD, text):
        return text
    return re.sub(r"[^'\\]+|(['\\])", lambda found: f"\\{found[1]}" if found[1] else f"'{found[0]}'", text) or "''"


def trust_command(path: Path) -> str:
    """Return the command that trusts a file: `ops trust`, with the path unless it is the nearest configuration."""
    return "ops trust" if search_config().path == path else f"ops trust -c {shell_quoted(str(path))}"


def trust_hint(path: Path) -> str:
    """Return the hint for a configuration that is not trusted."""
    return f"run `{trust_command(path)}` to trust it, or pass --trust or {VARIABLE}=1 for one command"


def refusal(path: Path) -> str | None:
    """Return why a file must not be used; None if it may be used.

    A file must not be used if a user other than root and this user owns the file, or the symbolic link at its path.
    """
    try:
        states = (os.stat(path), os.lstat(path))
    except FileNotFoundError:
        return None
    other = next((state for state in states if not _is_own(state)), None)
    return None if other is None else f"belongs to another user (uid {other.st_uid}) and is not used"


def require_own_files(files: Iterable[Path]) -> None:
    """Raise `ACCESS_DENIED` if one of the files of a configuration must not be used (see `refusal`)."""
    for path in files:
        reason = refusal(path)
        if reason is not None:
            raise CallError(ErrorCode.ACCESS_DENIED, f"{path} {reason}", {"hint": "copy the file, and use your copy"})


def trusts_every_file(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment trusts every configuration (`OPERATIONS_TRUST=1`)."""
    return (os.environ if environ is None else environ).get(VARIABLE) == "1"


def is_trusted(config_path: Path, digest: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a configuration may be used; an empty digest means that none of its actions needs trust."""
    if not digest or trusts_every_file(environ):
        return True
    record = read_trust(config_path, environ)
    return record is not None and record.digest == digest


def read_trust(config_path: Path, environ: Mapping[str, str] | None = None) -> TrustRecord | None:
    """Return the stored consent to a configuration; None if there is none, or if another user can have written it."""
    try:
        with _record_path(config_path, environ).open("rb") as file:
            state = os.fstat(file.fileno())
            if not _is_own(state) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            record = msgspec.json.decode(file.read(), type=TrustRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if record.path == _real_path(config_path) else None


def store_trust(config_path: Path, digest: str, *, by: str, environ: Mapping[str, str] | None = None) -> None:
    """Store the consent to a configuration in a file with mode 0600; raise `OSError` on failure."""
    record = TrustRecord(path=_real_path(config_path), digest=digest, since=round(time.time(), 3), by=by)
    target = _record_path(config_path, environ)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(target, msgspec.json.encode(record), is_private=True)


def revoke_trust(config_path: Path, environ: Mapping[str, str] | None = None) -> bool:
    """Remove the consent to a configuration; return whether there was one."""
    try:
        _record_path(config_path, environ).unlink()
    except FileNotFoundError:
        return False
    return True


def _record_path(config_path: Path, environ: Mapping[str, str] | None) -> Path:
    given = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    name = blake2b(_real_path(config_path).encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return base / "operations" / "trust" / f"{name}.json"


def _real_path(config_path: Path) -> str:
    """Return a file's path with the symbolic links in its directory resolved; a link to the file itself is kept."""
    directory, name = os.path.split(os.path.abspath(config_path))
    return os.path.join(os.path.realpath(directory), name)


def _is_own(state: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root."""
    return not hasattr(os, "geteuid") or state.st_uid in (os.geteuid(), 0)


def _is_shared(directory: Path) -> bool:
    try:
        state = os.stat(directory)
    except OSError:
        return True
    return not _is_own(state) or bool(state.st_mode & stat.S_IWOTH)


def _mentions_operations(project: Path) -> bool:
    """Whether a `pyproject.toml` has the table `[tool.operations]`; false if the file is unreadable or malformed."""
    try:
        text = read_regular(project)
    except OSError:
        return False
    if b"operations" not in text:
        return False
    import tomllib  # imported lazily: it is slow to import and rarely needed here

    try:
        return isinstance(tomllib.loads(text.decode()).get("tool", {}).get("operations"), dict)
    except (ValueError, AttributeError, RecursionError):
        return False
