"""How a request to an MCP server can fail, and the CallError each failure becomes."""

from __future__ import annotations

from typing import Any, Literal

from operations.errors import CallError, ErrorCode

Executed = Literal["no", "unknown"]

PARSE_ERROR = -32700
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
RESOURCE_NOT_FOUND = -32002
REQUEST_TIMEOUT = -32001
HEADER_MISMATCH = -32020


class RequestFailedError(Exception):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RequestLostError(Exception):
    """No answer to a request can come any more."""

    def __init__(self, reason: str, *, executed: Executed, sent: bool = True, renew: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.executed: Executed = executed
        """Whether the server may have acted on the request."""
        self.sent = sent
        """False where not a byte of the request can have reached the server."""
        self.renew = renew
        """Whether the session is over for the server, so that another has to be opened."""


class RequestTimeoutError(Exception):
    """The time given for a request ran out; the server was told to stop."""


_CODES = {
    METHOD_NOT_FOUND: ErrorCode.OPERATION_NOT_FOUND,
    INVALID_PARAMS: ErrorCode.VALIDATION_ERROR,
    RESOURCE_NOT_FOUND: ErrorCode.VALIDATION_ERROR,
    REQUEST_TIMEOUT: ErrorCode.TIMEOUT,
}


def call_error(error: RequestFailedError | RequestLostError | RequestTimeoutError, server: str, what: str) -> CallError:
    """The CallError for a request about `what` that failed."""
    place = f"MCP server {server!r}, {what}"
    if isinstance(error, RequestTimeoutError):
        return CallError(ErrorCode.TIMEOUT, f"{place}: no answer in time", {"server": server, "executed": "unknown"})
    if isinstance(error, RequestLostError):
        return unavailable(server, f"{what}: {error.reason}", executed=error.executed)
    details: dict[str, Any] = {"server": server, "code": error.code, "message": error.message}
    if error.data is not None:
        details["data"] = error.data
    code = _CODES.get(error.code, ErrorCode.EXECUTION_ERROR)
    return CallError(code, f"{place}: {error.message} ({error.code})", details)


def unavailable(server: str, reason: str, *, executed: Executed = "no") -> CallError:
    """The error for a server that cannot be reached, saying whether the call may have run."""
    return CallError(
        ErrorCode.UNAVAILABLE, f"MCP server {server!r}, {reason}", {"server": server, "executed": executed}
    )


def explain(error: BaseException) -> str:
    """One line for an exception, its notes and the members of a group included."""
    if isinstance(error, BaseExceptionGroup):
        reasons = [explain(member) for member in error.exceptions]
    elif isinstance(error, CallError):
        reasons = [error.message]
    else:
        text = " ".join(str(error).split())
        reasons = [f"{type(error).__name__}: {text}" if text else type(error).__name__]
    return "; ".join(dict.fromkeys([*reasons, *getattr(error, "__notes__", ())]))
