"""Access checks: pure functions that decide whether an identity may call an operation."""

from __future__ import annotations

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.spec import AccessControl, OperationSpec


class AccessDecision(msgspec.Struct, frozen=True):
    """Result of an access check: whether the call is allowed, and the missing rights."""

    allowed: bool
    missing_scopes: tuple[str, ...] = ()
    missing_any: tuple[str, ...] = ()
    missing_resource: str | None = None

    @property
    def reason(self) -> str:
        """The missing rights as text; empty if allowed."""
        parts = []
        if self.missing_scopes:
            parts.append(f"missing scope{'s' * (len(self.missing_scopes) > 1)} {', '.join(self.missing_scopes)}")
        if self.missing_any:
            parts.append(f"missing one of the scopes {', '.join(self.missing_any)}")
        if self.missing_resource:
            parts.append(f"no permission to {self.missing_resource}")
        return "; ".join(parts)


_ALLOWED = AccessDecision(allowed=True)


def check_access(access: AccessControl, identity: Identity | None) -> AccessDecision:
    """Decide whether `identity` (None: anonymous) has everything that `access` requires."""
    held = frozenset(identity.scopes) if identity is not None else frozenset[str]()
    missing = tuple(scope for scope in access.required_scopes if scope not in held)
    any_of = tuple(access.required_scopes_any)
    missing_any = any_of if any_of and held.isdisjoint(any_of) else ()
    missing_resource = _missing_resource(access, identity)
    if not missing and not missing_any and missing_resource is None:
        return _ALLOWED
    return AccessDecision(
        allowed=False, missing_scopes=missing, missing_any=missing_any, missing_resource=missing_resource
    )


def require_access(spec: OperationSpec, identity: Identity | None) -> None:
    """Raise `ACCESS_DENIED` with the missing rights if `identity` may not call an operation."""
    decision = check_access(spec.access_control, identity)
    if decision.allowed:
        return
    raise access_error(spec.id, decision, identity)


def access_error(operation_id: str, decision: AccessDecision, identity: Identity | None) -> CallError:
    """Return the `ACCESS_DENIED` error, with the rights that the caller lacks."""
    who = f"{identity.id!r}" if identity is not None else "an anonymous caller"
    details = {
        "operationId": operation_id,
        "missingScopes": list(decision.missing_scopes),
        "missingScopesAny": list(decision.missing_any),
        "missingResource": decision.missing_resource,
    }
    return CallError(
        ErrorCode.ACCESS_DENIED,
        f"{who} may not call {operation_id}: {decision.reason}",
        {name: value for name, value in details.items() if value},
    )


def _missing_resource(access: AccessControl, identity: Identity | None) -> str | None:
    """Return the missing permission, such as `read any project`; None if none is missing."""
    if access.resource_type is None and access.resource_action is None:
        return None
    for resource, actions in (identity.resources if identity is not None else {}).items():
        kind = resource.partition(":")[0]
        if access.resource_type in (None, kind) and (
            access.resource_action is None or access.resource_action in actions
        ):
            return None
    return f"{access.resource_action or 'use'} any {access.resource_type or 'resource'}"
