"""`ops sub`: print the events of a subscription, one per line."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from operations.cli.arguments import (
    RESULT_OPTIONS,
    TRANSPORT_OPTIONS,
    VERBOSE_OPTION,
    Command,
    Option,
    ParsedArguments,
    seconds,
    whole_number,
)
from operations.cli.commands import SUMMARIES
from operations.cli.commands.call import CALL_ARGUMENTS, TOOL_ERROR, deadline_of, exit_code_for
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import OK, CommandError, report_exit
from operations.cli.inputs import INPUT_FORMS, read_operation_input, read_stdin
from operations.cli.output import Output, counted, duration
from operations.cli.stderr import spinner
from operations.context import OperationContext


def run(args: ParsedArguments) -> Any:
    """Print the events of a subscription, one per line."""
    return _follow(args, read_stdin(args.input))


async def _follow(args: ParsedArguments, stdin: bytes) -> int:
    from operations.cli.session import open_session

    output = Output(args)
    code = OK
    async with open_session(args, args.operation) as session:
        operation = session.find(args.operation)
        if operation.stream is None:
            raise CommandError(f"{operation.id} is not a subscription", f"use 'ops call {operation.id}'")
        value = read_operation_input(args.input, operation, stdin)
        context = OperationContext(deadline=deadline_of(args), client=session.client)
        started, count = time.perf_counter(), 0
        async with (
            spinner(f"{operation.id} · waiting for events · Ctrl-C to stop", quiet=args.quiet) as line,
            contextlib.aclosing(session.registry.subscribe(operation.id, value, context)) as stream,
        ):
            async for envelope in stream:
                count += 1
                code = max(code, exit_code_for(envelope))
                line.clear()
                prefix = output.dim(f"{time.strftime('%H:%M:%S')} #{count} ") if output.pretty else b""
                await output.write(prefix + output.text_of(envelope, compact=True))
                line.text = f"{operation.id} · {counted(count, 'event')} · Ctrl-C to stop"
                if count == args.limit:
                    break
        seconds = time.perf_counter() - started
        output.note(f"{counted(count, 'event')} · {duration(seconds)}", events=count, seconds=round(seconds, 6))
    return report_exit(code, TOOL_ERROR)


COMMAND = Command(
    name="sub",
    summary=SUMMARIES["sub"],
    run=run,
    arguments=(CALL_ARGUMENTS[0]._replace(completes="stream"), *CALL_ARGUMENTS[1:]),
    options=(
        *RESULT_OPTIONS,
        Option(
            "--limit",
            "stop after this many events (default: at the end of the stream)",
            "-l",
            value="NUMBER",
            convert=whole_number,
        ),
        Option(
            "--timeout", "stop after this time: 5, 0.5s, 2m (default: never)", "-t", value="SECONDS", convert=seconds
        ),
        VERBOSE_OPTION,
        *TRANSPORT_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops sub shop.watch item=tea", "until the stream ends, or Ctrl-C"),
        ("ops sub shop.watch item=tea --limit 3 > events.ndjson", "three events, one JSON line each"),
        ("ops sub prices.ticks --envelope | jq .meta.event", "with the type and id of each event"),
    ),
)
