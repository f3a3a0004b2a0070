"""`hub`: where spokes and workers dial in, and callers find them."""

from __future__ import annotations

import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from operations.cli.arguments import LOAD_OPTIONS, TOKEN_VARIABLE, Command, Given, Option
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import find_configuration
from operations.cli.failures import OK, TRANSPORT, CommandError
from operations.cli.processes import follow_offers, say, serve_until
from operations.cli.running import stopping
from operations.cli.session import open_sources, report_failures
from operations.cli.transports import jwt_tokens
from operations.config import Config
from operations.config.settings import HubSettings
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Authenticator, Principal, StaticTokens


def run(given: Given) -> Any:
    """Listen and route."""
    try:
        import operations.pubsub.websocket  # noqa: F401  # the extra is named before anything is started
    except ImportError as error:
        text = str(error)
        raise (
            error if "pip install" in text else ImportError("picows is not installed: pip install 'operations[ws]'")
        ) from None
    return _listen(given)


async def _listen(given: Given) -> int:
    from operations.calls.hub import Hub

    config = find_configuration(given)
    if config is not None and "hub" in config.unusable:
        raise CommandError(config.unusable["hub"], "set the variable, or write ${NAME:-default}")
    settings = config.hub if config is not None and config.hub is not None else HubSettings()
    authenticator = _authenticator(settings, given, config)
    limits = {"heartbeat": settings.heartbeat, "max_payload": settings.max_payload}
    hub = Hub(
        authenticator,
        host=given.host or settings.host,
        port=settings.port if given.port is None else given.port,
        tls=_certificate(settings, config),
        **{name: value for name, value in limits.items() if value is not None},  # type: ignore[arg-type]
    )
    try:
        await hub.start()
    except OSError as error:
        message = f"cannot listen: {error.strerror or error}"
        raise CommandError(message, "--port names another port, 0 any free one", exit_code=TRANSPORT) from None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hub.close)
        told = await stack.enter_async_context(stopping())
        say(given, "listening", f"the hub is at {hub.url}; Ctrl-C ends", url=hub.url)
        if given.serve:
            await _serve_own(stack, given, config, hub.transport(), told)
        else:
            await follow_offers(given, hub.transport(), told)
    return OK


async def _serve_own(stack: AsyncExitStack, given: Given, config: Config | None, transport: Any, told: Any) -> None:
    if config is None:
        raise CommandError("--serve needs a configuration with sources", "ops init makes one")
    workspace = await stack.enter_async_context(open_sources(config))
    report_failures(given, workspace.reports)
    await serve_until(told, given, workspace.registry, transport, pool=False)


def _authenticator(settings: HubSettings, given: Given, config: Config | None) -> Authenticator:
    """Who may dial in: the tokens of the configuration; without any, the one in the environment may do everything."""
    principals = {
        each.token: Principal(
            Identity(each.identity, tuple(each.scopes), {name: tuple(held) for name, held in each.resources.items()}),
            tuple(each.namespaces),
        )
        for each in settings.tokens
    }
    own = Path(given.token_file).read_text().strip() if given.token_file else os.environ.get(TOKEN_VARIABLE)
    if own and not principals and settings.jwt is None:
        principals[own] = Principal(Identity("operator", ("*",)), ("*",))
    if settings.jwt is None:
        if not principals:
            hint = f"set {TOKEN_VARIABLE}, or add [[hub.tokens]] to the configuration"
            raise CommandError("the hub knows no tokens, so nobody could dial in", hint)
        return StaticTokens(principals)
    signed = jwt_tokens(settings.jwt, config)
    return _Either(StaticTokens(principals), signed) if principals else signed


class _Either:
    """Tokens known beforehand, and signed ones beside them."""

    def __init__(self, first: Authenticator, second: Authenticator) -> None:
        self._first = first
        self._second = second

    def authenticate(self, token: str | None) -> Principal:
        """The principal, of whichever knows the token."""
        try:
            return self._first.authenticate(token)
        except CallError as error:
            if error.code is not ErrorCode.ACCESS_DENIED:
                raise
        return self._second.authenticate(token)


def _certificate(settings: HubSettings, config: Config | None) -> ssl.SSLContext | None:
    if settings.tls is None:
        return None
    folder = config.path.parent if config is not None else Path()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / settings.tls.certificate, folder / settings.tls.key)
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
        Option("--host", "the address to listen at", value="HOST"),
        Option("--port", "the port; 0 is any free one", "-p", value="PORT", convert=_port),
        Option("--serve", "offer the configuration's own operations as well"),
        Option(
            "--token-file", f"the file that holds the one token; else {TOKEN_VARIABLE}", value="FILE", completes="file"
        ),
        *LOAD_OPTIONS,
    ),
    notes=f"""
Who may dial in, as whom and where they may register operations is in [hub] of the configuration: tokens or signed
tokens (JWT). Without any, whoever shows the token in {TOKEN_VARIABLE} may do everything.
""",
    examples=(
        ("OPERATIONS_TOKEN=s3cret ops hub", "at ws://127.0.0.1:8700/"),
        ("OPERATIONS_TOKEN=s3cret ops ls --url ws://127.0.0.1:8700/", "what its spokes offer, from another terminal"),
        ("OPERATIONS_TOKEN=s3cret ops call stock.left item=tea --url ws://127.0.0.1:8700/", "call it"),
    ),
)
