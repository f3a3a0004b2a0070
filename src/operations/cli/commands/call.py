"""`ops call`: one call, its data on stdout."""

from __future__ import annotations

import time
from typing import Any

from operations.cli.arguments import RESULT_OPTIONS, TRANSPORT_OPTIONS, Argument, Command, Given, Option, seconds
from operations.cli.commands import SUMMARIES
from operations.cli.failures import OK, OPERATION, CommandError, conclude
from operations.cli.inputs import INPUT_FORMS, read_input, read_stdin
from operations.cli.output import Output, require_place
from operations.cli.snippets import without_secrets
from operations.cli.stderr import StatusLine, bar, spinning
from operations.context import OperationContext
from operations.envelope import MCPResponseMeta, ResponseEnvelope, local_envelope

CALL_ARGUMENTS = (
    Argument("OPERATION", "its id: namespace.name", completes="operation"),
    Argument("INPUT", "key=value, key:=json, key@file, @input.json, -", required=False, many=True, completes="field"),
)

TOOL_ERROR = "the tool reported an error"


def run(given: Given) -> Any:
    """Call."""
    return _call(given, read_stdin(given.input))


async def _call(given: Given, stdin: bytes) -> int:
    from operations.cli.session import open_session

    output = Output(given)
    if given.output is not None:
        require_place(given.output)
    async with open_session(given, given.operation) as session:
        operation = session.find(given.operation)
        if operation.handler is None and operation.stream is not None:
            raise CommandError(f"{operation.id} is a stream of events", f"ops sub {operation.id} follows it")
        if given.dry_run:
            session.require_dry_run(operation)
        value = read_input(given.input, operation.spec.input_schema.document, stdin)
        async with spinning(f"calling {operation.id}", quiet=given.quiet) as line:
            context = _context(given, operation.id, line)
            started = time.perf_counter()
            envelope = await session.registry.execute(operation.id, value, context)
        if given.dry_run:
            envelope = local_envelope(without_secrets(envelope.data, session.redact), operation.id)
        await output.result(envelope, started, to=given.output)
    code = exit_code_for(envelope)
    return OK if code == OK else conclude(code, TOOL_ERROR)


def _context(given: Given, operation_id: str, line: StatusLine) -> OperationContext:
    """The context of a call from the command line: deadline, progress on the status line, dry run."""
    metadata: dict[str, Any] = {}
    if given.dry_run:
        from operations.sources.openapi.config import HTTPCallOptions

        metadata["http"] = HTTPCallOptions(dry_run=True)

    def progress(done: float, total: float | None, message: str | None) -> None:
        amount = f"{bar(done, total)} {done:g}/{total:g}" if total else f"{done:g}"
        line.update(f"{operation_id} {amount} {message or ''}")

    return OperationContext(deadline=deadline_of(given), metadata=metadata, progress=progress)


def deadline_of(given: Given) -> int | None:
    """The deadline that `--timeout` sets, in epoch milliseconds."""
    return None if given.timeout is None else int((time.time() + given.timeout) * 1000)


def exit_code_for(envelope: ResponseEnvelope[Any]) -> int:
    """0, or 5 for a tool that reported an error."""
    return OPERATION if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error else OK


COMMAND = Command(
    name="call",
    summary=SUMMARIES["call"],
    run=run,
    arguments=CALL_ARGUMENTS,
    options=(
        *RESULT_OPTIONS,
        Option("--output", "write the result to a file, bytes as they are", "-o", value="FILE", completes="file"),
        Option("--timeout", "give up after so many seconds", "-t", value="SECONDS", convert=seconds),
        Option("--dry-run", "the request that would be sent, for operations of an API", "-n"),
        *TRANSPORT_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops call shop.quote item=tea count=4", "values are read as the types that the schema gives"),
        ("ops call shop.restock items:='{\"tea\": 3}'", "JSON"),
        ("ops call shop.quote @input.json --envelope", "with all that its source said"),
        ("ops call photos.get id=7 -o cat.png", "bytes to a file"),
        ("ops call shop.orders --jq '.[].id'", "parts of the result"),
    ),
)
