"""`ops hub`: run a hub."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operations.cli.arguments import (
    AUDIT_OPTION,
    HEALTH_OPTION,
    LOAD_OPTIONS,
    LOG_OPTIONS,
    TOKEN_FILE_OPTION,
    TOKEN_VARIABLE,
    Command,
    Option,
    ParsedArguments,
)
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import find_configuration
from operations.cli.credentials import OPERATOR, own_token, principals_of
from operations.cli.failures import OK, TRANSPORT, CommandError, cannot_listen
from operations.cli.processes import follow_offers, observe, print_event, serve_until, serving_health
from operations.cli.runner import stopping
from operations.cli.session import open_sources, report_served
from operations.cli.transports import jwt_tokens
from operations.config import Config, Workspace
from operations.config.settings import HubSettings
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Authenticator, Principal, StaticTokens
from operations.registry import OperationRegistry
from operations.telemetry import Readiness

if TYPE_CHECKING:
    from operations.calls.hub import Hub


def run(args: ParsedArguments) -> Any:
    """Run a hub until SIGTERM or Ctrl-C."""
    try:
        import operations.pubsub.websocket  # noqa: F401  # report a missing extra before starting
    except ImportError as error:
        text = str(error)
        raise (
            error if "pip install" in text else ImportError("picows is not installed: pip install 'operations[ws]'")
        ) from None
    return _listen(args)


async def _listen(args: ParsedArguments) -> int:
    from operations.calls.hub import Hub

    config = find_configuration(args)
    if config is not None and "hub" in config.unusable:
        raise CommandError(config.unusable["hub"])
    settings = config.hub if config is not None and config.hub is not None else HubSettings()
    authenticator = _authenticator(settings, args, config)
    limits = {"heartbeat": settings.heartbeat, "max_payload": settings.max_payload}
    host, port = args.host or settings.host, settings.port if args.port is None else args.port
    hub = Hub(
        authenticator,
        host=host,
        port=port,
        tls=_certificate(settings, config),
        **{name: value for name, value in limits.items() if value is not None},  # type: ignore[arg-type]
    )
    try:
        await hub.start()
    except OSError as error:
        message = cannot_listen(f"{host}:{port}", error)
        raise CommandError(message, "choose another port with --port (0: any free port)", exit_code=TRANSPORT) from None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hub.close)
        stop = await stack.enter_async_context(stopping())
        readiness, sources = Readiness(None), list[object]([hub])
        await stack.enter_async_context(serving_health(args, readiness, sources))
        print_event(args, "listening", f"hub listening on {hub.url}; press Ctrl-C to stop", url=hub.url)
        if console := args.console or settings.console:
            await _serve_console(stack, args, hub, authenticator, console, settings.console_hosts)
        if args.serve:
            workspace = await _open_own(stack, args, config)
            registry, transport = workspace.registry, hub.transport()
            await serve_until(stop, args, registry, transport, pool=False, readiness=readiness, sources=sources)
        else:
            await follow_offers(args, hub.transport(), stop)
        readiness.not_ready("stopping")
    return OK


async def _serve_console(
    stack: AsyncExitStack,
    args: ParsedArguments,
    hub: Hub,
    authenticator: Authenticator,
    address: str,
    hosts: Sequence[str],
) -> None:
    """Serve an application with the console and the hub's operations; spokes may also connect to its path `/ws`."""
    from operations.calls import from_call
    from operations.cli.console import describe_console
    from operations.serving.admission import LOOPBACK_HOSTS
    from operations.serving.app import app
    from operations.serving.limits import Limits
    from operations.serving.server import HTTPServer

    registry = OperationRegistry()
    await stack.enter_async_context(from_call(hub.transport(), registry=registry))
    served = app(
        registry,
        authenticator=authenticator,
        hosts=(*LOOPBACK_HOSTS, *hosts),
        mcp=False,
        hub=hub,
        title="hub",
        console=True,
        metrics=True,
        limits=Limits(drain_seconds=args.grace),
    )
    try:
        server = await stack.enter_async_context(HTTPServer(served, address))
    except ValueError as error:
        raise CommandError(str(error), "set console_hosts in [hub] to the host names of the console") from None
    except OSError as error:
        message = f"--console {cannot_listen(address, error)}"
        raise CommandError(message, exit_code=TRANSPORT) from None
    url = f"{server.url}/console/"
    print_event(args, "console", f"serving the console at {url}{describe_console(served)}", url=url)


