from typing import Any

import pytest

from operations import (
    UNKNOWN,
    AccessControl,
    CallError,
    ErrorCode,
    Operation,
    OperationContext,
    OperationSpec,
    OperationSpecSchema,
    OperationType,
    from_schema,
)
from operations.spec import map_source_name


def make(**changes: Any) -> OperationSpec:
    return OperationSpec(**{"name": "get", "namespace": "shop", "type": OperationType.QUERY} | changes)


FULL = make(
    version="2.1.0",
    type=OperationType.MUTATION,
    description="Buys.",
    input_schema=from_schema({"type": "object"}),
    output_schema=from_schema({"type": "string"}),
    access_control=AccessControl(required_scopes=["a"], required_scopes_any=["b"], resource_type="t"),
    title="Buy",
    tags=["x"],
    annotations={"sourceName": "buy!"},
    error_schemas={"EMPTY": from_schema({"type": "object"})},
    output_policy="strict",
    durable=True,
)


def test_the_id_is_namespace_and_name() -> None:
    assert make(namespace="a.b-c", name="x/y_z").id == "a.b-c.x/y_z"


@pytest.mark.parametrize("namespace", ["", ".", "a.", ".a", "a..b", "a b", "ä", "a/b", "a\n"])
def test_a_namespace_has_only_its_characters(namespace: str) -> None:
    with pytest.raises(CallError, match="namespace") as caught:
        make(namespace=namespace)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ü", "x\n"])
def test_a_name_has_only_its_characters(name: str) -> None:
    with pytest.raises(CallError, match="name"):
        make(name=name)


def test_nothing_is_required_of_a_caller_by_default() -> None:
    assert make().access_control == AccessControl()


def test_a_type_given_as_text_is_the_member() -> None:
    assert make(type="mutation").type is OperationType.MUTATION
    with pytest.raises(CallError, match="expected one of query, mutation, subscription"):
        make(type="delete")


def test_a_schema_given_as_a_document_is_a_schema() -> None:
    spec = make(input_schema={"type": "object"}, error_schemas={"X": {"type": "string"}})
    assert spec.input_schema.check({})
    assert not spec.input_schema.check(1)
    assert not spec.error_schemas["X"].check(1)
    assert make().output_schema is UNKNOWN


@pytest.mark.parametrize("spec", [make(), FULL])
def test_a_spec_round_trips_as_plain_data(spec: OperationSpec) -> None:
    plain = spec.to_dict()
    assert OperationSpecSchema.errors(plain) == []
    assert OperationSpec.from_dict(plain).to_dict() == plain


def test_the_plain_form_has_its_json_names() -> None:
    assert set(FULL.to_dict()) == {
        *("name", "namespace", "version", "type", "description", "inputSchema", "outputSchema", "accessControl"),
        *("title", "tags", "annotations", "errorSchemas", "outputPolicy", "durable"),
    }
    assert FULL.to_dict()["accessControl"] == {"requiredScopes": ["a"], "requiredScopesAny": ["b"], "resourceType": "t"}
    assert "title" not in make().to_dict()


def test_a_malformed_spec_lists_every_problem() -> None:
    with pytest.raises(CallError) as caught:
        OperationSpec.from_dict({"name": "a.b", "type": "delete", "accessControl": {"requireScopes": []}})
    paths = [problem["path"] for problem in caught.value.details["errors"]]
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert {"/name", "/type"} <= set(paths)
    assert len(paths) >= 5


def test_a_coroutine_function_runs_in_the_loop_and_a_plain_one_in_a_thread() -> None:
    async def coroutine(input: Any, context: OperationContext) -> None: ...
    def plain(input: Any, context: OperationContext) -> None: ...

    class Callee:
        async def __call__(self, input: Any, context: OperationContext) -> None: ...

    assert Operation(spec=make(), handler=coroutine).threaded is False
    assert Operation(spec=make(), handler=Callee()).threaded is False
    assert Operation(spec=make(), handler=plain).threaded is True
    assert Operation(spec=make(), handler=plain, threaded=False).threaded is False


@pytest.mark.parametrize(
    ("original", "name"), [("get_repo", "get_repo"), ("get repo.v2", "get_repo_v2"), ("☃", "_"), ("", "_")]
)
def test_a_sources_name_is_mapped_and_kept(original: str, name: str) -> None:
    mapped, annotations = map_source_name(original)
    assert mapped == name
    assert make(name=mapped).name == name
    assert annotations == ({} if original == name else {"sourceName": original})
