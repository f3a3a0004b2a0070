"""validate_input: validates the input of a call against the operation's schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operations.context import current_grant
from operations.errors import CallError, ErrorCode
from operations.schema import Schema, jsonable, validation_error
from operations.schema.checking.values import MAX_PARTS, has_more_parts
from operations.schema.problems import Found
from operations.spec import Operation


def validate_input(operation: Operation[Any], input: Any, *, bounded: bool = False) -> Any:
    """Return the input for the handler, or raise one `VALIDATION_ERROR` that lists the problems.

    The number of listed problems is limited if `bounded` is true, or if the current caller has neither scopes nor
    resources.
    """
    value = {} if input is None else input
    if operation.split_files is None:
        if operation.spec.input_schema.check(value):
            return value
    elif (parts := operation.split_files(value)) is not None:
        return parts.restore(_validate_data(operation, parts.without_files, given=True, bounded=bounded))
    return _validate_data(operation, value, given=input is not None, bounded=bounded)


def _validate_data(operation: Operation[Any], value: Any, *, given: bool, bounded: bool) -> Any:
    schema = operation.spec.input_schema
    if schema.check(value):
        return value
    if not given and _takes_null(schema):
        return None
    # Values that are not JSON (a model, a datetime, a tuple) are accepted if their JSON form matches.
    try:
        value = jsonable(value)
    except CallError as error:
        message = f"invalid input for {operation.id}: {error.message}"
        refused = CallError(ErrorCode.VALIDATION_ERROR, message, error.details)
        raise _not_executed(refused, operation) from error
    if schema.check(value):
        return value
    bounded = bounded or _is_without_rights()
    found: Sequence[Found] = ()
    if operation.extra_problems is not None and not (bounded and has_more_parts(value, MAX_PARTS)):
        found = operation.extra_problems(value)
    problems = schema.errors(value, found, bounded=bounded)
    raise _not_executed(validation_error(problems, f"invalid input for {operation.id}"), operation)


def _is_without_rights() -> bool:
    """Whether the current request comes from a caller that has neither scopes nor resources."""
    grant = current_grant.get()
    return grant is not None and (grant.identity is None or not grant.identity.has_rights)


def _not_executed(error: CallError, operation: Operation[Any]) -> CallError:
    """Add `executed: no` to the error, because a `VALIDATION_ERROR` can also come from a handler that has run."""
    details = error.details if isinstance(error.details, dict) else {}
    error.details = {**details, "operationId": operation.id, "executed": "no"}
    return error


def _takes_null(schema: Schema) -> bool:
    document = schema.document
    kind = document.get("type") if isinstance(document, dict) else None
    return kind == "null" or (isinstance(kind, list) and "null" in kind)
