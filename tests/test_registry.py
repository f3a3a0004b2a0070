import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from datetime import date
from typing import Any

import pytest

from operations import (
    CallError,
    ErrorCode,
    Identity,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
    from_schema,
    operation,
    subscribe,
)
from operations.context import NO_ENV
from operations.testing import error_of, stub_operation
from tests.waiting import until


def registry_of(handler: Any, **declared: Any) -> OperationRegistry:
    spec = OperationSpec(**{"namespace": "t", "name": "op", "type": OperationType.QUERY} | declared)
    return OperationRegistry([Operation(spec=spec, handler=handler)])


def within(milliseconds: int) -> OperationContext:
    return OperationContext(deadline=int(time.time() * 1000) + milliseconds)


async def test_a_raw_handler_gets_input_and_a_complete_context() -> None:
    seen: list[Any] = []

    async def handler(input: Any, context: OperationContext) -> None:
        seen.extend([input, context.request_id, context.env])

    registry = registry_of(handler)
    await registry.execute("t.op")
    assert seen[0] == {}
    assert seen[1]
    assert seen[2] is not NO_ENV


async def test_execute_is_trusted_and_checks_no_scopes() -> None:
    from operations import AccessControl

    secret = stub_operation("t.op", returns=1, access_control=AccessControl(required_scopes=["spy"]))
    registry = OperationRegistry([secret])
    assert (await registry.execute("t.op", {}, OperationContext(identity=Identity("u")))).data == 1


async def test_an_input_that_is_not_json_is_accepted_if_its_json_form_is_valid() -> None:
    schema = from_schema({"type": "object", "properties": {"on": {"type": "string"}, "ids": {"type": "array"}}})
    registry = OperationRegistry([stub_operation("t.op", returns=lambda input: input, input_schema=schema)])
    envelope = await registry.execute("t.op", {"on": date(2024, 1, 1), "ids": (1, 2)})
    assert envelope.data == {"on": "2024-01-01", "ids": [1, 2]}


async def test_an_input_that_cannot_be_json_is_an_error_of_the_caller() -> None:
    registry = OperationRegistry([stub_operation("t.op", input_schema={"type": "object", "required": ["a"]})])
    error = await error_of(registry.execute("t.op", {"b": object()}))
    assert error.code is ErrorCode.VALIDATION_ERROR


