"""`python -m bench.schema`: every engine on the same values in one run, as ratios to bare jsonschema-rs."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs

from bench.comparisons import Comparison, keep
from bench.schema import peers
from bench.schema.payloads import Case, cases, with_bad_leaf, with_excess
from operations.schema import Schema, deferred_schema, from_schema
from operations.schema.dialects.definitions import Definitions

RESULTS = Path(__file__).resolve().parent.parent / "results" / "schema.json"
_ROUNDS = 41
Row = dict[str, float | str]


def medians(verbs: dict[str, tuple[Callable[[Any], Any], Any]], repeat: int) -> dict[str, float]:
    """Return the median CPU microseconds of each function (`verbs`) on its value, in interleaved rounds."""
    samples: dict[str, list[float]] = {name: [] for name in verbs}
    gc.collect()
    gc.freeze()  # exclude the benchmark's own objects from collection
    for _ in range(_ROUNDS):
        for name, (verb, value) in verbs.items():
            start = time.process_time()
            for _ in range(repeat):
                verb(value)
            samples[name].append((time.process_time() - start) / repeat * 1e6)
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(case: Case) -> Row:
    """Return the times of one case with every engine in this process."""
    value, excess, bad = case.value, with_excess(case.value), with_bad_leaf(case.value)
    bare = jsonschema_rs.validator_for(case.schema, offline=True)
    clean, untidy, broken = (from_schema(case.schema) for _ in range(3))
    assert clean.cast(value) is value
    assert untidy.cast(excess) == value
    assert broken.normalise(bad)[1]
    verbs: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "jsonschema-rs is_valid": (bare.is_valid, value),
        "jsonschema-rs is_valid, excess": (bare.is_valid, excess),
        "check": (clean.check, value),
        "cast, clean": (clean.cast, value),
        "normalise, clean": (clean.normalise, value),
        "cast, excess everywhere": (untidy.cast, excess),
        "cast, one bad leaf": (broken.cast, bad),
    }
    missing: Row = {}
    for name, peer in (("pydantic models", peers.pydantic), ("fastjsonschema", peers.fastjsonschema)):
        try:
            verbs[name] = (peer(case.schema), value)
        except peers.Missing as error:
            missing[name] = str(error)
    return {**medians(verbs, case.repeat), **missing}


def measure_node(all_cases: list[Case], rows: list[Row]) -> None:
    """Add the times of TypeBox's `Value.Cast` to the rows."""
    inputs = [
        {
            "schema": case.schema,
            "values": {
                "TypeBox Cast, clean": case.value,
                "TypeBox Cast, excess everywhere": with_excess(case.value),
                "TypeBox Cast, one bad leaf": with_bad_leaf(case.value),
            },
        }
        for case in all_cases
    ]
    try:
        for row, times in zip(rows, peers.typebox(inputs), strict=True):
            row.update(times)
    except peers.Missing as error:
        for row in rows:
            row["TypeBox Cast, clean"] = str(error)


def measure_building() -> Row:
    """Return the times of the first use of each output schema of GitHub's document; all share its components."""
    try:
        folder = peers.install_node("@octokit/openapi", "23.0.2")
    except peers.Missing as error:
        return {"build": str(error)}
    document = json.loads((folder / "generated" / "api.github.com.json").read_text())
    outputs = list(_outputs(document))
    result: Row = {"schemas": len(outputs)}
    kept = [_sharing(outputs)]  # keep all schemas: the time to free their native validators must not be measured
    valid = [schema.cast({}, "total") for schema in kept[0]]
    bad = [None] * len(outputs)
    # An invalid value needs more compiled code than a valid one: also the code that lists problems.
    works: dict[str, tuple[Callable[[Schema, Any], object], list[Any]]] = {
        "check": (Schema.check, valid),
        "normalise": (Schema.normalise, valid),
        "normalise bad": (Schema.normalise, bad),
    }
    for name, (verb, values) in works.items():
        kept.append(schemas := _sharing(outputs))
        gc.collect()
        gc.freeze()  # exclude GitHub's document from collection
        first = [_cpu(verb, schema, value) for schema, value in zip(schemas, values, strict=True)]
        result |= {f"first {name} of all, ms": sum(first) * 1e3, f"longest first {name}, ms": max(first) * 1e3}
    native = [_cpu(lambda schema, value: jsonschema_rs.validator_for(schema.document), s, None) for s in kept[0]]
    result["native compilation of all, ms"] = sum(native) * 1e3
    return result


