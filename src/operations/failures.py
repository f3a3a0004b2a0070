"""Constructors of the errors of failed calls, and the translation of exceptions into such errors.

The details of a constructed error state in `executed` whether the operation has run: `no`, `unknown` or `yes`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from operations.errors import CallError, ErrorCode

Executed = Literal["no", "unknown", "yes"]
NOT_CONVERTED = "NOT_CONVERTED"
"""The `reason` in an error's details if a message is too large to be converted to the receiver's format."""


def unavailable(operation_id: str, reason: str, executed: Executed) -> CallError:
    """Return the `UNAVAILABLE` error of a call; `reason` is the cause, such as no worker or a lost connection."""
    details = {"operationId": operation_id, "executed": executed}
    return CallError(ErrorCode.UNAVAILABLE, f"{operation_id}: {reason}", details)


def not_repeated(operation_id: str) -> CallError:
    """Return the error for a second attempt at a request that is not a query, after the first attempt has ended."""
    message = f"{operation_id}: the response was lost; only queries are run again"
    details = {"operationId": operation_id, "reason": "NOT_REPEATED", "executed": "unknown"}
    return CallError(ErrorCode.UNAVAILABLE, message, details)


def is_final(error: CallError) -> bool:
    """Return whether sending the request again gives the same error."""
    reason = error.details.get("reason") if isinstance(error.details, dict) else None
    return error.code is not ErrorCode.UNAVAILABLE or reason == "NOT_REPEATED"


def timed_out(operation_id: str, executed: Executed, when: str = "during the call", **more: Any) -> CallError:
    """Return the error for a call whose deadline passed."""
    details = {"operationId": operation_id, "executed": executed, **more}
    return CallError(ErrorCode.TIMEOUT, f"{operation_id}: the deadline passed {when}", details)


def aborted(operation_id: str, reason: str, executed: Executed = "unknown") -> CallError:
    """Return the error for a cancelled call."""
    details = {"operationId": operation_id, "executed": executed}
    return CallError(ErrorCode.ABORTED, f"{operation_id}: {reason or 'aborted'}", details)


def unreadable(problem: object) -> CallError:
    """Return the error for a request with a missing or invalid field."""
    details = {"reason": "UNREADABLE", "executed": "no"}
    return CallError(ErrorCode.VALIDATION_ERROR, f"invalid request: {problem}", details)


def too_large(operation_id: str, what: str, size: int, limit: int, executed: Executed) -> CallError:
    """Return the error for a message that exceeds the transport's maximum payload."""
    code = ErrorCode.VALIDATION_ERROR if executed == "no" else ErrorCode.EXECUTION_ERROR
    details = {
        "operationId": operation_id,
        "reason": "PAYLOAD_TOO_LARGE",
        "size": size,
        "limit": limit,
        "executed": executed,
    }
    return CallError(code, f"{operation_id}: the {what} has {size:,} bytes, the limit is {limit:,}", details)


def not_converted(operation_id: str, what: str, problem: CallError, executed: Executed) -> CallError:
    """Return the error for a message that cannot be converted to the receiver's format because of `problem`."""
    code = ErrorCode.VALIDATION_ERROR if executed == "no" else ErrorCode.EXECUTION_ERROR
    is_large = isinstance(problem.details, dict) and problem.details.get("reason") == NOT_CONVERTED
    reason = NOT_CONVERTED if is_large else "UNTRANSLATABLE"
    details = {"operationId": operation_id, "reason": reason, "executed": executed}
    return CallError(code, f"{operation_id}: the {what} cannot be encoded: {problem.message}", details)


def is_unconverted(error: CallError) -> bool:
    """Return whether `error` is a hub's refusal of a request that is too large to convert to the worker's format."""
    details = error.details
    return isinstance(details, dict) and (details.get("reason"), details.get("executed")) == (NOT_CONVERTED, "no")


def executed_of(error: CallError) -> Executed:
    """Return whether the call that ended in `error` has run: `no`, `yes` or `unknown`."""
    details = error.details
    executed = details.get("executed") if isinstance(details, dict) else None
    return executed if executed in ("no", "yes") else "unknown"


def mark_executed(error: CallError, operation_id: str) -> CallError:
    """Return the error of a handler, with the value of `executed` for the handler's caller.

    The error of a nested call that did not run has `executed: no`. The handler itself did run: its caller gets `yes`.
    """
    details = error.details
    if not isinstance(details, dict) or details.get("executed") != "no" or details.get("operationId") == operation_id:
        return error
    marked = CallError(error.code, error.message, {**details, "executed": "yes"})
    marked.__cause__ = error
    return marked


def translate(error: BaseException, operation_id: str) -> BaseException:
    """Return the error that the caller of an operation gets for an exception of its handler.

    A CallError, a cancellation of the current task, KeyboardInterrupt and GeneratorExit are returned unchanged. Any
    other exception becomes the cause of a new CallError. The error is returned, not raised, because raising it from a
    local variable would form a reference cycle with its traceback.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return error
        return _caused(CallError(ErrorCode.ABORTED, f"{operation_id}: the handler cancelled itself"), error)
    if isinstance(error, SystemExit):
        message = f"{operation_id}: the handler called sys.exit({error.code})"
        return _caused(CallError(ErrorCode.EXECUTION_ERROR, message, {"type": "SystemExit"}), error)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return error
    kind = type(error).__name__
    text = _describe(error)
    message = f"{operation_id}: {kind}: {text}" if text else f"{operation_id}: {kind}"
    return _caused(CallError(ErrorCode.EXECUTION_ERROR, message, {"type": kind}), error)


def _caused(error: CallError, cause: BaseException) -> CallError:
    error.__cause__ = cause
    return error


def _describe(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a broken __str__ must not hide the error it belongs to
        return ""
