"""`worker`: one of several processes that share the calls to the same operations."""

from __future__ import annotations

from typing import Any

from operations.cli.arguments import SERVING_OPTIONS, Command, Given
from operations.cli.commands import SUMMARIES


def run(given: Given) -> Any:
    """Join and work."""
    from operations.cli.processes import offer

    return offer(given, pool=True)


COMMAND = Command(
    name="worker",
    summary=SUMMARIES["worker"],
    run=run,
    options=SERVING_OPTIONS,
    notes="""
Any number of workers with the same operations share the calls to them. On SIGTERM or Ctrl-C a worker takes no further
calls, finishes those that run, and leaves.
""",
    examples=(
        ("ops worker --url ws://127.0.0.1:8700/", "through a hub"),
        ("ops worker --url redis://127.0.0.1:6379", "over Redis"),
        ("ops worker --url nats://127.0.0.1:4222 --concurrency 16", "over NATS, 16 calls at a time"),
    ),
)
