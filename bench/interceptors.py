"""Overhead of each shipped interceptor, as a multiple of a bare execute.

`python -m bench.interceptors`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bench.measure import report, save, time_calls
from operations import Identity, OperationContext, OperationRegistry, operation
from operations.interceptors import (
    Approval,
    ApprovalRequest,
    Cache,
    CircuitBreaker,
    ConcurrencyLimit,
    Interceptor,
    Invocation,
    LogCalls,
    Only,
    Proceed,
    RateLimit,
    Redact,
    ResponseLimit,
    Retry,
)

INPUT = {"item": "tea"}
CONTEXT = OperationContext(request_id="r", identity=Identity("ann", ("read",)))
BARE = "bare execute"


@operation("shop.quote", type="query")
async def quote(item: str) -> dict[str, Any]:
    """Return a quote of typical size."""
    return {"item": item, "price": 12.5, "currency": "EUR", "tags": ["hot", "green"], "stock": {"berlin": 3, "rome": 0}}


async def nothing(invocation: Invocation, proceed: Proceed) -> Any:
    return await proceed(invocation)


async def allow(request: ApprovalRequest) -> bool:
    return True


def shipped() -> dict[str, Interceptor]:
    """Return each interceptor, with limits that are never reached."""
    return {
        "an interceptor that does nothing": nothing,
        "another operation's interceptor": Only(nothing, ["other.*"]),
        "log, level off": LogCalls(level="DEBUG"),
        "log, one line": LogCalls(logger="bench.calls"),
        "retry": Retry(),
        "rate limit": RateLimit(1e9),
        "concurrency limit": ConcurrencyLimit(100),
        "circuit breaker": CircuitBreaker(),
        "cache, hit": Cache(3600),
        "cache, miss": Cache(1e-9),
        "response limit": ResponseLimit(1_000_000),
        "redact": Redact(),
        "approval": Approval({"*": "ask"}, ask=allow),
    }


def calls() -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a call through each interceptor."""
    log = logging.getLogger("bench.calls")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.StreamHandler(open("/dev/null", "w")))  # noqa: SIM115  # until the process ends

    def through(interceptors: list[Interceptor]) -> Callable[[], Awaitable[object]]:
        registry = OperationRegistry([quote], interceptors=interceptors)
        return lambda: registry.execute("shop.quote", INPUT, CONTEXT)

    return {BARE: through([]), **{name: through([each]) for name, each in shipped().items()}}


async def main() -> None:
    """Measure, print and save the ratios."""
    times = await time_calls(calls())
    report("One call through one interceptor", times, BARE)
    save("interceptors", {name: taken / times[BARE] for name, taken in times.items()})


if __name__ == "__main__":
    asyncio.run(main())
