"""How a failure ends the program: its exit code, one clear line, a hint. The one place that knows exit codes."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from operations.cli import stderr
from operations.cli.arguments import UsageError
from operations.cli.terminal import paint, printable
from operations.errors import CallError, ErrorCode

OK, USAGE, NOT_FOUND, DENIED, OPERATION, TRANSPORT, DEADLINE, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 130

_CODES: dict[str, int] = {
    ErrorCode.VALIDATION_ERROR: USAGE,
    ErrorCode.OPERATION_NOT_FOUND: NOT_FOUND,
    ErrorCode.ACCESS_DENIED: DENIED,
    ErrorCode.UNAVAILABLE: TRANSPORT,
    ErrorCode.ABORTED: TRANSPORT,
    ErrorCode.TIMEOUT: DEADLINE,
}
_NAMES = {
    USAGE: "USAGE_ERROR",
    NOT_FOUND: "NOT_FOUND",
    DENIED: str(ErrorCode.ACCESS_DENIED),
    OPERATION: str(ErrorCode.EXECUTION_ERROR),
    TRANSPORT: str(ErrorCode.UNAVAILABLE),
    DEADLINE: str(ErrorCode.TIMEOUT),
}
"""The code of a failure that is a command's own."""
_HINTS: dict[str, str] = {
    ErrorCode.OPERATION_NOT_FOUND: "ops ls lists what there is, ops search finds by words",
    ErrorCode.ACCESS_DENIED: "the token or the access rules do not allow it",
    ErrorCode.UNAVAILABLE: "ops doctor checks every source",
    ErrorCode.TIMEOUT: "give it longer with --timeout 60",
}

_HUB_HINT = "OPERATIONS_TOKEN or --token-file holds the token; the hub knows those under [hub] of its configuration"


class Terminated(Exception):  # noqa: N818  # not an error: somebody asked for it
    """A signal ended the command, once what it had open was closed; the exit code is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


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


class Failure(NamedTuple):
    """Why a command ended as it did: for programs a code and details, for people what is shown."""

    code: str
    message: str
    exit_code: int
    hint: str = ""
    details: Any = None
    shown: str = ""
    """The message where people are told more than programs, who have the details."""


def report(error: BaseException, *, traceback: str = "") -> int:
    """Say on stderr what went wrong and what to do; the exit code for it."""
    failure = explain(error)
    if stderr.is_json():
        _tell_json(failure, traceback)
        return failure.exit_code
    if traceback:
        stderr.write_line(printable(stderr.redacted(traceback)))
    _complain(failure)
    return failure.exit_code


def conclude(exit_code: int, message: str, hint: str = "") -> int:
    """Tell programs why a command that gave its result still failed, people having read it there; the exit code."""
    if exit_code != OK and stderr.is_json():
        _tell_json(Failure(_NAMES[exit_code], message, exit_code, hint))
    return exit_code


def explain(error: BaseException) -> Failure:
    """What an exception means to whoever typed the command."""
    if isinstance(error, UsageError):
        return Failure(_NAMES[USAGE], error.message, USAGE, error.hint)
    if isinstance(error, CommandError):
        return Failure(_NAMES[error.exit_code], error.message, error.exit_code, error.hint)
    if isinstance(error, CallError) and isinstance(error.__cause__, ImportError):
        return explain(error.__cause__)  # an extra that a source needs only when it is called
    if isinstance(error, CallError):
        message = error.message or str(error.code)
        return Failure(str(error.code), message, exit_code_of(error), hint_for(error), error.details, describe(error))
    if isinstance(error, ImportError):
        hint = "" if "pip install" in str(error) else "is everything installed? see ops doctor"
        return Failure("NOT_INSTALLED", str(error), USAGE, hint)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        hint = f"relative paths begin at {os.getcwd()}" if isinstance(error, FileNotFoundError) and place else ""
        return Failure("SYSTEM_ERROR", f"{place}{error.strerror or error}", USAGE, hint)
    message = f"unexpected {type(error).__name__}: {error}"
    return Failure("UNEXPECTED_ERROR", message, OPERATION, "run it again with --debug and report what it prints")


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
        if "hub" in details:
            return _HUB_HINT if error.code == ErrorCode.ACCESS_DENIED else "is it a hub that listens there?"
        if details.get("statusCode", details.get("status")) in (401, 403):
            return "the API refused the credentials: see the auth of its source in operations.toml"
    if error.code == ErrorCode.VALIDATION_ERROR and error.message.startswith("invalid input for "):
        operation_id = error.message.partition("\n")[0].removeprefix("invalid input for ")
        return f"ops show {operation_id} tells what it takes"
    if error.code == ErrorCode.EXECUTION_ERROR and error.__cause__ is not None:
        return "--debug shows where it was raised"
    if error.code == ErrorCode.OPERATION_NOT_FOUND and "did you mean" in error.message:
        return ""
    return _HINTS.get(error.code, "")


def _complain(failure: Failure) -> None:
    """Print an error and its hint for people."""
    head, *rest = stderr.redacted(failure.shown or failure.message).split("\n")
    stderr.write_line(f"{paint('red', 'error:', sys.stderr)} {printable(head)}")
    for line in rest:
        stderr.write_line(printable(line))
    if failure.hint:
        stderr.write_line(f"{paint('dim', 'hint:', sys.stderr)} {printable(stderr.redacted(failure.hint))}")


def _tell_json(failure: Failure, traceback: str = "") -> None:
    """Print an error for programs; the same keys each time, but for the traceback."""
    told = {
        "code": failure.code,
        "details": failure.details,
        "hint": failure.hint or None,
        "exitCode": failure.exit_code,
    }
    stderr.write_record("error", failure.message, {**told, "traceback": traceback} if traceback else told)


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
