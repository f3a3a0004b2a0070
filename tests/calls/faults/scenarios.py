"""Fault scenarios with their expected outcomes and transports; `pytest.mark.fault` assigns tests to them.

`python -m tests.calls.faults` prints which tests show which.
"""

from __future__ import annotations

from typing import NamedTuple

MEMORY, HUB, REDIS, NATS = "memory", "websocket", "redis", "nats"
TRANSPORTS = (MEMORY, HUB, REDIS, NATS)
NETWORKED = (HUB, REDIS, NATS)
BROKERS = (REDIS, NATS)


class Scenario(NamedTuple):
    """One fault."""

    fault: str
    promise: str
    transports: tuple[str, ...]


SCENARIOS: dict[int, Scenario] = {
    1: Scenario("Redis is killed under 200 calls", "all fail as lost; queries are sent again, mutations not", (REDIS,)),
    2: Scenario("Redis restarts", "all peers listen again; open streams fail", (REDIS,)),
    3: Scenario("Redis freezes and continues", "detected by missing pongs; nothing runs twice", (REDIS,)),
    4: Scenario("the NATS server is killed and restarted", "as with Redis", (NATS,)),
    5: Scenario("the NATS server freezes", "as with Redis", (NATS,)),
    6: Scenario("a call while the server is down", "fails without being sent, and never runs later", NETWORKED),
    7: Scenario("one of two workers is killed", "its calls fail; queries go to the other worker", NETWORKED),
    8: Scenario(
        "one of two workers freezes", "its calls fail after three heartbeats; late responses are counted", NETWORKED
    ),
    9: Scenario("no worker", "`UNAVAILABLE` immediately", TRANSPORTS),
    10: Scenario("a worker starts later", "calls with `wait=True` are served", TRANSPORTS),
    11: Scenario("a duplicate request", "runs once", TRANSPORTS),
    12: Scenario("a duplicate response", "the first one counts", TRANSPORTS),
    13: Scenario("a late response", "dropped and counted", TRANSPORTS),
    14: Scenario("a response to an unknown or foreign request", "dropped and counted", TRANSPORTS),
    15: Scenario("bytes that are not an event", "counted; the next call works", TRANSPORTS),
    16: Scenario("JSON of another program in an inbox", "ignored and counted", TRANSPORTS),
    17: Scenario(
        "payloads around one and eight MiB", "a response or a typed error; the connection stays open", TRANSPORTS
    ),
    18: Scenario("a slow consumer of a fast stream", "the producer waits; no item is lost", TRANSPORTS),
    19: Scenario("a worker pauses for a while", "not declared lost too early", NETWORKED),
    20: Scenario("Redis disconnects a slow reader", "calls fail; none waits for its deadline", (REDIS,)),
    21: Scenario("a slow consumer of NATS", "calls fail; none waits for its deadline", (NATS,)),
    22: Scenario("the caller is cancelled", "the handler and its nested calls are cancelled", TRANSPORTS),
    23: Scenario("the caller is killed during a stream", "the generator is closed", NETWORKED),
    24: Scenario("the deadline passes in the queue", "the handler never runs", TRANSPORTS),
    25: Scenario("nested calls with one deadline", "all end at the deadline", TRANSPORTS),
    26: Scenario("clocks that differ", "clamped, or a clear error", TRANSPORTS),
    27: Scenario("SIGTERM to a worker under load", "no call fails while another worker is alive", NETWORKED),
    28: Scenario("the hub restarts", "spokes reconnect", (HUB,)),
    29: Scenario("a connection is closed at any byte", "no partial event is accepted", NETWORKED),
    30: Scenario("one byte per packet", "the same results", NETWORKED),
    31: Scenario("the hub of 200 spokes restarts", "all spokes reconnect", (HUB,)),
    32: Scenario("a spoke reconnects before its loss is detected", "its new registration stays", (HUB,)),
    33: Scenario("two spokes register one id", "the second is refused with the reason", (HUB,)),
    34: Scenario(
        "a spoke registers outside its namespace, or claims an identity", "refused; overwritten and counted", (HUB,)
    ),
    35: Scenario("a token expires", "the connection is closed; the spoke requests a new token", (HUB,)),
    36: Scenario("10,000 concurrent calls", "10,000 outcomes, nothing leaked", TRANSPORTS),
    37: Scenario(
        "a stored request that kills its workers",
        "dead-lettered after three workers; its caller gets an error",
        BROKERS,
    ),
    38: Scenario("a handler raises a BaseException", "a defined outcome; the worker continues", TRANSPORTS),
    39: Scenario("a consumer leaves a stream", "the generator is closed", TRANSPORTS),
    40: Scenario("a response over the largest payload", "a typed error for the caller", NETWORKED),
    41: Scenario("2,000 concurrent requests of one caller", "requests and items keep their order", TRANSPORTS),
    42: Scenario("a network slower than the deadline", "ends in time; the worker is cancelled", NETWORKED),
    43: Scenario("no free file descriptors", "back-off, `UNAVAILABLE`, recovery", NETWORKED),
    44: Scenario(
        "workers and the broker are killed while jobs run",
        "each ends in a result or a dead letter",
        BROKERS,
    ),
}


def table() -> str:
    """Return the scenarios as the table of the guide."""
    lines = ["| # | fault | ends in | on |", "|---|---|---|---|"]
    for number, (fault, promise, transports) in SCENARIOS.items():
        where = "all" if transports == TRANSPORTS else ", ".join(transports)
        lines.append(f"| {number} | {fault} | {promise} | {where} |")
    return "\n".join(lines) + "\n"
