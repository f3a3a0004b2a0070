"""Approval: which calls of a model run, which need consent, and which are refused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.interceptors import Invocation, Proceed
from operations.spec import OperationSpec, OperationType

_log = logging.getLogger("operations")

Policy = Literal["allow", "ask", "deny"]


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A call that needs consent."""

    spec: OperationSpec
    input: Any
    identity: Identity | None = None


class Approved(msgspec.Struct, frozen=True):
    """The call runs, with another input where one is given."""

    input: Any = msgspec.UNSET


class Refused(msgspec.Struct, frozen=True):
    """The call does not run."""

    reason: str = "the user refused it"


Ask = Callable[[ApprovalRequest], Awaitable[Approved | Refused | bool]]
"""Decides on a call that needs consent; True and False stand for Approved() and Refused()."""


class Approval:
    """Policies by pattern on operation ids, the first match decides; `mutations` decides for those that none matches.

    It is also an interceptor: `OperationRegistry(interceptors=[approval])` asks for every call, nested ones included.
    """

    def __init__(
        self, policies: Mapping[str, Policy] | None = None, *, mutations: Policy = "allow", ask: Ask | None = None
    ) -> None:
        self._policies = dict(policies or {})
        self._mutations = mutations
        self._ask = ask
        for policy in (*self._policies.values(), mutations):
            if policy not in get_args(Policy):
                raise ValueError(f"invalid approval policy {policy!r}: expected one of {', '.join(get_args(Policy))}")

    def policy(self, spec: OperationSpec) -> Policy:
        """Return the policy for an operation."""
        for pattern, policy in self._policies.items():
            if fnmatchcase(spec.id, pattern):
                return policy
        return self._mutations if spec.type is OperationType.MUTATION else "allow"

    async def require(self, spec: OperationSpec, input: Any, identity: Identity | None = None) -> Any:
        """Return the input to call with; raise `ACCESS_DENIED` for a call that is refused."""
        policy = self.policy(spec)
        if policy == "allow":
            return input
        if policy == "deny":
            raise refusal(spec.id, "the policy denies it")
        if self._ask is None:
            raise refusal(spec.id, "it needs approval and nobody can be asked")
        try:
            decision = await self._ask(ApprovalRequest(spec, input, identity))
        except Exception:  # noqa: BLE001  # a hook that fails approves nothing
            _log.exception("the approval hook failed for %s", spec.id)
            raise refusal(spec.id, "approval could not be obtained") from None
        if isinstance(decision, Refused):
            raise refusal(spec.id, decision.reason)
        if decision is True:
            return input
        if not isinstance(decision, Approved):
            raise refusal(spec.id, "the user refused it")
        return input if decision.input is msgspec.UNSET else decision.input

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Let an approved call proceed: the interceptor."""
        value = await self.require(invocation.spec, invocation.input, invocation.context.identity)
        if value is not invocation.input:
            invocation = msgspec.structs.replace(invocation, input=value)
        return await proceed(invocation)


def refusal(operation_id: str, reason: str) -> CallError:
    """Return the error for a call that was refused; it did not run."""
    advice = "do not repeat the call; ask the user, or continue without it"
    message = f"{operation_id} was refused and did not run: {reason}; {advice}"
    details = {"operationId": operation_id, "reason": "REFUSED", "refusal": reason, "executed": "no"}
    return CallError(ErrorCode.ACCESS_DENIED, message, details)
