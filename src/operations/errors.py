"""CallError: the only exception that a failed call raises, and the error codes of the library."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """The library's error codes; operations declare further codes in `error_schemas`."""

    OPERATION_NOT_FOUND = "OPERATION_NOT_FOUND"
    ACCESS_DENIED = "ACCESS_DENIED"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    TIMEOUT = "TIMEOUT"
    ABORTED = "ABORTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


_OWN_CODES = {code.value: code for code in ErrorCode}


class CallError(Exception):
    """The error of a failed call: a code to branch on, a message for people, details for programs."""

    def __init__(self, code: ErrorCode | str, message: str = "", details: Any = None) -> None:
        # Convert a known code given as a string, so that `error.code is ErrorCode.TIMEOUT` holds.
        self.code: ErrorCode | str = _OWN_CODES.get(code, code)
        self.message = message
        self.details = details
        super().__init__(code, message, details)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else str(self.code)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as sent to a peer: `code`, `message` and, if any, `details`."""
        data: dict[str, Any] = {"code": str(self.code), "message": self.message}
        if self.details is not None:
            data["details"] = self.details
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CallError:
        """Read an error from a peer; an error without a code gets `UNKNOWN_ERROR`."""
        code = data.get("code")
        message = data.get("message")
        return cls(
            code if isinstance(code, str) and code else ErrorCode.UNKNOWN_ERROR,
            message if isinstance(message, str) else "",
            data.get("details"),
        )
