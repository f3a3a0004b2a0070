"""`ops map`: one call for each line of input, in parallel, in order, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from operations.cli.arguments import (
    RESULT_OPTIONS,
    TRANSPORT_OPTIONS,
    Argument,
    Command,
    Given,
    Option,
    UsageError,
    seconds,
    whole_number,
)
from operations.cli.commands import SUMMARIES
from operations.cli.commands.call import TOOL_ERROR, deadline_of, exit_code_for
from operations.cli.failures import OK, OPERATION, CommandError, conclude, exit_code_of
from operations.cli.inputs import INPUT_FORMS, read_input
from operations.cli.mapping import Lines, Outcome, map_lines
from operations.cli.output import Output, counted, duration
from operations.cli.stderr import StatusLine, bar
from operations.cli.terminal import is_terminal
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.wire import encode_json

_FLUSH = 65_536


def run(given: Given) -> Any:
    """Map."""
    if any(word in ("-", "@-") for word in given.fields):
        raise UsageError("stdin holds the lines: fields that are the same for all are given as key=value")
    if given.input is None and is_terminal(sys.stdin):
        raise UsageError("there is nothing to read: pipe lines of JSON in, or name a file with --input", _EXAMPLE)
    return _map(given)


async def _map(given: Given) -> int:
    from operations.cli.session import open_session

    output = Output(given)
    async with open_session(given, given.operation) as session:
        operation = session.find(given.operation)
        if operation.handler is None:
            raise CommandError(f"{operation.id} is a stream of events, which cannot be mapped")
        fixed = read_input(given.fields, operation.spec.input_schema.document) or {}

        async def call(value: Any) -> ResponseEnvelope[Any]:
            return await session.registry.execute(operation.id, value, OperationContext(deadline=deadline_of(given)))

        with _opened(given.input) as (descriptor, size):
            lines = Lines(descriptor)
            report = _Report(given, output, lines, size)
            outcomes = map_lines(call, lines, fixed, jobs=given.jobs, ordered=not given.unordered)
            try:
                async with contextlib.aclosing(outcomes):
                    async for outcome in outcomes:
                        await report.add(outcome)
                        if given.fail_fast and report.failures:
                            break
            except asyncio.CancelledError:
                await report.end()  # what was done is written, and how far it came is told
                raise
            await report.end()
            return report.conclude()


class _Report:
    """Writes outcomes as they come, counts them, and says at the end what became of all."""

    def __init__(self, given: Given, output: Output, lines: Lines, size: int) -> None:
        self._given = given
        self._output = output
        self._lines = lines
        self._size = size
        self._status = StatusLine(quiet=given.quiet)
        self._buffer = bytearray()
        self._flushed = self._started = time.perf_counter()
        self._count = 0
        self._first = ""
        self._errors = None if given.errors is None else open(given.errors, "wb")  # noqa: SIM115  # closed in end()
        self.failures: Counter[int] = Counter()

    async def add(self, outcome: Outcome) -> None:
        self._count += 1
        if isinstance(outcome.result, CallError):
            self._fail(outcome.number, outcome.result)
        else:
            code = exit_code_for(outcome.result)
            if code != OK:
                self._note(outcome.number, code, TOOL_ERROR)
            self._keep(outcome.number, outcome.result)
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
        if failed and not self._given.json:
            self._output.note(f"first failure: {self._first}")

    def conclude(self) -> int:
        """The exit code: that of the failures where they are all of one kind."""
        if not self.failures:
            return OK
        code = next(iter(self.failures)) if len(self.failures) == 1 else OPERATION
        failed, lines = self.failures.total(), counted(self._count, "line")
        return conclude(code, f"{failed:,} of {lines} failed; the first was {self._first}")

    def _keep(self, number: int, envelope: ResponseEnvelope[Any]) -> None:
        """Keep a result to be written; one that cannot be, be it for --jq, is the failure of its line alone."""
        try:
            if self._given.unordered:
                self._buffer += self._output.numbered(envelope, number)
            else:
                self._buffer += self._output.text_of(envelope, compact=True)
        except CommandError as error:
            self._fail(number, CallError(ErrorCode.EXECUTION_ERROR, error.message))

    def _fail(self, number: int, error: CallError) -> None:
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
        share = f"{bar(self._lines.bytes_read, self._size)} " if self._size else ""
        failed = f" · {self.failures.total():,} failed" if self.failures else ""
        return f"{share}{counted(self._count, 'line')}{failed} · {self._count / max(taken, 0.001):,.0f}/s"


@contextlib.contextmanager
def _opened(name: str | None) -> Iterator[tuple[int, int]]:
    """The descriptor to read lines from, and the size of the file where it is one."""
    if name is None:
        if sys.stdin is None:
            raise UsageError("stdin is closed: there is nothing to read")
        yield sys.stdin.fileno(), 0
        return
    with open(name, "rb") as file:
        yield file.fileno(), os.fstat(file.fileno()).st_size


_EXAMPLE = "ops map shop.quote -j 8 < items.ndjson"
COMMAND = Command(
    name="map",
    summary=SUMMARIES["map"],
    run=run,
    arguments=(
        Argument("OPERATION", "its id: namespace.name", completes="operation"),
        Argument("FIELDS", "fields that are the same for every line", required=False, many=True, completes="field"),
    ),
    options=(
        Option("--input", "the file to read; else stdin", "-i", value="FILE", completes="file"),
        Option("--jobs", "how many calls at a time", "-j", value="NUMBER", convert=whole_number, default=8),
        Option("--unordered", "write results as they come, each with the number of its line"),
        Option("--errors", "write failures to a file, not among the results", value="FILE", completes="file"),
        Option("--fail-fast", "end at the first failure"),
        Option("--timeout", "give up each call after so many seconds", "-t", value="SECONDS", convert=seconds),
        *RESULT_OPTIONS,
        *TRANSPORT_OPTIONS,
    ),
    notes="""
Each line of input is a JSON object, the input of one call; each line of output is the data of one call, in the order of
the input. A failed call is the line {"line": 17, "error": {...}} in its place, and the exit code tells that there
were any: the code of the failures where they are all of one kind, else 5.
""",
    forms=INPUT_FORMS[:-1],
    examples=(
        (_EXAMPLE, "eight calls at a time"),
        ("ops map shop.quote currency=EUR -i items.ndjson > quotes.ndjson", "with a field that is the same for all"),
        ("ops map shop.quote -i items.ndjson --errors failed.ndjson", "failures apart"),
        ("ops map shop.quote -i items.ndjson --unordered", "as they come"),
    ),
)
