"""Errors of data that does not match its Python type: lists of JSON pointers and messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.schema.checking.values import pointer
from operations.schema.problems import Found

MAX_FOUND = 100
"""Largest number of problems in one error."""
_MESSAGES = {
    "Invalid RFC3339 encoded date": "is not a date (expected YYYY-MM-DD)",
    "Invalid RFC3339 encoded datetime": "is not a date-time (expected RFC 3339, such as 2026-01-31T09:30:00Z)",
    "Invalid RFC3339 encoded time": "is not a time (expected hh:mm:ss)",
    "Invalid ISO8601 duration": "is not a duration (expected ISO 8601, such as PT90S)",
    "Invalid UUID": "is not a UUID",
}
"""The text that replaces a message of msgspec, by that message."""


def message_of(text: str) -> str:
    """Return the text that replaces a message of msgspec; the message itself if no other text is defined."""
    return _MESSAGES.get(text, text)


def mismatch(found: Iterable[Found]) -> CallError:
    """Return a `VALIDATION_ERROR` that lists these problems, but not more than `MAX_FOUND`."""
    listed = list(islice(found, MAX_FOUND + 1))
    if len(listed) > MAX_FOUND:
        listed[-1] = ("", f"more than {MAX_FOUND} problems: the others are not listed")
    errors = [{"path": path, "message": message} for path, message in listed]
    text = "\n".join(f"{error['path'] or '(value)'}: {error['message']}" for error in errors)
    return CallError(ErrorCode.VALIDATION_ERROR, text, {"errors": errors})


def wrong_kind(expected: str, value: Any) -> CallError:
    """Return the error for a value of the wrong type; `expected` names the right type."""
    return mismatch([("", f"expected {expected}, got {_json_kind(value)}")])


def too_deep() -> CallError:
    """Return the error for data nested too deeply."""
    return mismatch([("", "is nested too deeply")])


def found_within(error: CallError, step: str | int) -> list[Found]:
    """Return the problems of a part of a value as problems of the whole value.

    `step` is the key or index of the part; it becomes the first step of each pointer. An error without a list of
    problems is raised again.
    """
    prefix = pointer((step,))
    details = error.details
    if error.code is not ErrorCode.VALIDATION_ERROR or not isinstance(details, dict) or "errors" not in details:
        raise error  # raised by user code
    return [(prefix + item["path"], item["message"]) for item in details["errors"]]


def _json_kind(value: Any) -> str:
    names: dict[type, str] = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        list: "an array",
        dict: "an object",
        type(None): "null",
        bytes: "bytes",
    }
    return names.get(type(value), type(value).__qualname__)
