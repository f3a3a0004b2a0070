from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from operations import (
    AccessControl,
    CallError,
    ErrorCode,
    OperationContext,
    OperationRegistry,
    OperationType,
    ResponseEnvelope,
    http_envelope,
    operation,
)
from operations.context import NO_ENV


@dataclass
class Item:
    sku: str
    price: float
    since: date


async def data_of(function: Any, input: Any = None) -> Any:
    return (await OperationRegistry([function]).execute(function.id, input)).data


def test_the_id_comes_from_module_and_name() -> None:
    @operation
    async def buy() -> None: ...

    assert buy.id == f"{__name__}.buy"
    assert buy.spec.type is OperationType.MUTATION


def test_a_function_of_a_script_is_in_the_namespace_main() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "operation": operation}
    exec("@operation\nasync def buy(): ...", namespace)
    assert namespace["buy"].id == "main.buy"


def test_everything_can_be_declared() -> None:
    @operation(
        id="shop.cart.buy",
        type="query",
        version="2.0",
        description="Buys.",
        title="Buy",
        tags=["shop"],
        annotations={"a": 1},
        access_control=AccessControl(required_scopes=["buy"]),
        error_schemas={"EMPTY": {"type": "object"}},
        output_policy="strict",
        durable=True,
    )
    async def buy() -> None: ...

    spec = buy.spec
    assert (spec.namespace, spec.name, spec.version, spec.type) == ("shop.cart", "buy", "2.0", "query")
    assert (spec.description, spec.title, spec.tags, spec.annotations) == ("Buys.", "Buy", ["shop"], {"a": 1})
    assert spec.access_control.required_scopes == ["buy"]
    assert not spec.error_schemas["EMPTY"].check(1)
    assert (spec.output_policy, spec.durable) == ("strict", True)


def test_schemas_come_from_the_signature_and_texts_from_the_docstring() -> None:
    @operation
    async def buy(sku: str, count: Annotated[int, msgspec.Meta(ge=1)] = 1, note: str | None = None) -> list[Item]:
        """Buy a thing.

        Args:
            sku: which thing
            count: how many
        """
        return []

    document = buy.spec.input_schema.document
    assert isinstance(document, dict)
    assert buy.spec.description == "Buy a thing."
    assert document["properties"]["sku"] == {"type": "string", "description": "which thing"}
    assert document["properties"]["count"]["default"] == 1
    assert document["properties"]["count"]["minimum"] == 1
    assert document["required"] == ["sku"]
    assert document["additionalProperties"] is False
    assert buy.spec.output_schema.check([{"sku": "a", "price": 1.5, "since": "2024-01-01"}])
    assert not buy.spec.output_schema.check([{"sku": "a"}])


async def test_arguments_arrive_as_their_types_and_results_leave_as_json() -> None:
    seen: list[Any] = []

    @operation
    async def buy(item: Item, on: date, count: int = 2) -> Item:
        seen.extend([item, on, count])
        return item

    item = {"sku": "a", "price": 1, "since": "2024-01-31"}
    assert await data_of(buy, {"item": item, "on": "2024-02-01", "count": 3.0}) == item
    assert seen == [Item("a", 1.0, date(2024, 1, 31)), date(2024, 2, 1), 3]
    assert isinstance(seen[2], int)


async def test_pythons_own_defaults_apply() -> None:
    marker = object()

    @operation
    async def buy(count: int = 7, note: Any = marker) -> list[Any]:
        return [count, note is marker]

    assert await data_of(buy) == [7, True]


async def test_the_context_is_given_and_not_in_the_schema() -> None:
    @operation
    async def who(context: OperationContext, other: OperationContext | None = None) -> str:
        assert context.env is not NO_ENV
        return context.request_id

    assert who.spec.input_schema.document["properties"] == {}  # type: ignore[index]
    registry = OperationRegistry([who])
    assert (await registry.execute(who, {}, OperationContext(request_id="r1"))).data == "r1"
    assert (await registry.execute(who)).data != ""


async def test_positional_only_and_open_keywords() -> None:
    @operation
    async def join(first: str, second: str = "b", /, *, third: str, **more: int) -> list[Any]:
        return [first, second, third, more]

    assert await data_of(join, {"first": "a", "third": "c", "x": 1}) == ["a", "b", "c", {"x": 1}]
    with pytest.raises(CallError, match="/x"):
        await data_of(join, {"first": "a", "third": "c", "x": "one"})


async def test_a_plain_function_runs_in_a_thread_unless_inline() -> None:
    @operation
    def there() -> str:
        return threading.current_thread().name

    @operation(inline=True)
    def here() -> str:
        return threading.current_thread().name

    assert (await data_of(there)).startswith("operations")
    assert await data_of(here) == threading.current_thread().name


async def test_an_async_generator_is_a_subscription() -> None:
    @operation
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    assert count.spec.type is OperationType.SUBSCRIPTION
    registry = OperationRegistry([count])
    assert [event.data async for event in registry.subscribe(count, {"to": 3})] == [0, 1, 2]
    assert not count.spec.output_schema.check("x")


