"""What the long-running commands share: serving until told to stop, and saying what comes and goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from operations.calls import from_call, serve_registry
from operations.calls.signed_transport import SignedTransport
from operations.cli.arguments import Given
from operations.cli.configuration import require_configuration
from operations.cli.failures import OK, CommandError
from operations.cli.output import counted, write_json
from operations.cli.remote import until_refused
from operations.cli.running import stopping
from operations.cli.session import open_sources, report_failures
from operations.cli.stderr import warn, write_line
from operations.cli.terminal import printable
from operations.cli.transports import open_bus, shown_url, transport_at
from operations.config import store_catalogue
from operations.config.settings import TransportSettings
from operations.pubsub import Transport
from operations.registry import OperationRegistry

_LOOK_EVERY = 1.0


async def offer(given: Given, *, pool: bool) -> int:
    """Offer the configuration's operations on a transport until SIGTERM or Ctrl-C, then finish what runs."""
    config = require_configuration(given)
    settings = transport_at(given.url, config)
    async with open_sources(config) as workspace, stopping() as told:
        store_catalogue(workspace)
        report_failures(given, workspace.reports)
        if not len(workspace.registry):
            raise CommandError("there is nothing to offer", "ops ls lists what the configuration has")
        url = shown_url(settings)
        say(given, "connecting", f"connecting to {url}", url=url)
        trying = asyncio.create_task(_tell_refusal(given, settings))
        async with _connected(open_bus(settings, given, config, serves=True), told) as transport:
            trying.cancel()
            if transport is not None:
                await serve_until(told, given, workspace.registry, transport, pool=pool)
    return OK


async def serve_until(
    told: asyncio.Event, given: Given, registry: OperationRegistry, transport: Transport, *, pool: bool
) -> None:
    """Serve a registry until told to stop; says what the other side refused."""
    # A transport that checks signatures says who calls; of any other it is known already, or is nobody.
    options = {"identify": transport.identify} if isinstance(transport, SignedTransport) else {}
    serving = serve_registry(
        registry, transport, concurrency=given.concurrency, grace=given.grace, pool=pool, **options
    )
    refused: Mapping[str, str] = {}

    def lost(reason: str) -> None:
        say(given, "lost", f"cut off: {reason}; trying to come back", reason=reason)

    async with serving as handler, AsyncExitStack() as stack:
        stack.callback(transport.watch(lambda: say(given, "back", "connected again"), lost))
        count = len(registry)
        say(given, "offering", f"offering {counted(count, 'operation')}; Ctrl-C ends", operations=count)
        while not told.is_set():
            await _wait(told, _LOOK_EVERY)
            for operation_id in handler.rejected.keys() - refused.keys():
                reason = handler.rejected[operation_id]
                warn(f"{operation_id} was refused: {reason}", operation=operation_id, reason=reason)
            refused = dict(handler.rejected)
        say(given, "stopping", "stopping; calls that run may finish")


async def follow_offers(given: Given, transport: Transport, told: asyncio.Event) -> None:
    """Say which operations come and go on a transport, until told to stop."""
    async with from_call(transport) as remote:
        known: set[str] = set()

        def is_different() -> bool:
            return set(remote.ids) != known

        while not told.is_set():
            changed = asyncio.ensure_future(remote.until(is_different))
            stopped = asyncio.ensure_future(told.wait())
            await asyncio.wait([changed, stopped], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            stopped.cancel()
            now = set(remote.ids)
            for event, sign, ids in (("added", "+", now - known), ("removed", "-", known - now)):
                for operation_id in sorted(ids):
                    say(given, event, f"{sign} {operation_id}", operation=operation_id)
            known = now


def say(given: Given, event: str, text: str, **more: Any) -> None:
    """Tell what happened: a line with the time on stderr, or with `--json` an object on stdout, as the result it is."""
    if not given.json:
        if not given.quiet:
            write_line(f"{time.strftime('%H:%M:%S')} {printable(text)}")
        return
    with suppress(OSError):  # whoever looked has gone; the work goes on
        write_json({"event": event, "time": round(time.time(), 3), **more}, compact=True)


async def _wait(told: asyncio.Event, longest: float) -> None:
    try:
        async with asyncio.timeout(longest):
            await told.wait()
    except TimeoutError:
        pass


async def _tell_refusal(given: Given, settings: TransportSettings) -> None:
    url, reason = shown_url(settings), await until_refused(settings)
    say(given, "refused", f"{url} cannot be reached: {reason}; trying again until it can", url=url, reason=reason)


@asynccontextmanager
async def _connected(opening: AbstractAsyncContextManager[Any], told: asyncio.Event) -> AsyncIterator[Any]:
    """The transport once it stands, however long that takes; None where the program is told to stop before."""
    entering = asyncio.ensure_future(opening.__aenter__())
    stopped = asyncio.ensure_future(told.wait())
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
        await opening.__aexit__(None, None, None)
