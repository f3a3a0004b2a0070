"""`ops worker`: run a worker that shares calls with other workers."""

from __future__ import annotations

from typing import Any

from operations.cli.arguments import SERVING_OPTIONS, Command, Option, ParsedArguments, whole_number
from operations.cli.commands import SUMMARIES


def run(args: ParsedArguments) -> Any:
    """Run a worker until SIGTERM or Ctrl-C."""
    from operations.cli.processes import offer

    if args.processes is None and not args.reload:
        return offer(args, pool=True)
    from operations.cli.configuration import require_configuration
    from operations.cli.supervisor import supervise
    from operations.config.settings import PythonSettings

    config = require_configuration(args)
    folders = [
        source.directory / source.settings.python
        for source in config.sources.values()
        if isinstance(source.settings, PythonSettings)
    ]
    return supervise(args, COMMAND, [*config.files, *folders])


COMMAND = Command(
    name="worker",
    summary=SUMMARIES["worker"],
    run=run,
    options=(
        *SERVING_OPTIONS,
        Option(
            "--processes",
            "number of processes, which share the calls (default: 1)",
            value="NUMBER",
            convert=whole_number,
        ),
        Option("--reload", "replace the processes when the configuration or a Python source changes"),
    ),
    notes="""
Workers with the same operations share the calls to them. On SIGTERM or Ctrl-C a worker accepts no new calls, finishes
its running calls and exits. With --processes or --reload, SIGHUP replaces the processes one by one without refusing
a call, and a process that fails is restarted.
""",
    examples=(
        ("ops worker --url ws://127.0.0.1:8700/", "through a hub"),
        ("ops worker --url redis://127.0.0.1:6379", "over Redis"),
        (
            "ops worker --url redis://127.0.0.1:6379 --processes 4 --health 9100",
            "four processes, health at 9100 to 9103",
        ),
        ("ops worker --url nats://127.0.0.1:4222 --concurrency 16", "over NATS, 16 concurrent calls"),
    ),
)
