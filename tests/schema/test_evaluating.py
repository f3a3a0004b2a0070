"""The evaluator that replaces the native engine: the same verdicts, and consistent explanations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.schema import from_schema
from operations.schema.budget import Budget
from operations.schema.checking.compiling import compiled
from operations.schema.checking.costs import Costs
from operations.schema.checking.diagnosing import Diagnosis
from operations.schema.checking.evaluating import Evaluator
from operations.schema.dialects.conversion import convert
from operations.schema.dialects.traversal import definitions_of
from tests.schema.strategies import DOCUMENTS, NAMES, SCHEMAS, VALUES
from tests.schema.test_suite import DRAFTS, archive, documents, groups, load_from


class Unaffordable(Costs):
    """Costs by which no schema is left to the native engine as a whole."""

    def affords(self, schema: Any) -> bool:
        return False


def stepwise(document: Any) -> Evaluator:
    return Evaluator(document, Unaffordable(definitions_of(document)))


def _rarer(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas with keywords that casting hardly uses."""
    branches = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "allOf": branches,
            "anyOf": branches,
            "oneOf": branches,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
            "prefixItems": branches,
            "contains": inner,
            "minContains": st.integers(0, 2),
            "maxContains": st.integers(0, 2),
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^k"}]),
            "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
            "dependentRequired": st.just({"a": ["b"]}),
            "unevaluatedProperties": st.one_of(st.just(False), inner),
            "unevaluatedItems": st.one_of(st.just(False), inner),
            "uniqueItems": st.booleans(),
        },
    )


RARE = st.recursive(st.one_of(SCHEMAS, st.just(False)), _rarer, max_leaves=5)


@given(st.one_of(DOCUMENTS, RARE), VALUES)
@settings(max_examples=400)
def test_verdicts_are_the_native_ones(source: Any, value: Any) -> None:
    document = convert(source).document
    native = compiled(document)
    assert native is not None
    evaluator = stepwise(document)
    verdict = native.is_valid(value)
    assert evaluator.check(value) is verdict
    causes = list(Diagnosis(evaluator).causes(value))
    assert (causes == []) is verdict


@given(DOCUMENTS, VALUES)
def test_paths_of_problems_equal_those_of_the_native_engine(source: Any, value: Any) -> None:
    """Except for unions: the native engine reports errors of the closest branch, the evaluator that none matches."""
    document = convert(source).document
    native = compiled(document)
    assert native is not None
    found = {cause.path for cause in Diagnosis(stepwise(document)).causes(value)}
    assert found == {tuple(error.instance_path) for error in native.iter_errors(value)}


@pytest.mark.slow
def test_the_official_suite_step_by_step() -> None:
    path = archive()
    if path is None or not path.exists():
        pytest.skip("OPERATIONS_TEST_SUITES does not name the JSON Schema test suite (json_schema_suite.tar.xz)")
    suite = documents(path)
    failures: list[str] = []
    count = 0
    for draft, dialect in DRAFTS.items():
        for file, group in groups(suite, draft):
            conversion = convert(group["schema"], dialect, load_from(suite))
            if not conversion.exact:
                continue
            evaluator = stepwise(conversion.document)
            for test in group["tests"]:
                count += 1
                if evaluator.check(test["data"]) is not test["valid"]:
                    failures.append(f"{draft}/{file}: {group['description']}: {test['description']}")
    assert not failures
    assert count > 0


def test_cheap_parts_are_left_to_the_native_engine() -> None:
    document = convert({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}).document
    budget = Budget()
    before = budget.left
    assert (
        Evaluator(document, Costs(definitions_of(document)))
        .evaluation(budget)
        .is_valid(document, {"a": list(range(1000))})
    )
    assert before - budget.left == 1


def test_exceeded_budgets_are_reported() -> None:
    names = [f"d{index}" for index in range(60)]
    below = {name: {"type": "array", "items": {"$ref": f"#/$defs/{name}"}} for name in names}
    definitions = {name: {"anyOf": [below[other] for other in names if other != name]} for name in names}
    schema = from_schema({"$ref": "#/$defs/d0", "$defs": {**definitions, "d1": {"type": "integer"}}})
    value: Any = "x"
    for _ in range(200):
        value = [value]
    assert not schema.check(value)
    assert [problem.message for problem in schema.errors(value)] == ["too much work to check"]
    result, problems = schema.normalise(value)
    assert result is value
    assert problems[-1].message == "too much work to cast: the value is unchanged"
