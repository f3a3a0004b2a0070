"""`ops jobs`: submit calls that run later on Redis or NATS, and fetch their results."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from operations.cli.arguments import (
    JOB_OPTIONS,
    JOB_URLS,
    RESULT_OPTIONS,
    Argument,
    Command,
    Option,
    ParsedArguments,
    seconds,
    whole_number,
)
from operations.cli.commands import SUMMARIES
from operations.cli.commands.call import CALL_ARGUMENTS, exit_code_for
from operations.cli.configuration import find_configuration, optional_configuration
from operations.cli.failures import OK
from operations.cli.inputs import INPUT_FORMS, read_input, read_stdin, typed_by_schema
from operations.cli.output import Output, write_json
from operations.cli.stderr import spinner, warn, write_line
from operations.cli.terminal import printable, printable_line, write_text
from operations.jobs import Jobs, JobState, JobStatus
from operations.spec import Operation

_SCHEMA_SECONDS = 3.0
"""Seconds to wait for a worker that announces the types of the operation."""
_CHECK_SECONDS = 0.5
"""Seconds to wait for a worker that announces whether the operation is durable."""


@asynccontextmanager
async def _open(args: ParsedArguments) -> AsyncIterator[tuple[Jobs, Any]]:
    """Connect to the transport, and close it at the end."""
    from operations.cli.remote import connect_transport
    from operations.cli.transports import open_bus, transport_at

    has_address = args.url is not None and ":" in args.url
    config = optional_configuration(args) if has_address else find_configuration(args)
    settings = transport_at(args.url, config, JOB_URLS)
    async with AsyncExitStack() as stack:
        transport = await connect_transport(stack, open_bus(settings, args, config), settings)
        yield Jobs(transport), transport


def submit(args: ParsedArguments) -> Any:
    """Submit a job and print its id."""
    return _submit(args, read_stdin(args.input))


async def _submit(args: ParsedArguments, stdin: bytes) -> int:
    async with _open(args) as (jobs, transport):
        values = typed_by_schema(args.input)
        operation = await _describe(transport, args.operation, _SCHEMA_SECONDS if values else _CHECK_SECONDS)
        document = {} if operation is None else operation.spec.input_schema.document
        value = read_input(args.input, document, stdin)
        if operation is None and values:
            _warn_of_strings(args.operation, values)
        job_id = await jobs.submit(operation or args.operation, value, keep=args.keep)
        if not args.wait:
            write_text(f'{{"id": "{job_id}"}}\n' if args.json else f"{job_id}\n")
            return OK
        return await _print_result(args, jobs, job_id)


async def _describe(transport: Any, operation_id: str, seconds: float) -> Operation[Any] | None:
    """Return the operation as a worker announces it; None if no worker announces it within `seconds`."""
    from operations.calls import from_call
    from operations.errors import CallError

    async with from_call(transport) as remote:
        with suppress(CallError):
            await remote.ready(operation_id, timeout=seconds)
        return remote.registry.get_operation(operation_id)


def _warn_of_strings(operation_id: str, values: Mapping[str, str]) -> None:
    """Warn that `key=value` arguments are sent as strings because the types are unknown; show how to send JSON."""
    likely = (f"{key}:={value}" for key, value in values.items() if _is_json(value))
    example = next(likely, f"{next(iter(values))}:=21")
    warn(
        f"no worker announces {operation_id}, so the types of its input are unknown: "
        f"each key=value is sent as a string; write {example} to send JSON"
    )


def _is_json(text: str) -> bool:
    with suppress(msgspec.DecodeError):
        msgspec.json.decode(text)
        return True
    return False


async def show(args: ParsedArguments) -> int:
    """Print the state of one job."""
    return await _print_status(args, lambda jobs: jobs.status(args.id))


async def cancel(args: ParsedArguments) -> int:
    """Cancel a job and print its state."""
    return await _print_status(args, lambda jobs: jobs.cancel(args.id))


async def retry(args: ParsedArguments) -> int:
    """Run failed jobs or dead letters again, and print their states."""
    async with _open(args) as (jobs, _):
        for job_id in args.id:
            _write_status(args, await jobs.retry(job_id))
    return OK


async def wait(args: ParsedArguments) -> int:
    """Wait for a job and print its result."""
    async with _open(args) as (jobs, _):
        return await _print_result(args, jobs, args.id)


async def find(args: ParsedArguments) -> int:
    """List jobs."""
    async with _open(args) as (jobs, _):
        states = args.state or None
        found = await jobs.list(states=states, operation_id=args.operation, limit=args.limit)
    return _write_list(args, found)


async def dead(args: ParsedArguments) -> int:
    """List the dead letters."""
    async with _open(args) as (jobs, _):
        found = await jobs.dead(limit=args.limit)
    return _write_list(args, found)


async def _print_result(args: ParsedArguments, jobs: Jobs, job_id: str) -> int:
    output, started = Output(args), time.perf_counter()
    async with spinner(f"waiting for {job_id}", quiet=args.quiet):
        envelope = await jobs.wait(job_id, timeout=args.timeout)
    await output.result(envelope, started)
    return exit_code_for(envelope)


async def _print_status(args: ParsedArguments, ask: Callable[[Jobs], Awaitable[JobStatus]]) -> int:
    async with _open(args) as (jobs, _):
        _write_status(args, await ask(jobs))
    return OK


def _write_status(args: ParsedArguments, status: JobStatus) -> None:
    if args.json:
        write_json(msgspec.to_builtins(status), compact=True)
        return
    for name, value in msgspec.to_builtins(status).items():
        if name.endswith("At"):
            value = _date(value)
        elif name == "progress":
            value = _progress(status)
        first, *more = printable(str(value)).split("\n")
        write_text("\n".join([f"{name:<12} {first}", *(f"{'':<12} {line}" for line in more)]) + "\n")


def _write_list(args: ParsedArguments, found: list[JobStatus]) -> int:
    if args.json:
        write_json([msgspec.to_builtins(job) for job in found], compact=True)
        return OK
    for job in found:
        more = job.message.partition("\n")[0] if job.code is not None else _progress(job)
        columns = (job.id, job.operation_id, job.state.value, _date(job.created_at), job.code or "", more)
        write_text("  ".join(printable_line(column) for column in columns if column) + "\n")
    if not found and not args.quiet:
        write_line("no jobs found")
    return OK


def _progress(job: JobStatus) -> str:
    if job.progress is None:
        return ""
    total = "" if job.progress.total is None else f"/{job.progress.total:g}"
    return f"{job.progress.value:g}{total} {job.progress.message or ''}".rstrip()


def _date(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


_ID = (Argument("ID", "id of the job"),)
_IDS = (Argument("ID", "ids of the jobs", many=True),)
_TIMEOUT = Option(
    "--timeout", "maximum time to wait: 5, 0.5s, 2m (default: no limit)", "-t", value="SECONDS", convert=seconds
)
_LIMIT = Option("--limit", "maximum number of jobs", value="NUMBER", convert=whole_number, default=100)

COMMAND = Command(
    name="jobs",
    summary=SUMMARIES["jobs"],
    parts=(
        Command(
            name="jobs submit",
            summary="submit a call and print the id of the job",
            run=submit,
            arguments=CALL_ARGUMENTS,
            options=(
                Option("--keep", "how long the result is kept (default: 24 hours)", value="SECONDS", convert=seconds),
                Option("--wait", "wait for the result and print it, with the options of 'ops jobs wait'"),
                _TIMEOUT,
                *RESULT_OPTIONS,
                *JOB_OPTIONS,
            ),
            forms=INPUT_FORMS,
            examples=(("ops jobs submit report.build month=May", "run it later, on any worker"),),
        ),
        Command(
            name="jobs ls",
            summary="list jobs, the newest first",
            run=find,
            options=(
                Option(
                    "--state",
                    "only jobs in this state, all by default",
                    value="STATE",
                    many=True,
                    choices=tuple(state.value for state in JobState),
                ),
                Option(
                    "--operation",
                    "only jobs of this operation (default: all)",
                    value="OPERATION",
                    completes="operation",
                ),
                _LIMIT,
                *JOB_OPTIONS,
            ),
        ),
        Command(name="jobs show", summary="show a job", run=show, arguments=_ID, options=JOB_OPTIONS),
        Command(
            name="jobs wait",
            summary="wait for a job and print its result",
            run=wait,
            arguments=_ID,
            options=(_TIMEOUT, *RESULT_OPTIONS, *JOB_OPTIONS),
        ),
        Command(name="jobs cancel", summary="cancel a job", run=cancel, arguments=_ID, options=JOB_OPTIONS),
        Command(
            name="jobs dead",
            summary="list dead letters",
            run=dead,
            options=(_LIMIT, *JOB_OPTIONS),
        ),
        Command(
            name="jobs retry",
            summary="run failed jobs or dead letters again",
            run=retry,
            arguments=_IDS,
            options=JOB_OPTIONS,
        ),
    ),
)