async def _open_own(stack: AsyncExitStack, args: ParsedArguments, config: Config | None) -> Workspace:
    if config is None:
        raise CommandError("--serve requires a configuration with sources", "run 'ops init' to create one")
    workspace = await stack.enter_async_context(open_sources(config))
    report_served(args, workspace)
    observe(args, workspace.registry)
    return workspace


def _authenticator(settings: HubSettings, args: ParsedArguments, config: Config | None) -> Authenticator:
    """Return the authenticator of the configured tokens, listed or signed (JWT).

    If the configuration has neither, return an authenticator that accepts only the token in `--token-file` or
    `OPERATIONS_TOKEN`; raise if there is no token at all.
    """
    principals, own = principals_of(settings.tokens), own_token(args)
    if own and not principals and settings.jwt is None:
        principals[own] = Principal(Identity(OPERATOR, ("*", "operations:watch", "operations:manage")), ("*",))
    if settings.jwt is None:
        if not principals:
            hint = f"set {TOKEN_VARIABLE}, or add [[hub.tokens]] to the configuration"
            raise CommandError("no tokens configured", hint)
        return StaticTokens(principals)
    signed = jwt_tokens(settings.jwt, config)
    return _Either(StaticTokens(principals), signed) if principals else signed


class _Either:
    """Combines two authenticators: the second one is tried for tokens that the first one rejects."""

    def __init__(self, first: Authenticator, second: Authenticator) -> None:
        self._first = first
        self._second = second

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal of the first authenticator that accepts the token."""
        try:
            return self._first.authenticate(token)
        except CallError as error:
            if error.code is not ErrorCode.ACCESS_DENIED:
                raise
        return self._second.authenticate(token)


def _certificate(settings: HubSettings, config: Config | None) -> ssl.SSLContext | None:
    if settings.tls is None:
        return None
    directory = config.path.parent if config is not None else Path()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / settings.tls.certificate, directory / settings.tls.key)
    return context


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


COMMAND = Command(
    name="hub",
    summary=SUMMARIES["hub"],
    run=run,
    options=(
        Option("--host", "address to listen on (default: 127.0.0.1)", value="HOST"),
        Option("--port", "port, or 0 for any free port (default: 8700)", "-p", value="PORT", convert=_port),
        Option(
            "--console", "serve the console at this address: host:port or a port (default: no console)", value="ADDRESS"
        ),
        Option("--serve", "serve the configuration's operations as well"),
        TOKEN_FILE_OPTION,
        *LOAD_OPTIONS,
        *LOG_OPTIONS,
        AUDIT_OPTION,
        HEALTH_OPTION,
    ),
    notes=f"""
[hub] in the configuration lists the accepted tokens with their rights, or how signed tokens (JWT) are verified. If it
lists neither, the hub accepts only the token in --token-file or {TOKEN_VARIABLE}. This token has all rights.
--grace applies to calls of --serve and --console. The hub does not wait for other calls: stop the workers first.
""",
    examples=(
        ("OPERATIONS_TOKEN=s3cret ops hub", "listen on ws://127.0.0.1:8700/"),
        ("OPERATIONS_TOKEN=s3cret ops ls --url ws://127.0.0.1:8700/", "list its operations, in another terminal"),
        ("OPERATIONS_TOKEN=s3cret ops call stock.left item=tea --url ws://127.0.0.1:8700/", "call one of them"),
    ),
)
