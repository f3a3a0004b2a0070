"""CircuitBreaker: refuses calls to a failing upstream for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from operations.errors import CallError, ErrorCode
from operations.interceptors.base import Envelopes, Invocation, KeyPart, Proceed, check_by, key_of, open_stream, refusal

State = Literal["closed", "open", "half-open"]
_SLICES = 10
_MAX_KEYS = 10_000
_LIMITS = ("RATE_LIMITED", "CONCURRENCY_LIMIT", "CIRCUIT_OPEN")
"""Reasons of refusals by a limit or a breaker.

Such refusals are not counted, because otherwise one caller could open the breaker for all callers.
"""

_LONG_SECONDS = 10.0
"""A call that its deadline ended counts as a failure only if it ran for at least this number of seconds."""
_DEADLINE_SLACK_MS = 100
"""A source may report a timeout up to this number of milliseconds before the deadline of the call."""


class CircuitBreaker:
    """Opens if at least `minimum` calls ended within `window` seconds and the share of failures is `failure_rate` or
    more.

    While the breaker is open, calls are refused with `UNAVAILABLE`, `reason` `CIRCUIT_OPEN` and `retryAfter`. After
    `open_seconds` it is half-open: at most `probes` calls run at a time. A call that succeeds closes the breaker, and a
    call that fails opens it again.

    A failure is `UNAVAILABLE`, `TIMEOUT` or `EXECUTION_ERROR`, except with an HTTP status below 500. Other errors count
    as successes: the upstream answered. A stream is counted when it ends: as a failure if it ends with a failure, else
    as a success. Not counted are cancelled calls, calls that their deadline ended in less than 10 seconds, and calls
    refused by a limit or another breaker. Each combination of the parts in `by` has a separate breaker; by default,
    each namespace has one.
    """

    def __init__(
        self,
        *,
        failure_rate: float = 0.5,
        minimum: int = 10,
        window: float = 10.0,
        open_seconds: float = 30.0,
        probes: int = 1,
        by: Iterable[KeyPart] = ("namespace",),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < failure_rate <= 1:
            raise ValueError(f"invalid failure_rate {failure_rate}: expected more than 0 and at most 1")
        if minimum < 1 or window <= 0 or open_seconds <= 0 or probes < 1:
            raise ValueError("invalid circuit breaker: expected positive minimum, window, open_seconds and probes")
        self._failure_rate = failure_rate
        self._minimum = minimum
        self._window = window
        self._open_seconds = open_seconds
        self._probes = probes
        self._by = check_by(by)
        self._clock = clock
        self._lock = threading.Lock()
        self._circuits: dict[tuple[str | None, ...], _Circuit] = {}
        self.refused = 0
        """Number of refused calls."""

    def states(self) -> dict[tuple[str | None, ...], State]:
        """Return the state of each breaker by its key."""
        now = self._clock()
        return {key: self._state(circuit, now) for key, circuit in self._circuits.items()}

    def counts(self) -> dict[str, int]:
        """Return the number of refused calls."""
        return {"refused": self.refused}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call unless the breaker is open, and record its outcome."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        circuit, opened_at = self._admit(invocation)
        began = self._clock()
        try:
            envelope = await proceed(invocation)
        except BaseException as error:
            self._record(circuit, opened_at, self._has_failed(error, invocation, began))
            raise
        self._record(circuit, opened_at, False)
        return envelope

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        circuit, opened_at = self._admit(invocation)
        began = self._clock()
        failed: bool | None = False
        try:
            async with open_stream(invocation, proceed) as stream:
                async for envelope in stream:
                    yield envelope
        except GeneratorExit:
            raise
        except BaseException as error:
            failed = self._has_failed(error, invocation, began)
            raise
        finally:
            self._record(circuit, opened_at, failed)

    def _admit(self, invocation: Invocation) -> tuple[_Circuit, float | None]:
        """Return the circuit and, for a probe, the time when the circuit opened; raise if the call is refused."""
        key, now = key_of(invocation, self._by), self._clock()
        with self._lock:
            circuit = self._circuits.get(key)
            if circuit is None:
                if len(self._circuits) >= _MAX_KEYS:
                    self._circuits.pop(next(iter(self._circuits)))
                circuit = self._circuits[key] = _Circuit()
            if circuit.opened_at is None:
                return circuit, None
            left = circuit.opened_at + self._open_seconds - now
            if left <= 0 and circuit.probing < self._probes:
                circuit.probing += 1
                return circuit, circuit.opened_at
            self.refused += 1
        raise refusal(invocation.spec.id, "refused because recent calls failed", "CIRCUIT_OPEN", max(left, 0.0))

    def _has_failed(self, error: BaseException, invocation: Invocation, began: float) -> bool | None:
        """Return whether a call failed because of the upstream; None if the error is unrelated to the upstream.

        Callers choose the deadline of a call: a short deadline must not open the breaker for other callers.
        """
        deadline = invocation.context.deadline
        if deadline is not None and isinstance(error, CallError) and error.code is ErrorCode.TIMEOUT:
            has_passed = time.time() * 1000 >= deadline - _DEADLINE_SLACK_MS
            if has_passed and self._clock() - began < _LONG_SECONDS:
                return None
        return _is_failure(error)

    def _record(self, circuit: _Circuit, opened_at: float | None, failed: bool | None) -> None:
        """Record the outcome of a call; `failed` is None if the outcome is unrelated to the upstream."""
        now = self._clock()
        with self._lock:
            if opened_at is None:
                if circuit.opened_at is None and failed is not None:
                    self._count(circuit, now, failed)
                return
            if circuit.opened_at != opened_at:
                return  # another probe has already closed or reopened the breaker
            circuit.probing -= 1
            if failed is not None:
                circuit.opened_at = now if failed else None
                circuit.probing = 0
                circuit.slices.clear()

    def _count(self, circuit: _Circuit, now: float, failed: bool) -> None:
        number = int(now / self._window * _SLICES)
        for old in [each for each in circuit.slices if each <= number - _SLICES]:
            del circuit.slices[old]
        ended, failures = circuit.slices.get(number, (0, 0))
        circuit.slices[number] = ended + 1, failures + failed
        if not failed:
            return
        total = sum(ended for ended, _ in circuit.slices.values())
        failures = sum(failures for _, failures in circuit.slices.values())
        if total >= self._minimum and failures >= total * self._failure_rate:
            circuit.opened_at = now
            circuit.probing = 0
            circuit.slices.clear()

    def _state(self, circuit: _Circuit, now: float) -> State:
        if circuit.opened_at is None:
            return "closed"
        return "open" if now < circuit.opened_at + self._open_seconds else "half-open"


class _Circuit:
    """The state of one breaker."""

    __slots__ = ("opened_at", "probing", "slices")

    def __init__(self) -> None:
        self.opened_at: float | None = None
        self.probing = 0
        self.slices: dict[int, tuple[int, int]] = {}
        """Number of ended calls and number of failures, by slice of the window."""


def _is_failure(error: BaseException) -> bool | None:
    """Return whether an error is a failure of the upstream; None if the error is unrelated to the upstream."""
    if not isinstance(error, CallError):
        return True if isinstance(error, Exception) else None
    if error.code is ErrorCode.ABORTED:
        return None
    if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT, ErrorCode.EXECUTION_ERROR):
        return False
    details = error.details if isinstance(error.details, dict) else {}
    if error.code is ErrorCode.UNAVAILABLE and details.get("reason") in _LIMITS:
        return None
    status = details.get("statusCode")
    return not (isinstance(status, int) and status < 500)
