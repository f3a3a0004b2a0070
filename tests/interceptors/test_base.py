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
    local_envelope,
    operation,
)
from operations.context import NO_ENV
from operations.interceptors import Invocation, Only, Proceed, Redact
from operations.testing import error_of, stub_operation


def tracer(log: list[str], name: str) -> Any:
    async def trace(invocation: Invocation, proceed: Proceed) -> Any:
        log.append(f"{name} before {invocation.spec.id}")
        try:
            return await proceed(invocation)
        finally:
            log.append(f"{name} after")

    return trace


def test_a_class_in_place_of_an_interceptor_is_refused() -> None:
    with pytest.raises(CallError, match=r"invalid interceptor Redact: expected an instance, such as Redact\(…\)"):
        OperationRegistry(interceptors=[Redact])  # type: ignore[list-item]


async def test_interceptors_run_in_order_around_the_call() -> None:
    log: list[str] = []
    registry = OperationRegistry(
        [stub_operation("a.b", returns=1)], interceptors=[tracer(log, "outer"), tracer(log, "inner")]
    )
    assert (await registry.execute("a.b")).data == 1
    assert log == ["outer before a.b", "inner before a.b", "inner after", "outer after"]


async def test_an_interceptor_may_return_its_own_result() -> None:
    async def cache(invocation: Invocation, proceed: Proceed) -> Any:
        return local_envelope("cached", invocation.spec.id)

    registry = OperationRegistry([stub_operation("a.b", raises=ValueError())], interceptors=[cache])
    assert (await registry.execute("a.b")).data == "cached"


async def test_an_interceptor_may_change_input_and_context() -> None:
    async def change(invocation: Invocation, proceed: Proceed) -> Any:
        context = msgspec.structs.replace(invocation.context, deadline=1)
        input = {"n": 5} if "n" not in invocation.input else invocation.input
        return await proceed(msgspec.structs.replace(invocation, input=input, context=context))

    registry = OperationRegistry([stub_operation("a.b", returns=lambda input: input)], interceptors=[change])
    assert (await error_of(registry.execute("a.b"))).code is ErrorCode.TIMEOUT


async def test_an_interceptor_may_retry() -> None:
    attempts: list[int] = []

    def flaky(input: Any) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("down")
        return "up"

    async def retry(invocation: Invocation, proceed: Proceed) -> Any:
        for _ in range(2):
            try:
                return await proceed(invocation)
            except CallError:
                pass
        return await proceed(invocation)

    registry = OperationRegistry([stub_operation("a.b", returns=flaky)], interceptors=[retry])
    assert (await registry.execute("a.b")).data == "up"


async def test_errors_pass_through_interceptors() -> None:
    log: list[str] = []
    registry = OperationRegistry(
        [stub_operation("a.b", raises=ValueError("x"), input_schema={"required": ["n"]})],
        interceptors=[tracer(log, "t")],
    )
    assert (await error_of(registry.execute("a.b"))).code is ErrorCode.VALIDATION_ERROR
    assert (await error_of(registry.execute("a.b", {"n": 1}))).code is ErrorCode.EXECUTION_ERROR
    assert log.count("t after") == 2


async def test_an_interceptor_sees_streams_and_may_wrap_them() -> None:
    async def double(invocation: Invocation, proceed: Proceed) -> Any:
        result = await proceed(invocation)
        assert invocation.streaming

        async def doubled() -> AsyncIterator[Any]:
            async for event in result:
                yield local_envelope(event.data * 2, invocation.spec.id)

        return doubled()

    registry = OperationRegistry([stub_operation("a.b", yields=[1, 2])], interceptors=[double])
    assert [event.data async for event in registry.subscribe("a.b")] == [2, 4]


async def test_an_interceptor_sees_a_complete_context() -> None:
    seen: list[OperationContext] = []

    async def look(invocation: Invocation, proceed: Proceed) -> Any:
        seen.append(invocation.context)
        return await proceed(invocation)

    registry = OperationRegistry([stub_operation("a.b")], interceptors=[look])
    await registry.execute("a.b")
    assert seen[0].request_id
    assert seen[0].env is not NO_ENV


