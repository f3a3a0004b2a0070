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
    2: Scenario("Redis comes back", "everybody listens again; open streams end in an error", (REDIS,)),
    3: Scenario("Redis freezes", "noticed; nothing runs twice when it goes on", (REDIS,)),
    4: Scenario("the NATS server is killed and comes back", "as with Redis", (NATS,)),
    5: Scenario("the NATS server freezes", "as with Redis", (NATS,)),
    6: Scenario("a call while the server is down", "not sent, and never run later", NETWORKED),
    7: Scenario("one of two workers is killed", "its calls are lost; queries go to the other", NETWORKED),
    8: Scenario("one of two workers freezes", "lost after three heartbeats; late answers are counted", NETWORKED),
    9: Scenario("no worker", "UNAVAILABLE at once", TRANSPORTS),
    10: Scenario("a worker that comes later", "who waits is served", TRANSPORTS),
    11: Scenario("a request comes twice", "one run", TRANSPORTS),
    12: Scenario("an answer comes twice", "the first counts", TRANSPORTS),
    13: Scenario("an answer comes late", "dropped and counted", TRANSPORTS),
    14: Scenario("an answer to nobody's or another's request", "dropped and counted", TRANSPORTS),
    15: Scenario("bytes that are no event", "counted; the next call works", TRANSPORTS),
    16: Scenario("other people's JSON in an inbox", "ignored and counted", TRANSPORTS),
    17: Scenario("payloads around one and eight MiB", "an answer or a typed error; the connection lives", TRANSPORTS),
    18: Scenario("a slow consumer of a fast stream", "the producer is held back; nothing is lost", TRANSPORTS),
    19: Scenario("a worker stands still for a while", "not given up too early", NETWORKED),
    20: Scenario("Redis cuts off who reads too slowly", "errors, not silence", (REDIS,)),
    21: Scenario("a slow consumer of NATS", "errors, not silence", (NATS,)),
    22: Scenario("the caller is cancelled", "the handler and its nested calls are cancelled", TRANSPORTS),
    23: Scenario("the caller is killed during a stream", "the generator is closed", NETWORKED),
    24: Scenario("the deadline passes in the queue", "the handler never runs", TRANSPORTS),
    25: Scenario("nested calls with one deadline", "all end with it", TRANSPORTS),
    26: Scenario("clocks that differ", "clamped, or a clear error", TRANSPORTS),
    27: Scenario("SIGTERM to a worker under load", "no failed call while another lives", NETWORKED),
    28: Scenario("the hub restarts", "spokes come back", (HUB,)),
    29: Scenario("a connection is cut at any byte", "no part of an event is believed", NETWORKED),
    30: Scenario("one byte at a time", "the same results", NETWORKED),
    31: Scenario("the hub of 200 spokes restarts", "all come back", (HUB,)),
    32: Scenario("a spoke returns before it was missed", "its new registration stays", (HUB,)),
    33: Scenario("two spokes want one id", "the second is refused with the reason", (HUB,)),
    34: Scenario("a spoke outside its namespace, a forged identity", "refused; overwritten and counted", (HUB,)),
    35: Scenario("a token expires", "the connection is closed; a new token is asked for", (HUB,)),
    36: Scenario("10,000 calls at once", "10,000 outcomes, nothing left", TRANSPORTS),
    37: Scenario("a stored request that kills its workers", "set aside after three; its caller is told", BROKERS),
    38: Scenario("a handler raises a BaseException", "a defined outcome; the worker lives", TRANSPORTS),
    39: Scenario("a consumer leaves a stream", "the generator is closed", TRANSPORTS),
    40: Scenario("an answer over the largest payload", "a typed error to the caller", NETWORKED),
    41: Scenario("two writers", "impossible: one order", TRANSPORTS),
    42: Scenario("a network slower than the deadline", "ends in time; the worker is cancelled", NETWORKED),
    43: Scenario("no file descriptors", "back-off, UNAVAILABLE, recovers", NETWORKED),
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
