"""Remote operations: connect, import the operations of workers, and call those that a hub does not list."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from operations.calls import PendingRequestMap, from_call
from operations.cli.arguments import TOKEN_VARIABLE, ParsedArguments
from operations.cli.failures import TRANSPORT, CommandError, is_general_hint
from operations.cli.stderr import StatusLine
from operations.cli.transports import has_token, open_bus, shown_url, transport_at
from operations.config.settings import Config, TransportSettings
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import executed_of
from operations.pubsub import Transport
from operations.pubsub.urls import hosts_and_ports
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType

_CONNECT_TIMEOUT = 5.0
_REFUSED_SECONDS = 1.0
_OPERATIONS_TIMEOUT = 3.0
"""Seconds to wait for announcements.

Connected workers send an announcement on request; a worker that reconnects sends one within two seconds.
"""
_HUB_SECONDS = 1.0
"""Seconds to wait for the listing of a hub before the hub is asked why it does not list the requested operation."""
_LISTING_SECONDS = 0.5
_PROBE_INTERVAL = 0.2
_TOKEN_HINT = f"pass a token that has the rights: set {TOKEN_VARIABLE} or --token-file"


async def import_remote(
    stack: AsyncExitStack,
    args: ParsedArguments,
    config: Config | None,
    registry: OperationRegistry,
    requested: str | None,
    line: StatusLine,
) -> None:
    """Connect to a transport and register the operations that its workers offer; `stack` closes the connection."""
    settings = transport_at(args.url, config)
    line.text = f"connecting to {shown_url(settings)}"
    patience = getattr(args, "timeout", None) or 0.0
    transport = await connect_transport(stack, open_bus(settings, args, config), settings, patience)
    remote = await stack.enter_async_context(from_call(transport, registry=registry))
    is_hub = transport.capabilities.identity == "hub"
    asks_hub = is_hub and requested is not None and "." in requested
    limit = max(_OPERATIONS_TIMEOUT, patience)
    waiting = 0.0
    try:
        async with asyncio.timeout(_HUB_SECONDS if asks_hub else limit):
            await remote.ready()
    except TimeoutError:
        missing = _nothing_offered(requested, shown_url(settings), is_hub=is_hub, has_token=has_token(args, settings))
        if not asks_hub:
            raise missing from None
        waiting = limit - _HUB_SECONDS
    else:
        # Workers announce themselves one by one: wait for the requested operation, or briefly for a listing.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTING_SECONDS):
                await remote.until(lambda: requested in registry)
        missing = registry.not_found(requested or "")
    if asks_hub and requested is not None and requested not in registry:
        registry.register(unlisted_operation(transport, requested, missing, waiting))


def _nothing_offered(requested: str | None, url: str, *, is_hub: bool, has_token: bool) -> CallError:
    """Return the error for a transport that offers no operation to this caller."""
    message = f"no operations {'that this caller may call ' if is_hub else ''}at {url}"
    hint = "start 'ops worker' or 'ops spoke', or wait longer with --timeout"
    if requested is not None:
        message = f"{message}: no worker serves {requested}"
    elif is_hub:
        hint = f"{'check the scopes of the token' if has_token else _TOKEN_HINT}, {hint}"
    return CallError(ErrorCode.UNAVAILABLE, message, {"hint": hint})


def add_remote_hint(error: CallError, args: ParsedArguments, config: Config | None) -> None:
    """Set a hint for a transport in place of an error's general hint, which is meant for local sources."""
    if not isinstance(error.details, dict) or not is_general_hint(error):
        return
    settings = transport_at(args.url, config)
    if error.code is ErrorCode.ACCESS_DENIED and not has_token(args, settings):
        error.details["hint"] = _TOKEN_HINT
    elif error.code is ErrorCode.UNAVAILABLE:
        error.details["hint"] = f"check the worker; 'ops ls --url {shown_url(settings)}' lists what is served"


