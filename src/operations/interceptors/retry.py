"""Retry: repeats queries after transient errors, within a retry budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.failures import executed_of
from operations.interceptors.base import Invocation, Proceed
from operations.spec import OperationSpec, OperationType

_TRANSIENT = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)


class Retry:
    """Repeats a query after a transient error: at most `attempts` calls, within the retry budget.

    Transient errors are `UNAVAILABLE`, `TIMEOUT` and an HTTP status of `statuses`. Streams are not repeated. A call is
    not repeated if the upstream requests a delay above `longest_delay`, or if the delay would end after the deadline. A
    mutation is never repeated, except with `unexecuted_mutations=True` if its error states that it was not executed.

    The retry budget starts with `reserve` repeats. The first attempt of each call adds `budget` repeats, up to
    `reserve` in all, and each repeat uses one. An outage therefore does not multiply the load.
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        first_delay: float = 0.1,
        longest_delay: float = 5.0,
        budget: float = 0.2,
        reserve: int = 10,
        statuses: Iterable[int] = (429, 502, 503, 504),
        unexecuted_mutations: bool = False,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if attempts < 1 or budget < 0 or reserve < 0 or first_delay < 0 or longest_delay < 0:
            raise ValueError("invalid retry: expected attempts >= 1, and budget, reserve and delays >= 0")
        self._attempts = attempts
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._budget = budget
        self._most = float(reserve)
        self._left = float(reserve)
        self._statuses = frozenset(statuses)
        self._unexecuted_mutations = unexecuted_mutations
        self._sleep = sleep
        self.repeats = 0
        """Number of repeated calls."""
        self.exhausted = 0
        """Number of errors that were not retried because the budget was spent."""

    def applies(self, spec: OperationSpec) -> bool:
        """Whether calls of an operation may be repeated."""
        if spec.type is OperationType.MUTATION:
            return self._unexecuted_mutations
        return spec.type is OperationType.QUERY

    def counts(self) -> dict[str, int]:
        """Return the number of repeated calls, and of errors that were not retried because the budget was spent."""
        return {"repeats": self.repeats, "exhausted": self.exhausted}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call; repeat it after transient errors."""
        if invocation.streaming or not self.applies(invocation.spec):
            return await proceed(invocation)
        self._left = min(self._most, self._left + self._budget)
        for attempt in range(1, self._attempts):
            try:
                return await proceed(invocation)
            except CallError as error:
                delay = self._delay_after(error, invocation, attempt)
                if delay is None:
                    raise
                if invocation.retried is not None:
                    invocation.retried(attempt, error, delay)
            self.repeats += 1
            await self._sleep(delay)
        return await proceed(invocation)

    def _delay_after(self, error: CallError, invocation: Invocation, attempt: int) -> float | None:
        """Return the seconds before the next attempt; None if the call is not repeated."""
        if not self._is_transient(error) or not self._is_safe(error, invocation.spec):
            return None
        requested = _requested_delay(error)
        if requested is not None and requested > self._longest_delay:
            return None
        longest = min(self._longest_delay, self._first_delay * 2 ** (attempt - 1))
        delay = random.uniform(longest / 2, longest) if requested is None else requested
        deadline = invocation.context.deadline
        if deadline is not None and time.time() + delay >= deadline / 1000:
            return None
        if self._left < 1:
            self.exhausted += 1
            return None
        self._left -= 1
        return delay

    def _is_transient(self, error: CallError) -> bool:
        if error.code in _TRANSIENT:
            return True
        status = error.details.get("statusCode") if isinstance(error.details, dict) else None
        return error.code is ErrorCode.EXECUTION_ERROR and status in self._statuses

    def _is_safe(self, error: CallError, spec: OperationSpec) -> bool:
        """Whether the call may be made again: a query, or a mutation that was not executed."""
        if spec.type is OperationType.QUERY:
            return True
        # The error of a nested call describes that call only.
        return executed_of(error) == "no" and error.details.get("operationId") == spec.id


def _requested_delay(error: CallError) -> float | None:
    """Return the delay that the upstream requests, in seconds; None if it requests none."""
    details = error.details if isinstance(error.details, dict) else {}
    requested = details.get("retryAfter")
    if requested is None and isinstance(details.get("headers"), dict):
        requested = details["headers"].get("retry-after")
    try:
        seconds = float(str(requested))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
