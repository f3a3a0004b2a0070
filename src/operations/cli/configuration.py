"""The configuration that a command uses: the file that `--config` names or the nearest one, if its user trusts it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from operations.cli import stderr
from operations.cli.arguments import Given
from operations.cli.failures import DENIED, CommandError
from operations.cli.terminal import is_terminal, printable
from operations.config import Config, load_config
from operations.config.actions import actions_of, describe_actions, digest_actions, require_own_files
from operations.config.redaction import redact
from operations.config.trust import HINT, FoundConfig, is_trusted, read_trust, refusal, search_config, store_trust
from operations.errors import CallError


def require_configuration(given: Given) -> Config:
    """Return the configuration; raise where there is none, or it is not trusted."""
    config = read_configuration(require_config_path(given))
    ensure_trust(given, config)
    return config


def find_configuration(given: Given) -> Config | None:
    """Return the configuration; None where there is none; raise where it is not trusted."""
    return None if search(given).path is None else require_configuration(given)


def optional_configuration(given: Given) -> Config | None:
    """Return the configuration where it is trusted; for commands that can do without it."""
    path = search(given).path
    config = None if path is None else read_configuration(path)
    return config if config is not None and (given.trust or has_trust(config)) else None


def read_configuration(path: Path) -> Config:
    """Return the configuration in a file, trusted or not; from here on its secrets are removed from every message.

    Reading starts nothing: who opens its sources calls `ensure_trust` first.
    """
    try:
        config = load_config(path)
    except CallError as error:
        hint = "fix the file; ops config schema > operations.schema.json is for an editor"
        raise CallError(error.code, error.message, {**(error.details or {}), "hint": hint}) from None
    stderr.redact_with(lambda text: redact(text, config))
    require_own_files(config)
    return config


def require_config_path(given: Given) -> Path:
    """Return the configuration file; raise where there is none."""
    found = search(given)
    if found.refused:
        raise CommandError(found.refused, "copy it, to have one of your own", exit_code=DENIED)
    if found.path is None:
        raise CommandError(no_config(given), "ops init makes one; --config names another")
    return found.path


def search(given: Given) -> FoundConfig:
    """Search the configuration file that is named, or the nearest one."""
    if given.config is None:
        return search_config()
    path = Path(given.config).expanduser()
    if path.is_dir():
        return search_config(path)
    if not path.is_file():
        raise CommandError(f"{path} is not there", "ops init makes an operations.toml")
    path = path.absolute()
    refused = refusal(path)
    return FoundConfig(None, f"{path} {refused}") if refused else FoundConfig(path)


def no_config(given: Given) -> str:
    """Return the message for a missing configuration."""
    where = "here" if given.config is None else f"in {given.config}"
    return f"there is no operations.toml {where} or in a folder above"


def has_trust(config: Config) -> bool:
    """Whether the user trusts a configuration."""
    return is_trusted(config.path, digest_actions(config))


def ensure_trust(given: Given, config: Config) -> None:
    """Ask the user to trust a configuration where that is needed and there is a terminal; raise where it is not."""
    if given.trust or has_trust(config):
        return
    has_user = is_terminal(sys.stdin) and is_terminal(sys.stderr) and not (given.json or given.quiet)
    if has_user and _ask(config):
        keep_trust(config, by="a terminal")
        return
    message = f"{config.path} {_state(config)}: it would {describe_actions(config)}"
    raise CommandError(message, HINT, exit_code=DENIED)


def keep_trust(config: Config, *, by: str) -> None:
    """Store that the user trusts a configuration; a state directory that cannot be written is only warned of."""
    digest = digest_actions(config)
    try:
        if digest:
            store_trust(config.path, digest, by=by)
    except OSError as error:
        stderr.warn(f"the trust in {config.path} cannot be stored: {error.strerror or error}")


def _ask(config: Config) -> bool:
    with _interruptible():  # before the question: Ctrl-C may follow it immediately
        stderr.write_line(f"{printable(str(config.path))} {_state(config)}. It would")
        for action in actions_of(config):
            stderr.write_line(printable(f"  {stderr.redacted(action.text)}  ({action.name})"))
        sys.stderr.write("Trust it? [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _state(config: Config) -> str:
    return "is not trusted" if read_trust(config.path) is None else "has changed since it was trusted"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise while stdin is read: an event loop's own handler would wait for the line."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
