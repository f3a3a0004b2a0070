"""How a failure ends the program: its exit code, one clear line, a hint. The one place that knows exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from operations.cli.arguments import UsageError
from operations.cli.terminal import paint, printable
from operations.errors import CallError, ErrorCode

OK, USAGE, NOT_FOUND, DENIED, OPERATION, TRANSPORT, DEADLINE, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 130
TERMINATED = 128 + 15

_CODES: dict[str, int] = {
    ErrorCode.VALIDATION_ERROR: USAGE,
    ErrorCode.OPERATION_NOT_FOUND: NOT_FOUND,
    ErrorCode.ACCESS_DENIED: DENIED,
    ErrorCode.UNAVAILABLE: TRANSPORT,
    ErrorCode.ABORTED: TRANSPORT,
    ErrorCode.TIMEOUT: DEADLINE,
}
_HINTS: dict[str, str] = {
    ErrorCode.OPERATION_NOT_FOUND: "ops ls lists what there is, ops search finds by words",
    ErrorCode.ACCESS_DENIED: "the token or the access rules do not allow it: see ops doctor",
    ErrorCode.UNAVAILABLE: "ops doctor checks every source",
    ErrorCode.TIMEOUT: "give it longer with --timeout 60",
}


_MOST_SKIPPED = 3
_hiding: list[Callable[[str], str]] = []


def hide_with(hide: Callable[[str], str]) -> None:
    """Have what others said pass through `hide` before it is told: from here on there are secrets to repeat."""
    _hiding[:] = [hide]


def redacted(text: str) -> str:
    """A text that others may have had a part in, without what is secret."""
    for hide in _hiding:
        text = hide(text)
    return text


class Terminated(Exception):  # noqa: N818  # not an error: somebody asked for it
    """SIGTERM ended the command, once what it had open was closed."""


class CommandError(Exception):
    """A failure of a command itself, with the exit code it ends the program with."""

    def __init__(self, message: str, hint: str = "", *, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def exit_code_of(error: CallError) -> int:
    """The exit code for the error of a call; a domain's own codes are operation errors."""
    return _CODES.get(error.code, OPERATION)


def report(error: BaseException) -> int:
    """Say on stderr what went wrong and what to do; the exit code for it."""
    if isinstance(error, UsageError):
        complain(error.message, error.hint)
        return USAGE
    if isinstance(error, CommandError):
        complain(error.message, error.hint)
        return error.exit_code
    if isinstance(error, CallError) and isinstance(error.__cause__, ImportError):
        return report(error.__cause__)  # an extra that a source needs only when it is called
    if isinstance(error, CallError):
        complain(describe(error), hint_for(error))
        return exit_code_of(error)
    if isinstance(error, ImportError):
        complain(str(error), "" if "pip install" in str(error) else "is everything installed? see ops doctor")
        return USAGE
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        complain(f"{place}{error.strerror or error}")
        return USAGE
    complain(f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report what it prints")
    return OPERATION


def describe(error: CallError) -> str:
    """The error as one line, and one more for each problem that it lists; what a server answered with it."""
    message = error.message or str(error.code)
    if error.code not in _CODES and error.code != ErrorCode.EXECUTION_ERROR:
        message = f"{error.code}: {message}"
    head, *listed = message.split("\n")
    body = _answer(error.details, head)
    return "\n".join([head, *(f"  {line.strip()}" for line in listed), *([f"  {body}"] if body else [])])


def hint_for(error: CallError) -> str:
    """What to do about an error."""
    details = error.details
    if isinstance(details, dict):
        if isinstance(details.get("hint"), str):
            return str(details["hint"])
        if details.get("statusCode", details.get("status")) in (401, 403):
            return "the API refused the credentials: see the auth of its source in operations.toml"
    if error.code == ErrorCode.VALIDATION_ERROR and error.message.startswith("invalid input for "):
        operation_id = error.message.partition("\n")[0].removeprefix("invalid input for ")
        return f"ops show {operation_id} tells what it takes"
    if error.code == ErrorCode.OPERATION_NOT_FOUND and "did you mean" in error.message:
        return ""
    return _HINTS.get(error.code, "")


def complain(message: str, hint: str = "") -> None:
    """Print an error and its hint on stderr."""
    head, *rest = redacted(message).split("\n")
    tell(f"{paint('red', 'error:', sys.stderr)} {printable(head)}")
    for line in rest:
        tell(printable(line))
    if hint:
        tell(f"{paint('dim', 'hint:', sys.stderr)} {printable(redacted(hint))}")


def warn(message: str) -> None:
    """Print a line about something that did not stop the command."""
    tell(f"{paint('yellow', 'note:', sys.stderr)} {printable(redacted(message))}")


def tell_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Say which files or operations of a source are not there, and why; the first of many."""
    for path, reason in skipped[:_MOST_SKIPPED]:
        warn(f"{path} was skipped: {reason}")
    if len(skipped) > _MOST_SKIPPED:
        warn(f"{len(skipped) - _MOST_SKIPPED} more were skipped: ops doctor lists them")


def tell(line: str) -> None:
    """Print a line on stderr, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _answer(details: Any, told: str) -> str:
    """What a server said in the body of an error, short; nothing where the message tells it already."""
    body = details.get("body") if isinstance(details, dict) else None
    if body in (None, "", b"") or isinstance(body, bytes):
        return ""
    if isinstance(body, dict) and any(isinstance(text, str) and text and text in told for text in body.values()):
        return ""
    if isinstance(body, str):
        text = " ".join(body.split())
    else:
        from operations.wire import encode_json

        text = encode_json(body).decode()
    return text if len(text) <= 300 else text[:299] + "…"