async def test_a_function_that_returns_a_stream_is_a_subscription() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    @operation
    def count() -> AsyncIterator[int]:
        return numbers()

    registry = OperationRegistry([count])
    assert [event.data async for event in registry.subscribe(count)] == [1]


async def test_a_function_may_return_an_envelope() -> None:
    @operation
    async def fetch() -> ResponseEnvelope[Item]:
        return http_envelope(Item("a", 2, date(2024, 1, 1)), status_code=203)

    registry = OperationRegistry([fetch])
    envelope = await registry.execute("tests.test_function.fetch")
    assert envelope.data == {"sku": "a", "price": 2, "since": "2024-01-01"}
    assert envelope.meta.source == "http"
    assert (await registry.execute(fetch)).data == Item("a", 2, date(2024, 1, 1))


async def test_calls_by_object_return_the_type_and_calls_by_id_json() -> None:
    @operation
    async def get(sku: str) -> Item:
        return Item(sku, 1, date(2024, 1, 1))

    registry = OperationRegistry([get])
    assert (await registry.execute(get, {"sku": "a"})).data == Item("a", 1, date(2024, 1, 1))
    assert (await registry.execute(get.id, {"sku": "a"})).data == {"sku": "a", "price": 1, "since": "2024-01-01"}


async def test_a_function_without_annotations_accepts_and_returns_any_value() -> None:
    @operation
    async def echo(value):  # type: ignore[no-untyped-def]
        return {"got": value, "at": date(2024, 1, 1)}

    assert await data_of(echo, {"value": [1, "x", None]}) == {"got": [1, "x", None], "at": "2024-01-01"}


async def test_a_function_that_returns_nothing_returns_none() -> None:
    @operation
    async def nothing() -> None: ...

    assert await data_of(nothing) is None


async def test_the_function_itself_can_still_be_called() -> None:
    @operation
    async def add(a: int, b: int) -> int:
        return a + b

    assert await add(1, b=2) == 3
    assert add.__name__ == "add"


async def test_a_wrong_argument_is_one_error_that_lists_every_problem() -> None:
    @operation
    async def buy(sku: str, count: int) -> None: ...

    with pytest.raises(CallError) as caught:
        await data_of(buy, {"count": "many", "colour": "red"})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert len(caught.value.details["errors"]) == 3
    assert "sku" in str(caught.value)
    assert "/count" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("async def f(*many: int): ...", "use a list"),
        ("def f():\n    yield 1", "async generator"),
        ("async def f(a: 'Nowhere'): ...", "'Nowhere'"),
    ],
)
def test_a_function_that_cannot_be_an_operation_is_explained(source: str, complaint: str) -> None:
    namespace: dict[str, Any] = {"__name__": "m"}
    exec(source, namespace)
    with pytest.raises(TypeError, match=complaint):
        operation(namespace["f"])


def test_a_type_that_contradicts_the_function_is_refused() -> None:
    async def once() -> int:
        return 1

    async def many() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="not an async generator"):
        operation(type="subscription")(once)
    with pytest.raises(TypeError, match="an async generator"):
        operation(type="query")(many)


async def test_bytes_go_in_and_out() -> None:
    @operation
    async def flip(blob: bytes) -> bytes:
        return blob[::-1]

    assert await data_of(flip, {"blob": b"\x00\xff"}) == b"\xff\x00"
    assert await data_of(flip, {"blob": "AP8="}) == b"\xff\x00"


async def test_concurrent_calls_keep_their_arguments() -> None:
    @operation
    async def echo(n: int) -> int:
        await asyncio.sleep(0)
        return n

    registry = OperationRegistry([echo])
    answers = await asyncio.gather(*(registry.execute(echo, {"n": n}) for n in range(100)))
    assert [answer.data for answer in answers] == list(range(100))


async def test_the_callers_input_is_never_changed() -> None:
    @operation
    async def add(a: int, /, b: int, context: OperationContext) -> int:
        return a + b

    input = {"a": 1, "b": 2}
    assert await data_of(add, input) == 3
    assert input == {"a": 1, "b": 2}


async def test_a_result_of_another_type_than_declared_is_still_json() -> None:
    @operation
    async def names() -> list[str]:
        return ("a", "b")  # type: ignore[return-value]

    @operation
    async def day() -> str:
        return date(2024, 1, 1)  # type: ignore[return-value]

    assert await data_of(names) == ["a", "b"]
    assert await data_of(day) == "2024-01-01"


async def test_a_positional_argument_left_out_has_its_own_default() -> None:
    @operation
    async def pair(a: int = 1, b: int = 2, /) -> list[int]:
        return [a, b]

    assert await data_of(pair, {"b": 5}) == [1, 5]


async def test_the_id_may_stand_alone() -> None:
    @operation("shop.quote", type="query")
    async def quote() -> int:
        return 1

    assert quote.id == "shop.quote"
    with pytest.raises(TypeError, match=r"namespace\.name"):
        operation("noname")(quote.function)
    with pytest.raises(TypeError, match="without namespace= and name="):
        operation(id="a.b", namespace="c")(quote.function)


