"""`ops serve`: serve the operations of a configuration over HTTP, MCP and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from operations.cli.arguments import (
    AUDIT_OPTION,
    LOG_OPTIONS,
    TOKEN_VARIABLE,
    Command,
    Option,
    ParsedArguments,
    seconds,
    whole_number,
)
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import require_configuration
from operations.cli.failures import DENIED, OK, TRANSPORT, CommandError, cannot_listen
from operations.cli.output import counted
from operations.cli.processes import observe, print_event, print_opening
from operations.cli.runner import stopping
from operations.cli.session import open_sources, report_served
from operations.cli.terminal import results
from operations.cli.transports import open_bus, transport_at
from operations.config import Config, Workspace, store_catalogue
from operations.config.settings import ServeSettings
from operations.registry import OperationRegistry

if TYPE_CHECKING:
    from operations.identity import AnyAuthenticator, Principal
    from operations.jobs import Jobs
    from operations.serving import ServedApp
    from operations.serving.audit import AuditRecord

_DEFAULT_ADDRESS = "127.0.0.1:8000"


def run(args: ParsedArguments) -> Any:
    """Serve over HTTP. With `--mcp` and without `--http`, serve MCP on standard input and output."""
    if args.mcp and args.http is None:
        return _serve_stdio(args)
    from operations.serving import server  # noqa: F401  # a missing extra is reported before sources are opened

    return _serve(args)


async def _serve(args: ParsedArguments) -> int:
    from operations.cli.console import describe_console
    from operations.cli.credentials import authenticator_of
    from operations.serving.server import HTTPServer

    config = require_configuration(args)
    settings = _settings(args, config)
    address = args.http or settings.http or _DEFAULT_ADDRESS
    authenticator = authenticator_of(settings, args, config)
    _check_address(args, settings, address, authenticator)
    print_opening(args, config)
    async with contextlib.AsyncExitStack() as stack:
        workspace = await stack.enter_async_context(open_sources(config))
        stopped = await stack.enter_async_context(stopping())
        store_catalogue(workspace)
        observe(args, workspace.registry)
        report_served(args, workspace)
        jobs = await stack.enter_async_context(_open_jobs(args, settings, config, workspace.registry))
        served = _application(args, settings, workspace, jobs, authenticator)
        tls = settings.tls
        folder = config.path.parent
        server = HTTPServer(
            served,
            address,
            insecure=args.insecure or settings.insecure,
            certificate=str(folder / tls.certificate) if tls is not None else None,
            key=str(folder / tls.key) if tls is not None else None,
            forwarded_allow_ips=",".join(settings.proxies) or None,
        )
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            raise CommandError(
                cannot_listen(address, error), "choose another address with --http", exit_code=TRANSPORT
            ) from None
        count = len(served.exposure.operations)
        print_event(
            args,
            "serving",
            f"serving {counted(count, 'operation')} at {server.url}; documentation at /docs"
            f"{describe_console(served)}; stop with Ctrl-C",
            url=server.url,
            operations=count,
        )
        await stopped.wait()
        print_event(args, "stopping", "stopping; waiting for running calls")
    return OK


def _check_address(
    args: ParsedArguments, settings: ServeSettings, address: str, authenticator: AnyAuthenticator | None
) -> None:
    """Refuse an address that is not safe to serve on, before sources are opened."""
    from operations.serving.server import check_exposure, split_address

    try:
        host, _ = split_address(address)
    except ValueError as error:
        raise CommandError(str(error)) from None
    try:
        check_exposure(
            host,
            has_authenticator=authenticator is not None,
            has_hosts=bool(settings.hosts or args.host or args.public_url or settings.public_url),
            insecure=args.insecure or settings.insecure,
        )
    except ValueError as error:
        hint = "configure tokens, keys and hosts in [serve], or pass --insecure to serve without credentials"
        raise CommandError(str(error), hint) from None


def _application(
    args: ParsedArguments,
    settings: ServeSettings,
    workspace: Workspace,
    jobs: Jobs | None,
    authenticator: AnyAuthenticator | None,
) -> ServedApp:
    from operations.cli.console import WorkspaceSources
    from operations.serving import Limits, app
    from operations.serving.admission import LOOPBACK_HOSTS

    limits = {
        **msgspec.structs.asdict(settings.limits),
        "concurrency": args.concurrency,
        "drain_seconds": args.grace,
    }
    return app(
        workspace.registry,
        authenticator=authenticator,
        allow_anonymous=settings.anonymous if authenticator is not None else None,
        allow=[*settings.allow, *args.allow],
        deny=[*settings.deny, *args.deny],
        read_only=settings.read_only or args.read_only,
        mcp=settings.mcp,
        search=args.search or settings.search,
        code=args.code or settings.code,
        websocket=settings.websocket,
        console=(settings.console or args.console) and not args.no_console,
        console_bodies=settings.console_bodies,
        metrics=settings.metrics,
        sources=WorkspaceSources(workspace),
        title=settings.title,
        version=settings.version,
        public_url=args.public_url or settings.public_url,
        hosts=(*LOOPBACK_HOSTS, *settings.hosts, *args.host),
        origins=[*settings.origins, *args.origin],
        audiences=settings.issuer.audience if settings.issuer is not None else (),
        authorization_servers=[settings.issuer.url] if settings.issuer is not None else (),
        limits=Limits(**limits),
        jobs=jobs,
        audit=None if args.quiet and not args.json else lambda record: _print_call(args, record),
    )


@contextlib.asynccontextmanager
async def _open_jobs(
    args: ParsedArguments, settings: ServeSettings, config: Config, registry: OperationRegistry
) -> AsyncIterator[Jobs | None]:
    """Open the jobs that the configuration sets up in `serve.jobs`; yield None if it sets up none."""
    if settings.jobs is None:
        yield None
        return
    from operations.jobs import Jobs

    if settings.jobs == "memory":
        async with Jobs(registry) as jobs:
            yield jobs
        return
    async with open_bus(transport_at(settings.jobs, config), args, config) as transport, Jobs(transport) as jobs:
        yield jobs


async def _serve_stdio(args: ParsedArguments) -> int:
    from operations.cli.credentials import stdio_principal
    from operations.serving.mcp.stdio import serve_mcp_stdio

    config = require_configuration(args)
    settings = _settings(args, config)
    principal = await stdio_principal(settings, args, config)
    async with contextlib.AsyncExitStack() as stack:
        workspace = await stack.enter_async_context(open_sources(config))
        observe(args, workspace.registry)
        report_served(args, workspace)
        jobs = await stack.enter_async_context(_open_jobs(args, settings, config, workspace.registry))
        serving = serve_mcp_stdio(
            workspace.registry,
            allow=[*settings.allow, *args.allow],
            deny=[*settings.deny, *args.deny],
            read_only=settings.read_only or args.read_only,
            name=settings.title,
            version=settings.version,
            search=args.search or settings.search,
            code=args.code or settings.code,
            jobs=jobs,
            identity=principal.identity if principal is not None else None,
            stdout=results().fileno(),  # descriptor 1 receives the output of operations
        )
        await _until_expiry(serving, principal)
    return OK


async def _until_expiry(serving: Awaitable[None], principal: Principal | None) -> None:
    """Serve until the client disconnects or the token of the caller expires."""
    left = None
    if principal is not None and principal.expires_at is not None:
        left = max(0.0, principal.expires_at - time.time())
    limit = asyncio.timeout(left)
    try:
        async with limit:
            await serving
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"the token in {TOKEN_VARIABLE} has expired"
        raise CommandError(message, "start the server with a new token", exit_code=DENIED) from None


def _settings(args: ParsedArguments, config: Config) -> ServeSettings:
    if "serve" in config.unusable:
        raise CommandError(config.unusable["serve"])
    settings = config.serve or ServeSettings()
    if args.code or settings.code:
        from operations.exports import code_tool  # noqa: F401  # a missing extra is reported before sources are opened
    return settings


def _print_call(args: ParsedArguments, record: AuditRecord) -> None:
    """Print one line about a call."""
    caller = record.caller or "anonymous"
    outcome = f"{record.protocol} {record.operation_id} {record.code} {record.milliseconds:g} ms"
    text = f"{outcome}, {caller} at {record.address}"
    print_event(args, "called", text, **msgspec.to_builtins(record))


COMMAND = Command(
    name="serve",
    summary=SUMMARIES["serve"],
    run=run,
    options=(
        Option(
            "--http", f"address to listen on: host:port, :port or a port (default: {_DEFAULT_ADDRESS})", value="ADDRESS"
        ),
        Option("--mcp", "serve MCP on standard input and output; ignored with --http"),
        Option(
            "--search",
            "serve three MCP tools (search, describe, call) instead of one per operation (default above 200 tools)",
        ),
        Option(
            "--code",
            "serve one MCP tool, which runs scripts in a sandbox, instead of one per operation (extra 'code')",
        ),
        Option("--allow", "serve only operations whose id matches (default: all)", value="PATTERN", many=True),
        Option("--deny", "leave out operations whose id matches", value="PATTERN", many=True),
        Option("--console", "serve the console at /console/ (default)"),
        Option("--no-console", "do not serve the console"),
        Option("--read-only", "leave out mutations"),
        Option("--keys", "accept the API keys in this file, which 'ops keys' writes", value="FILE", completes="file"),
        Option(
            "--token-file",
            f"accept the token in this file (default: the token in ${TOKEN_VARIABLE})",
            value="FILE",
            completes="file",
        ),
        Option(
            "--scope", f"scope of callers with the token of --token-file or ${TOKEN_VARIABLE}", value="SCOPE", many=True
        ),
        Option("--insecure", "allow addresses other than loopback without authentication"),
        Option("--host", "accept requests to this host name, as well as to loopback", value="HOST", many=True),
        Option("--origin", "accept requests of web pages from this origin (CORS)", value="ORIGIN", many=True),
        Option(
            "--public-url", "URL at which callers reach the server; the required audience of their tokens", value="URL"
        ),
        Option(
            "--concurrency", "maximum number of concurrent calls", value="NUMBER", convert=whole_number, default=1_024
        ),
        Option(
            "--grace",
            "time for running calls to finish when the server stops",
            value="SECONDS",
            convert=seconds,
            default=30.0,
        ),
        *LOG_OPTIONS,
        AUDIT_OPTION,
    ),
    notes="""
Paths: operations at /<namespace>/<name>, the OpenAPI document at /openapi.json and /docs, MCP at /mcp, the call
protocol at /ws. By default the server listens on loopback. Other addresses require authentication or --insecure.
Configure tokens, API keys, JWTs or an issuer in [serve].
""",
    examples=(
        ("ops serve", "serve at http://127.0.0.1:8000"),
        ("ops serve --http 9000 --read-only --deny 'admin.*'", "serve no mutations and no operations of admin"),
        ("ops serve --http :8000 --keys keys.json --host api.example.com", "serve on all interfaces, with API keys"),
        ("ops serve --mcp", "serve MCP on standard input and output"),
    ),
    fast_loop=True,
)
