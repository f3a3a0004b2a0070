"""Messages of problems: one short sentence for each kind of violated rule, with large values truncated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs

from operations.schema.dialects.literals import escaped
from operations.schema.dialects.patterns import written_pattern

_SHOWN = 60
_Kind = jsonschema_rs.ValidationErrorKind


def show(value: Any, budget: int = _SHOWN) -> str:
    """Format a value for a message: JSON-like, short, safe for any object."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quoted(value, budget)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_SHOWN else "a very large integer"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return _joined(
            "{", (f"{_quoted(str(k), 20)}: {show(v, 20)}" for k, v in value.items()), "}", len(value), budget
        )
    if isinstance(value, list | tuple):
        return _joined("[", (show(item, 20) for item in value), "]", len(value), budget)
    return f"a value of type {type(value).__name__}"


def _quoted(text: str, budget: int) -> str:
    shown = escaped(json.dumps(text[:budget], ensure_ascii=False)[1:-1])
    return f'"{shown}"' if len(text) <= budget else f'"{shown}…" ({len(text)} characters)'


def _joined(start: str, parts: Any, end: str, count: int, budget: int) -> str:
    if budget < _SHOWN:
        return f"{start}…{end}" if count else start + end
    shown: list[str] = []
    for part in parts:
        shown.append(part)
        if sum(map(len, shown)) > budget:
            break
    more = f", … {count - len(shown)} more" if len(shown) < count else ""
    return start + ", ".join(shown) + more + end


def _listed(values: Any) -> str:
    shown = [show(value, 20) for value in values[:10]]
    if len(values) > 10:
        return ", ".join(shown) + f" or one of {len(values) - 10} more"
    return " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def _types(kind: Any) -> str:
    names = [f"an {name}" if name[0] in "aio" else f"a {name}" for name in kind.types]
    return " or ".join(names).replace("a null", "null")


def names(names: Any) -> str:
    """Format the first ten property names for a message."""
    return ", ".join(_quoted(name, 40) for name in names[:10]) + (" …" if len(names) > 10 else "")


_WORDING: dict[type, Callable[[Any, str], str]] = {
    _Kind.AdditionalItems: lambda kind, it: f"has more than {kind.limit} items",
    _Kind.AdditionalProperties: lambda kind, it: f"has properties that are not allowed: {names(kind.unexpected)}",
    _Kind.AnyOf: lambda kind, it: it + _expected(kind),
    _Kind.OneOfNotValid: lambda kind, it: it + _expected(kind),
    _Kind.OneOfMultipleValid: lambda kind, it: f"{it} matches more than one form: exactly one is allowed",
    _Kind.BacktrackLimitExceeded: lambda kind, it: f"{it} takes too long to match against a pattern",
    _Kind.RegexEngineFailure: lambda kind, it: f"{it} cannot be matched against a pattern",
    _Kind.Constant: lambda kind, it: f"{it} is not {show(kind.expected_value)}",
    _Kind.Contains: lambda kind, it: "has too few or too many items that match `contains`",
    _Kind.Enum: lambda kind, it: f"{it} is not one of {_listed(kind.options)}",
    _Kind.ExclusiveMaximum: lambda kind, it: f"{it} is not less than {kind.limit}",
    _Kind.ExclusiveMinimum: lambda kind, it: f"{it} is not greater than {kind.limit}",
    _Kind.FalseSchema: lambda kind, it: f"{it} is not allowed here",
    _Kind.MaxItems: lambda kind, it: f"has more than {kind.limit} items",
    _Kind.Maximum: lambda kind, it: f"{it} is greater than the maximum of {kind.limit}",
    _Kind.MaxLength: lambda kind, it: f"{it} is longer than {kind.limit} characters",
    _Kind.MaxProperties: lambda kind, it: f"has more than {kind.limit} properties",
    _Kind.MinItems: lambda kind, it: f"has fewer than {kind.limit} items",
    _Kind.Minimum: lambda kind, it: f"{it} is less than the minimum of {kind.limit}",
    _Kind.MinLength: lambda kind, it: f"{it} is shorter than {kind.limit} characters",
    _Kind.MinProperties: lambda kind, it: f"has fewer than {kind.limit} properties",
    _Kind.MultipleOf: lambda kind, it: f"{it} is not a multiple of {kind.multiple_of}",
    _Kind.Not: lambda kind, it: f"{it} matches a form that is not allowed",
    _Kind.Pattern: lambda kind, it: f"{it} does not match the pattern {_quoted(written_pattern(kind.pattern), 60)}",
    _Kind.PropertyNames: lambda kind, it: f"has a property whose name is not allowed: {_inner_name(kind)}",
    _Kind.Required: lambda kind, it: f"missing required property {_quoted(kind.property, 60)}",
    _Kind.Type: lambda kind, it: f"{it} is not {_types(kind)}",
    _Kind.UnevaluatedItems: lambda kind, it: "has items that are not allowed",
    _Kind.UnevaluatedProperties: lambda kind, it: f"has properties that are not allowed: {names(kind.unexpected)}",
    _Kind.UniqueItems: lambda kind, it: "has duplicate items",
}


def _inner_name(kind: Any) -> str:
    return show(kind.error.instance)


def _expected(kind: Any) -> str:
    return union_message(len(kind.context), [expected_type(branch) for branch in kind.context])


def expected_type(errors: Any) -> str | None:
    """Return the types that a branch of a union expects, if the branch fails because of the type; otherwise None."""
    return next((_types(error.kind) for error in errors if isinstance(error.kind, _Kind.Type)), None)


def union_message(count: int, asked: list[str | None]) -> str:
    """Return the message for a value that matches no branch of a union.

    If every branch fails only by its type, the message has the expected types.
    """
    types = ": " + " or ".join(dict.fromkeys(map(str, asked))) if asked and len(asked) <= 8 and all(asked) else ""
    return f" matches none of the {count} allowed forms{types}"


def secret_message_of(kind: jsonschema_rs.ValidationErrorKind, printed: str, value: Any) -> str:
    """Return the message for a value with secrets, without the expected value."""
    if isinstance(kind, _Kind.Constant | _Kind.Enum):
        return (
            f"{printed} is not {'the value' if isinstance(kind, _Kind.Constant) else 'one of the values'} allowed here"
        )
    if isinstance(kind, _Kind.PropertyNames):
        return "has a property whose name is not allowed"
    return message_of(kind, printed, value)


def message_of(kind: jsonschema_rs.ValidationErrorKind, printed: str, value: Any) -> str:
    """Return the message for one violated rule; `printed` is the value as text."""
    if isinstance(value, float) and value != value:
        return "NaN is not a JSON number"
    wording = _WORDING.get(type(kind))
    return wording(kind, printed) if wording else f"violates the rule {kind.name!r}"
