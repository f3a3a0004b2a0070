"""Approval: which calls run, which need consent, and which are refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import msgspec

from operations.context import Identity, OperationContext
from operations.errors import CallError, ErrorCode
from operations.interceptors.base import Envelopes, Interceptor, Invocation, Only, Proceed, applies, asks, open_stream
from operations.redaction import Redactor
from operations.schema.dialects.literals import escaped
from operations.spec import OperationSpec, OperationType

_log = logging.getLogger("operations")
_MAX_SHOWN = 2_000
_encode = msgspec.json.Encoder(enc_hook=repr).encode

NOT_APPROVED = "NOT_APPROVED"
"""The `reason` in the details of a refusal."""
ApprovalPolicy = Literal["allow", "ask", "deny"]
"""The treatment of an operation's calls: `allow` runs them, `ask` runs them with consent, `deny` refuses them."""


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A call that needs consent."""

    spec: OperationSpec
    input: Any
    context: OperationContext

    @property
    def identity(self) -> Identity | None:
        """The caller; None for the program itself and for an anonymous caller."""
        return self.context.identity

    def question(self) -> str:
        """Return the question to a person: the operation and its input, without secrets, truncated."""
        beginning = Redactor().beginning(self.spec.input_schema.redact(self.input), _MAX_SHOWN)
        try:
            text = escaped(_encode(beginning.data).decode())
            length = len(text) if beginning.is_whole else len(_encode(self.input))
        except (TypeError, ValueError, RecursionError):
            text, length = "(not JSON)", 0
        more = max(1, length - _MAX_SHOWN)
        cut = f"… ({more:,} more characters)" if len(text) > _MAX_SHOWN or not beginning.is_whole else ""
        return f"Allow {self.spec.type.value} {self.spec.id} with the input {text[:_MAX_SHOWN]}{cut}?"


class Approved(msgspec.Struct, frozen=True):
    """The call runs. If `input` is set, it replaces the input of the call and is validated."""

    input: Any = msgspec.UNSET


class Refused(msgspec.Struct, frozen=True):
    """The call does not run."""

    reason: str = "the user refused it"


Ask = Callable[[ApprovalRequest], Awaitable[Approved | Refused | bool]]
"""Decides on a call that needs consent; True and False mean Approved() and Refused()."""


class Approval:
    """An interceptor with a policy for each pattern of ids: `allow`, `ask` or `deny`; the first match decides.

    `mutations` is the policy of mutations that no pattern matches; other operations are allowed. `ask` decides on a
    call that needs consent. Without `ask`, the user of the calling program is asked, as by `context.ask`: with an MCP
    elicitation, or on the terminal. A call is refused if no one can be asked, if `ask` raises an exception, or after
    `timeout` seconds.

    A refusal is `ACCESS_DENIED` with `reason` `NOT_APPROVED`. A stream needs consent once, before it begins. Each
    nested call needs separate consent.
    """

    def __init__(
        self,
        policies: Mapping[str, ApprovalPolicy] | None = None,
        *,
        mutations: ApprovalPolicy = "allow",
        ask: Ask | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._policies = dict(policies or {})
        self._mutations = mutations
        self._ask = ask
        self._timeout = timeout
        if not timeout > 0:
            raise ValueError(f"invalid timeout {timeout}: expected a positive number of seconds")
        for policy in (*self._policies.values(), mutations):
            if policy not in get_args(ApprovalPolicy):
                expected = ", ".join(get_args(ApprovalPolicy))
                raise ValueError(f"invalid approval policy {policy!r}: expected one of {expected}")

    def policy(self, spec: OperationSpec) -> ApprovalPolicy:
        """Return the policy of an operation."""
        for pattern, policy in self._policies.items():
            if fnmatchcase(spec.id, pattern):
                return policy
        return self._mutations if spec.type is OperationType.MUTATION else "allow"

    def applies(self, spec: OperationSpec) -> bool:
        """Whether calls of an operation need consent or are refused."""
        return self.policy(spec) != "allow"

    def asks(self, spec: OperationSpec) -> bool:
        """Whether the caller of an operation is asked for approval; False if the function `ask` decides instead."""
        return self._ask is None and self.policy(spec) == "ask"

    async def require(self, spec: OperationSpec, input: Any, context: OperationContext) -> Any:
        """Return the input to run a call with; raise `ACCESS_DENIED` if the call is refused."""
        policy = self.policy(spec)
        if policy == "allow":
            return input
        if policy == "deny":
            raise _not_approved(spec.id, "the policy denies it")
        decision = await self._decide(ApprovalRequest(spec, input, context))
        if isinstance(decision, Refused):
            raise _not_approved(spec.id, decision.reason)
        if decision is True:
            return input
        if not isinstance(decision, Approved):
            raise _not_approved(spec.id, Refused().reason)
        return input if decision.input is msgspec.UNSET else decision.input

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call if it is approved."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        return await proceed(await self._approved(invocation))

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        async with open_stream(await self._approved(invocation), proceed) as stream:
            async for envelope in stream:
                yield envelope

    async def _approved(self, invocation: Invocation) -> Invocation:
        value = await self.require(invocation.spec, invocation.input, invocation.context)
        return invocation if value is invocation.input else msgspec.structs.replace(invocation, input=value)

    async def _decide(self, request: ApprovalRequest) -> Any:
        if self._ask is None and not request.context.can_ask():
            raise _not_approved(request.spec.id, "it needs approval and no one can be asked")
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                if self._ask is not None:
                    return await self._ask(request)
                answer = await request.context.ask(request.question(), timeout=self._timeout)
                return answer.is_accepted
        except Exception:  # noqa: BLE001  # a hook that fails approves nothing
            if limit.expired():
                raise _not_approved(request.spec.id, "it was not approved in time") from None
            _log.exception("%s: the request for approval failed", request.spec.id)
            raise _not_approved(request.spec.id, "the request for approval failed") from None


def needs_consent(interceptors: Iterable[Interceptor], spec: OperationSpec) -> bool:
    """Return whether an interceptor may ask the caller, or a function `ask`, for consent before a call."""
    for each in interceptors:
        inner = each
        while isinstance(inner, Only):
            inner = inner.interceptor
        if isinstance(inner, Approval) and applies(each, spec) and inner.policy(spec) == "ask":
            return True
        if asks(each, spec):
            return True
    return False


def _not_approved(operation_id: str, reason: str) -> CallError:
    message = f"{operation_id} was refused and did not run: {reason}; do not repeat the call"
    details = {"operationId": operation_id, "reason": NOT_APPROVED, "refusal": reason, "executed": "no"}
    return CallError(ErrorCode.ACCESS_DENIED, message, details)
