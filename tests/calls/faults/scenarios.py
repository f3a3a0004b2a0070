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
    1: Scenario(
        "Redis is killed under 200 calls",
        "mutations fail with `UNAVAILABLE`; queries are sent again",
        (REDIS,),
    ),
    2: Scenario("Redis restarts", "all peers reconnect and listen again; open streams fail", (REDIS,)),
    3: Scenario("Redis freezes and continues", "the connection counts as lost; nothing runs twice", (REDIS,)),
    4: Scenario("the NATS server is killed and restarted", "the same as 1 and 2", (NATS,)),
    5: Scenario("the NATS server freezes", "the same as 3", (NATS,)),
    6: Scenario("a call is made while the server is down", "it fails without being sent and never runs", NETWORKED),
    7: Scenario("one of two workers is killed", "its calls fail; queries are sent to the other worker", NETWORKED),
    8: Scenario(
        "one of two workers freezes", "its calls fail after three heartbeats; late responses are counted", NETWORKED
    ),
    9: Scenario("no worker is connected", "the call fails immediately with `UNAVAILABLE`", TRANSPORTS),
    10: Scenario("a worker starts later", "a call with `wait=True` waits for it", TRANSPORTS),
    11: Scenario("a request arrives twice", "it runs once", TRANSPORTS),
    12: Scenario("a response arrives twice", "the caller gets the first; the second is counted", TRANSPORTS),
    13: Scenario("a response arrives after its call has ended", "it is dropped and counted", TRANSPORTS),
    14: Scenario("a response belongs to no call of this peer", "it is dropped and counted", TRANSPORTS),
    15: Scenario("a message is not an event", "it is dropped and counted; the next call works", TRANSPORTS),
    16: Scenario("another program sends JSON to an inbox", "it is dropped and counted", TRANSPORTS),
    17: Scenario(
        "payloads of about one and of eight MiB",
        "the caller gets a response or an error with a code; the connection stays open",
        TRANSPORTS,
    ),
    18: Scenario("the consumer of a stream is slow", "the producer waits; no item is lost", TRANSPORTS),
    19: Scenario("a worker pauses for less than three heartbeats", "it does not count as lost", NETWORKED),
    20: Scenario("Redis disconnects a slow reader", "its calls fail before their deadlines", (REDIS,)),
    21: Scenario("NATS disconnects a slow consumer", "its calls fail before their deadlines", (NATS,)),
    22: Scenario("the caller is cancelled", "the handler and its nested calls are cancelled", TRANSPORTS),
    23: Scenario("the caller is killed during a stream", "the generator is closed", NETWORKED),
    24: Scenario("the deadline of a queued call passes", "the handler never runs", TRANSPORTS),
    25: Scenario("the deadline of a call with nested calls passes", "all of them end", TRANSPORTS),
    26: Scenario(
        "the clocks of caller and worker differ",
        "the call runs; if its deadline has passed by the worker's clock, `TIMEOUT` with the times of both clocks",
        TRANSPORTS,
    ),
    27: Scenario("a worker under load receives SIGTERM", "no call fails while another worker is connected", NETWORKED),
    28: Scenario("the hub restarts", "spokes reconnect", (HUB,)),
    29: Scenario("a connection is closed in the middle of a message", "the partial message is not accepted", NETWORKED),
    30: Scenario("each packet has only one byte", "the results are the same", NETWORKED),
    31: Scenario("the hub of 200 spokes restarts", "all spokes reconnect", (HUB,)),
    32: Scenario("a spoke reconnects before the hub detects the loss", "its new registration stays", (HUB,)),
    33: Scenario("two spokes register the same id", "the second is refused with the reason", (HUB,)),
    34: Scenario(
        "a spoke registers outside its namespaces, or claims an identity",
        "the registration is refused; the identity is overwritten and counted",
        (HUB,),
    ),
    35: Scenario("a token expires", "the connection is closed; the spoke requests a new token", (HUB,)),
    36: Scenario("10,000 concurrent calls", "10,000 outcomes; nothing is leaked", TRANSPORTS),
    37: Scenario(
        "a stored request that kills its workers",
        "it becomes a dead letter after three workers; its caller gets an error",
        BROKERS,
    ),
    38: Scenario("a handler raises a BaseException", "the caller gets an error; the worker continues", TRANSPORTS),
    39: Scenario("a consumer stops reading a stream", "the generator is closed", TRANSPORTS),
    40: Scenario("a response exceeds the maximum payload", "the caller gets an error with a code", NETWORKED),
    41: Scenario("2,000 concurrent requests of one caller", "requests and items keep their order", TRANSPORTS),
    42: Scenario("the network is slower than a deadline", "the call ends in time; its handler is cancelled", NETWORKED),
    43: Scenario(
        "a process has no free file descriptors",
        "calls fail with `UNAVAILABLE`; the peer tries again with back-off, and recovers",
        NETWORKED,
    ),
    44: Scenario(
        "workers and the broker are killed while jobs run",
        "each job ends with a result or as a dead letter",
        BROKERS,
    ),
}


def table() -> str:
    """Return the scenarios as the table of the guide."""
    lines = ["| # | Fault | Outcome | Transports |", "|---|---|---|---|"]
    for number, (fault, promise, transports) in SCENARIOS.items():
        where = "all" if transports == TRANSPORTS else ", ".join(transports)
        lines.append(f"| {number} | {fault} | {promise} | {where} |")
    return "\n".join(lines) + "\n"
