"""Cost estimates of schemas: hostile schemas do not stop the process, ordinary ones use the native engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from operations import CallError
from operations.schema import from_schema
from operations.schema.checking.costs import AFFORDABLE, EXPLAINABLE, Costs, _Visits
from operations.schema.dialects.traversal import BEYOND, definitions_of
from tests.schema.hostile import CHAINS, NAMES, chain
from tests.schema.strategies import DOCUMENTS

ITSELF = {"$ref": "#"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hostile_schemas_take_bounded_work(name: str) -> None:
    """In a separate process, with limits on time and memory."""
    command = [sys.executable, "-m", "tests.schema.hostile", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("levels", [11, 12, 13, 14, 40])
def test_oneof_of_twice_the_same_is_refused_at_any_length(levels: int) -> None:
    """A value never matches exactly one of two equal branches, whichever engine decides."""
    schema = from_schema(chain(levels, CHAINS["oneOf"]))
    assert not schema.check(1)
    assert [problem.message for problem in schema.errors("x")] == ['"x" matches none of the 2 allowed forms']
    other = from_schema(chain(levels, lambda r: {"oneOf": [{"not": r}, {"type": "null"}]}))
    assert other.check("x") is (levels % 2 == 1)


def test_long_reference_chains_are_resolved() -> None:
    levels = 1_000
    schema = from_schema(chain(levels, lambda r: {"type": "array", "items": r}))
    value: Any = 1
    for _ in range(levels):
        value = [value]
    assert schema.check(value)
    value[0][0] = ["x"]
    assert [problem.path for problem in schema.errors(value)] == ["/0/0/0"]


@pytest.mark.parametrize(
    ("document", "looks"),
    [
        ({"type": "integer"}, 1),
        ({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}, 1),
        ({"properties": {"a": {"type": "integer"}}, "patternProperties": {"a": {"type": "integer"}}}, 2),
        ({"type": "object", "properties": {"a": ITSELF, "b": {"type": "array", "items": ITSELF}}}, 3),
        ({"anyOf": [{"properties": {"a": ITSELF}}, {"items": ITSELF}, {"type": "null"}]}, 5),
    ],
)
def test_looks_at_one_place(document: Any, looks: int) -> None:
    converted = from_schema(document).document
    assert Costs(definitions_of(converted)).of(converted) == looks


@given(DOCUMENTS)
def test_the_limit_is_never_below_the_estimate(document: Any) -> None:
    converted = from_schema(document).document
    definitions = definitions_of(converted)
    costs = Costs(definitions)
    assert costs._bounds_of("#").visits >= costs.of(converted)
    explained = Costs(definitions, explained=True, outlined=False)
    explained._estimate_all()
    assert explained._bounds_of("#").visits >= min(max(explained._schemas.values(), default=0), BEYOND)
    counted = sum(definition.bounds.schemas for definition in explained._definitions.values() if definition.bounds)
    assert counted == len(explained._schemas)


def test_a_union_of_many_forms_needs_no_exact_estimate() -> None:
    form = {"type": "object", "properties": {name: {"type": "string"} for name in "abcde"}}
    costs = Costs(definitions_of({"anyOf": [form for _ in range(2 * EXPLAINABLE)]}), explained=True)
    assert costs._bounds_of("#").visits > EXPLAINABLE
    assert costs.explainable
    assert not costs._known


@pytest.mark.parametrize("more", [{}, {"additionalProperties": {"type": "integer"}}])
def test_branches_with_many_names_take_linear_work(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    count, original = 0, _Visits.at

    def counted(visits: _Visits, key: str | int) -> int:
        nonlocal count
        count += 1
        return original(visits, key)

    monkeypatch.setattr(_Visits, "at", counted)
    branches = [{"type": "object", "properties": {f"k{index}": {"type": "string"}}, **more} for index in range(5_000)]
    assert Costs(definitions_of({"oneOf": branches})).affordable
    assert 0 < count < 1_000 * len(branches)


@pytest.mark.parametrize("name", ["plain", "default", "enum", "const", "examples", "$defs", "$ref"])
def test_a_property_costs_the_same_under_every_name(name: str) -> None:
    """A property may have the name of a keyword whose value is not searched for schemas."""
    levels: dict[str, Any] = {f"d{level}": doubled(f"#/$defs/d{level + 1}") for level in range(30)}
    document = {"properties": {name: {"$ref": "#/$defs/d0"}}, "$defs": {**levels, "d30": {"type": "integer"}}}
    assert not Costs(definitions_of(from_schema(document).document)).affordable
    assert not from_schema(document).check({name: "text"})


def doubled(pointer: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": pointer}, {"title": "again", "$ref": pointer, "properties": {}}]}


def test_members_of_many_types_do_not_add_up() -> None:
    """The kinds of a large, recursive API: many properties of their own do not make them more expensive."""
    kinds = {
        f"kind{kind}": {
            "type": "object",
            "properties": {f"m{kind}_{other}": {"$ref": f"#/$defs/kind{other}"} for other in range(60)},
        }
        for kind in range(60)
    }
    document = from_schema({"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds], "$defs": kinds}).document
    costs = Costs(definitions_of(document))
    assert costs.affordable
    assert costs.of(document) < 10 * len(kinds) < AFFORDABLE


def test_literals_written_out_without_end() -> None:
    literal: Any = 1
    for _ in range(60):
        literal = [literal, literal]
    for keyword in ("const", "default", "examples", "x-note"):
        assert from_schema({"type": "integer", keyword: literal}).check(1)


def test_shared_parts_of_an_unconverted_document() -> None:
    part: Any = {"type": "integer"}
    for _ in range(60):
        part = {"properties": {"a": part, "b": part}}
    schema = from_schema({"$dynamicAnchor": "n", "properties": {"q": part, "r": {"$dynamicRef": "#n"}}})
    assert schema.check({"q": {}, "r": {"q": {}}})


@pytest.mark.parametrize("document", [{"type": "string"}, {"enum": [1]}, {"additionalProperties": {"type": "string"}}])
def test_values_too_shared_to_be_written_out(document: Any) -> None:
    value: Any = 1
    for _ in range(60):
        value = {"a": value, "b": value}
    schema = from_schema(document)
    assert [problem.message for problem in schema.errors(value)] == ["too much work to check"]
    assert schema.normalise(value)[1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("nested", [False, True])
def test_items_that_share_their_parts_without_end_are_not_compared(nested: bool) -> None:
    def doubled() -> list[Any]:
        value: list[Any] = [1]
        for _ in range(40):
            value = [value, value]
        return value

    value: Any = [doubled(), doubled()]
    document: dict[str, Any] = {"type": "array", "uniqueItems": True}
    if nested:
        value, document = {"a": value}, {"type": "object", "properties": {"a": document}}
    schema = from_schema(document)
    assert not schema.check(value)
    assert "too much work" in schema.errors(value)[0].message
    for policy in ("cast", "total"):
        kept, problems = schema.normalise(value, policy)
        assert kept is value
        assert problems
    with pytest.raises(CallError, match="too much work"):
        schema.cast(value, "strict")


def test_items_that_may_be_compared_are() -> None:
    schema = from_schema({"type": "array", "uniqueItems": True, "items": {"properties": {"a": {}}}})
    assert schema.check([{"a": 1}, {"a": 2}])
    assert not schema.check([{"a": 1}, {"a": 1}])
    assert schema.cast([{"a": 1, "b": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]
