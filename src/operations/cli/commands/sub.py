"""`ops sub`: a stream, one line for each event in a pipe, a live view on a terminal."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from operations.cli.arguments import RESULT_OPTIONS, TRANSPORT_OPTIONS, Command, Given, Option, seconds, whole_number
from operations.cli.commands import SUMMARIES
from operations.cli.commands.call import CALL_ARGUMENTS, TOOL_ERROR, deadline_of, exit_code_for
from operations.cli.failures import OK, CommandError, conclude
from operations.cli.inputs import INPUT_FORMS, read_input, read_stdin
from operations.cli.output import Output, counted, duration
from operations.cli.stderr import spinning
from operations.context import OperationContext


def run(given: Given) -> Any:
    """Follow."""
    return _follow(given, read_stdin(given.input))


async def _follow(given: Given, stdin: bytes) -> int:
    from operations.cli.session import open_session

    output = Output(given)
    code = OK
    async with open_session(given, given.operation) as session:
        operation = session.find(given.operation)
        if operation.stream is None:
            raise CommandError(f"{operation.id} answers once, it is no stream", f"ops call {operation.id} calls it")
        value = read_input(given.input, operation.spec.input_schema.document, stdin)
        context = OperationContext(deadline=deadline_of(given))
        started, count = time.perf_counter(), 0
        async with (
            spinning(f"{operation.id} · waiting for events · Ctrl-C ends", quiet=given.quiet) as line,
            contextlib.aclosing(session.registry.subscribe(operation.id, value, context)) as stream,
        ):
            async for envelope in stream:
                count += 1
                code = max(code, exit_code_for(envelope))
                line.clear()
                place = output.dim(f"{time.strftime('%H:%M:%S')} #{count} ") if output.pretty else b""
                await output.write(place + output.text_of(envelope, compact=True))
                line.text = f"{operation.id} · {counted(count, 'event')} · Ctrl-C ends"
                if count == given.limit:
                    break
        seconds = time.perf_counter() - started
        output.note(f"{counted(count, 'event')} · {duration(seconds)}", events=count, seconds=round(seconds, 6))
    return conclude(code, TOOL_ERROR)


COMMAND = Command(
    name="sub",
    summary=SUMMARIES["sub"],
    run=run,
    arguments=(CALL_ARGUMENTS[0]._replace(completes="stream"), *CALL_ARGUMENTS[1:]),
    options=(
        *RESULT_OPTIONS,
        Option("--limit", "end after so many events", "-l", value="NUMBER", convert=whole_number),
        Option("--timeout", "end after so many seconds", "-t", value="SECONDS", convert=seconds),
        *TRANSPORT_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops sub shop.watch item=tea", "until it ends, or Ctrl-C"),
        ("ops sub shop.watch item=tea --limit 3 > events.ndjson", "three events, one JSON line each"),
        ("ops sub prices.ticks --envelope | jq .meta.event", "with the type and id of each event"),
    ),
)
