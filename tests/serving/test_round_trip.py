"""Round trip: what a registry serves and imports from its own document equals what it executes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from operations import (
    CallError,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
    mcp_envelope,
    operation,
)
from operations.envelope import HTTPResponseMeta
from operations.exports.definitions import hoist
from operations.schema import Schema
from operations.serving import app
from operations.serving.http.path_items import plain_schema
from operations.sources.openapi import APIOperations, HTTPServiceConfig, from_openapi_url
from tests.asgi_server import serving
from tests.serving.clients import shop

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}


class Type(NamedTuple):
    """A schema and the values that fit it."""

    schema: dict[str, Any]
    values: SearchStrategy[Any]
    is_json: bool = True
    """Whether JSON can express its values without marks."""


SCALARS = [
    Type({"type": "integer"}, st.integers(-(2**70), 2**70)),
    Type({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)),
    Type({"type": "boolean"}, st.booleans()),
    Type({"type": "null"}, st.none()),
    Type({"type": "string"}, TEXT),
    Type({"type": "string", "contentEncoding": "base64"}, st.binary(max_size=8), is_json=False),
    Type({"enum": ["a", 1, None, True]}, st.sampled_from(["a", 1, None, True])),
    Type({"enum": ["red", "ünïcode", "blue sky"]}, st.sampled_from(["red", "ünïcode", "blue sky"])),
    Type({"type": ["integer", "null"]}, st.none() | st.integers(-5, 5)),
    Type({"$ref": "#/$defs/Node"}, st.recursive(
        st.integers(-5, 5).map(lambda value: {"value": value}),
        lambda nodes: st.tuples(st.integers(-5, 5), nodes).map(lambda pair: {"value": pair[0], "next": pair[1]}),
        max_leaves=4,
    )),
]  # fmt: skip


def arrays(item: Type) -> Type:
    return Type({"type": "array", "items": item.schema}, st.lists(item.values, max_size=3), item.is_json)


def maps(item: Type) -> Type:
    schema = {"type": "object", "additionalProperties": item.schema}
    return Type(schema, st.dictionaries(TEXT, item.values, max_size=3), item.is_json)


def unions(types: list[Type]) -> Type:
    # One branch for each JSON type, so that the branch of a value is unambiguous.
    apart: dict[str, Type] = {}
    for each in types:
        kind = each.schema.get("type")
        if isinstance(kind, str) and (each.is_json or len(types) == 1):
            apart["integer" if kind == "number" else kind] = each
    chosen = list(apart.values()) or types[:1]
    schema = {"anyOf": [each.schema for each in chosen]}
    return Type(schema, st.one_of(*(each.values for each in chosen)), all(each.is_json for each in chosen))


def objects(members: dict[str, Type]) -> Type:
    schema = {
        "type": "object",
        "properties": {name: each.schema for name, each in members.items()},
        "required": list(members),
        "additionalProperties": False,
    }
    values = st.fixed_dictionaries({name: each.values for name, each in members.items()})
    return Type(schema, values, all(each.is_json for each in members.values()))


TYPES: SearchStrategy[Type] = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(arrays),
        inner.map(maps),
        st.lists(inner, min_size=1, max_size=3).map(unions),
        st.dictionaries(TEXT, inner, max_size=3).map(objects),
    ),
    max_leaves=5,
)
SEGMENT = st.text("abcXYZ019_-", min_size=1, max_size=5)
NAMES = st.lists(SEGMENT, min_size=1, max_size=2).map(".".join)
PATHS = st.one_of(st.lists(SEGMENT, min_size=1, max_size=3).map("/".join), st.sampled_from(["/a", "a//b", "b/", "/"]))


class Case(NamedTuple):
    """An operation that returns its input's values, and an input for it."""

    operation: Operation[Any]
    input: dict[str, Any]
    is_json: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(OperationType))
    chosen = draw(TYPES)
    values = draw(st.lists(chosen.values, min_size=1, max_size=3))
    fails = draw(st.sampled_from([None, "SOLD_OUT", "not a word!"]))
    definitions = {"Node": NODE}
    several = {"type": "array", "items": chosen.schema}
    spec = OperationSpec(
        namespace=draw(NAMES),
        name=draw(PATHS),
        type=kind,
        description=draw(TEXT),
        title=draw(st.none() | TEXT.filter(bool)),
        tags=draw(st.lists(TEXT, max_size=2)),
        annotations=draw(st.dictionaries(SEGMENT, TEXT, max_size=2)),
        input_schema={
            "type": "object",
            "properties": {"value": chosen.schema, "several": several},
            "required": ["value", "several"],
            "additionalProperties": False,
            "$defs": definitions,
        },  # type: ignore[arg-type]
        output_schema={**chosen.schema, "$defs": definitions},  # type: ignore[arg-type]
        error_schemas={} if fails is None else {fails: {"type": "object", "x-http-status": 404}},  # type: ignore[dict-item]
        output_policy=draw(st.sampled_from([None, "cast", "strict", "off"])),
        durable=draw(st.booleans()),
    )

    async def handle(input: Any, context: OperationContext) -> Any:
        if fails is not None:
            raise CallError(fails, "on purpose", {"value": 1})
        return input["value"]

    async def stream(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        for value in input["several"]:
            yield value
        if fails is not None:
            raise CallError(fails, "on purpose", {"value": 1})

    streams = kind is OperationType.SUBSCRIPTION
    made: Operation[Any] = Operation(spec=spec, handler=None if streams else handle, stream=stream if streams else None)
    return Case(made, {"value": values[0], "several": values}, chosen.is_json)


class Outcome(NamedTuple):
    """The outcome of a call or a stream: its data, and the code and details of its error."""

    data: list[Any]
    code: str | None = None
    details: Any = None


async def outcome_of(registry: OperationRegistry, operation: Operation[Any], input: Any) -> Outcome:
    data: list[Any] = []
    try:
        if operation.handler is not None:
            data.append((await registry.execute(operation.id, input)).data)
        else:
            async for envelope in registry.subscribe(operation.id, input):
                meta = envelope.meta
                event = meta.event if isinstance(meta, HTTPResponseMeta) else None
                if event is None or not event.type.startswith("operations."):
                    data.append(envelope.data)
                elif event.type == "operations.problem":
                    raise CallError(envelope.data["code"], "", envelope.data["details"])
    except CallError as error:
        if isinstance(error.details, dict) and isinstance(error.details.get("body"), dict):
            problem = error.details["body"]  # the error details of a foreign API
            return Outcome(data, problem["code"], problem["details"])
        return Outcome(data, str(error.code), error.details)
    return Outcome(data)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[OperationRegistry, str]]:
    registry = OperationRegistry()
    with serving(app(registry), lifespan="on") as url:
        yield registry, f"{url}/openapi.json"