async def test_an_identity_that_an_interceptor_sets_is_the_one_that_is_checked() -> None:
    @operation("l.read", access_control=AccessControl(required_scopes=["r"]))
    async def read() -> str:
        return "secret"

    @operation("l.total")
    async def total(context: OperationContext) -> Any:
        return (await context.env.l.read()).data

    async def authenticate(invocation: Invocation, proceed: Proceed) -> Any:
        if invocation.spec.id != "l.total":
            return await proceed(invocation)
        context = msgspec.structs.replace(invocation.context, identity=Identity("mallory"), deadline=2**50)
        return await proceed(msgspec.structs.replace(invocation, context=context))

    registry = OperationRegistry([read, total], interceptors=[authenticate])
    assert (await error_of(registry.execute("l.total"))).code is ErrorCode.ACCESS_DENIED


async def test_an_interceptor_that_fails_is_an_execution_error() -> None:
    async def fail(invocation: Invocation, proceed: Proceed) -> Any:
        raise ValueError("broken")

    registry = OperationRegistry([stub_operation("a.b"), stub_operation("a.s", yields=[])], interceptors=[fail])
    assert (await error_of(registry.execute("a.b"))).code is ErrorCode.EXECUTION_ERROR
    assert (await error_of(anext(registry.subscribe("a.s")))).code is ErrorCode.EXECUTION_ERROR
    outcomes = await registry.execute_many(["a.b", "a.b"])
    assert all(isinstance(outcome, CallError) for outcome in outcomes)


async def test_an_interceptor_that_returns_no_envelope_is_an_execution_error() -> None:
    async def answer(invocation: Invocation, proceed: Proceed) -> Any:
        return 5

    registry = OperationRegistry([stub_operation("a.b"), stub_operation("a.s", yields=[])], interceptors=[answer])
    assert "not an envelope" in (await error_of(registry.execute("a.b"))).message
    assert "not an async iterator" in (await error_of(anext(registry.subscribe("a.s")))).message


async def test_a_stream_may_be_wrapped_in_a_plain_iterator() -> None:
    class Plain:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return await anext(self.inner)

    async def wrap(invocation: Invocation, proceed: Proceed) -> Any:
        return Plain(await proceed(invocation))

    registry = OperationRegistry([stub_operation("a.b", yields=[1, 2])], interceptors=[wrap])
    assert [event.data async for event in registry.subscribe("a.b")] == [1, 2]


async def test_only_runs_for_the_operations_it_names() -> None:
    log: list[str] = []
    chosen = Only(tracer(log, "x"), ["a.*", "c.d"], exclude=["a.secret"], types=["query"])
    operations = [stub_operation(each, type="query") for each in ("a.b", "a.secret", "b.b", "c.d")]
    registry = OperationRegistry([*operations, stub_operation("a.change", type="mutation")], interceptors=[chosen])
    for spec in registry.list():
        await registry.execute(spec.id)
    assert [line.split()[-1] for line in log if "before" in line] == ["a.b", "c.d"]


async def test_the_choice_follows_a_changed_list_and_a_replaced_operation() -> None:
    log: list[str] = []
    registry = OperationRegistry([stub_operation("a.b", type="query")])
    registry.interceptors = (Only(tracer(log, "first"), types=["query"]),)
    await registry.execute("a.b")
    registry.register(stub_operation("a.b", type="mutation"), replace=True)
    await registry.execute("a.b")
    assert len(log) == 2
    registry.interceptors = (tracer(log, "second"),)
    await registry.execute("a.b")
    assert log[2:] == ["second before a.b", "second after"]


def test_a_string_is_not_a_list_of_patterns() -> None:
    with pytest.raises(ValueError, match="expected a list"):
        Only(tracer([], "x"), "a.*")


async def test_interceptor_errors_in_a_stream_are_translated() -> None:
    async def lazily(invocation: Invocation, proceed: Proceed) -> Any:
        async def items() -> AsyncIterator[Any]:
            raise KeyError("oops")
            yield

        return items()

    registry = OperationRegistry([stub_operation("a.b", yields=[1])], interceptors=[lazily])
    assert (await error_of(anext(registry.subscribe("a.b")))).code is ErrorCode.EXECUTION_ERROR
