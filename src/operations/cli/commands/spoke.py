"""`ops spoke`: serve the configuration's operations through a hub."""

from __future__ import annotations

from typing import Any

from operations.cli.arguments import SERVING_OPTIONS, Command, ParsedArguments
from operations.cli.commands import SUMMARIES


def run(args: ParsedArguments) -> Any:
    """Serve the configuration's operations through a hub until SIGTERM or Ctrl-C."""
    from operations.cli.processes import offer

    return offer(args, pool=False)


COMMAND = Command(
    name="spoke",
    summary=SUMMARIES["spoke"],
    run=run,
    options=SERVING_OPTIONS,
    notes="""
Connects to the hub, registers every operation of the configuration, and reconnects when the connection is lost. The hub
rejects an operation whose id another spoke has registered. Processes that share an operation run `ops worker` instead.
""",
    examples=(
        ("OPERATIONS_TOKEN=... ops spoke --url ws://127.0.0.1:8700/", "serve the configuration's operations"),
        ("ops spoke", "connect to the configuration's only [transports] entry"),
    ),
)
