"""Conventions of Python that the public interface follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import operations
from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
    ResponseEnvelope,
    build_env,
    mcp_envelope,
    operation,
    subscribe,
)
from operations.calls import CallHandler, PendingRequestMap
from operations.jobs import Jobs
from operations.pubsub.memory import MemoryTransport
from operations.testing import error_of


@operation(id="shop.quote", type="query")
async def quote(item: str, count: int = 1) -> str:
    return f"{count} {item}"


@operation(id="shop.whoami", type="query")
async def whoami(context: OperationContext, greeting: str) -> str:
    return f"{greeting}, {context.request_id != ''}"


@operation(id="shop.nap", type="query")
async def nap() -> None:
    await asyncio.sleep(60)


@operation(id="shop.count")
async def count() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@operation(id="shop.fail", type="query")
async def fail() -> ResponseEnvelope[Any]:
    return mcp_envelope(None, is_error=True, content=[{"type": "text", "text": "out of tea"}])


@pytest.fixture
def registry() -> OperationRegistry:
    return OperationRegistry([quote, whoami, nap, count, fail])


async def test_call_takes_the_arguments_of_the_function(registry: OperationRegistry) -> None:
    assert (await registry.call(quote, item="tea", count=2)).data == "2 tea"
    assert (await registry.call(quote, "tea")).data == "1 tea"
    assert (await registry.call(whoami, greeting="hello")).data == "hello, True"
    assert (await registry.call(whoami, "hello")).data == "hello, True"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("tea", 1, 2), {}, "at most 2 positional"),
        (("tea",), {"item": "milk"}, "twice"),
        ((), {"itme": "tea"}, "itme"),
    ],
)
async def test_wrong_arguments_of_a_call_are_a_validation_error(
    registry: OperationRegistry, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    error = await error_of(registry.call(quote, *args, **kwargs))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert message in str(error)


async def test_call_refuses_values_other_than_functions(registry: OperationRegistry) -> None:
    error = await error_of(registry.call("shop.quote", item="tea"))  # type: ignore[call-overload]
    assert "use execute" in str(error)


async def test_a_timeout_in_seconds_ends_a_call_and_a_stream(registry: OperationRegistry) -> None:
    assert (await error_of(registry.execute("shop.nap", timeout=0.05))).code is ErrorCode.TIMEOUT
    assert [item.data async for item in registry.subscribe("shop.count", timeout=30)] == [0, 1, 2]
    outcomes = await registry.execute_many(["shop.nap", "shop.nap"], timeout=0.05)
    assert [outcome.code for outcome in outcomes if isinstance(outcome, CallError)] == [ErrorCode.TIMEOUT] * 2


async def test_the_earlier_of_timeout_and_deadline_counts(registry: OperationRegistry) -> None:
    soon = OperationContext(deadline=int(time.time() * 1000) + 50)
    assert (await error_of(registry.execute("shop.nap", {}, soon, timeout=60))).code is ErrorCode.TIMEOUT
    late = OperationContext(deadline=int(time.time() * 1000) + 60_000)
    assert (await error_of(registry.execute("shop.nap", {}, late, timeout=0.05))).code is ErrorCode.TIMEOUT


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("nan")])
async def test_an_invalid_timeout_is_refused_immediately(registry: OperationRegistry, timeout: Any) -> None:
    error = await error_of(registry.execute("shop.quote", {"item": "tea"}, timeout=timeout))
    assert (error.code, "number of seconds" in str(error)) == (ErrorCode.VALIDATION_ERROR, True)


async def test_an_infinite_timeout_is_not_a_deadline_in_the_past(registry: OperationRegistry) -> None:
    assert (await registry.execute("shop.quote", {"item": "tea"}, timeout=float("inf"))).data == "1 tea"


async def test_a_deadline_in_seconds_is_explained(registry: OperationRegistry) -> None:
    context = OperationContext(deadline=time.time() + 5)  # type: ignore[arg-type]
    error = await error_of(registry.execute("shop.quote", {"item": "tea"}, context))
    assert (error.code, "timeout=" in str(error)) == (ErrorCode.VALIDATION_ERROR, True)


async def test_an_invalid_context_is_refused_immediately(registry: OperationRegistry) -> None:
    error = await error_of(registry.execute("shop.quote", {"item": "tea"}, {}))  # type: ignore[call-overload]
    assert (error.code, "OperationContext" in str(error)) == (ErrorCode.VALIDATION_ERROR, True)


@pytest.mark.parametrize("wrong", [{"id": "ann"}, "ann"])
async def test_an_identity_of_another_type_is_refused_where_it_is_passed(
    registry: OperationRegistry, wrong: Any
) -> None:
    context = OperationContext(identity=wrong)
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        await registry.execute("shop.quote", {"item": "tea"}, context)
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        await anext(registry.subscribe("shop.count", {"to": 1}, context))
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        build_env(registry, context)
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        registry.tools(identity=wrong)
    caller = PendingRequestMap(MemoryTransport())
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        await caller.call("shop.quote", {"item": "tea"}, identity=wrong)
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        caller.subscribe("shop.count", {"to": 1}, identity=wrong)
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        await Jobs(registry).submit("shop.quote", {"item": "tea"}, identity=wrong)


def test_an_env_of_another_value_than_a_context_is_refused(registry: OperationRegistry) -> None:
    wrong: Any = {"requestId": "1"}
    with pytest.raises(CallError, match=r"expected an OperationContext\(…\)"):
        build_env(registry, wrong)


async def test_the_function_subscribe_takes_a_timeout() -> None:
    @operation(id="shop.wait")
    async def wait() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    stream = subscribe(OperationRegistry([wait]), "shop.wait", timeout=0.5)
    assert (await anext(stream)).data == 1
    with pytest.raises(CallError) as raised:
        await anext(stream)
    assert raised.value.code is ErrorCode.TIMEOUT


async def test_a_worker_and_its_transport_are_closed_by_async_with(registry: OperationRegistry) -> None:
    async with MemoryTransport() as bus:
        caller = PendingRequestMap(bus.join())
        async with CallHandler(registry, bus) as handler:
            await handler.registered()
            assert (await caller.call("shop.quote", {"item": "tea"})).data == "1 tea"
        assert (await error_of(caller.call("shop.quote", {"item": "tea"}))).code is ErrorCode.UNAVAILABLE
        heard: list[bytes] = []
        bus.listen("shop.news", lambda message, _: heard.append(message))
    other, received = bus.join(), asyncio.Event()
    other.listen("shop.news", lambda message, _: received.set())
    other.send("shop.news", b"closed")
    async with asyncio.timeout(10):
        await received.wait()
    assert heard == []


async def test_an_error_result_is_raised_if_configured(registry: OperationRegistry) -> None:
    assert (await registry.execute("shop.fail")).meta.to_dict()["isError"]
    assert (await error_of(registry.execute("shop.fail", raise_on_error=True))).message == "out of tea"
    raising = OperationRegistry([fail], raise_on_error=True)
    assert (await error_of(raising.execute("shop.fail"))).code is ErrorCode.EXECUTION_ERROR
    assert (await raising.execute("shop.fail", raise_on_error=False)).data is None


async def test_a_registry_is_read_like_a_mapping_and_closed_like_a_file(registry: OperationRegistry) -> None:
    async with registry:
        assert list(registry) == ["shop.count", "shop.fail", "shop.nap", "shop.quote", "shop.whoami"]
        assert registry["shop.quote"] is quote
        with pytest.raises(CallError, match=r"did you mean shop\.quote"):
            registry["shop.quot"]


@pytest.mark.parametrize("names", [("required_scopes", "resource_type"), ("requiredScopes", "resourceType")])
def test_access_control_is_taken_from_a_mapping(names: tuple[str, str]) -> None:
    scopes, kind = names
    given: Any = {scopes: ["admin"], kind: "doc"}
    spec = OperationSpec(name="a", namespace="b", type=OperationType.QUERY, access_control=given)
    assert spec.access_control == AccessControl(required_scopes=["admin"], resource_type="doc")

    @operation(id="a.b", access_control=given)
    async def guarded() -> None: ...

    assert guarded.spec.access_control == spec.access_control


@pytest.mark.parametrize(
    "given", [{"scopes": ["admin"]}, {"required_scopes": "admin"}, {"required_scopes": [1]}, "admin", ["admin"], 1]
)
def test_unreadable_access_control_is_refused_immediately(given: Any) -> None:
    with pytest.raises(CallError) as caught:
        OperationSpec(name="a", namespace="b", type=OperationType.QUERY, access_control=given)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_a_type_given_as_a_schema_is_taken_as_that_type() -> None:
    given: Any = int
    spec = OperationSpec(name="a", namespace="b", type=OperationType.QUERY, output_schema=given)
    assert spec.output_schema.check(1)
    assert not spec.output_schema.check("x")


async def test_an_async_generator_given_as_handler_is_the_stream() -> None:
    async def numbers(value: Any, context: OperationContext) -> AsyncIterator[int]:
        yield 1

    spec = OperationSpec(name="numbers", namespace="a", type=OperationType.SUBSCRIPTION)
    registry = OperationRegistry([Operation(spec=spec, handler=numbers)])
    assert [item.data async for item in registry.subscribe("a.numbers")] == [1]


async def test_a_plain_function_calls_others_and_waits(registry: OperationRegistry) -> None:
    @operation(id="shop.offer")
    def offer(item: str, context: OperationContext) -> list[Any]:
        quoted = context.env.shop.quote(item=item)
        numbers = [item.data for item in context.env.shop.count()]
        return [quoted.data, numbers, "quote" in context.env.shop]

    registry.register(offer)
    assert (await registry.execute("shop.offer", {"item": "tea"})).data == ["1 tea", [0, 1, 2], True]


async def test_a_stream_that_a_plain_function_leaves_is_closed() -> None:
    closed = asyncio.Event()

    @operation(id="shop.follow")
    async def follow() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            closed.set()

    @operation(id="shop.first")
    def first(context: OperationContext) -> int:
        stream = context.env.shop.follow()
        for item in stream:
            stream.close()
            return int(item.data)
        return -1

    registry = OperationRegistry([follow, first])
    assert (await registry.execute("shop.first")).data == 0
    assert closed.is_set()


async def test_plain_functions_that_wait_for_each_other_never_run_out_of_threads() -> None:
    @operation(id="shop.deep")
    def deep(level: int, context: OperationContext) -> int:
        return 0 if level == 0 else context.env.shop.deep(level=level - 1).data + 1

    async with OperationRegistry([deep], threads=2) as registry:
        results = await asyncio.gather(*(registry.execute("shop.deep", {"level": 4}, timeout=30) for _ in range(8)))
        assert [result.data for result in results] == [4] * 8
        error = await error_of(registry.execute("shop.deep", {"level": 40}, timeout=30))
        assert "levels deep" in str(error)


def test_the_version_matches_the_package_metadata() -> None:
    from importlib.metadata import version

    assert operations.__version__ == version("operations")


def test_completion_on_a_registry_offers_what_programs_use() -> None:
    offered = set(dir(OperationRegistry()))
    assert {"call", "execute", "subscribe", "register", "search", "tools"} <= offered
    assert offered.isdisjoint({"run", "run_stream", "execute_nested", "subscribe_nested", "find_under", "wheel"})
