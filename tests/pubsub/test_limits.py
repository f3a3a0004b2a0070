"""Every transport, caller and worker refuses invalid numbers in its settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import StaticTokens
from operations.pubsub import connect
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.memory import MemoryTransport
from operations.registry import OperationRegistry

NO_SECONDS: list[Any] = [0, 0.0, -1, 0.0001, math.nan, math.inf, -math.inf, 1e12, "2", None, True]
NO_COUNTS: list[Any] = [0, -1, 1.5, math.nan, math.inf, "16", None, True]
_TRANSPORTS: dict[str, Callable[..., Any]] = {
    "redis": lambda **options: connect("redis://127.0.0.1:1", **options),
    "nats": lambda **options: connect("nats://127.0.0.1:1", **options),
    "spoke": lambda **options: Spoke("ws://127.0.0.1:1", **options),
    "hub": lambda **options: Hub(StaticTokens({}), **options),
}
_SECONDS = {
    "redis": ["heartbeat", "shortest_delay", "longest_delay"],
    "nats": ["heartbeat", "shortest_delay", "longest_delay", "timeout", "ack_wait"],
    "spoke": ["heartbeat", "shortest_delay", "longest_delay"],
    "hub": ["heartbeat"],
}
_COUNTS = {"redis": ["max_payload"], "nats": ["replicas"], "spoke": ["max_payload"], "hub": ["max_payload"]}


@pytest.mark.parametrize("value", NO_SECONDS)
def test_an_invalid_number_of_seconds(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^pause is .*: expected a number of seconds from 0.001 to 1e\+09$"):
        check_seconds(fine=1, pause=value)


@pytest.mark.parametrize("value", NO_COUNTS)
def test_an_invalid_count(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^places is .*: expected a whole number of at least 1$"):
        check_counts(fine=1, places=value)


def test_valid_limits_are_accepted() -> None:
    check_seconds(shortest=0.001, usual=2, longest=1e9)
    check_counts(one=1, many=1 << 40)
    check_counts(none=0, least=0)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in _SECONDS.items() for name in names])
async def test_every_transport_refuses_invalid_seconds(kind: str, name: str) -> None:
    for value in NO_SECONDS:
        with pytest.raises(ValueError, match=f"^{name} is "):
            _TRANSPORTS[kind](**{name: value})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in _COUNTS.items() for name in names])
async def test_every_transport_refuses_invalid_counts(kind: str, name: str) -> None:
    for value in NO_COUNTS:
        with pytest.raises(ValueError, match=f"^{name} is "):
            _TRANSPORTS[kind](**{name: value})


async def test_a_worker_and_a_caller_refuse_invalid_limits() -> None:
    transport = MemoryTransport()
    for value in NO_COUNTS:
        with pytest.raises(ValueError, match=r"^concurrency is "):
            CallHandler(OperationRegistry(), transport, concurrency=value)
    with pytest.raises(ValueError, match=r"^queue is -1: expected a whole number of at least 0"):
        CallHandler(OperationRegistry(), transport, queue=-1)
    for value in NO_SECONDS:
        with pytest.raises(ValueError, match=r"^timeout is "):
            PendingRequestMap(transport, timeout=value)
    with pytest.raises(ValueError, match=r"^idle_timeout is nan"):
        PendingRequestMap(transport).subscribe("shop.watch", {}, idle_timeout=math.nan)