async def connect_transport(
    stack: AsyncExitStack,
    connecting: AbstractAsyncContextManager[Any],
    settings: TransportSettings,
    patience: float = 0.0,
) -> Any:
    """Return the connected transport; `stack` closes the connection.

    Raise an error if the server has refused connections for `patience` seconds (the value of `--timeout`) and for at
    least one second. A shorter time is not enough, because a server that is still starting refuses connections too. If
    the server does not respond, the limit is `patience` seconds, but at least five.
    """
    refused = asyncio.create_task(wait_until_refused(settings, max(_REFUSED_SECONDS, patience)))
    longest = max(_CONNECT_TIMEOUT, patience)
    try:
        async with asyncio.timeout(longest) as limit:
            refused.add_done_callback(lambda task: None if task.cancelled() else limit.reschedule(0))
            return await stack.enter_async_context(connecting)
    except TimeoutError:
        refusal = refused.result() if refused.done() else await _refusal_of(settings)
        reason = f"did not respond within {longest:g} seconds" if refusal is None else f"cannot be reached: {refusal}"
        message = f"{shown_url(settings)} {reason}"
        hint = "check that the hub or server is running, or wait longer with --timeout"
        raise CommandError(message, hint, exit_code=TRANSPORT) from None
    finally:
        refused.cancel()


def unlisted_operation(
    transport: Transport, operation_id: str, missing: CallError, waiting: float = 0.0
) -> Operation[Any]:
    """Return an operation for an id that the hub does not list to this caller.

    A call is sent to the hub, whose error explains why the id is not listed: for example, the caller may not call the
    operation. If no worker has registered the id, wait for one for `waiting` seconds, then raise `missing`.
    """
    pending = PendingRequestMap(transport)
    namespace, _, name = operation_id.rpartition(".")

    async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        try:
            return await pending.call_for(context, operation_id, input)
        except CallError as error:
            operation = await _registered(transport, operation_id, error, missing, waiting)
        return await pending.call_for(context, operation_id, operation.spec.input_schema.cast(input))

    async def follow(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        try:
            async for envelope in pending.subscribe_for(context, operation_id, input):
                yield envelope
            return
        except CallError as error:
            operation = await _registered(transport, operation_id, error, missing, waiting)
        async for envelope in pending.subscribe_for(context, operation_id, operation.spec.input_schema.cast(input)):
            yield envelope

    spec = OperationSpec(name=name, namespace=namespace, type=OperationType.MUTATION)
    return Operation(spec=spec, handler=call, stream=follow, dump=None)


async def _registered(
    transport: Transport, operation_id: str, error: CallError, missing: CallError, waiting: float
) -> Operation[Any]:
    """Wait up to `waiting` seconds for a worker that registers an operation, and return the operation.

    Wait only if `error` is `UNAVAILABLE` with `executed: no`. Raise `missing` if no worker registers the operation in
    time, or immediately if `error` is `OPERATION_NOT_FOUND`. Raise any other `error` again.
    """
    if error.code is ErrorCode.OPERATION_NOT_FOUND:
        raise missing
    if error.code is not ErrorCode.UNAVAILABLE or executed_of(error) != "no":
        raise error
    async with from_call(transport, namespaces=[operation_id.rpartition(".")[0]]) as remote:
        try:
            await remote.ready(operation_id, timeout=waiting)
        except CallError:
            raise missing from None
        return remote.registry[operation_id]


async def wait_until_refused(settings: TransportSettings, seconds: float = _REFUSED_SECONDS) -> str:
    """Wait until every address of a transport has refused connections for `seconds`; return the reason of the refusal.

    A shorter time is no proof, because a restarting server refuses connections for a moment. If a server accepts
    connections or does not respond, this function never returns.
    """
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        await asyncio.sleep(_PROBE_INTERVAL)
        reason = await _refusal_of(settings)
        if reason is None:
            since = loop.time()
        elif loop.time() - since >= seconds:
            return reason


async def _refusal_of(settings: TransportSettings) -> str | None:
    """Return why no address of a transport can be reached; None if one is reached, or if the reason is unknown."""
    # With `servers` among its options, a client may have more addresses than its URL.
    known = [] if "servers" in settings.options else hosts_and_ports(settings.url)
    reasons = await asyncio.gather(*(_refusal(host, port) for host, port in known))
    return None if not known or None in reasons else reasons[0]


async def _refusal(host: str, port: int) -> str | None:
    """Return why an address cannot be reached; None if it is reached, or if the reason is unknown."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (TimeoutError, UnicodeError):
        return None
    except socket.gaierror:
        return f"unknown host {host}"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else "unreachable"
    writer.close()
    return None
