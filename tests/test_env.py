import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    Identity,
    OperationContext,
    OperationRegistry,
    build_env,
    local_envelope,
    operation,
)
from operations.testing import Recorder, stub_operation


@operation(id="math.add")
async def add(a: int, b: int) -> int:
    return a + b


@operation(id="math.count")
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


def env_of(*operations: Any, **options: Any) -> Any:
    return build_env(OperationRegistry(operations), OperationContext(request_id="parent"), **options)


async def test_operations_are_attributes_and_items() -> None:
    env = env_of(add)
    assert (await env.math.add(a=1, b=2)).data == 3
    assert (await env["math"]["add"]({"a": 1, "b": 2})).data == 3
    assert (await env.math.add({"a": 1}, b=2)).data == 3
    assert (await env["math.add"](a=1, b=2)).data == 3


class Sum(msgspec.Struct):
    value: int


@operation(id="math.sum")
async def sum_of(context: OperationContext, a: int, b: int = 1) -> Sum:
    return Sum(a + b)


@operation(id="math.double")
async def double(context: OperationContext, a: int) -> int:
    return (await context.call(sum_of, a, b=a)).data.value


@operation(id="math.twice")
def twice(context: OperationContext, a: int) -> int:
    return int(context.env[sum_of](a=a, b=a).data.value)


async def test_a_function_is_called_with_its_arguments_and_gives_its_type() -> None:
    registry = OperationRegistry([sum_of, double, twice])
    assert (await registry.call(double, a=2)).data == 4
    assert (await registry.call(twice, a=2)).data == 4
    env = build_env(registry, OperationContext(request_id="parent"))
    assert (await env[sum_of](a=1)).data == Sum(2)
    assert (await env.math[sum_of](a=1)).data == Sum(2)


async def test_a_stream_of_a_function_gives_its_type() -> None:
    @operation(id="math.sums")
    async def sums() -> AsyncIterator[Sum]:
        yield Sum(1)

    assert [event.data async for event in env_of(sums)[sums]()] == [Sum(1)]


