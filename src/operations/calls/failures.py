"""The typed errors of the call protocol itself; each says whether the call may have run."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from operations.calls.codec import Codec
from operations.calls.events import NULL, VERSION, CallFailed, Failed
from operations.errors import CallError, ErrorCode
from operations.pubsub import Refused

Executed = Literal["no", "unknown", "yes"]


def unavailable(operation_id: str, reason: str, executed: Executed) -> CallError:
    """Nobody to answer, or the way to whoever answers was lost."""
    details = {"operationId": operation_id, "executed": executed}
    return CallError(ErrorCode.UNAVAILABLE, f"{operation_id}: {reason}", details)


def undelivered(operation_id: str, reason: str) -> CallError:
    """Nobody got the request: there is nobody, or this peer may not send there."""
    if isinstance(reason, Refused):
        details = {"operationId": operation_id, "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"{operation_id}: {reason}", details)
    return unavailable(operation_id, reason, "no")


def timed_out(operation_id: str, executed: Executed, when: str = "during the call", **more: Any) -> CallError:
    """The deadline passed."""
    details = {"operationId": operation_id, "executed": executed, **more}
    return CallError(ErrorCode.TIMEOUT, f"{operation_id}: the deadline passed {when}", details)


def unreadable(problem: object) -> CallError:
    """A request that is none: a field is missing, or of another type than it should be."""
    text = f"the request could not be read: {problem}"
    return CallError(ErrorCode.VALIDATION_ERROR, text, {"reason": "UNREADABLE", "executed": "no"})


def aborted(operation_id: str, reason: str, executed: Executed = "unknown") -> CallError:
    """The other side gave up."""
    details = {"operationId": operation_id, "executed": executed}
    return CallError(ErrorCode.ABORTED, f"{operation_id}: {reason or 'aborted'}", details)


def too_large(operation_id: str, what: str, size: int, limit: int, executed: Executed) -> CallError:
    """A message over the largest payload that the transport carries."""
    code = ErrorCode.VALIDATION_ERROR if executed == "no" else ErrorCode.EXECUTION_ERROR
    details = {
        "operationId": operation_id,
        "reason": "PAYLOAD_TOO_LARGE",
        "size": size,
        "limit": limit,
        "executed": executed,
    }
    return CallError(code, f"{operation_id}: the {what} has {size:,} bytes, and at most {limit:,} travel", details)


def untranslatable(operation_id: str, what: str, problem: CallError, executed: Executed) -> CallError:
    """A message with a value that the only format its receiver reads has no form for."""
    code = ErrorCode.VALIDATION_ERROR if executed == "no" else ErrorCode.EXECUTION_ERROR
    details = {"operationId": operation_id, "reason": "UNTRANSLATABLE", "executed": executed}
    return CallError(code, f"{operation_id}: the {what} cannot be passed on: {problem.message}", details)


def executed_of(error: CallError) -> Executed:
    """Whether the call that ended in `error` may have run."""
    details = error.details
    executed = details.get("executed") if isinstance(details, dict) else None
    return executed if executed in ("no", "yes") else "unknown"


def of_handler(error: CallError, operation_id: str) -> CallError:
    """An error as it leaves a handler: that a call of its own was not executed is not true of the handler itself."""
    details = error.details
    if not isinstance(details, dict) or details.get("executed") != "no" or details.get("operationId") == operation_id:
        return error
    told = CallError(error.code, error.message, {**details, "executed": "yes"})
    told.__cause__ = error
    return told


def failed_event(request_id: str, error: CallError, codec: Codec) -> CallFailed:
    """The event that carries an error; details that cannot travel are left out."""
    details = NULL
    if error.details is not None:
        with contextlib.suppress(CallError, RecursionError):
            details = codec.raw(error.details)
    failed = Failed(request_id, writable(str(error.code)), writable(error.message), details)
    return CallFailed(VERSION, request_id, "", failed)


def writable(text: str) -> str:
    """A text as it can travel: half characters, as in the names of some files, are no Unicode."""
    return text if text.isascii() else text.encode(errors="replace").decode()
