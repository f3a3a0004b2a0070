import logging
from typing import Any

import pytest

from operations import (
    CallError,
    ErrorCode,
    Operation,
    OperationRegistry,
    OperationSpec,
    OperationType,
    ResponseEnvelope,
    from_schema,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from operations.pipeline import Mismatches, finish
from operations.schema import Policy, Problem

USER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "role": {"type": "string", "default": "user"},
    },
    "required": ["name", "age"],
}


def user_operation(schema: Any = USER, **options: Any) -> Operation[Any]:
    spec = OperationSpec(namespace="t", name="op", type=OperationType.QUERY, output_schema=from_schema(schema))
    return Operation(spec=spec, **options)


def run(result: Any, policy: Policy = "cast", **options: Any) -> tuple[ResponseEnvelope[Any], Mismatches]:
    mismatches = Mismatches()
    return finish(user_operation(**options), policy, result, mismatches), mismatches


def test_a_raw_value_is_wrapped_and_normalised() -> None:
    envelope, mismatches = run({"name": "Ada", "age": "36", "excess": 1})
    assert envelope.data == {"name": "Ada", "age": 36, "role": "user"}
    assert envelope.meta.source == "local"
    assert envelope.meta.operation_id == "t.op"
    assert mismatches.counts() == {}


def test_an_envelope_passes_with_its_meta_and_its_data_normalised() -> None:
    sent = http_envelope({"name": "Ada", "age": 36, "excess": 1}, status_code=203)
    envelope, _ = run(sent)
    assert envelope.meta is sent.meta
    assert envelope.data == {"name": "Ada", "age": 36, "role": "user"}


def test_a_mapping_that_is_an_envelope_becomes_one() -> None:
    sent = local_envelope({"name": "Ada", "age": 36, "role": "x"}, "far.away")
    envelope, _ = run(sent.to_dict())
    assert envelope == sent


def test_a_clean_envelope_is_returned_as_it_is() -> None:
    sent = local_envelope({"name": "Ada", "age": 36, "role": "x"}, "far.away")
    envelope, _ = run(sent, dump=None)
    assert envelope is sent


def test_cast_keeps_invalid_values_and_reports_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "operations"):
        envelope, mismatches = run({"name": "Ada", "age": "old"})
    assert envelope.data == {"name": "Ada", "age": "old", "role": "user"}
    assert mismatches.counts() == {("t.op", "/age"): 1}
    assert "t.op" in caplog.text
    assert "/age" in caplog.text


def test_total_replaces_and_reports() -> None:
    envelope, mismatches = run({"name": "Ada", "age": "old"}, "total")
    assert envelope.data == {"name": "Ada", "age": 0, "role": "user"}
    assert mismatches.counts() == {("t.op", "/age"): 1}


def test_strict_fails_the_call_with_every_problem() -> None:
    with pytest.raises(CallError) as caught:
        run({"age": "old"}, "strict")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert len(caught.value.details["errors"]) == 2


def test_strict_normalises_valid_values() -> None:
    assert run({"name": "Ada", "age": "36", "excess": 1}, "strict")[0].data == {
        "name": "Ada",
        "age": 36,
        "role": "user",
    }


def test_off_leaves_the_result_alone() -> None:
    sent = {"name": 1, "excess": True}
    envelope, mismatches = run(sent, "off", dump=None)
    assert envelope.data is sent
    assert mismatches.counts() == {}


def test_the_policy_of_an_operation_goes_before_the_registrys() -> None:
    registry = OperationRegistry(output_policy="strict")
    assert registry.output_policy == "strict"
    spec = OperationSpec(namespace="t", name="op", type=OperationType.QUERY, output_policy="off")
    assert spec.output_policy == "off"