async def test_a_stream_of_a_function_that_only_the_bus_has_is_an_async_iterator() -> None:
    async def stream(operation_id: str, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        yield local_envelope(input["to"], operation_id)

    async def invoke(operation_id: str, input: Any, context: OperationContext) -> Any:
        return local_envelope({"value": input["a"]}, operation_id)

    env = env_of(invoke=invoke, stream=stream)
    assert [event.data async for event in env[count](to=2)] == [2]
    assert (await env[sum_of](a=1)).data == Sum(1)


async def test_a_call_of_a_function_checks_access_and_arguments() -> None:
    @operation(id="math.secret", access_control={"required_scopes": ["admin"]})
    async def secret(a: int) -> int:
        return a

    @operation(id="math.ask")
    async def ask(context: OperationContext) -> list[str]:
        codes = []
        for calling in (context.call(secret, 1), context.call(add, 1, 2, 3), context.call(count, 1)):  # type: ignore[call-overload]
            with pytest.raises(CallError) as caught:
                await calling
            codes.append(str(caught.value.code))
        return codes

    registry = OperationRegistry([secret, ask, add, count])
    context = OperationContext(identity=Identity(id="ada"))
    assert (await registry.execute("math.ask", {}, context)).data == [
        "ACCESS_DENIED",
        "VALIDATION_ERROR",
        "VALIDATION_ERROR",
    ]


async def test_a_function_that_the_registry_does_not_have_is_not_found() -> None:
    with pytest.raises(CallError, match=r"math\.sum"):
        await build_env(OperationRegistry([add]), OperationContext())[sum_of](a=1)
    with pytest.raises(CallError, match=r"env\.math\.sum: the context has no env"):
        await OperationContext().call(sum_of, a=1)


async def test_nested_calls_can_be_made_tasks() -> None:
    env = env_of(add)
    task = asyncio.create_task(env.math.add(a=1, b=2))
    assert (await task).data == 3


async def test_a_subscription_is_an_async_iterator() -> None:
    env = env_of(count)
    assert [event.data async for event in env.math.count(to=2)] == [0, 1]
    assert [event.data async for event in env.math.count.subscribe(to=2)] == [0, 1]


async def test_an_operation_may_be_called_subscribe() -> None:
    env = env_of(stub_operation("chat.subscribe", returns="called"), stub_operation("chat.subscribe.more.x", returns=1))
    assert (await env.chat.subscribe(room=1)).data == "called"


async def test_namespaces_may_be_deep() -> None:
    env = env_of(stub_operation("files.resources.read", returns="text"), stub_operation("files.resources", returns=[]))
    assert (await env.files.resources.read()).data == "text"
    assert (await env.files.resources()).data == []


async def test_attributes_map_dashes_if_unambiguous() -> None:
    env = env_of(
        stub_operation("git-hub.get-repo", returns=1),
        stub_operation("x.a-b_c", returns=2),
        stub_operation("x.a_b-c", returns=3),
    )
    assert (await env.git_hub.get_repo()).data == 1
    assert (await env["x"]["a-b_c"]()).data == 2
    with pytest.raises(CallError, match=r"it matches x\.a-b_c, x\.a_b-c"):
        env.x.a_b_c()


def test_missing_operations_are_not_found() -> None:
    with pytest.raises(CallError, match=r"did you mean math\.add") as caught:
        env_of(add).math.ad(a=1)
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND
    assert not hasattr(env_of(add), "__wrapped__")


def test_an_env_can_be_limited_to_namespaces() -> None:
    env = env_of(add, stub_operation("mathematics.add"), namespaces=["mathematics"])
    with pytest.raises(CallError, match="outside this env") as caught:
        env.math.add(a=1, b=1)
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND
    env.mathematics.add().close()


def test_completion_shows_candidates() -> None:
    env = env_of(add, count, stub_operation("git-hub.get-repo"))
    assert dir(env) == ["git_hub", "math"]
    assert dir(env.math) == ["add", "count"]
    assert dir(env.git_hub) == ["get_repo"]
    assert repr(env.math) == "<env math>"


async def test_nested_calls_are_linked_to_their_parent_and_inherit() -> None:
    @operation(id="a.outer")
    async def outer(context: OperationContext) -> Any:
        return (await context.env.a.middle()).data

    @operation(id="a.middle")
    async def middle(context: OperationContext) -> Any:
        return (await context.env.a.inner()).data

    recorder = Recorder()
    registry = OperationRegistry([outer, middle, stub_operation("a.inner", returns=1)], interceptors=[recorder])
    identity = Identity("u")
    await registry.execute("a.outer", {}, OperationContext(request_id="r", identity=identity, deadline=2**50))
    inner, mid, out = (call.context for call in recorder.calls)
    assert (out.request_id, out.parent_request_id) == ("r", None)
    assert mid.parent_request_id == "r"
    assert inner.parent_request_id == mid.request_id
    assert [context.identity for context in (inner, mid)] == [identity, identity]
    assert [context.deadline for context in (inner, mid)] == [2**50, 2**50]


@pytest.mark.parametrize("context", [None, OperationContext(metadata={"traceparent": "00-1-2-01"})])
async def test_a_nested_call_is_linked_to_a_call_that_was_made_without_a_request_id(
    context: OperationContext | None,
) -> None:
    seen: list[OperationContext] = []

    @operation("link.inner", type="query")
    async def inner(context: OperationContext) -> None:
        seen.append(context)

    @operation("link.outer", type="query")
    async def outer(context: OperationContext) -> None:
        seen.append(context)
        await context.env.link.inner()

    await OperationRegistry([inner, outer]).execute("link.outer", None, context)
    called, nested = seen
    assert called.request_id
    assert nested.parent_request_id == called.request_id
    assert nested.request_id != called.request_id
    assert nested.metadata == called.metadata


@operation(id="shop.open", access_control=AccessControl(required_scopes=["nobody"]))
async def open_shop(context: OperationContext) -> Any:
    return (await context.env.shop.secret()).data


@operation(id="shop.watch")
async def watch(context: OperationContext) -> AsyncIterator[Any]:
    async for event in context.env.shop.secrets():
        yield event.data


SECRET = stub_operation("shop.secret", returns="s", access_control=AccessControl(required_scopes=["spy"]))
SECRETS = stub_operation("shop.secrets", yields=["s"], access_control=AccessControl(required_scopes=["spy"]))


async def test_nested_calls_of_a_trusted_context_are_not_checked() -> None:
    registry = OperationRegistry([open_shop, watch, SECRET, SECRETS])
    assert (await registry.execute("shop.open")).data == "s"
    assert [event.data async for event in registry.subscribe("shop.watch")] == ["s"]


@pytest.mark.parametrize("context", [OperationContext(identity=Identity("u")), OperationContext(trusted=False)])
async def test_nested_calls_of_any_other_context_are_checked(context: OperationContext) -> None:
    registry = OperationRegistry([open_shop, watch, SECRET, SECRETS])
    with pytest.raises(CallError, match="missing scope spy") as caught:
        await registry.execute("shop.open", {}, context)
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    with pytest.raises(CallError, match="missing scope spy"):
        await anext(registry.subscribe("shop.watch", {}, context))


async def test_a_caller_with_the_scope_gets_through() -> None:
    registry = OperationRegistry([open_shop, watch, SECRET, SECRETS])
    context = OperationContext(identity=Identity("u", ["spy"]))
    assert (await registry.execute("shop.open", {}, context)).data == "s"
    assert [event.data async for event in registry.subscribe("shop.watch", {}, context)] == ["s"]


async def test_another_call_function_can_be_passed() -> None:
    called: list[Any] = []

    async def invoke(operation_id: str, input: Any, context: OperationContext) -> Any:
        called.append((operation_id, input, context.parent_request_id))
        return local_envelope("elsewhere", operation_id)

    async def stream(operation_id: str, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        yield local_envelope(operation_id, operation_id)

    env = env_of(add, count, invoke=invoke, stream=stream)
    assert (await env.far.away(x=1)).data == "elsewhere"
    assert (await env.math.add(a=1, b=2)).data == "elsewhere"
    assert [event.data async for event in env.math.count(to=9)] == ["math.count"]
    assert called == [("far.away", {"x": 1}, "parent"), ("math.add", {"a": 1, "b": 2}, "parent")]


async def test_an_input_need_not_be_a_mapping() -> None:
    env = env_of(stub_operation("a.b", returns=lambda input: input))
    assert (await env.a.b([1])).data == [1]
    assert (await env.a.b(0)).data == 0
    with pytest.raises(CallError, match="cannot be combined with keyword arguments"):
        env.a.b([1], x=1)


def test_an_env_can_be_looked_into() -> None:
    env = env_of(add, stub_operation("git-hub.get"), namespaces="math")
    assert list(env) == ["math"]
    assert "math" in env
    assert "git_hub" not in env
