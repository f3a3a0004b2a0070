"""Our own MCP endpoint, imported: every operation gives the result of `execute`, in both protocol versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from operations import Operation, OperationContext, OperationRegistry, OperationSpec, operation
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from operations.spec import OperationType
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.strategies import envelopes, json_values

ERAS = pytest.mark.parametrize("protocol", ["legacy", "2026-07-28"])


class Tree(TypedDict):
    value: int
    children: list[Tree]


TYPES: dict[str, Any] = {
    "integer": int,
    "text": str,
    "binary": bytes,
    "nothing": None,
    "truth": bool,
    "fraction": float,
    "binaries": list[bytes],
    "mapping": dict[str, int],
    "optional": int | None,
    "union": int | str | list[str],
    "choice": Literal["a", "b", 3],
    "tree": Tree,
    "trees": list[Tree],
    "named/with/slashes": dict[str, bytes],
}


def echo(name: str, kind: Any) -> Operation[Any]:
    async def function(value: Any) -> Any:
        return value

    function.__annotations__ = {"value": kind, "return": kind}
    return operation(id=f"types.{name}", type="query")(function)


@asynccontextmanager
async def imported(registry: OperationRegistry, protocol: str) -> AsyncIterator[OperationRegistry]:
    """A registry of what our endpoint of `registry` offers."""
    async with serve_endpoint(registry) as (url, _):
        client = await create_mcp_client("far", MCPClientConfig(url=url, protocol=protocol))
        async with client:
            there = OperationRegistry()
            client.register_all(there)
            yield there


async def in_thread(check: Callable[..., None]) -> None:
    await asyncio.to_thread(check)


async def outcome(registry: OperationRegistry, operation_id: str, value: Any) -> tuple[str, Any]:
    try:
        return "data", (await registry.execute(operation_id, value)).data
    except CallError as error:
        return "error", str(error.code)


def finite(kind: Any) -> st.SearchStrategy[Any]:
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind is str:
        return st.text(st.characters(exclude_categories=["Cs"]))
    return st.from_type(type(None) if kind is None else kind)


@ERAS
@pytest.mark.timeout(300)
async def test_generated_operations_give_the_same_data(protocol: str) -> None:
    here = OperationRegistry([echo(name, kind) for name, kind in TYPES.items()])
    async with imported(here, protocol) as there:
        loop = asyncio.get_running_loop()

        async def compare(name: str, value: Any) -> None:
            given = {"value": value}
            assert await outcome(there, f"far.types.{name}", given) == await outcome(here, f"types.{name}", given)

        @settings(max_examples=150, deadline=None)
        @given(st.sampled_from(sorted(TYPES)).flatmap(lambda name: st.tuples(st.just(name), _values(name))))
        def check(drawn: tuple[str, Any]) -> None:
            asyncio.run_coroutine_threadsafe(compare(*drawn), loop).result(30)

        await in_thread(check)


def _values(name: str) -> st.SearchStrategy[Any]:
    kind = TYPES[name]
    if kind in (Tree, list[Tree]):
        tree: st.SearchStrategy[Any] = st.recursive(
            st.builds(lambda value: {"value": value, "children": []}, st.integers()),
            lambda below: st.builds(
                lambda value, children: {"value": value, "children": children}, st.integers(), st.lists(below)
            ),
        )
        return tree if kind is Tree else st.lists(tree)
    # Values of other types as well: the error is the same.
    return finite(kind) | json_values


@ERAS
@pytest.mark.timeout(300)
async def test_any_envelope_arrives_as_it_is(protocol: str) -> None:
    held: list[ResponseEnvelope[Any]] = []

    async def give(input: Any, context: OperationContext) -> Any:
        return held[-1]

    spec = OperationSpec(name="give", namespace="held", type=OperationType.QUERY)
    here = OperationRegistry([Operation(spec=spec, handler=give, dump=None)])
    async with imported(here, protocol) as there:
        loop = asyncio.get_running_loop()

        async def compare(envelope: ResponseEnvelope[Any]) -> None:
            held.append(envelope)
            assert await there.execute("far.held.give") == await here.execute("held.give") == envelope

        @settings(max_examples=150, deadline=None)
        @given(envelopes)
        def check(envelope: ResponseEnvelope[Any]) -> None:
            asyncio.run_coroutine_threadsafe(compare(envelope), loop).result(30)

        await in_thread(check)


@ERAS
async def test_inputs_that_are_not_objects_arrive_unchanged(protocol: str) -> None:
    async def give(input: Any, context: OperationContext) -> Any:
        return input

    document: Any = {
        "anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": ["string", "integer", "null"]}],
        "description": "nested lists",
    }
    spec = OperationSpec(
        name="give",
        namespace="any",
        type=OperationType.QUERY,
        input_schema=document,
        output_schema=document,
    )
    here = OperationRegistry([Operation(spec=spec, handler=give)])
    async with imported(here, protocol) as there:
        for value in ([], ["a", [1, ["b"]]], 5, "text", [b"bytes"]):
            assert await outcome(there, "far.any.give", value) == await outcome(here, "any.give", value)
        assert (await outcome(there, "far.any.give", {"input": 5}))[0] == "error"


@ERAS
async def test_errors_have_their_code_and_details(protocol: str) -> None:
    @operation("fail.domain", error_schemas={"OUT_OF_STOCK": {"type": "object"}})
    async def domain() -> int:
        raise CallError("OUT_OF_STOCK", "no tea", {"left": 0})

    @operation("fail.unexpected")
    async def unexpected() -> int:
        raise ValueError("a secret")

    here = OperationRegistry([domain, unexpected])
    async with imported(here, protocol) as there:
        with pytest.raises(CallError) as raised:
            await there.execute("far.fail.domain")
        assert (raised.value.code, raised.value.message, raised.value.details) == (
            "OUT_OF_STOCK",
            "no tea",
            {"left": 0},
        )
        with pytest.raises(CallError) as raised:
            await there.execute("far.fail.unexpected")
        assert raised.value.code == "EXECUTION_ERROR"
        assert "secret" not in str(raised.value)


@ERAS
async def test_streams_give_every_item_and_their_error(protocol: str) -> None:
    @operation("events.count")
    async def count(to: int, fail: bool = False) -> AsyncIterator[bytes]:
        for number in range(to):
            yield str(number).encode()
        if fail:
            raise CallError("STOPPED", "enough")

    here = OperationRegistry([count])
    async with imported(here, protocol) as there:
        items = [envelope.data async for envelope in there.subscribe("far.events.count", {"to": 300})]
        assert items == [str(number).encode() for number in range(300)]
        with pytest.raises(CallError) as raised:
            async for _ in there.subscribe("far.events.count", {"to": 2, "fail": True}):
                pass
        assert raised.value.code == "STOPPED"


@ERAS
async def test_specs_arrive(protocol: str) -> None:
    here = OperationRegistry([echo(name, kind) for name, kind in TYPES.items()])
    async with imported(here, protocol) as there:
        for spec in here.list():
            far = there.get_spec(f"far.{spec.id}")
            assert far is not None
            assert (far.type, far.version, far.input_schema) == (spec.type, spec.version, spec.input_schema)
            if not spec.output_schema.is_unknown:
                assert far.output_schema == spec.output_schema
