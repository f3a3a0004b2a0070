"""Which operations are served, and which of them a caller sees."""

from __future__ import annotations

from typing import Any

import pytest

from operations import AccessControl, Identity, Operation, OperationRegistry, OperationSpec, OperationType
from operations.serving.exposure import Exposure


async def handler(value: Any, context: Any) -> None: ...


def make(operation_id: str, type: str = "query", **access: Any) -> Operation[Any]:
    namespace, _, name = operation_id.rpartition(".")
    spec = OperationSpec(
        name=name, namespace=namespace, type=OperationType(type), access_control=AccessControl(**access)
    )
    return Operation(spec=spec, handler=handler)


@pytest.fixture
def registry() -> OperationRegistry:
    return OperationRegistry(
        [
            make("shop.quote"),
            make("shop.order", "mutation", required_scopes=["order"]),
            make("shop.audit", required_scopes_any=["audit", "admin"]),
            make("docs.read", resource_type="doc", resource_action="read"),
        ]
    )


@pytest.mark.parametrize(
    ("identity", "seen"),
    [
        (None, {"shop.quote"}),
        (Identity("a", ["order"]), {"shop.quote", "shop.order"}),
        (Identity("b", ["admin"]), {"shop.quote", "shop.audit"}),
        (Identity("c", resources={"doc:1": ["read"]}), {"shop.quote", "docs.read"}),
        (Identity("d", resources={"doc:1": ["write"], "docs:1": ["read"]}), {"shop.quote"}),
    ],
)
def test_a_caller_sees_its_permitted_operations(
    registry: OperationRegistry, identity: Identity | None, seen: set[str]
) -> None:
    exposure = Exposure(registry)
    assert set(exposure.visible(identity)) == seen
    assert list(exposure.visible(identity)) == sorted(seen)


def test_rights_that_no_operation_mentions_share_one_view(registry: OperationRegistry) -> None:
    exposure = Exposure(registry)
    first, second = Identity("a", ["order", "x"]), Identity("b", ["y", "order"], {"doc:7": ["write"]})
    assert exposure.rights(first) == exposure.rights(second)
    assert exposure.visible(first) is exposure.visible(second)
    assert exposure.visible(first) is not exposure.visible(None)


def test_patterns_and_read_only(registry: OperationRegistry) -> None:
    assert list(Exposure(registry, allow=["shop.*"], deny=["*.audit"]).operations) == ["shop.order", "shop.quote"]
    assert "shop.order" not in Exposure(registry, read_only=True).operations
    with pytest.raises(ValueError, match="expected a list"):
        Exposure(registry, allow="shop.*")


def test_changes_of_the_registry_are_visible_immediately(registry: OperationRegistry) -> None:
    exposure = Exposure(registry)
    assert "shop.sale" not in exposure.visible(None)
    registry.register(make("shop.sale"))
    assert "shop.sale" in exposure.visible(None)
    registry.unregister("shop.sale")
    assert "shop.sale" not in exposure.visible(None)


def test_a_spec_without_a_handler_is_not_served(registry: OperationRegistry) -> None:
    registry.register_spec(OperationSpec(name="later", namespace="shop", type=OperationType.QUERY))
    assert "shop.later" not in Exposure(registry).operations


def test_suggestions_name_only_permitted_operations(registry: OperationRegistry) -> None:
    exposure = Exposure(registry)
    assert "shop.order" not in exposure.not_found("shop.ordr", None).details["nearest"]
    assert exposure.not_found("shop.ordr", Identity("a", ["order"])).details["nearest"][0] == "shop.order"
