"""Properties of the policies, on generated schemas and values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from operations.schema import Policy, Schema, from_schema
from operations.schema.budget import Budget
from operations.schema.casting.repair import Repair
from operations.schema.casting.scoring import Scores
from operations.schema.casting.upcasts import upcasts
from operations.schema.dialects.literals import same
from tests.schema.strategies import DOCUMENTS, VALUES

thorough = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
POLICIES: tuple[Policy, ...] = ("cast", "total", "strict", "off")


def satisfiable(schema: Schema) -> bool:
    import jsonschema_rs

    try:
        canonical = jsonschema_rs.canonicalize(schema.document)
    except ValueError:
        return False
    return str(canonical.satisfiability()).rpartition(".")[2].upper() == "YES"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in leaves(item, (*path, name)).items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in leaves(item, (*path, i)).items()}
    return {path: value}


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_never_mutates_and_never_raises(document: Any, value: Any) -> None:
    schema = from_schema(document)
    before = copy.deepcopy((document, value))
    for policy in POLICIES:
        schema.normalise(value, policy)
        assert same(list(before), [document, value])


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_idempotent(document: Any, value: Any) -> None:
    schema = from_schema(document)
    for policy in POLICIES[:2]:
        once, _ = schema.normalise(value, policy)
        twice, _ = schema.normalise(once, policy)
        assert same(once, twice), policy


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_valid_stays_valid(document: Any, value: Any) -> None:
    schema = from_schema(document)
    if schema.check(value):
        for policy in POLICIES:
            result, problems = schema.normalise(value, policy)
            assert schema.check(result), policy
            if policy != "total":
                assert not problems


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_total_checks_wherever_the_schema_can_be_satisfied(document: Any, value: Any) -> None:
    schema = from_schema(document)
    result, problems = schema.normalise(value, "total")
    if not schema.check(result):
        assert problems
        assert not satisfiable(schema)


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_cast_changes_a_leaf_only_by_a_lossless_upcast(document: Any, value: Any) -> None:
    result = from_schema(document).cast(value)
    before, after = leaves(value), leaves(result)
    for path in before.keys() & after.keys():
        old, new = before[path], after[path]
        assert same(old, new) or any(same(other, new) for other in upcasts(old)), path


@pytest.mark.slow
@thorough
@given(document=DOCUMENTS, value=VALUES)
def test_the_fast_stages_agree_with_the_slow_one(document: Any, value: Any) -> None:
    schema = from_schema(document)
    if schema.is_unknown or not isinstance(schema.document, dict):
        return
    caster = schema._caster
    if caster._is_normal(value):
        assert schema.check(value)
        repaired = Repair(caster._nodes, total=False).cast_to(caster._nodes.root, value)
        assert repaired is value
    fast = caster._normalised_fast(value)
    if fast is not None:
        budget = Budget()
        assert same(fast[0], caster._repaired(value, budget, Scores(caster._nodes, budget), total=False)[0])


@pytest.mark.slow
@thorough
@example(True)
@given(document=DOCUMENTS)
def test_a_converted_document_converts_to_itself(document: Any) -> None:
    once = from_schema(document).document
    assert from_schema(once).document == once
