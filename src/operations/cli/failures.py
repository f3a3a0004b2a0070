"""Exit codes and error reports: a failed command prints one line and a hint, and ends with an exit code."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NamedTuple

from operations.cli import stderr
from operations.cli.arguments import UsageError
from operations.cli.terminal import paint, printable, printable_line
from operations.errors import CallError, ErrorCode

OK, USAGE, NOT_FOUND, DENIED, OPERATION, TRANSPORT, DEADLINE, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 130

_CODES: dict[str, int] = {
    ErrorCode.VALIDATION_ERROR: USAGE,
    ErrorCode.OPERATION_NOT_FOUND: NOT_FOUND,
    ErrorCode.ACCESS_DENIED: DENIED,
    ErrorCode.UNAVAILABLE: TRANSPORT,
    ErrorCode.ABORTED: TRANSPORT,
    ErrorCode.TIMEOUT: DEADLINE,
    "JOB_NOT_FOUND": NOT_FOUND,
}
_NAMES = {
    USAGE: "USAGE_ERROR",
    NOT_FOUND: "NOT_FOUND",
    DENIED: str(ErrorCode.ACCESS_DENIED),
    OPERATION: str(ErrorCode.EXECUTION_ERROR),
    TRANSPORT: str(ErrorCode.UNAVAILABLE),
    DEADLINE: str(ErrorCode.TIMEOUT),
}
"""Error code to report for each exit code, if a command fails outside a call."""
_HINTS: dict[str, str] = {
    ErrorCode.OPERATION_NOT_FOUND: "list operations with 'ops ls', or search with 'ops search WORDS'",
    ErrorCode.ACCESS_DENIED: "check the token's scopes and the access rules",
    ErrorCode.UNAVAILABLE: "run 'ops doctor' to check every source",
    ErrorCode.TIMEOUT: "set a longer limit with --timeout 60",
    "JOB_NOT_FOUND": "list jobs with 'ops jobs ls'",
}
_REASON_HINTS = {
    "DEAD_LETTERED": "list dead letters with 'ops jobs dead'; run one again with 'ops jobs retry ID'",
    "NOT_APPROVED": "the interceptor 'approval' in operations.toml decides on such calls; it asks only at a terminal",
    "NOT_RECORDED": "record the call with --record FILE",
    "EXPIRED": "get a new token and its key from the issuer",
    "FORGED": "use the key that was issued with the token; the issuer and the workers need the same secret",
    "INVALID": "get a token that the workers accept, and its key, from the issuer",
    "WORKER_LOST": "check the worker; the operation may have run",
    "UNSIGNED": "pass --url NAME, with a name in [transports] whose signing table has a token",
}

_HUB_HINT = "set OPERATIONS_TOKEN or --token-file to a token that [hub] of the hub's configuration lists"
_SERVER_HINT = (
    "set OPERATIONS_TOKEN or --token-file to a token or API key of the server; "
    "the address of a server of 'ops serve' ends with /ws"
)


class Terminated(Exception):  # noqa: N818  # not an error: requested by a signal
    """Raised after a signal has ended the command and its resources are closed.

    `exit_code` is the exit code that shells use for the signal: 128 + its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class CommandError(Exception):
    """A failure of a command, with its hint and exit code."""

    def __init__(self, message: str, hint: str = "", *, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def cannot_listen(where: str, error: OSError) -> str:
    """Return the message for an address that cannot be listened on."""
    # The text of asyncio's error repeats the address; the number of a failed name resolution is below 0.
    number = error.errno or 0
    return f"cannot listen on {where}: {os.strerror(number) if number > 0 else error.strerror or error}"


def exit_code_of(error: CallError) -> int:
    """Return the exit code for a call's error; `OPERATION` for an error code without a separate exit code."""
    return _CODES.get(error.code, OPERATION)


class FailureReport(NamedTuple):
    """A failure: code and details for programs, message and hint for people."""

    code: str
    message: str
    exit_code: int
    hint: str = ""
    details: Any = None
    shown: str = ""
    """Message for people if it is longer than `message`, else empty; programs get `message` and `details`."""


def report(error: BaseException, *, traceback: str = "") -> int:
    """Print an error and its hint on stderr; return the exit code."""
    failure = explain(error)
    if stderr.is_json():
        _print_json(failure, traceback)
        return failure.exit_code
    if traceback:
        stderr.write_line(printable(stderr.redacted(traceback)))
    _print_text(failure)
    return failure.exit_code


def report_exit(exit_code: int, message: str, hint: str = "") -> int:
    """Return the exit code of a command that has printed its result and failed; with `--json`, print the failure."""
    if exit_code != OK and stderr.is_json():
        _print_json(FailureReport(_NAMES[exit_code], message, exit_code, hint))
    return exit_code


def explain(error: BaseException) -> FailureReport:
    """Convert an exception to the failure that the user sees."""
    if isinstance(error, UsageError):
        return FailureReport(_NAMES[USAGE], error.message, USAGE, error.hint)
    if isinstance(error, CommandError):
        return FailureReport(_NAMES[error.exit_code], error.message, error.exit_code, error.hint)
    if isinstance(error, CallError) and isinstance(error.__cause__, ImportError):
        return explain(error.__cause__)  # a source imports some extras only when called
    if isinstance(error, CallError):
        message = error.message or str(error.code)
        return FailureReport(
            str(error.code), message, exit_code_of(error), hint_for(error), error.details, describe(error)
        )
    if isinstance(error, ImportError):
        hint = "" if "pip install" in str(error) else "run 'ops doctor' to check the installation"
        return FailureReport("NOT_INSTALLED", str(error), USAGE, hint)
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        hint = f"relative paths start at {os.getcwd()}" if isinstance(error, FileNotFoundError) and file else ""
        return FailureReport("SYSTEM_ERROR", f"{file}{error.strerror or error}", USAGE, hint)
    message = f"unexpected {type(error).__name__}: {error}"
    hint = "run the command again with --debug and report the output"
    return FailureReport("UNEXPECTED_ERROR", message, OPERATION, hint)


def describe(error: CallError) -> str:
    """Return the error as text: its message, a line for each problem, and the server's response body."""
    message = error.message or str(error.code)
    if error.code not in _CODES and error.code != ErrorCode.EXECUTION_ERROR:
        message = f"{error.code}: {message}"
    head, *listed = message.split("\n")
    body = _response_body(error.details, head)
    return "\n".join([head, *(f"  {line.strip()}" for line in listed), *([f"  {body}"] if body else [])])


def hint_for(error: CallError) -> str:
    """Return a hint that tells the user what to do about an error; empty if there is none."""
    details = error.details
    if isinstance(details, dict):
        if isinstance(details.get("hint"), str):
            return str(details["hint"])
        if reason_hint := _REASON_HINTS.get(str(details.get("reason"))):
            return reason_hint
        if "hub" in details:
            if details.get("status") == 403:
                return _SERVER_HINT
            return _HUB_HINT if error.code == ErrorCode.ACCESS_DENIED else "check that a hub listens at this URL"
        if details.get("statusCode", details.get("status")) in (401, 403):
            return "the API rejected the credentials: check the source's auth in operations.toml"
    if error.code == ErrorCode.VALIDATION_ERROR and error.message.startswith("invalid input for "):
        operation_id = error.message.partition("\n")[0].removeprefix("invalid input for ")
        # The message may be that of a remote peer.
        return f"run 'ops show {operation_id}' to see its input" if re.fullmatch(r"[\w./-]+", operation_id) else ""
    if error.code == ErrorCode.EXECUTION_ERROR and error.__cause__ is not None:
        return "run the command again with --debug to see the traceback"
    if error.code == ErrorCode.OPERATION_NOT_FOUND and "did you mean" in error.message:
        return ""
    return _HINTS.get(error.code, "")


def is_general_hint(error: CallError) -> bool:
    """Whether the hint for an error depends only on the code of the error."""
    return hint_for(error) == _HINTS.get(error.code)


def _print_text(failure: FailureReport) -> None:
    """Print an error and its hint for people."""
    head, *rest = stderr.redacted(failure.shown or failure.message).split("\n")
    stderr.write_line(f"{paint('red', 'error:', sys.stderr)} {printable(head)}")
    for line in rest:
        stderr.write_line(printable(line))
    if failure.hint:
        stderr.write_line(f"{paint('dim', 'hint:', sys.stderr)} {printable_line(stderr.redacted(failure.hint))}")


def _print_json(failure: FailureReport, traceback: str = "") -> None:
    """Print an error as JSON; the keys are always the same, except for the traceback."""
    message_text = {
        "code": failure.code,
        "details": failure.details,
        "hint": failure.hint or None,
        "exitCode": failure.exit_code,
    }
    stderr.write_record(
        "error", failure.message, {**message_text, "traceback": traceback} if traceback else message_text
    )


def _response_body(details: Any, message_text: str) -> str:
    """Return the start of an error's response body; empty if the message already contains it."""
    body = details.get("body") if isinstance(details, dict) else None
    if body in (None, "", b"") or isinstance(body, bytes) or _contains(message_text, body):
        return ""
    if isinstance(body, str):
        text = " ".join(body.split())
    else:
        from operations.wire import encode_json

        text = encode_json(body).decode()
    return text if len(text) <= 300 else text[:299] + "…"


def _contains(message_text: str, body: Any) -> bool:
    """Whether a message contains a string value of a response body; False if the body has nested lists or objects."""
    values = body.values() if isinstance(body, dict) else ()
    if any(isinstance(value, (dict, list)) and value for value in values):
        return False
    return any(isinstance(value, str) and value and value in message_text for value in values)
