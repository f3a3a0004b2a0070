"""Operations of a bus: connecting, importing what workers offer, and calling what a hub does not list."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from operations.calls import PendingRequestMap, from_call
from operations.cli.arguments import Given
from operations.cli.failures import TRANSPORT, CommandError
from operations.cli.stderr import StatusLine
from operations.cli.transports import open_bus, shown_url, transport_at
from operations.config.settings import Config, TransportSettings
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Transport
from operations.pubsub.urls import places
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType

_CONNECT_WITHIN = 5.0
_OFFERS_WITHIN = 3.0
"""Workers announce their operations when asked; one that reconnects does so within two seconds."""
_ALL_WITHIN = 0.5
_PROBE_EVERY = 0.2


async def import_remote(
    stack: AsyncExitStack,
    given: Given,
    config: Config | None,
    registry: OperationRegistry,
    wanted: str | None,
    line: StatusLine,
) -> None:
    """Register what a bus offers; `stack` closes the connection."""
    settings = transport_at(given.url, config)
    line.text = f"connecting to {shown_url(settings)}"
    transport = await _connect(stack, open_bus(settings, given, config), settings)
    remote = await stack.enter_async_context(from_call(transport, registry))
    asks_hub = wanted is not None and "." in wanted and transport.capabilities.identity == "hub"
    try:
        async with asyncio.timeout(max(_OFFERS_WITHIN, getattr(given, "timeout", None) or 0)):
            await remote.ready()
    except TimeoutError:
        message = f"nobody offers operations at {shown_url(settings)}"
        hint = "ops worker or ops spoke offers some; --timeout waits longer for them"
        missing = CallError(ErrorCode.UNAVAILABLE, message, {"hint": hint})
        if not asks_hub:
            raise missing from None
    else:
        # Workers answer one by one: wait a little for the wanted operation, or for a whole listing.
        with suppress(TimeoutError):
            async with asyncio.timeout(_ALL_WITHIN):
                await remote.until(lambda: wanted in registry)
        missing = registry.not_found(wanted or "")
    if asks_hub and wanted is not None and wanted not in registry:
        registry.register(unlisted_operation(transport, wanted, missing))


async def _connect(
    stack: AsyncExitStack, opening: AbstractAsyncContextManager[Any], settings: TransportSettings
) -> Any:
    """Return the connected transport; a refused connection is reported before the time limit."""
    refused = asyncio.create_task(until_refused(settings))
    try:
        async with asyncio.timeout(_CONNECT_WITHIN) as limit:
            refused.add_done_callback(lambda task: None if task.cancelled() else limit.reschedule(0))
            return await stack.enter_async_context(opening)
    except TimeoutError:
        reason = f"did not answer within {_CONNECT_WITHIN:g} seconds"
        if refused.done():
            reason = f"cannot be reached: {refused.result()}"
        message = f"{shown_url(settings)} {reason}"
        raise CommandError(message, "is the hub or the server running there?", exit_code=TRANSPORT) from None
    finally:
        refused.cancel()


def unlisted_operation(transport: Transport, operation_id: str, missing: CallError) -> Operation[Any]:
    """Return an operation that asks the hub by id: a hub lists what its caller may call, and explains the rest.

    `missing` is the error for an id that the hub does not have.
    """
    pending = PendingRequestMap(transport)
    namespace, _, name = operation_id.rpartition(".")

    def explained(error: CallError) -> CallError:
        details = error.details if isinstance(error.details, dict) else {}
        nobody = error.code == ErrorCode.UNAVAILABLE and details.get("executed") == "no"
        return missing if nobody or error.code == ErrorCode.OPERATION_NOT_FOUND else error

    async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        try:
            return await pending.call_for(context, operation_id, input)
        except CallError as error:
            raise explained(error) from None

    async def follow(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        try:
            async for envelope in pending.subscribe_for(context, operation_id, input):
                yield envelope
        except CallError as error:
            raise explained(error) from None

    spec = OperationSpec(name=name, namespace=namespace, type=OperationType.MUTATION)
    return Operation(spec=spec, handler=call, stream=follow, dump=None)


async def until_refused(settings: TransportSettings, patience: float = 1.0) -> str:
    """Return the reason once every address of a transport has refused connections for `patience` seconds.

    A server that restarts refuses for a moment. Where one accepts, or does not answer, this never returns.
    """
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        await asyncio.sleep(_PROBE_EVERY)
        # With `servers` among its options a client may know more addresses than the URL names.
        known = [] if "servers" in settings.options else places(settings.url)
        reasons = await asyncio.gather(*(_refusal(host, port) for host, port in known))
        if not known or None in reasons:
            since = loop.time()
        elif loop.time() - since >= patience:
            return str(reasons[0])


async def _refusal(host: str, port: int) -> str | None:
    """Return why an address cannot be reached; None where it can be, or where that is unknown."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (TimeoutError, UnicodeError):
        return None
    except socket.gaierror:
        return f"there is no host {host}"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
    writer.close()
    return None