def exactly(value: Any) -> str:
    """A value as text, in which 1, 1.0 and True differ."""
    return repr(value)


def as_json(value: Any) -> Any:
    """A value with its numbers as JSON has them, where 1 and 1.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: as_json(member) for key, member in value.items()}
    return [as_json(member) for member in value] if isinstance(value, (list, tuple)) else value


async def imported(url: str, *, own: bool) -> APIOperations:
    return await from_openapi_url(url, HTTPServiceConfig(namespace=None if own else "foreign"), own=own)


def same_schema(one: Schema, other: Schema) -> bool:
    """Whether two schemas are equal, apart from the location of their definitions."""

    def normal(schema: Schema) -> Any:
        hoisted = hoist(schema.document, "root", with_root=True)
        return hoisted.schema(str, plain_schema), {
            key: each.schema(str, plain_schema) for key, each in hoisted.definitions.items()
        }

    return exactly(normal(one)) == exactly(normal(other))


async def check_own(registry: OperationRegistry, url: str, chosen: dict[str, Case]) -> None:
    operations = await imported(url, own=True)
    try:
        assert operations.diagnostics() == {}
        assert {operation.id for operation in operations} == chosen.keys()
        far = OperationRegistry(operations)
        for operation in operations:
            case = chosen[operation.id]
            near = await outcome_of(registry, case.operation, case.input)
            assert exactly(await outcome_of(far, operation, case.input)) == exactly(near)
            ours, theirs = case.operation.spec, operation.spec
            schemas = {"inputSchema", "outputSchema", "errorSchemas"}
            ours_told, theirs_told = ours.to_dict(), theirs.to_dict()
            assert {key: ours_told[key] for key in ours_told.keys() - schemas} == {
                key: theirs_told[key] for key in theirs_told.keys() - schemas
            }
            assert same_schema(ours.input_schema, theirs.input_schema)
            assert same_schema(ours.output_schema, theirs.output_schema)
            assert ours.error_schemas.keys() == theirs.error_schemas.keys()
    finally:
        await operations.close()


async def check_foreign(registry: OperationRegistry, url: str, chosen: dict[str, Case]) -> None:
    operations = await imported(url, own=False)
    try:
        far = OperationRegistry(operations)
        called = set()
        for operation in operations:
            annotations = operation.spec.annotations
            case = chosen[annotations.get("sourceName", operation.spec.name).removesuffix(":get")]
            # Other clients see bytes as base64 text, and a query string has neither null nor an empty list.
            if not case.is_json:
                continue
            says_null = case.input["value"] is None or not operation.spec.input_schema.check(case.input)
            if annotations["method"] == "GET" and says_null:
                continue
            near = await outcome_of(registry, case.operation, case.input)
            got = await outcome_of(far, operation, case.input)
            assert exactly(as_json(got)) == exactly(as_json(near))
            called.add(case.operation.id)
        assert called == {each for each, case in chosen.items() if case.is_json}
    finally:
        await operations.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(cases(), min_size=1, max_size=4, unique_by=lambda case: case.operation.id))
def test_imports_equal_the_registry(served: tuple[OperationRegistry, str], made: list[Case]) -> None:
    registry, url = served
    for operation_id in list(registry.operations):
        registry.unregister(operation_id)
    chosen = {case.operation.id: case for case in made}
    registry.register_all(case.operation for case in made)

    async def check() -> None:
        await check_own(registry, url, chosen)
        await check_foreign(registry, url, chosen)

    asyncio.run(check())


@operation(namespace="tools", type="query")
async def refuse(reason: str) -> Any:
    return mcp_envelope(
        [{"type": "text", "text": reason}], is_error=True, content=[{"type": "text", "text": reason}, PICTURE]
    )


@operation(namespace="tools", type="query")
async def draw(size: int) -> Any:
    return mcp_envelope({"size": size}, content=[PICTURE], structured_content={"size": size}, extensions={"a/b": 1})


PICTURE = {"type": "image", "data": "AAEC", "mimeType": "image/png", "annotations": {"priority": 0.5}}
CALLS = [
    ("shop.find", {"name": "chair", "colours": ["red"]}),
    ("shop.find:get", {"name": "chair", "limit": 1}),
    ("shop.buy", {"item": 1}),
    ("shop.buy", {"item": 0}),
    ("shop.trees.grow/once", {"tree": {"value": 1}}),
    ("files.load", {"size": 2}),
    ("shop.ping", {}),
    ("shop.anything", {"value": None}),
]
VOLATILE = ("date", "operations-request-id", "operations-timestamp")


async def whole(registry: OperationRegistry, operation_id: str, input: Any) -> Any:
    """Data and meta of a call, or code and status of its error, without the parts that differ each time."""
    try:
        envelope = (await registry.execute(operation_id, input)).to_dict()
    except CallError as error:
        return error.code, error.details["statusCode"], error.details["body"]["code"]
    envelope["meta"].pop("timestamp", None)
    for name in VOLATILE:
        envelope["meta"].get("headers", {}).pop(name, None)
    return envelope


async def items(registry: OperationRegistry, operation_id: str, input: Any) -> Any:
    """Data and event types of a stream."""
    found = []
    async for envelope in registry.subscribe(operation_id, input):
        assert isinstance(envelope.meta, HTTPResponseMeta)
        assert envelope.meta.event is not None
        found.append((envelope.data, envelope.meta.event.type))
    return found


async def test_operations_of_apis_and_mcp_servers_come_back_with_their_meta() -> None:
    with serving(app(shop.registry()), lifespan="on") as api:
        foreign = await from_openapi_url(f"{api}/openapi.json", HTTPServiceConfig(namespace="api"), own=False)
        names = {each.spec.annotations["sourceName"]: each.id for each in foreign}
        near = OperationRegistry([*foreign, refuse, draw])
        with serving(app(near), lifespan="on") as url:
            own = await imported(f"{url}/openapi.json", own=True)
            far = OperationRegistry(own)
            assert far.operations.keys() == near.operations.keys()
            calls = [(names[name], input) for name, input in CALLS]
            for operation_id, input in [*calls, ("tools.refuse", {"reason": "no"}), ("tools.draw", {"size": 3})]:
                here, there = await whole(near, operation_id, input), await whole(far, operation_id, input)
                assert exactly(there) == exactly(here), operation_id
            # With own=False, the last event of the protocol is an item of the stream.
            here, there = [await items(registry, names["shop.watch"], {"item": 1}) for registry in (near, far)]
            assert len(here) == 4
            assert exactly(there) == exactly(here)
            await own.close()
        await foreign.close()


@operation("far.bake")
async def bake(context: OperationContext, fails: bool = False) -> str:
    """Report progress."""
    for step in (1, 2):
        if context.progress is not None:
            context.progress(step, 2, f"step {step}")
    if fails:
        raise CallError("BURNT", "black")
    return "bread"


async def test_progress_of_a_call_reaches_the_importing_registry() -> None:
    with serving(app(OperationRegistry([bake])), lifespan="on") as url:
        async with await from_openapi_url(f"{url}/openapi.json", HTTPServiceConfig(namespace=None)) as remote:
            registry = OperationRegistry(remote)
            seen: list[Any] = []
            context = OperationContext(progress=lambda *report: seen.append(report))
            assert (await registry.execute("far.bake", {}, context)).data == "bread"
            assert seen == [(1, 2, "step 1"), (2, 2, "step 2")]
            with pytest.raises(CallError) as failed:
                await registry.execute("far.bake", {"fails": True}, context)
            assert failed.value.code == "BURNT"
            assert (await registry.execute("far.bake", {})).data == "bread"
