"""Problem: an error in a value, and functions that collect, print and raise problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema.dialects.literals import escaped

Found = tuple[str, str]
"""A JSON pointer and a message."""


class Checks(Protocol):
    """The methods of a Schema that this module needs."""

    def check(self, value: Any) -> bool:
        """Whether `value` is valid."""

    def errors(self, value: Any, found: Sequence[Found] = ()) -> list[Problem]:
        """Return every problem of `value`, merged with those in `found`."""


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A problem of a value: its path, the violated rule and a message."""

    path: str
    """JSON pointer to the location in the value; empty for the value itself."""
    schema_path: str
    """JSON pointer to the violated rule in the schema."""
    message: str
    value: Any = msgspec.UNSET
    """The invalid value, unless it is too large to list; `"[redacted]"` if the schema marks it as secret."""

    def __str__(self) -> str:
        return escaped(f"{self.path or '(value)'}: {self.message}")


def collect_errors(schema: Checks, value: Any) -> list[Problem]:
    """Return every problem of `value`; problems of properties come before those of their object. Empty if valid."""
    return schema.errors(value)


def format_value_errors(errors: Iterable[Problem]) -> str:
    """Format problems, one per line: `/items/0/price: -1 is less than the minimum of 0`."""
    return "\n".join(map(str, errors))


def problems_as_details(errors: Iterable[Problem]) -> dict[str, Any]:
    """Return problems as plain data for a CallError's details."""
    return {"errors": [msgspec.to_builtins(problem, enc_hook=repr) for problem in errors]}


def validate_or_throw(schema: Checks, value: Any, message: str) -> None:
    """Raise one `VALIDATION_ERROR` with every problem if `value` is invalid."""
    if not schema.check(value):
        raise validation_error(schema.errors(value), message)


def validation_error(errors: Sequence[Problem], message: str) -> CallError:
    """Return the `VALIDATION_ERROR` with these problems."""
    text = f"{message}\n{format_value_errors(errors)}"
    return CallError(ErrorCode.VALIDATION_ERROR, text, problems_as_details(errors))
