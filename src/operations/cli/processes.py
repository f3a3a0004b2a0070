"""Shared parts of long-running commands: serve until a stop signal, and report events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from operations.calls import from_call, serve_registry
from operations.calls.signed_transport import SignedTransport
from operations.cli.arguments import ParsedArguments
from operations.cli.configuration import require_configuration
from operations.cli.failures import OK, CommandError, cannot_listen
from operations.cli.output import counted, write_json
from operations.cli.remote import wait_until_refused
from operations.cli.runner import is_orphaned, is_replacement, notify_ready, stopping
from operations.cli.session import open_sources, report_served
from operations.cli.stderr import is_json, write_line, write_record
from operations.cli.terminal import printable_line
from operations.cli.transports import open_bus, shown_url, transport_at
from operations.config import Config, store_catalogue
from operations.config.settings import TransportSettings
from operations.errors import CallError
from operations.pubsub import Transport
from operations.registry import OperationRegistry
from operations.telemetry import AuditLog, CallMetrics, HealthServer, LogContext, Readiness

_POLL_SECONDS = 1.0
_PORT_SECONDS = 0.1
_REGISTRATION_SECONDS = 2.0


async def offer(args: ParsedArguments, *, pool: bool) -> int:
    """Serve the configuration's operations on a transport until SIGTERM or Ctrl-C; then finish running calls."""
    config = require_configuration(args)
    settings = transport_at(args.url, config)
    readiness, sources = Readiness(), list[object]()
    print_opening(args, config)
    async with (
        serving_health(args, readiness, sources),
        open_sources(config) as workspace,
        stopping() as stop,
    ):
        store_catalogue(workspace)
        observe(args, workspace.registry)
        report_served(args, workspace)
        if not len(workspace.registry):
            raise CommandError("no operations to serve", "list the configuration's operations with 'ops ls'")
        url = shown_url(settings)
        print_event(args, "connecting", f"connecting to {url}", url=url)
        probe = asyncio.create_task(_report_refusal(args, settings))
        async with _connected(open_bus(settings, args, config, serves=True), stop) as transport:
            probe.cancel()
            if transport is not None:
                await serve_until(
                    stop, args, workspace.registry, transport, pool=pool, readiness=readiness, sources=sources
                )
    return OK


def observe(args: ParsedArguments, registry: OperationRegistry) -> None:
    """Add observers to the registry, as the options require."""
    if args.log_format == "json":
        registry.observers += (LogContext(),)
    if getattr(args, "health", None) is not None:
        registry.observers += (CallMetrics(),)
    if args.audit_log is not None:
        try:
            registry.observers += (AuditLog(args.audit_log),)
        except OSError as error:
            raise CommandError(f"the audit log cannot be opened: {error}") from error


@asynccontextmanager
async def serving_health(args: ParsedArguments, readiness: Readiness, sources: list[object]) -> AsyncIterator[None]:
    """Serve the health endpoint within the block, if the options enable it."""
    if args.health is None:
        yield
        return
    host, port = args.health
    server = HealthServer(readiness, lambda: sources, host=host, port=port)
    opening = asyncio.ensure_future(_open_health(args, server))
    if not is_replacement():
        await opening
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.wait([opening])
        await server.close()


async def _open_health(args: ParsedArguments, server: HealthServer) -> None:
    """Open the health endpoint; if this process replaces an old one, wait until the old process frees the port."""
    while True:
        try:
            await server.__aenter__()
            break
        except OSError as error:
            if not is_replacement():
                host, port = args.health
                raise CommandError(f"--health {cannot_listen(f'{host}:{port}', error)}") from error
            await asyncio.sleep(_PORT_SECONDS)
    print_event(args, "health", f"health is at {server.url}", url=server.url)


async def serve_until(
    stop: asyncio.Event,
    args: ParsedArguments,
    registry: OperationRegistry,
    transport: Transport,
    *,
    pool: bool,
    readiness: Readiness,
    sources: list[object],
) -> None:
    """Serve a registry until a stop signal; report how many of its operations the hub has accepted."""
    # A signed transport identifies callers by their signatures; a hub adds the caller's identity to each request.
    options = {"identify": transport.identify} if isinstance(transport, SignedTransport) else {}
    serving = serve_registry(registry, transport, concurrency=args.concurrency, grace=args.grace, pool=pool, **options)

    def back() -> None:
        print_event(args, "back", "reconnected")
        readiness.ready()

    def lost(reason: str) -> None:
        readiness.not_ready("not connected")
        print_event(args, "lost", f"disconnected: {reason}; reconnecting", reason=reason)

    async with serving as handler, AsyncExitStack() as stack:
        stack.callback(transport.watch(back, lost))
        sources.append(handler)
        with suppress(CallError):  # each rejected operation is logged
            await handler.registered(timeout=_REGISTRATION_SECONDS)
        readiness.ready()
        notify_ready()
        shown = ""
        while not stop.is_set():
            count, accepted = len(registry), len(registry) - len(handler.rejected)
            text = f"{accepted} of {count} operations" if accepted < count else counted(count, "operation")
            if text != shown:
                print_event(args, "offering", f"serving {text}; press Ctrl-C to stop", operations=accepted)
                shown = text
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await stop.wait()
            if is_orphaned():
                stop.set()
        readiness.not_ready("stopping")
        print_event(args, "stopping", "stopping; waiting for running calls")


async def follow_offers(args: ParsedArguments, transport: Transport, stop: asyncio.Event) -> None:
    """Report operations that appear and disappear on a transport, until a stop signal."""
    async with from_call(transport) as remote:
        known: set[str] = set()

        def is_different() -> bool:
            return set(remote.ids) != known

        while not stop.is_set():
            changed = asyncio.ensure_future(remote.until(is_different))
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait([changed, stopped], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            stopped.cancel()
            now = set(remote.ids)
            for event, sign, ids in (("added", "+", now - known), ("removed", "-", known - now)):
                for operation_id in sorted(ids):
                    print_event(args, event, f"{sign} {operation_id}", operation=operation_id)
            known = now


def print_opening(args: ParsedArguments, config: Config) -> None:
    """Print which sources are being opened, because this may take long if a package manager installs a server."""
    names = list(config.sources)
    if names and not args.json:
        print_event(args, "opening", f"opening {counted(len(names), 'source')}: {', '.join(names)}")


def print_event(args: ParsedArguments, event: str, text: str, **more: Any) -> None:
    """Print an event: a line on stderr, with the time or as a log record; with `--json`, an object on stdout."""
    if not args.json:
        if not args.quiet and is_json():
            write_record("info", text, {"event": event, **more})
        elif not args.quiet:
            write_line(f"{time.strftime('%H:%M:%S')} {printable_line(text)}")
        return
    with suppress(OSError):  # the reader is gone; keep running
        write_json({"event": event, "time": round(time.time(), 3), **more}, compact=True)


async def _report_refusal(args: ParsedArguments, settings: TransportSettings) -> None:
    url, reason = shown_url(settings), await wait_until_refused(settings)
    print_event(args, "refused", f"{url} cannot be reached: {reason}; retrying", url=url, reason=reason)


@asynccontextmanager
async def _connected(connecting: AbstractAsyncContextManager[Any], stop: asyncio.Event) -> AsyncIterator[Any]:
    """Yield the connected transport; None if a stop signal comes first."""
    entering = asyncio.ensure_future(connecting.__aenter__())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([entering, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not entering.done():
        entering.cancel()
        await asyncio.wait([entering])
        yield None
        return
    transport = entering.result()
    try:
        yield transport
    finally:
        await connecting.__aexit__(None, None, None)
