"""The configuration of a command: the file that `--config` names or the nearest one, if the user trusts it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from operations.cli import stderr
from operations.cli.arguments import ParsedArguments
from operations.cli.failures import DENIED, CommandError
from operations.cli.terminal import is_terminal, printable_line
from operations.config import Config, load_config
from operations.config.actions import actions_of, describe_actions, digest_actions
from operations.config.loading import load_draft
from operations.config.redaction import redact
from operations.config.trust import (
    FILE_NAME,
    FoundConfig,
    is_trusted,
    read_trust,
    refusal,
    require_own_files,
    search_config,
    store_trust,
    trust_hint,
    trusts_every_file,
)
from operations.errors import CallError, ErrorCode


def require_configuration(args: ParsedArguments) -> Config:
    """Return the configuration; raise if there is none or it is not trusted."""
    config = read_configuration(require_config_path(args))
    ensure_trust(args, config)
    return config


def find_configuration(args: ParsedArguments) -> Config | None:
    """Return the configuration, or None if there is none; raise if it is not trusted."""
    return None if search(args).path is None else require_configuration(args)


def optional_configuration(args: ParsedArguments) -> Config | None:
    """Return the configuration if there is one and it is trusted; otherwise None. Never ask the user for trust."""
    path = search(args).path
    config = None if path is None else read_configuration(path)
    return config if config is not None and (args.trust or has_trust(config)) else None


def read_configuration(path: Path, draft: str | None = None) -> Config:
    """Return the configuration in a file, trusted or not, and redact its secrets in all later messages.

    Reading runs no command or code of the configuration. Call `ensure_trust` before opening sources. With `draft`, the
    file is read as if its content were `draft`.
    """
    try:
        config = load_config(path) if draft is None else load_draft(path, draft)
    except CallError as error:
        hint = "fix the file; 'ops config schema' prints its JSON Schema for editors"
        raise CallError(error.code, error.message, {**(error.details or {}), "hint": hint}) from None
    stderr.redact_with(lambda text: redact(text, config))
    require_own_files(config.files)
    return config


def require_config_path(args: ParsedArguments) -> Path:
    """Return the path of the configuration; raise if there is none."""
    found = search(args)
    if found.refused:
        raise CommandError(found.refused, "copy the file, and use your copy", exit_code=DENIED)
    if found.path is None:
        raise CommandError(no_config(args), "run 'ops init' to create one, or name one with --config")
    return found.path


def search(args: ParsedArguments) -> FoundConfig:
    """Return the configuration file that `--config` names, or the file nearest to the directory that it names.

    Without the option, return the file nearest to the current directory.
    """
    if args.config is None:
        return search_config()
    path = Path(args.config).expanduser()
    if path.is_dir():
        return search_config(path)
    if not path.is_file():
        raise CommandError(f"{path} does not exist", "run 'ops init' to create an operations.toml")
    path = path.absolute()
    refused = refusal(path)
    return FoundConfig(None, f"{path} {refused}") if refused else FoundConfig(path)


def no_config(args: ParsedArguments) -> str:
    """Return the message for a missing configuration."""
    where = "here" if args.config is None else f"in {args.config}"
    return f"no operations.toml {where} or in a parent directory"


def config_file(args: ParsedArguments) -> Path:
    """Return the path of the configuration.

    If there is none, return the path for a new one: in the directory of `--config`, or in the current directory.
    """
    found = search(args)
    if found.path is None and not found.refused:
        return Path(args.config or ".").expanduser().absolute() / FILE_NAME
    return require_config_path(args)


def trust_as_before(path: Path, *, was_trusted: bool, by: str) -> Config | None:
    """Read and return a configuration that a command has changed; None if the configuration is now invalid.

    If the user trusted the configuration before the change, store the trust in the changed one. `by` names the command
    that made the change.
    """
    try:
        config = read_configuration(path)
    except CallError as error:
        if error.code != ErrorCode.VALIDATION_ERROR:
            raise
        return None
    if was_trusted:
        save_trust(config, by=by)
    return config


def is_trusted_file(path: Path) -> bool:
    """Whether a file is a valid configuration that the user trusts."""
    try:
        return has_trust(read_configuration(path))
    except CallError as error:
        if error.code != ErrorCode.VALIDATION_ERROR:
            raise
        return False


def has_trust(config: Config) -> bool:
    """Whether the user trusts a configuration."""
    return trusts_every_file() or is_trusted(config.path, digest_actions(config))


def ensure_trust(args: ParsedArguments, config: Config) -> None:
    """Ask the user to trust a configuration, if required; raise if the user refuses or there is no terminal."""
    if args.trust or has_trust(config):
        return
    if can_ask(args) and _ask(config):
        save_trust(config, by="a terminal")
        return
    message = f"{config.path} {_state(config)}; it would {describe_actions(config)}"
    raise CommandError(message, trust_hint(config.path), exit_code=DENIED)


def save_trust(config: Config, *, by: str) -> None:
    """Store the user's trust in a configuration; warn if that fails."""
    digest = digest_actions(config)
    try:
        if digest:
            store_trust(config.path, digest, by=by)
    except OSError as error:
        stderr.warn(f"cannot store trust in {config.path}: {error.strerror or error}")


def _ask(config: Config) -> bool:
    lines = [f"{config.path} {_state(config)}. Its actions:"]
    lines += [f"  {stderr.redacted(action.text)}  ({action.name})" for action in actions_of(config)]
    return ask(lines, "Trust it?")


def can_ask(args: ParsedArguments) -> bool:
    """Whether a command may ask questions: on a terminal, without `--json` and `--quiet`."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr) and not (args.json or args.quiet)


def ask(lines: Sequence[str], question: str) -> bool:
    """Show lines and a question; return whether the answer is yes."""
    with _interruptible():  # entered before the question is shown: Ctrl-C may come immediately after it
        for line in lines:
            # A line break in a file's text must not look like another line of the question.
            stderr.write_line(printable_line(line))
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        _wait_for_line()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _state(config: Config) -> str:
    return "is not trusted" if read_trust(config.path) is None else "changed since it was trusted"


def _wait_for_line() -> None:
    """Wait until a line can be read from stdin. A signal interrupts the wait, even a signal just before the wait.

    A blocking read that starts just after a signal would not be interrupted.
    """
    import select  # imported lazily: few commands ask questions
    import socket

    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            while sys.stdin not in select.select([sys.stdin, reader], [], [])[0]:
                arrived = reader.recv(64)
                if before >= 0:
                    os.write(before, arrived)  # the event loop handles its signals afterwards
        finally:
            signal.set_wakeup_fd(before)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in the block, which reads stdin.

    The SIGINT handler of the event loop would run only after the line has been read.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
