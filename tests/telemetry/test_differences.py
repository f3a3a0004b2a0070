"""Differences of a result that was normalised."""

from __future__ import annotations

from typing import Any

import pytest

from operations import Schema, from_schema
from operations.schema import Policy
from operations.telemetry.differences import MOST_DIFFERENCES, differences_of

SCHEMA = from_schema(
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "state": {"type": "string", "default": "open"},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"a/b": {"type": "integer"}}}},
        },
    }
)


def _found(value: Any, policy: Policy = "cast", schema: Schema = SCHEMA) -> list[tuple[Any, ...]]:
    data, problems = schema.normalise(value, policy)
    found = differences_of(value, data, problems)
    return [(each.pointer, each.action, each.got, each.became) for each in found]


def test_each_change_is_reported_with_its_action() -> None:
    value = {"count": "42", "extra": [1, 2], "rows": [{"a/b": 1}, {"a/b": "7", "more": None}]}
    assert _found(value) == [
        ("/count", "cast", '"42"', "42"),
        ("/extra", "stripped", "array of 2", None),
        ("/rows/1/a~1b", "cast", '"7"', "7"),
        ("/rows/1/more", "stripped", "null", None),
        ("/state", "default", None, '"open"'),
    ]


def test_invalid_values_are_kept_or_replaced() -> None:
    value = {"count": "many", "state": "open"}
    assert _found(value) == [("/count", "kept", '"many"', None)]
    assert _found(value, "total") == [("/count", "replaced", '"many"', "0")]
    assert _found(value, "off") == []


def test_a_result_as_declared_has_no_difference() -> None:
    assert _found({"count": 1, "state": "open", "rows": []}) == []


@pytest.mark.parametrize(
    "value", [{"extra": "x" * 10_000}, {"extra\ud800": "\ud800"}, {"extra": object()}, {"extra": b"1"}]
)
def test_values_are_short_texts(value: dict[str, Any]) -> None:
    [(pointer, _, got, _)] = [each for each in _found(value) if each[1] == "stripped"]
    assert len(pointer) + len(got) < 200
    (pointer + got).encode()


def test_the_number_of_differences_is_bounded() -> None:
    assert len(_found({f"extra {number}": 1 for number in range(10_000)})) == MOST_DIFFERENCES
    assert len(_found({"rows": [{"a/b": "x"}] * 10_000})) == MOST_DIFFERENCES


def test_secrets_are_redacted() -> None:
    found = _found({"password": "hunter2", "credentials": {"user": "ann"}, "state": "open"})
    assert [(pointer, got) for pointer, _, got, _ in found] == [
        ("/password", "[redacted]"),
        ("/credentials", "[redacted]"),
    ]


def test_every_problem_of_one_value_is_reported() -> None:
    schema = from_schema({"type": "object", "required": ["a", "b"]})
    assert [action for _, action, _, _ in _found({}, schema=schema)] == ["kept", "kept"]
