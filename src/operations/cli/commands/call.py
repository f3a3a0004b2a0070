"""`ops call`: call an operation and print its data."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any

from operations.cli.arguments import (
    RESULT_OPTIONS,
    TRANSPORT_OPTIONS,
    VERBOSE_OPTION,
    Argument,
    Command,
    Option,
    ParsedArguments,
    seconds,
)
from operations.cli.commands import SUMMARIES
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import OK, OPERATION, CommandError, report_exit
from operations.cli.inputs import INPUT_FORMS, read_operation_input, read_stdin
from operations.cli.output import Output, require_writable
from operations.cli.stderr import StatusLine, bar, spinner
from operations.cli.terminal import printable
from operations.context import Client, OperationContext
from operations.envelope import MCPResponseMeta, ResponseEnvelope, local_envelope
from operations.errors import CallError

CALL_ARGUMENTS = (
    Argument("OPERATION", "the operation, as namespace.name", completes="operation"),
    Argument("INPUT", "key=value, key:=json, key@file, @input.json, -", required=False, many=True, completes="field"),
)

TOOL_ERROR = "the tool reported an error"


def run(args: ParsedArguments) -> Any:
    """Call an operation and print its data."""
    return _call(args, read_stdin(args.input))


async def _call(args: ParsedArguments, stdin: bytes) -> int:
    output = Output(args)
    if args.output is not None:
        require_writable(args.output)
    async with _open(args) as session, AsyncExitStack() as stack:
        operation = session.find(args.operation)
        if operation.handler is None and operation.stream is not None:
            raise CommandError(f"{operation.id} is a subscription", f"use 'ops sub {operation.id}'")
        if args.dry_run:
            session.require_request(operation, "--dry-run")
        elif args.record is not None:
            _record(args, session, stack)
        value = read_operation_input(args.input, operation, stdin)
        async with spinner(f"calling {operation.id}", quiet=args.quiet) as line:
            context = _context(args, operation.id, line, session.client)
            started = time.perf_counter()
            try:
                envelope = await session.registry.execute(operation.id, value, context)
            except CallError as error:
                session.explain(error, operation)
                raise
        if args.dry_run:
            return await _show_request(envelope.data, session, output)
        await output.result(envelope, started, to=args.output)
    code = exit_code_for(envelope)
    return OK if code == OK else report_exit(code, TOOL_ERROR)


async def _show_request(data: dict[str, Any], session: Any, output: Output) -> int:
    """Print the request of a dry run: as HTTP on a terminal, else as JSON."""
    from operations.cli.snippets import readable_request, request_text, without_secrets

    request = without_secrets(data, session.redact)
    if output.is_plain:
        await output.write(printable(request_text(request)).encode())
    else:
        await output.write(output.text_of(local_envelope(readable_request(request), "dry_run")))
    return OK


def _open(args: ParsedArguments) -> AbstractAsyncContextManager[Any]:
    """Return the session of a call. It has the source of the operation or, with `--replay`, only the recording."""
    from operations.cli.session import CommandSession, open_session

    if args.replay is None:
        return open_session(args, args.operation)
    from operations.recording import replay_operations
    from operations.registry import OperationRegistry

    try:
        registry = OperationRegistry(replay_operations(args.replay))
    except OSError as error:
        reason = f"{args.replay} cannot be read: {error.strerror}"
        raise CommandError(reason, "ops call --record FILE makes a recording") from None
    return nullcontext(CommandSession(registry, None, [], is_remote=False))


def _record(args: ParsedArguments, session: Any, stack: AsyncExitStack) -> None:
    """Record the calls of the session in the file that `--record` names; `stack` closes the file."""
    from operations.recording import FileRecorder

    try:
        recorder = stack.enter_context(FileRecorder(args.record, secrets=session.secrets()))
    except OSError as error:
        raise CommandError(
            f"{args.record} cannot be written: {error.strerror}", "name a writable file with --record"
        ) from None
    session.registry.interceptors = (recorder, *session.registry.interceptors)


def _context(args: ParsedArguments, operation_id: str, line: StatusLine, client: Client | None) -> OperationContext:
    """Build the context: deadline, status line that shows progress, client that answers questions, dry run."""
    metadata: dict[str, Any] = {}
    if args.dry_run:
        from operations.sources.openapi.config import HTTPCallOptions

        metadata["http"] = HTTPCallOptions(dry_run=True)

    def progress(done: float, total: float | None, message: str | None) -> None:
        amount = f"{bar(done, total)} {done:g}/{total:g}" if total else f"{done:g}"
        line.update(f"{operation_id} {amount} {message or ''}")

    return OperationContext(deadline=deadline_of(args), metadata=metadata, progress=progress, client=client)


def deadline_of(args: ParsedArguments) -> int | None:
    """Return the deadline that `--timeout` sets, in epoch milliseconds; None without the option."""
    return None if args.timeout is None else int((time.time() + args.timeout) * 1000)


def exit_code_for(envelope: ResponseEnvelope[Any]) -> int:
    """Return 0, or 5 if the tool reported an error."""
    return OPERATION if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error else OK


COMMAND = Command(
    name="call",
    summary=SUMMARIES["call"],
    run=run,
    arguments=CALL_ARGUMENTS,
    options=(
        *RESULT_OPTIONS,
        Option(
            "--output",
            "write the result to a file; bytes and images as they are, other results as JSON",
            "-o",
            value="FILE",
            completes="file",
        ),
        Option(
            "--timeout",
            "time limit: 5, 0.5s, 2m (default: 30s over a transport, else the source's limit)",
            "-t",
            value="SECONDS",
            convert=seconds,
        ),
        Option("--dry-run", "print the HTTP request without sending it (OpenAPI only)", "-n"),
        Option("--record", "append the call and its result to a file, without secrets", value="FILE", completes="file"),
        Option("--replay", "answer from a recording, without any source", value="FILE", completes="file"),
        VERBOSE_OPTION,
        *TRANSPORT_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    forms=INPUT_FORMS,
    examples=(
        ("ops call shop.quote item=tea count=4", "values are converted to the schema's types"),
        ("ops call shop.restock items:='{\"tea\": 3}'", "pass JSON"),
        ("ops call shop.quote @input.json --envelope", "print data and meta"),
        ("ops call photos.get id=7 -o cat.png", "write bytes to a file"),
        ("ops call shop.orders --jq '.[].id'", "print parts of the result"),
    ),
)
