from typing import Any

import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationSpec, OperationType
from operations.access import check_access, require_access

ANYONE = AccessControl()
ALL = AccessControl(required_scopes=["read", "write"])
ANY = AccessControl(required_scopes_any=["admin", "owner"])
RESOURCE = AccessControl(resource_type="project", resource_action="edit")


@pytest.mark.parametrize(
    ("access", "identity", "allowed"),
    [
        (ANYONE, None, True),
        (ANYONE, Identity("u"), True),
        (ALL, None, False),
        (ALL, Identity("u", ["read"]), False),
        (ALL, Identity("u", ["read", "write", "more"]), True),
        (ANY, Identity("u", ["read"]), False),
        (ANY, Identity("u", ["owner"]), True),
        (RESOURCE, None, False),
        (RESOURCE, Identity("u", resources={"project:1": ["read"]}), False),
        (RESOURCE, Identity("u", resources={"projects:1": ["edit"]}), False),
        (RESOURCE, Identity("u", resources={"file:1": ["edit"], "project:2": ["edit"]}), True),
        (AccessControl(resource_type="project"), Identity("u", resources={"project:1": []}), True),
        (AccessControl(resource_action="edit"), Identity("u", resources={"file:1": ["edit"]}), True),
        (AccessControl(required_scopes=["read"], resource_type="t"), Identity("u", ["read"]), False),
    ],
)
def test_the_decision(access: AccessControl, identity: Identity | None, allowed: bool) -> None:
    decision = check_access(access, identity)
    assert decision.allowed is allowed
    assert bool(decision.reason) is not allowed


def test_a_denial_names_everything_that_is_missing() -> None:
    access = AccessControl(
        required_scopes=["read", "write"], required_scopes_any=["x", "y"], resource_type="p", resource_action="edit"
    )
    spec = OperationSpec(namespace="a", name="b", type=OperationType.QUERY, access_control=access)
    with pytest.raises(CallError) as caught:
        require_access(spec, Identity("mallory", ["read"]))
    error = caught.value
    assert error.code is ErrorCode.ACCESS_DENIED
    assert error.message == (
        "'mallory' may not call a.b: missing scope write; missing one of the scopes x, y; no permission to edit any p"
    )
    assert error.details == {
        "operationId": "a.b",
        "missingScopes": ["write"],
        "missingScopesAny": ["x", "y"],
        "missingResource": "edit any p",
    }


@pytest.mark.parametrize("held", [{"scopes": "admin"}, {"resources": {"file:1": "readonly"}}])
def test_a_text_in_place_of_a_list_is_refused(held: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="expected a list"):
        Identity("u", **held)