async def test_partials_and_callable_objects_are_functions_too() -> None:
    import functools

    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 1

    async def add(a: int, b: int) -> int:
        return a + b

    assert await data_of(operation("t.partial")(functools.partial(add, b=2)), {"a": 1}) == 3
    assert await data_of(operation("t.object")(Adder()), {"a": 1}) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [("access", "did you mean 'access_control'"), ("xyz", "expected one of access_control, annotations")],
)
def test_an_unknown_option_is_refused_with_a_suggestion(option: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{option}' of @operation: {message}"):
        operation(**{option: True})  # type: ignore[call-overload]


def test_a_method_in_a_class_body_is_rejected_with_a_hint() -> None:
    with pytest.raises(TypeError, match="cannot decorate a method in a class body"):

        class Shop:
            @operation
            async def buy(self) -> None: ...


async def test_a_context_may_be_annotated() -> None:
    @operation
    async def who(context: Annotated[OperationContext, "the call"]) -> str:
        return context.request_id

    assert await data_of(who) != ""


async def test_a_value_that_its_type_refuses_names_operation_and_path() -> None:
    @operation("t.on")
    async def on(day: date, other: date) -> None: ...

    with pytest.raises(CallError) as caught:
        await data_of(on, {"day": "soon", "other": "later"})
    assert caught.value.message.startswith("invalid input for t.on")
    problems = caught.value.details["errors"]
    assert [(problem["path"], problem["value"]) for problem in problems] == [("/day", "soon"), ("/other", "later")]


async def test_a_secret_that_its_type_refuses_is_not_shown() -> None:
    import traceback

    import pydantic

    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

        @pydantic.field_validator("password")
        @classmethod
        def refuse(cls, value: Any) -> Any:
            raise ValueError("too short")

    @operation("t.login")
    async def login(user: Login) -> None: ...

    secret = "hunter" + "2"
    with pytest.raises(CallError, match="too short") as caught:
        await data_of(login, {"user": {"password": secret}})
    assert secret not in str(caught.value.details)
    assert secret not in "".join(traceback.format_exception(caught.value))


@dataclass
class _Stay:
    guests: int
    until: date


async def test_schema_and_type_problems_are_listed_together() -> None:
    @operation("hotel.book")
    async def book(nights: int, start: date, stays: list[_Stay], guest: UUID | None = None) -> None: ...

    registry = OperationRegistry([book])
    given = {
        "nights": "two",
        "start": "soon",
        "stays": [{"guests": "many", "until": "later"}, {"guests": 1, "until": "never"}, {"until": "2026-01-01"}],
        "guest": "nobody",
    }
    with pytest.raises(CallError) as caught:
        await registry.execute(book, given)
    errors = caught.value.details["errors"]
    assert {error["path"]: error["value"] for error in errors} == {
        "/nights": "two",
        "/start": "soon",
        "/stays/0/guests": "many",
        "/stays/0/until": "later",
        "/stays/1/until": "never",
        "/stays/2": {"until": "2026-01-01"},
        "/guest": "nobody",
    }
    assert len(errors) == 7


async def test_a_secret_that_only_its_type_refuses_is_not_printed() -> None:
    def refuse(value: str) -> str:
        raise ValueError(f"{value} is too weak")

    hidden = pydantic.WithJsonSchema({"type": "string", "format": "password"})

    @operation("user.create")
    async def create(age: int, password: Annotated[str, pydantic.AfterValidator(refuse), hidden]) -> None: ...

    registry = OperationRegistry([create])
    for age in (1, "young"):
        with pytest.raises(CallError) as caught:
            await registry.execute(create, {"age": age, "password": "hunter2"})
        assert "/password: does not match its type" in caught.value.message
        assert "hunter2" not in repr((caught.value.message, caught.value.details))


async def test_a_failing_type_leaves_refused_input_to_the_schema() -> None:
    class Odd(str):
        def __new__(cls, text: str) -> Odd:
            raise RuntimeError("not now")

    @operation("odd.take")
    async def take(age: int, odd: Odd) -> None: ...

    with pytest.raises(CallError, match="/age") as caught:
        await OperationRegistry([take]).execute(take, {"age": "x", "odd": "y"})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_declared_class_that_is_a_mapping_can_be_an_envelope() -> None:
    @operation(id="shop.reply", type="query")
    async def reply() -> OrderedDict:  # type: ignore[type-arg]
        return OrderedDict(http_envelope({"sku": "tea"}, status_code=201).to_dict())

    envelope = await OperationRegistry([reply]).execute("shop.reply")
    assert (envelope.data, envelope.meta.source) == ({"sku": "tea"}, "http")


async def test_a_function_may_return_an_envelope_of_its_declared_class() -> None:
    @operation(id="shop.item", type="query")
    async def item() -> Item:
        found: Any = http_envelope(Item("tea", 2.5, date(2026, 1, 31)), status_code=203)
        return found  # type: ignore[no-any-return]

    envelope = await OperationRegistry([item]).execute("shop.item")
    assert (envelope.data["sku"], envelope.meta.source) == ("tea", "http")
