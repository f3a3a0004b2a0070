"""Types shared by operations and sessions: server info, the session Protocol, request failures. Imports no SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from operations.errors import CallError, ErrorCode

Executed = Literal["no", "unknown"]
OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Callback for progress: current value, total and message."""

PARSE_ERROR = -32700
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
RESOURCE_NOT_FOUND = -32002
REQUEST_TIMEOUT = -32001
HEADER_MISMATCH = -32020


class MCPServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Name, version and capabilities of a server, from the handshake or the discovery request."""

    name: str = ""
    version: str = ""
    title: str | None = None
    protocol_version: str
    instructions: str | None = None
    capabilities: Mapping[str, Any] = {}


class ServerSession(Protocol):
    """An initialised session; its methods may be called from any task."""

    @property
    def info(self) -> MCPServerInfo:
        """The server's name, version and capabilities."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the result unchanged; raise RequestFailedError, RequestLostError or RequestTimeoutError."""

    async def respond(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a handler's response to a server's request; raise RequestFailedError if no handler gives one."""

    def set_tools(self, input_schemas: Mapping[str, Any]) -> Mapping[str, str]:
        """Store the input schemas of all listed tools; return the tools that the protocol forbids, with reasons."""


class RequestFailedError(Exception):
    """A request failed with a JSON-RPC error, usually the response of the server."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RequestLostError(Exception):
    """The response to a request can no longer arrive."""

    def __init__(self, reason: str, *, executed: Executed, sent: bool = True, renew: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.executed: Executed = executed
        """`unknown` if the server may have executed the request, else `no`."""
        self.sent = sent
        """Whether a part of the request may have reached the server."""
        self.renew = renew
        """Whether the server ended the session, so that a new one is needed."""


class RequestTimeoutError(Exception):
    """The time limit of a request passed."""


_CODES = {
    METHOD_NOT_FOUND: ErrorCode.OPERATION_NOT_FOUND,
    INVALID_PARAMS: ErrorCode.VALIDATION_ERROR,
    RESOURCE_NOT_FOUND: ErrorCode.VALIDATION_ERROR,
    REQUEST_TIMEOUT: ErrorCode.TIMEOUT,
}


def call_error(error: RequestFailedError | RequestLostError | RequestTimeoutError, server: str, what: str) -> CallError:
    """Return the CallError for a failed request; `what` is the subject of the request, such as `tool 'add'`."""
    subject = f"MCP server {server!r}, {what}"
    if isinstance(error, RequestTimeoutError):
        return CallError(
            ErrorCode.TIMEOUT,
            f"{subject}: no response within the time limit",
            {"server": server, "executed": "unknown"},
        )
    if isinstance(error, RequestLostError):
        return CallError(
            ErrorCode.UNAVAILABLE, f"{subject}: {error.reason}", {"server": server, "executed": error.executed}
        )
    details: dict[str, Any] = {"server": server, "code": error.code, "message": error.message}
    if error.data is not None:
        details["data"] = error.data
    code = _CODES.get(error.code, ErrorCode.EXECUTION_ERROR)
    return CallError(code, f"{subject}: {error.message} ({error.code})", details)


def unavailable(server: str, reason: str, *, executed: Executed = "no") -> CallError:
    """Return the error for a server that cannot be reached; `executed` is `unknown` if the call may have run."""
    return CallError(
        ErrorCode.UNAVAILABLE, f"MCP server {server!r}: {reason}", {"server": server, "executed": executed}
    )


def explain(error: BaseException) -> str:
    """Return one line for an exception, with its notes; for an exception group, with all its exceptions."""
    if isinstance(error, BaseExceptionGroup):
        reasons = [explain(member) for member in error.exceptions]
    elif isinstance(error, CallError):
        reasons = [error.message]
    else:
        text = " ".join(str(error).split())
        reasons = [f"{type(error).__name__}: {text}" if text else type(error).__name__]
    return "; ".join(dict.fromkeys([*reasons, *getattr(error, "__notes__", ())]))