def _sharing(outputs: list[dict[str, Any]]) -> list[Schema]:
    """Return unused schemas that share the components of their document."""
    definitions = Definitions("openapi-3.0", sections=["components"])
    return [deferred_schema(lambda schema=schema: schema, definitions) for schema in outputs]  # type: ignore[misc]


def _cpu(verb: Callable[[Schema, Any], object], schema: Schema, value: Any) -> float:
    start = time.process_time()
    verb(schema, value)
    return time.process_time() - start


def _outputs(document: dict[str, Any]) -> Any:
    for path in document["paths"].values():
        for method, operation in path.items():
            if method in ("get", "put", "post", "patch", "delete"):
                schema = _output(operation, document)
                if schema is not None:
                    yield {**schema, "components": document["components"]}


def _output(operation: dict[str, Any], document: dict[str, Any]) -> dict[str, Any] | None:
    for status, response in operation.get("responses", {}).items():
        if "$ref" in response:
            response = document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        content = response.get("content", {}).get("application/json", {})
        if status.startswith("2") and "schema" in content:
            schema: dict[str, Any] = content["schema"]
            return schema
    return None


def show(name: str, row: Row) -> None:
    """Print one case: microseconds and the ratio to bare jsonschema-rs."""
    base = row.get("jsonschema-rs is_valid")
    print(f"\n{name}")
    for label, value in row.items():
        if isinstance(value, str):
            print(f"  {label:32} {value}")
        elif isinstance(base, float):
            print(f"  {label:32} {value:12.2f} µs {value / base:8.2f} x")
        else:
            print(f"  {label:32} {value:12.2f}")


def compare(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Comparison]:
    """Yield the comparisons whose peer was measured."""
    for name, limit in {"unions": 8, "tree": 4, "1,000 issues": 4}.items():
        row = results[name]
        bare = row["jsonschema-rs is_valid"]
        bad = row["cast, one bad leaf"] / bare
        yield Comparison(f"Normalise {name} with one bad value", "bare validation", "time", bad, at_most=limit)
        theirs = row.get("TypeBox Cast, one bad leaf")
        if theirs:
            faster = theirs / row["cast, one bad leaf"]
            yield Comparison(f"Normalise {name} with one bad value", "TypeBox in Node", "faster", faster, at_least=1)
        yield Comparison(f"Normalise {name}, valid", "bare validation", "time", row["normalise, clean"] / bare)
    first = results["GitHub's outputs"]
    if "schemas" in first:
        for name, work in (
            ("check", "First check"),
            ("normalise", "First normalising of a valid value"),
            ("normalise bad", "First normalising of a bad value"),
        ):
            work = f"{work} with each of {first['schemas']:.0f} output schemas of GitHub"
            together, longest = first[f"first {name} of all, ms"] / 1e3, first[f"longest first {name}, ms"] / 1e3
            native = first["native compilation of all, ms"] / 1e3
            yield Comparison(work, "compiling the converted ones natively", "time", together / native)
            yield Comparison(work, "CPU of all", "seconds", together, at_most=0.4)
            yield Comparison(work, "CPU of the longest", "seconds", longest, at_most=0.005)


def main() -> None:
    """Measure, print and save."""
    all_cases = cases()
    rows = [measure(case) for case in all_cases]
    measure_node(all_cases, rows)
    results: dict[str, Row] = {case.name: row for case, row in zip(all_cases, rows, strict=True)}
    results["GitHub's outputs"] = measure_building()
    for name, row in results.items():
        show(name, row)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    keep("bench.schema", compare(results))


if __name__ == "__main__":
    main()
