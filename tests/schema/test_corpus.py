"""The cast corpus: what TypeBox promises for 600 cases, against our policies, outside the listed deviations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from operations.schema import from_schema
from operations.schema.dialects.literals import same

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = json.loads((HERE / "cast_corpus.json").read_text())["cases"]
DEVIATIONS: dict[str, Any] = json.loads((HERE / "deviations.json").read_text())
UNSATISFIABLE = {"enum/empty", "intersect/aP-false-both", "intersect/contradict", "ref/infinite", "misc/false"}


def promised(case: dict[str, Any]) -> Any:
    """The promise of the corpus, or None in a box if it has none."""
    return case["promise"].get("ok")


@pytest.mark.filterwarnings("ignore")
def test_total_keeps_the_promise() -> None:
    differing = {
        case["id"]
        for case in CASES
        if "ok" in case["promise"]
        and not same(from_schema(case["schema"]).cast(case.get("value"), "total"), promised(case))
    }
    assert differing <= DEVIATIONS["cases"].keys()


def test_cast_agrees_with_the_reference_on_valid_values() -> None:
    differing = {
        case["id"]
        for case in CASES
        if "ok" in case["promise"]
        and case["check_ext"]
        and not same(from_schema(case["schema"]).cast(case.get("value")), promised(case))
    }
    assert differing <= DEVIATIONS["cases"].keys()


def test_total_yields_a_value_that_checks() -> None:
    for case in CASES:
        schema = from_schema(case["schema"])
        if case["id"] not in UNSATISFIABLE | {"ref/infinite-default"}:
            assert schema.check(schema.cast(case.get("value"), "total")), case["id"]


def test_every_deviation_is_real_and_has_a_reason() -> None:
    by_id = {case["id"]: case for case in CASES}
    for name, reason in DEVIATIONS["cases"].items():
        case = by_id[name]
        assert DEVIATIONS["reasons"][reason]
        if "ok" in case["promise"]:
            schema = from_schema(case["schema"])
            assert not same(schema.cast(case.get("value"), "total"), promised(case)) or (
                case["check_ext"] and not same(schema.cast(case.get("value")), promised(case))
            ), name


def test_every_reason_is_used() -> None:
    assert set(DEVIATIONS["reasons"]) == set(DEVIATIONS["cases"].values())
