"""Approval: calls that somebody must agree to before they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.interceptors.base import Envelopes, Invocation, Proceed, opened


class Decision(msgspec.Struct, frozen=True):
    """Whether a call may run, with which input, and why not."""

    allowed: bool
    input: Any = msgspec.UNSET
    """The input to run with in place of the given one; it is validated as any input."""
    reason: str = ""
    """Told to the caller where the call is refused."""


Decide = Callable[[Invocation], Awaitable[Decision | bool]]
"""Decides on one call: a Decision, or whether it is allowed."""


class Approval:
    """Asks `decide` before each call; a refusal is `ACCESS_DENIED` with `reason` `NOT_APPROVED`.

    Without `decide` every call is refused. A decision that takes longer than `timeout` seconds is a refusal, and an
    exception from `decide` ends the call. A stream is decided on once, when it begins. Calls that a handler makes are
    decided on as well, each by itself.
    """

    def __init__(self, decide: Decide | None = None, *, timeout: float = 300.0) -> None:
        if timeout <= 0:
            raise ValueError(f"invalid timeout {timeout}: expected a positive number of seconds")
        self._decide = decide
        self._timeout = timeout

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call where it is approved."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        return await proceed(await self._approved(invocation))

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        async with opened(await self._approved(invocation), proceed) as stream:
            async for envelope in stream:
                yield envelope

    async def _approved(self, invocation: Invocation) -> Invocation:
        """Return the call as it may run; raise where it is refused."""
        if self._decide is None:
            raise _refusal(invocation, "the call needs approval, and nobody can be asked")
        try:
            async with asyncio.timeout(self._timeout):
                decision = await self._decide(invocation)
        except TimeoutError:
            raise _refusal(invocation, "the call was not approved in time") from None
        if decision is True:
            return invocation
        if not isinstance(decision, Decision) or not decision.allowed:
            reason = decision.reason if isinstance(decision, Decision) else ""
            raise _refusal(invocation, reason or "the call was not approved")
        return (
            invocation if decision.input is msgspec.UNSET else msgspec.structs.replace(invocation, input=decision.input)
        )


def _refusal(invocation: Invocation, text: str) -> CallError:
    details = {"operationId": invocation.spec.id, "executed": "no", "reason": "NOT_APPROVED"}
    return CallError(ErrorCode.ACCESS_DENIED, f"{invocation.spec.id}: {text}", details)
