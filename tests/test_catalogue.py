from typing import Any

import pytest

from operations import (
    CallError,
    ErrorCode,
    Operation,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
)
from operations.catalogue import unknown_operation
from operations.testing import stub_operation


def spec(name: str, **changes: Any) -> OperationSpec:
    return OperationSpec(**{"namespace": "shop", "name": name, "type": OperationType.QUERY} | changes)


async def handler(input: Any, context: OperationContext) -> Any:
    return "handled"


async def stream(input: Any, context: OperationContext) -> Any:
    yield "streamed"


def test_an_operation_is_found_after_it_was_registered() -> None:
    registry = OperationRegistry()
    buy = Operation[Any](spec=spec("buy"), handler=handler)
    registry.register(buy)
    assert registry.get_spec("shop.buy") is buy.spec
    assert registry.get_handler("shop.buy") is handler
    assert registry.get_operation("shop.buy") is buy
    assert "shop.buy" in registry
    assert len(registry) == 1
    assert registry.get_spec("shop.sell") is None
    assert registry.get_handler("shop.sell") is None


def test_a_second_registration_of_an_id_is_an_error_unless_it_replaces() -> None:
    registry = OperationRegistry([stub_operation("shop.buy", returns=1)])
    again = stub_operation("shop.buy", returns=2)
    with pytest.raises(CallError, match="replace=True") as caught:
        registry.register(again)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    registry.register(again, replace=True)
    assert registry.get_operation("shop.buy") is again


def test_all_are_registered_or_none() -> None:
    registry = OperationRegistry([stub_operation("shop.buy")])
    with pytest.raises(CallError):
        registry.register_all([stub_operation("shop.sell"), stub_operation("shop.buy")])
    with pytest.raises(CallError):
        registry.register_all([stub_operation("shop.sell"), stub_operation("shop.sell")])
    assert [found.id for found in registry.list()] == ["shop.buy"]


@pytest.mark.parametrize(("thing", "hint"), [(lambda: 1, "@operation"), (spec("buy"), "register_spec"), (5, "int")])
def test_a_value_that_is_not_an_operation_is_rejected_with_a_hint(thing: Any, hint: str) -> None:
    with pytest.raises(CallError, match=hint):
        OperationRegistry([thing])


async def test_a_spec_gets_its_handler_later() -> None:
    registry = OperationRegistry()
    registry.register_spec(spec("buy"))
    with pytest.raises(CallError, match="register_handler") as caught:
        await registry.execute("shop.buy")
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND
    registry.register_handler("shop.buy", handler)
    assert (await registry.execute("shop.buy")).data == "handled"
    with pytest.raises(CallError, match="already has a handler"):
        registry.register_handler("shop.buy", handler)
    registry.register_handler("shop.buy", lambda input, context: "replaced", inline=True, replace=True)
    assert (await registry.execute("shop.buy")).data == "replaced"


async def test_an_operation_may_answer_both_ways() -> None:
    registry = OperationRegistry()
    registry.register_spec(spec("buy"))
    registry.register_handler("shop.buy", handler)
    registry.register_handler("shop.buy", stream)
    assert (await registry.execute("shop.buy")).data == "handled"
    assert [event.data async for event in registry.subscribe("shop.buy")] == ["streamed"]


def test_a_handler_for_an_unknown_id_is_refused() -> None:
    with pytest.raises(CallError) as caught:
        OperationRegistry().register_handler("shop.buy", handler)
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND


def test_an_unregistered_operation_is_gone() -> None:
    registry = OperationRegistry([stub_operation("shop.buy")])
    assert registry.unregister("shop.buy").id == "shop.buy"
    assert "shop.buy" not in registry
    with pytest.raises(CallError):
        registry.unregister("shop.buy")


def test_listing_filters_by_namespace_type_and_tag() -> None:
    registry = OperationRegistry(
        [
            stub_operation("shop.sell", tags=["x"]),
            stub_operation("shop.buy", type="mutation", tags=["x", "y"]),
            stub_operation("shop.cart.add"),
            stub_operation("shopping.list", yields=[]),
        ]
    )
    everything = ["shop.buy", "shop.cart.add", "shop.sell", "shopping.list"]
    assert [found.id for found in registry.list()] == everything
    assert [found.id for found in registry.list(namespace="shop")] == everything[:3]
    assert [found.id for found in registry.list(type="mutation")] == ["shop.buy"]
    assert [found.id for found in registry.list(tag="x", type="query")] == ["shop.sell"]


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("T.ECHO", ["t.echo"]), ("t", ["t.echo", "t.other"]), ("t.echo", []), ("x.echo", ["t.echo"]), ("zzz", [])],
)
def test_ids_near_a_mistyped_one(asked: str, nearest: list[str]) -> None:
    known = ["t.echo"] if asked == "t.echo" else ["t.echo", "t.other"]
    assert unknown_operation(asked, known).details["nearest"] == nearest


async def test_an_unknown_id_names_the_nearest() -> None:
    registry = OperationRegistry([stub_operation(f"shop.{name}") for name in ("buy", "sell", "list")])
    with pytest.raises(CallError, match=r"did you mean shop\.sell") as caught:
        await registry.execute("shop.sel")
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND
    assert caught.value.details["operationId"] == "shop.sel"
    with pytest.raises(CallError, match=r"did you mean shop\.list"):
        await registry.execute("somewhere.else.entirely.list")
    with pytest.raises(CallError, match=r"unknown operation ''$"):
        await registry.execute("")


async def test_the_error_for_an_unknown_id_stays_cheap_in_a_large_registry() -> None:
    registry = OperationRegistry([stub_operation(f"shop{n}.operation_{n}") for n in range(5_000)])
    with pytest.raises(CallError, match="did you mean"):
        await registry.execute("shop77.operatoin_77")