async def test_a_handlers_exception_is_an_execution_error_with_its_cause() -> None:
    async def handler(input: Any, context: OperationContext) -> None:
        raise KeyError("missing")

    error = await error_of(registry_of(handler).execute("t.op"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message == "t.op: KeyError: 'missing'"
    assert error.details == {"type": "KeyError"}
    assert isinstance(error.__cause__, KeyError)


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Exception("x"), ErrorCode.EXECUTION_ERROR),
        (BrokenError(), ErrorCode.EXECUTION_ERROR),
        (asyncio.CancelledError(), ErrorCode.ABORTED),
        (SystemExit(3), ErrorCode.EXECUTION_ERROR),
        (StopIteration(), ErrorCode.EXECUTION_ERROR),
        (StopAsyncIteration(), ErrorCode.EXECUTION_ERROR),
        (TimeoutError(), ErrorCode.EXECUTION_ERROR),
        (RecursionError(), ErrorCode.EXECUTION_ERROR),
        (ExceptionGroup("g", [ValueError()]), ErrorCode.EXECUTION_ERROR),
        (CallError("INVENTORY_EMPTY", "none left"), "INVENTORY_EMPTY"),
        (CallError(ErrorCode.UNAVAILABLE, "gone"), ErrorCode.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("deadline", [None, 2**50])
@pytest.mark.parametrize("threaded", [False, True])
async def test_any_exception_of_a_handler_has_a_defined_outcome(
    raised: BaseException, code: str, deadline: int | None, threaded: bool
) -> None:
    async def coroutine(input: Any, context: OperationContext) -> None:
        raise raised

    def plain(input: Any, context: OperationContext) -> None:
        raise raised

    registry = registry_of(plain if threaded else coroutine)
    context = OperationContext(deadline=deadline)
    error = await error_of(registry.execute("t.op", {}, context))
    assert error.code == code
    assert (await OperationRegistry([stub_operation("a.b", returns=1)]).execute("a.b")).data == 1


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"next": value}
    return value


TREE = {"type": ["object", "integer"], "properties": {"next": {"$ref": "#"}}}


@pytest.mark.parametrize("output_schema", [True, {"type": "object"}, TREE])
@pytest.mark.parametrize("result", [object(), {"a": [object()]}, nested(100_000), lambda: 1], ids=range(4))
async def test_a_result_that_is_not_json_is_an_execution_error(result: Any, output_schema: Any) -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        return result

    error = await error_of(registry_of(handler, output_schema=from_schema(output_schema)).execute("t.op"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "t.op" in error.message


async def test_a_source_whose_results_are_json_is_not_walked() -> None:
    deep = nested(100_000)

    async def handler(input: Any, context: OperationContext) -> Any:
        return deep

    spec = OperationSpec(
        namespace="t", name="op", type=OperationType.QUERY, output_schema=from_schema({"type": "object"})
    )
    registry = OperationRegistry([Operation(spec=spec, handler=handler, dump=None)])
    envelope = await registry.execute("t.op")
    assert envelope.data is deep
    with pytest.raises(CallError, match="nested too deeply"):
        envelope.to_json()


async def test_a_deadline_that_has_passed_never_runs_the_handler() -> None:
    ran: list[int] = []

    async def handler(input: Any, context: OperationContext) -> None:
        ran.append(1)

    error = await error_of(registry_of(handler).execute("t.op", {}, within(-1)))
    assert error.code is ErrorCode.TIMEOUT
    assert ran == []


async def test_a_deadline_that_passes_cancels_the_handler() -> None:
    cleaned = asyncio.Event()

    async def handler(input: Any, context: OperationContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    registry = registry_of(handler)
    error = await error_of(registry.execute("t.op", {}, within(20)))
    assert error.code is ErrorCode.TIMEOUT
    assert cleaned.is_set()
    assert registry.abandoned == 0


async def test_a_deadline_reaches_nested_calls() -> None:
    cancelled: list[str] = []

    @operation(id="t.inner")
    async def inner() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("inner")
            raise

    @operation(id="t.outer")
    async def outer(context: OperationContext) -> None:
        await context.env.t.inner()

    registry = OperationRegistry([inner, outer])
    assert (await error_of(registry.execute(outer, {}, within(20)))).code is ErrorCode.TIMEOUT
    assert cancelled == ["inner"]


async def test_a_handler_that_ignores_its_cancellation_is_left_and_counted() -> None:
    release = asyncio.Event()

    async def handler(input: Any, context: OperationContext) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    registry = registry_of(handler)
    assert (await error_of(registry.execute("t.op", {}, within(20)))).code is ErrorCode.TIMEOUT
    assert registry.abandoned == 1
    release.set()
    await until(lambda: registry.abandoned == 0)


async def test_a_thread_past_its_deadline_is_left_and_counted() -> None:
    import threading

    release = threading.Event()

    def handler(input: Any, context: OperationContext) -> str:
        release.wait(30)
        return "late"

    registry = registry_of(handler)
    assert (await error_of(registry.execute("t.op", {}, within(20)))).code is ErrorCode.TIMEOUT
    assert registry.abandoned == 1
    release.set()
    await until(lambda: registry.abandoned == 0)
    await registry.close()
    assert (await registry.execute("t.op")).data == "late"


def test_a_registry_needs_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="threads is 0: expected a whole number of at least 1"):
        OperationRegistry(threads=0)


async def test_a_queued_thread_whose_caller_gave_up_never_runs() -> None:
    import threading

    release = threading.Event()
    ran: list[Any] = []

    def handler(input: Any, context: OperationContext) -> None:
        ran.append(input)
        release.wait(30)

    spec = OperationSpec(namespace="t", name="op", type=OperationType.QUERY)
    registry = OperationRegistry([Operation(spec=spec, handler=handler)], threads=1)
    first = asyncio.create_task(registry.execute("t.op", {"n": 1}))
    await until(lambda: bool(ran))
    assert (await error_of(registry.execute("t.op", {"n": 2}, within(20)))).code is ErrorCode.TIMEOUT
    release.set()
    await first
    assert ran == [{"n": 1}]


@pytest.mark.parametrize("deadline", [None, 2**50])
async def test_cancelling_the_caller_cancels_the_handler(deadline: int | None) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def handler(input: Any, context: OperationContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    task = asyncio.create_task(registry_of(handler).execute("t.op", {}, OperationContext(deadline=deadline)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()


async def test_context_variables_reach_a_thread() -> None:
    import contextvars

    user = contextvars.ContextVar("user", default="nobody")

    def handler(input: Any, context: OperationContext) -> str:
        return user.get()

    user.set("ada")
    assert (await registry_of(handler).execute("t.op")).data == "ada"


async def test_a_plain_function_may_return_a_coroutine() -> None:
    async def later() -> int:
        return 5

    assert (await registry_of(lambda input, context: later()).execute("t.op")).data == 5


async def test_a_declared_error_is_sent_and_its_details_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    schema = from_schema({"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]})

    async def handler(input: Any, context: OperationContext) -> None:
        raise CallError("INVENTORY_EMPTY", "none left", input)

    registry = registry_of(handler, error_schemas={"INVENTORY_EMPTY": schema})
    with caplog.at_level(logging.WARNING, "operations"):
        error = await error_of(registry.execute("t.op", {"sku": "a"}))
        assert (error.code, error.details) == ("INVENTORY_EMPTY", {"sku": "a"})
        assert caplog.records == []
        assert (await error_of(registry.execute("t.op", {"sku": 1}))).code == "INVENTORY_EMPTY"
    assert "INVENTORY_EMPTY" in caplog.text
    assert "/sku" in caplog.text


async def test_the_wrong_verb_is_a_clear_error() -> None:
    registry = OperationRegistry([stub_operation("t.once", returns=1), stub_operation("t.many", yields=[1])])
    error = await error_of(registry.execute("t.many"))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "use subscribe" in error.message
    error = await error_of(anext(registry.subscribe("t.once")))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "use execute" in error.message


async def test_an_operation_that_was_not_registered_is_not_called() -> None:
    error = await error_of(OperationRegistry().execute(stub_operation("t.op")))
    assert error.code is ErrorCode.OPERATION_NOT_FOUND


async def test_each_event_is_wrapped_with_its_own_time() -> None:
    async def stream(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        yield {"n": "1"}
        now = int(time.time() * 1000)
        await until(lambda: int(time.time() * 1000) > now)
        yield {"n": "2", "excess": True}

    schema = from_schema({"type": "object", "properties": {"n": {"type": "integer"}}})
    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION, output_schema=schema)
    registry = OperationRegistry([Operation(spec=spec, stream=stream)])
    events = [event async for event in subscribe(registry, "t.op", {})]
    assert [event.data for event in events] == [{"n": 1}, {"n": 2}]
    stamps = [event.meta.timestamp for event in events if event.meta.source == "local"]
    assert stamps[0] < stamps[1]


def closing_stream(log: list[str]) -> OperationRegistry:
    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        log.append("opened")
        try:
            for number in range(1_000_000):
                yield number
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION)
    return OperationRegistry([Operation(spec=spec, stream=stream)])


async def test_closing_the_iterator_closes_the_handlers_generator() -> None:
    log: list[str] = []
    events = closing_stream(log).subscribe("t.op")
    assert (await anext(events)).data == 0
    await events.aclose()
    assert log == ["opened", "closed"]


async def test_an_abandoned_iterator_closes_the_handlers_generator() -> None:
    log: list[str] = []

    async def abandon() -> None:
        async for event in closing_stream(log).subscribe("t.op"):
            if event.data == 3:
                break

    await abandon()
    gc.collect()
    await until(lambda: log == ["opened", "closed"])


async def test_an_iterator_that_is_never_started_runs_nothing() -> None:
    log: list[str] = []
    events = closing_stream(log).subscribe("t.op")
    await events.aclose()
    assert log == []


async def test_a_stream_that_fails_ends_in_a_translated_error() -> None:
    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        yield 1
        raise ValueError("broke")

    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION)
    events = OperationRegistry([Operation(spec=spec, stream=stream)]).subscribe("t.op")
    assert (await anext(events)).data == 1
    error = await error_of(anext(events))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "broke" in error.message


async def test_a_handler_that_fails_to_clean_up_is_an_execution_error() -> None:
    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("cannot close")

    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION)
    events = OperationRegistry([Operation(spec=spec, stream=stream)]).subscribe("t.op")
    await anext(events)
    assert (await error_of(events.aclose())).code is ErrorCode.EXECUTION_ERROR


async def test_a_stream_ends_at_its_deadline() -> None:
    closed = asyncio.Event()

    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            closed.set()

    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION)
    registry = OperationRegistry([Operation(spec=spec, stream=stream)])
    events = registry.subscribe("t.op", {}, within(50))
    assert (await anext(events)).data == 1
    assert (await error_of(anext(events))).code is ErrorCode.TIMEOUT
    assert closed.is_set()


async def test_invalid_input_of_a_stream_is_found_before_it_opens() -> None:
    registry = OperationRegistry([stub_operation("t.op", yields=[1], input_schema={"required": ["a"]})])
    assert (await error_of(anext(registry.subscribe("t.op")))).code is ErrorCode.VALIDATION_ERROR


async def test_a_result_that_cannot_be_rebuilt_stays_json_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @operation(id="t.day")
    async def day() -> date:
        return "not a date"  # type: ignore[return-value]

    with caplog.at_level(logging.WARNING, "operations"):
        envelope = await OperationRegistry([day]).execute(day)
    assert envelope.data == "not a date"
    assert "t.day" in caplog.text


@pytest.mark.parametrize("clean_up", [False, True], ids=["while it waits", "while it is closed"])
async def test_a_stream_that_ignores_its_cancellation_is_abandoned_at_its_deadline(clean_up: bool) -> None:
    let_go = asyncio.Event()

    async def hold_on() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    @operation(id="t.stubborn")
    async def stubborn() -> AsyncIterator[int]:
        yield 1
        try:
            if clean_up:
                await asyncio.sleep(60)
            else:
                await hold_on()
        finally:
            await hold_on()

    registry = OperationRegistry([stubborn])
    items = []

    async def read() -> None:
        async for envelope in registry.subscribe("t.stubborn", {}, within(50)):
            items.append(envelope.data)

    async with asyncio.timeout(30):
        error = await error_of(read())
    assert error.code is ErrorCode.TIMEOUT
    assert items == [1]
    assert registry.abandoned == 1
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    let_go.set()
    await until(lambda: registry.abandoned == 0)


async def test_a_deadline_that_has_passed_never_opens_a_stream() -> None:
    log: list[str] = []
    registry = closing_stream(log)
    assert (await error_of(anext(registry.subscribe("t.op", {}, within(-1))))).code is ErrorCode.TIMEOUT
    assert log == []


async def test_a_stream_that_never_waits_still_meets_its_deadline() -> None:
    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        for number in range(10**9):
            yield number

    spec = OperationSpec(namespace="t", name="op", type=OperationType.SUBSCRIPTION)
    registry = OperationRegistry([Operation(spec=spec, stream=stream)])
    with pytest.raises(CallError) as caught:
        async for _ in registry.subscribe("t.op", {}, within(30)):
            pass
    assert caught.value.code is ErrorCode.TIMEOUT


@pytest.mark.parametrize(("deadline", "code"), [(10**400, None), ("soon", "VALIDATION_ERROR"), (-(10**400), "TIMEOUT")])
async def test_an_absurd_deadline_has_a_defined_outcome(deadline: Any, code: str | None) -> None:
    registry = OperationRegistry([stub_operation("t.op", returns=1)])
    call = registry.execute("t.op", {}, OperationContext(deadline=deadline))
    if code is None:
        assert (await call).data == 1
    else:
        assert (await error_of(call)).code == code


class OddError(BaseException):
    pass


@pytest.mark.parametrize("raised", [OddError("x"), BaseExceptionGroup("g", [OddError()])])
async def test_an_exception_of_any_other_kind_is_an_execution_error(raised: BaseException) -> None:
    async def handler(input: Any, context: OperationContext) -> None:
        raise raised

    assert (await error_of(registry_of(handler).execute("t.op"))).code is ErrorCode.EXECUTION_ERROR


async def test_invalid_operations_and_policies_are_rejected_with_a_hint() -> None:
    registry = OperationRegistry()
    error = await error_of(registry.execute(lambda: 1))  # type: ignore[call-overload]
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "@operation" in error.message
    with pytest.raises(CallError, match="expected one of cast, total, strict, off"):
        OperationRegistry(output_policy="casts")  # type: ignore[arg-type]
    with pytest.raises(CallError, match="expected one of"):
        stub_operation("t.op", output_policy="casts")


async def test_null_is_an_input_if_the_schema_allows_it() -> None:
    registry = OperationRegistry([stub_operation("t.op", returns=lambda input: [input], input_schema={"type": "null"})])
    assert (await registry.execute("t.op")).data == [None]


async def test_data_stays_json_if_the_return_type_cannot_be_built(caplog: pytest.LogCaptureFixture) -> None:
    import pydantic

    class Picky(pydantic.BaseModel):
        x: int

        @pydantic.model_validator(mode="after")
        def refuse(self) -> Any:
            raise RuntimeError("boom")

    @operation("t.picky")
    async def picky() -> Picky:
        return Picky.model_construct(x=1)

    with caplog.at_level(logging.WARNING, "operations"):
        data: Any = (await OperationRegistry([picky]).execute(picky)).data
    assert data == {"x": 1}
    assert "boom" in caplog.text
