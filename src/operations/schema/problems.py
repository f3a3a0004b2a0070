"""Problem: one thing wrong with a value, and the three functions that gather, print and raise them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema.dialects.literals import escaped

Found = tuple[str, str]
"""A JSON pointer and what is wrong there."""


class Checks(Protocol):
    """What the functions here need of a Schema."""

    def check(self, value: Any) -> bool:
        """Whether `value` fits."""

    def errors(self, value: Any, found: Sequence[Found] = ()) -> list[Problem]:
        """Everything wrong with `value`, and what else was found wrong with it."""


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing wrong with a value: where it is, which rule it breaks, and what to tell a person."""

    path: str
    """JSON pointer of the offending place in the value; empty for the value itself."""
    schema_path: str
    """JSON pointer of the broken rule in the schema."""
    message: str
    value: Any = msgspec.UNSET
    """The offending value; `"[redacted]"` where the schema says it is a secret."""

    def __str__(self) -> str:
        return escaped(f"{self.path or '(value)'}: {self.message}")


def collect_errors(schema: Checks, value: Any) -> list[Problem]:
    """Everything wrong with `value` by `schema`, members before what holds them; empty when it fits."""
    return schema.errors(value)


def format_value_errors(errors: Iterable[Problem]) -> str:
    """Problems as text for a person, one to a line: `/items/0/price: -1 is less than the minimum of 0`."""
    return "\n".join(map(str, errors))


def problems_as_details(errors: Iterable[Problem]) -> dict[str, Any]:
    """Problems as the plain data that a CallError carries."""
    return {"errors": [msgspec.to_builtins(problem, enc_hook=repr) for problem in errors]}


def validate_or_throw(schema: Checks, value: Any, message: str) -> None:
    """Raise one `VALIDATION_ERROR` that lists every problem, or return when `value` fits."""
    if not schema.check(value):
        raise misfit(schema.errors(value), message)


def misfit(errors: Sequence[Problem], message: str) -> CallError:
    """The one `VALIDATION_ERROR` that lists these problems."""
    text = f"{message}\n{format_value_errors(errors)}"
    return CallError(ErrorCode.VALIDATION_ERROR, text, problems_as_details(errors))
