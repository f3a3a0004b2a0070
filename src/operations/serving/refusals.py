"""RefusedError: the error of a request that was not dispatched, and what of an error a stranger may read."""

from __future__ import annotations

from typing import Any

from operations.errors import CallError, ErrorCode
from operations.serving.asgi import Headers

_OF_TRANSLATION = frozenset({"type", "executed", "operationId"})


class RefusedError(CallError):
    """An error with an HTTP status and headers of its own. Nothing was executed."""

    def __init__(
        self, status: int, code: ErrorCode, message: str, reason: str, headers: Headers | None = None, **details: Any
    ) -> None:
        super().__init__(code, message, {"reason": reason, "executed": "no", **details})
        self.status = status
        self.headers: Headers = headers or []


def public_error(error: CallError, operation_id: str) -> CallError:
    """Return an error as a caller from elsewhere may see it: without the text of an exception that a handler raised.

    Such an error is known by its details, not by its cause: one that comes from another process has no cause.
    """
    details = error.details
    if error.code is not ErrorCode.EXECUTION_ERROR or not isinstance(details, dict) or "type" not in details:
        return error
    if not details.keys() <= _OF_TRANSLATION:
        return error
    kept = {name: value for name, value in details.items() if name != "type"}
    return CallError(ErrorCode.EXECUTION_ERROR, f"{operation_id} failed", kept or None)
