"""`ops map`: call an operation for each line of input, concurrently and in bounded memory.

Results are written in the order of the input lines, or with `--unordered` in the order in which the calls end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from operations.cli.arguments import (
    RESULT_OPTIONS,
    TRANSPORT_OPTIONS,
    VERBOSE_OPTION,
    Argument,
    Command,
    Option,
    ParsedArguments,
    UsageError,
    seconds,
    whole_number,
)
from operations.cli.commands import SUMMARIES
from operations.cli.commands.call import TOOL_ERROR, deadline_of, exit_code_for
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import OK, OPERATION, CommandError, exit_code_of, report_exit
from operations.cli.inputs import INPUT_FORMS, read_operation_input
from operations.cli.line_mapper import LineOutcome, Lines, count_lines, map_lines
from operations.cli.output import Output, counted, duration
from operations.cli.stderr import StatusLine, bar
from operations.cli.terminal import is_terminal
from operations.config.trust import shell_quoted
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.sources.scanner.isolation import in_background
from operations.wire import encode_json

_FLUSH = 65_536


def run(args: ParsedArguments) -> Any:
    """Call an operation for each line of input, and write the results."""
    if any(word in ("-", "@-") for word in args.fields):
        raise UsageError("'-' is not allowed: stdin has the lines; pass fields common to all lines as key=value")
    for word in args.fields:
        if not set("=@").intersection(word) and word[:1] not in ("{", "["):
            hint = f"-i {shell_quoted(word)} reads lines from a file"
            raise UsageError(f"invalid input {word!r}: expected key=value", hint)
    if args.input is None and is_terminal(sys.stdin):
        raise UsageError("no input: pipe lines of JSON in, or name a file with --input", _EXAMPLE)
    return _map(args)


async def _map(args: ParsedArguments) -> int:
    from operations.cli.session import open_session

    output = Output(args)
    async with open_session(args, args.operation) as session:
        operation = session.find(args.operation)
        if operation.handler is None:
            raise CommandError(f"{operation.id} is a subscription, which cannot be mapped")
        fixed = read_operation_input(args.fields, operation) or {}

        async def call(value: Any) -> ResponseEnvelope[Any]:
            return await session.registry.execute(operation.id, value, OperationContext(deadline=deadline_of(args)))

        with _opened(args.input) as descriptor:
            lines = Lines(descriptor)
            report = _Report(args, output, await in_background(count_lines, descriptor))
            outcomes = map_lines(call, lines, fixed, jobs=args.jobs, ordered=not args.unordered)
            try:
                async with contextlib.aclosing(outcomes):
                    async for outcome in outcomes:
                        await report.add(outcome)
                        if args.fail_fast and report.failures:
                            break
            except asyncio.CancelledError:
                await report.end()  # write finished results and report progress
                raise
            await report.end()
            return report.report_exit()


class _Report:
    """Writes and counts outcomes, and reports totals at the end."""

    def __init__(self, args: ParsedArguments, output: Output, total: int | None) -> None:
        self._args = args
        self._output = output
        self._total = total
        self._status = StatusLine(quiet=args.quiet)
        self._buffer = bytearray()
        self._flushed = self._started = time.perf_counter()
        self._count = 0
        self._first = ""
        self._errors = None if args.errors is None else open(args.errors, "wb")  # noqa: SIM115  # closed in end()
        self.failures: Counter[int] = Counter()

    async def add(self, outcome: LineOutcome) -> None:
        self._count += 1
        if isinstance(outcome.result, CallError):
            self._add_failure(outcome.number, outcome.result)
        else:
            code = exit_code_for(outcome.result)
            if code != OK:
                self._note(outcome.number, code, TOOL_ERROR)
            self._add_result(outcome.number, outcome.result)
        self._status.update(self._progress())
        if len(self._buffer) > _FLUSH or time.perf_counter() - self._flushed > 0.1 or outcome.is_last_for_now:
            await self._flush()

    async def end(self) -> None:
        self._status.clear()
        self._status.is_on = False
        await self._flush()
        if self._errors is not None:
            self._errors.close()
        failed = self.failures.total()
        lines = counted(self._count, "line")
        text = f"{lines}, {failed:,} failed" if failed else lines
        seconds = time.perf_counter() - self._started
        figures = {"lines": self._count, "failed": failed, "seconds": round(seconds, 6)}
        self._output.note(f"{text} · {duration(seconds)}", **figures)
        if failed and not self._args.json:
            self._output.note(f"first failure: {self._first}")

    def report_exit(self) -> int:
        """Return 0 without failures, else the common exit code of all failures, or 5 if their codes differ."""
        if not self.failures:
            return OK
        code = next(iter(self.failures)) if len(self.failures) == 1 else OPERATION
        failed, lines = self.failures.total(), counted(self._count, "line")
        return report_exit(code, f"{failed:,} of {lines} failed; the first was {self._first}")

    def _add_result(self, number: int, envelope: ResponseEnvelope[Any]) -> None:
        """Buffer a result; if it cannot be rendered (for example, --jq fails), count only this line as failed."""
        try:
            if self._args.unordered:
                self._buffer += self._output.numbered(envelope, number)
            else:
                self._buffer += self._output.text_of(envelope, compact=True)
        except CommandError as error:
            self._add_failure(number, CallError(ErrorCode.EXECUTION_ERROR, error.message))

    def _add_failure(self, number: int, error: CallError) -> None:
        self._note(number, exit_code_of(error), error.message.replace("\n", "; "))
        failure = {"line": number, "error": error.to_dict()}
        if self._errors is not None:
            self._errors.write(encode_json(failure) + b"\n")
        else:
            self._buffer += self._output.rendered(failure, compact=True)

    def _note(self, number: int, code: int, message: str) -> None:
        self.failures[code] += 1
        self._first = self._first or f"line {number}: {message}"

    async def _flush(self) -> None:
        content, self._buffer = bytes(self._buffer), bytearray()
        self._flushed = time.perf_counter()
        was_drawn = self._status.clear()
        await self._output.write(content)
        if was_drawn and not self._output.pretty:
            self._status.draw()

    def _progress(self) -> str:
        taken = time.perf_counter() - self._started
        failed = f" · {self.failures.total():,} failed" if self.failures else ""
        rate = self._count / max(taken, 0.001)
        if not self._total:
            return f"{counted(self._count, 'line')}{failed} · {rate:,.0f}/s"
        left = duration(max(0, self._total - self._count) / max(rate, 0.001))
        share = f"{bar(self._count, self._total)} {self._count:,}/{self._total:,} lines"
        return f"{share}{failed} · {rate:,.0f}/s · {left} left"


@contextlib.contextmanager
def _opened(name: str | None) -> Iterator[int]:
    """Open the input and yield its file descriptor; without a name, yield the descriptor of stdin."""
    if name is None:
        if sys.stdin is None:
            raise UsageError("no input: stdin is closed")
        yield sys.stdin.fileno()
        return
    with open(name, "rb") as file:
        yield file.fileno()


_EXAMPLE = "ops map shop.quote -j 8 < items.ndjson"
COMMAND = Command(
    name="map",
    summary=SUMMARIES["map"],
    run=run,
    arguments=(
        Argument("OPERATION", "the operation, as namespace.name", completes="operation"),
        Argument("FIELDS", "fields common to all lines", required=False, many=True, completes="field"),
    ),
    options=(
        Option("--input", "input file (default: stdin)", "-i", value="FILE", completes="file"),
        Option("--jobs", "maximum number of concurrent calls", "-j", value="NUMBER", convert=whole_number, default=8),
        Option("--unordered", "write results in the order in which calls end, each with its line number"),
        Option("--errors", "write failures to a file instead of stdout", value="FILE", completes="file"),
        Option("--fail-fast", "stop at the first failure"),
        Option(
            "--timeout",
            "time limit per call: 5, 0.5s, 2m (default: 30s over a transport, else the source's limit)",
            "-t",
            value="SECONDS",
            convert=seconds,
        ),
        *RESULT_OPTIONS,
        VERBOSE_OPTION,
        *TRANSPORT_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    notes="""
Each line of input is a JSON object: the input of one call. Each line of output is the data of one call, in the order of
the input. A failed call prints {"line": 17, "error": {...}} instead. If calls failed, the exit code is the one that all
failures share, or 5 if their codes differ.
""",
    forms=INPUT_FORMS[:-1],
    examples=(
        (_EXAMPLE, "eight concurrent calls"),
        ("ops map shop.quote currency=EUR -i items.ndjson > quotes.ndjson", "with a field common to all lines"),
        ("ops map shop.quote -i items.ndjson --errors failed.ndjson", "write failures to a separate file"),
        ("ops map shop.quote -i items.ndjson --unordered", "write results in the order in which calls end"),
    ),
)
