"""`spoke`: the configuration's operations, offered through a hub under their own ids."""

from __future__ import annotations

from typing import Any

from operations.cli.arguments import SERVING_OPTIONS, Command, Given
from operations.cli.commands import SUMMARIES


def run(given: Given) -> Any:
    """Dial in and offer."""
    from operations.cli.processes import offer

    return offer(given, pool=False)


COMMAND = Command(
    name="spoke",
    summary=SUMMARIES["spoke"],
    run=run,
    options=SERVING_OPTIONS,
    notes="""
Dials out to the hub, offers every operation of the configuration, and comes back by itself when it was cut off. An id
that another spoke offers already is refused; `ops worker` shares it.
""",
    examples=(
        ("OPERATIONS_TOKEN=... ops spoke --url ws://127.0.0.1:8700/", "offer what is configured here"),
        ("ops spoke", "at the one [transports] entry of the configuration"),
    ),
)
