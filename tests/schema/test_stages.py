"""The stages of casting agree: the result depends on schema, value and policy, never on earlier values."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.schema import deferred_schema, from_schema
from operations.schema.casting.generated import generate
from operations.schema.dialects.literals import same
from tests.schema.strategies import DOCUMENTS, VALUES
from tests.schema.test_properties import thorough

INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
STRING = {"type": "string"}
ROW = {"type": "object", "properties": {"a": INTEGER}}
ROWS = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "array", "items": {"anyOf": [ROW, STRING]}}},
}


@pytest.mark.parametrize("rows", ["abc", True, 5, None, {"k": 1}, b"ab"])
def test_only_lists_are_cast_as_lists(rows: Any) -> None:
    schema = from_schema(ROWS)
    for _ in range(2):
        value, problems = schema.normalise({"rows": rows, "x": 1})
        assert value == {"rows": rows}
        assert [problem.path for problem in problems] == ["/rows"]
        with pytest.raises(CallError) as caught:
            schema.cast({"rows": rows, "x": 1}, "strict")
        assert caught.value.code == ErrorCode.VALIDATION_ERROR
        schema.cast({"rows": [{"a": 1, "z": 2}], "x": 1})


@pytest.mark.parametrize("policy", ["cast", "total", "strict"])
@pytest.mark.parametrize(
    ("branch", "value", "result"),
    [
        ({"type": "array", "items": ROW}, [{"a": "1", "z": 1}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": ROW}, {"k": {"a": "1", "z": 1}}, {"k": {"a": 1}}),
        ({"type": "array", "items": {"type": "array", "items": INTEGER}}, [["1"], ["2"]], [[1], [2]]),
    ],
)
def test_optional_arrays_and_maps_are_entered(branch: Any, value: Any, result: Any, policy: Any) -> None:
    assert from_schema({"anyOf": [branch, {"type": "null"}]}).cast(value, policy) == result


def test_the_array_with_more_matching_items_is_the_best_match() -> None:
    schema = from_schema({"anyOf": [{"type": "array", "items": INTEGER}, {"type": "array", "items": STRING}]})
    assert schema.cast(["a", "b", 5]) == ["a", "b", "5"]


def test_a_tuple_in_a_union_is_cast_in_one_pass() -> None:
    triple = {"type": "array", "prefixItems": [STRING, NUMBER, NUMBER], "items": False, "minItems": 3, "maxItems": 3}
    members = {"f": {"anyOf": [INTEGER, triple]}, "b": {"type": "array", "items": STRING}}
    schema = from_schema({"type": "object", "properties": members})
    once = schema.cast({"b": [5], "f": [5, "1.5", 1]})
    assert once == {"b": ["5"], "f": ["5", 1.5, 1]}
    assert schema.cast(once) == once


@pytest.mark.parametrize("extra", [{}, {"other": "bad"}])
def test_total_prefers_casting_to_a_default_of_another_type(extra: dict[str, Any]) -> None:
    optional = {"anyOf": [{"type": "object", "properties": {"n": INTEGER}}, {"type": "null"}], "default": None}
    schema = from_schema({"type": "object", "properties": {"o": optional, "other": INTEGER}})
    assert schema.cast({"o": {"n": "5"}, **extra}, "total")["o"] == {"n": 5}


def test_total_ignores_an_invalid_default() -> None:
    variants = [{"type": "object", "properties": {"t": {"const": t}}, "required": ["t"]} for t in "xy"]
    schema = from_schema({"anyOf": [*variants, {"type": "null"}], "default": 1.5})
    assert schema.cast({"t": "y", "n": 1}, "total") == {"t": "y"}


@pytest.mark.parametrize("first", [{"d": {"d": "z", "q": 1}}, {"g1": 2}, {"d": 5}, None, []])
def test_the_result_does_not_depend_on_earlier_values(first: Any) -> None:
    inner = {"type": "object", "properties": {"f": NUMBER, "d": {"enum": ["z", "1", 2]}}, "required": ["d"]}
    document = {
        "anyOf": [{"type": "object", "properties": {"d": inner}, "additionalProperties": True}, {"type": "null"}],
        "default": {"d": 0, "f": "y", "b": "x"},
    }
    expected = from_schema(document).cast({"g1": 2})
    assert expected == {"g1": 2, "f": "y", "b": "x"}
    used = from_schema(document)
    used.normalise(first)
    assert used.cast({"g1": 2}) == expected


def test_first_use_from_many_threads() -> None:
    part = {"type": "object", "properties": {"z": {"type": "string", "default": "q"}}, "default": {}}
    members = {
        f"a{i}": {
            "type": "object",
            "properties": {"x": {"type": "integer", "default": i}, "y": {"$ref": "#/$defs/T"}},
            "default": {},
        }
        for i in range(6)
    }
    document = {"type": "object", "properties": members, "$defs": {"T": part}}
    value = {"a0": {"y": {"z": "5", "e": 1}, "x": "3"}, "e": 1}
    expected = from_schema(document).cast(value)
    written: list[int] = []

    def write() -> dict[str, Any]:
        written.append(1)
        return document

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            written.clear()
            schema = deferred_schema(write)
            results = _from_threads(8, lambda schema=schema: schema.cast(value))
            assert results == [expected] * 8
            assert len(written) == 1
    finally:
        sys.setswitchinterval(interval)


def _from_threads(count: int, call: Any) -> list[Any]:
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def work(index: int) -> None:
        barrier.wait()
        results[index] = call()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_problems_are_explained_by_the_variant_that_casting_chooses() -> None:
    person = account_of("person", {"name": STRING, "born": INTEGER, "email": STRING})
    firm = {"type": "object", "properties": {"name": STRING}, "required": ["name", "number"]}
    schema = from_schema({"anyOf": [firm, person]})
    value = {"kind": "person", "name": "Ada", "born": "x", "email": 5}
    assert schema.cast(value) == {"kind": "person", "name": "Ada", "born": "x", "email": "5"}
    assert [str(problem) for problem in schema.errors(value)] == [
        '/born: "x" is not an integer (in the closest of 2 forms)',
        "/email: 5 is not a string (in the closest of 2 forms)",
    ]
    assert schema.errors(value)[0].schema_path == "/anyOf/1/properties/born/type"


def account_of(kind: str, members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind}, **members}, "required": ["kind"]}


def test_total_keeps_out_of_the_other_form_of_one_of() -> None:
    named = {"type": "object", "properties": {"b": STRING}}
    schema = from_schema({"oneOf": [named, {"type": "object", "properties": {}, "additionalProperties": True}]})
    for value in ({}, {"g": 1}, 5):
        assert schema.check(schema.cast(value, "total"))


def test_the_only_object_branch_is_cast_even_if_no_branch_matches() -> None:
    closed = {"type": "object", "properties": {"a": STRING}, "additionalProperties": False}
    members = {"d": {"anyOf": [closed, {"type": "null"}]}, "n": STRING}
    schema = from_schema({"type": "object", "properties": members})
    assert schema.cast({"d": {"b": False}, "n": 2}) == {"d": {}, "n": "2"}
    assert schema.cast({"d": {"b": False}, "n": "2"}) == {"d": {}, "n": "2"}


def test_a_schema_of_thousands_of_objects_is_cast_without_generated_code() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = from_schema({"type": "object", "properties": {f"m{n}": inner | {"title": str(n)} for n in range(2000)}})
    assert generate(schema._nodes) is None
    assert schema.cast({"m7": {"a": 1, "x": 2}, "y": 3}) == {"m7": {"a": 1}}


@pytest.mark.parametrize("policy", ["cast", "total", "off"])
@thorough
@given(items=DOCUMENTS, values=st.lists(VALUES, min_size=2, max_size=6))
def test_items_normalised_separately_match_the_whole_array(policy: Any, items: Any, values: list[Any]) -> None:
    apart = from_schema({"type": "array", "items": items})
    whole = from_schema({"type": "array", "items": items, "minItems": 0})  # says something of the array itself
    for _ in range(2):
        result, problems = apart.normalise(values, policy)
        expected, expected_problems = whole.normalise(values, policy)
        assert same(result, expected)
        assert list(problems) == list(expected_problems)
        assert (result is values) == (expected is values)


def test_items_are_reported_at_their_paths() -> None:
    schema = from_schema({"type": "array", "items": ROW})
    values: list[Any] = [{"a": 1}] * 7
    values[3] = {"a": "4", "z": 1}
    values[5] = {"a": []}
    result, problems = schema.normalise(values)
    assert result == [*values[:3], {"a": 4}, *values[4:]]
    assert result[0] is values[0]
    assert values[3] == {"a": "4", "z": 1}
    assert [problem.path for problem in problems] == ["/5/a"]
    assert schema.errors(values)[-1] == problems[0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["cast", "total", "strict"])
@thorough
@given(document=DOCUMENTS, values=st.lists(VALUES, min_size=1, max_size=3))
def test_first_values_are_cast_as_later_ones_are(policy: Any, document: Any, values: list[Any]) -> None:
    """The first values are repaired step by step, later ones with closed forms and generated code."""
    first, later = from_schema(document), from_schema(document)
    later.normalise([None] * 1000)  # more parts than the first values may have
    later.normalise(None)
    for value in values:
        (result, problems), (expected, expected_problems) = (each.normalise(value, policy) for each in (first, later))
        assert same(result, expected)
        assert list(problems) == list(expected_problems)
        assert (result is value) == (expected is value)


def test_a_closed_form_is_written_after_the_first_values() -> None:
    schema = from_schema({"anyOf": [ROW, STRING]})
    assert [schema.cast({"a": "1", "z": 2}) for _ in range(3)] == [{"a": 1}] * 3
    assert not schema._caster._writes_closed
    assert [schema.cast({"a": "1", "z": 2}) for _ in range(10)] == [{"a": 1}] * 10
    assert schema._caster._writes_closed


@pytest.mark.parametrize("count", [1, 400])
def test_the_first_value_is_cast_as_later_ones_are(count: int) -> None:
    schema = from_schema({"type": "object", "properties": {"rows": {"type": "array", "items": ROW}}})
    value = {"rows": [{"a": 1, "z": 2}] * count, "x": 1}
    results = [schema.normalise(value) for _ in range(4)]
    assert results == [({"rows": [{"a": 1}] * count}, ())] * 4