async def test_policies_apply_where_they_are_set() -> None:
    async def handler(input: Any, context: Any) -> Any:
        return {"age": "old"}

    def spec(name: str, policy: Policy | None) -> OperationSpec:
        return OperationSpec(
            namespace="t", name=name, type=OperationType.QUERY, output_schema=from_schema(USER), output_policy=policy
        )

    operations = [
        Operation[Any](spec=spec("own", "off"), handler=handler),
        Operation[Any](spec=spec("inherited", None), handler=handler),
    ]
    registry = OperationRegistry(operations, output_policy="strict")
    assert (await registry.execute("t.own")).data == {"age": "old"}
    with pytest.raises(CallError):
        await registry.execute("t.inherited")


def test_an_error_result_is_not_normalised() -> None:
    envelope, mismatches = run(mcp_envelope({"oops": 1}, is_error=True))
    assert envelope.data == {"oops": 1}
    assert mismatches.counts() == {}


def test_content_blocks_used_as_data_are_not_normalised() -> None:
    block = {"type": "text", "text": "hello"}
    envelope, mismatches = run(mcp_envelope([block], content=[block]))
    assert envelope.data == [block]
    assert mismatches.counts() == {}


def test_structured_content_is_normalised() -> None:
    envelope, _ = run(mcp_envelope({"name": "Ada", "age": 1, "excess": 1}, structured_content={"name": "Ada"}))
    assert envelope.data == {"name": "Ada", "age": 1, "role": "user"}


def test_a_source_decides_whether_its_schema_applies() -> None:
    envelope, mismatches = run(
        http_envelope({"job": 1}, status_code=202),
        schema_applies=lambda envelope: envelope.meta.source == "http" and envelope.meta.status_code == 200,
    )
    assert envelope.data == {"job": 1}
    assert mismatches.counts() == {}


def test_ten_thousand_bad_rows_write_one_line(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    with caplog.at_level(logging.WARNING, "operations"):
        _, mismatches = run([{"n": "bad"}] * 10_000, schema=schema)
    assert len(caplog.records) == 1
    assert "9,999 more at /*/n" in caplog.text
    assert mismatches.counts() == {("t.op", "/*/n"): 10_000}


def problem(path: str) -> Problem:
    return Problem(path=path, schema_path="", message="is wrong")


def test_a_repeated_warning_is_held_back_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    mismatches = Mismatches(every=1_000)
    with caplog.at_level(logging.WARNING, "operations"):
        for index in range(5):
            mismatches.report("a.b", [problem(f"/rows/{index}/x")])
        mismatches.report("a.c", [problem("/rows/0/x")])
    assert [record.getMessage() for record in caplog.records] == [
        "a.b: result mismatch at /rows/0/x: is wrong",
        "a.c: result mismatch at /rows/0/x: is wrong",
    ]
    assert mismatches.counts() == {("a.b", "/rows/*/x"): 5, ("a.c", "/rows/*/x"): 1}


def test_a_warning_is_repeated_after_the_interval_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    mismatches = Mismatches(every=0)
    with caplog.at_level(logging.WARNING, "operations"):
        mismatches.report("a.b", [problem("/x")])
        mismatches.report("a.b", [problem("/x"), problem("/x")])
    assert caplog.records[1].getMessage() == "a.b: result mismatch at /x: is wrong (and 1 more at /x)"


def test_the_count_is_bounded() -> None:
    mismatches = Mismatches(capacity=10)
    mismatches.report("a.b", [problem(f"/{'x' * n}") for n in range(100)])
    assert 5 <= len(mismatches.counts()) <= 10


def test_ten_thousand_bad_members_of_a_map_write_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    with caplog.at_level(logging.WARNING, "operations"):
        _, mismatches = run({f"k{n}x": "bad" for n in range(10_000)}, schema=schema)
    assert len(caplog.records) <= 25
    assert sum(mismatches.counts().values()) == 10_000


def test_an_http_error_is_not_described_by_the_output_schema() -> None:
    envelope, mismatches = run(http_envelope("gone", status_code=404))
    assert envelope.data == "gone"
    assert mismatches.counts() == {}
