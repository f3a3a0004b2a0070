"""RefusedError: an error with an HTTP status. `public_error`: an error without the text of an exception."""

from __future__ import annotations

from typing import Any

from operations.errors import CallError, ErrorCode
from operations.serving.asgi import Headers

_OF_TRANSLATION = frozenset({"type", "executed", "operationId"})


class RefusedError(CallError):
    """An error with an HTTP status and response headers.

    By default, its details state that the operation was not executed.
    """

    def __init__(
        self,
        status: int,
        code: ErrorCode | str,
        message: str,
        reason: str,
        headers: Headers | None = None,
        **details: Any,
    ) -> None:
        super().__init__(code, message, {"reason": reason, "executed": "no", **details})
        self.status = status
        self.headers: Headers = headers or []


def public_error(error: CallError, operation_id: str) -> CallError:
    """Return an error for a remote caller, without the text of an exception that a handler raised.

    An error from such an exception is recognised by its details, because an error of another process has no
    `__cause__`.
    """
    details = error.details
    if error.code is not ErrorCode.EXECUTION_ERROR or not isinstance(details, dict) or "type" not in details:
        return error
    if not details.keys() <= _OF_TRANSLATION:
        return error
    kept = {name: value for name, value in details.items() if name != "type"}
    return CallError(ErrorCode.EXECUTION_ERROR, f"{operation_id} failed", kept or None)
