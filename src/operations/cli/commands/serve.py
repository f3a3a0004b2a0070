"""`serve`: the operations of a configuration over HTTP, MCP and WebSocket."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from operations.cli.arguments import TOKEN_VARIABLE, Command, Option, ParsedArguments, seconds, whole_number
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import require_configuration
from operations.cli.failures import OK, TRANSPORT, CommandError
from operations.cli.output import counted
from operations.cli.processes import print_event
from operations.cli.runner import stopping
from operations.cli.session import open_sources, report_failures
from operations.cli.terminal import results
from operations.config import Config, store_catalogue
from operations.config.settings import ServeSettings
from operations.registry import OperationRegistry

if TYPE_CHECKING:
    from operations.serving import ServedApp
    from operations.serving.audit import AuditRecord

_DEFAULT_ADDRESS = "127.0.0.1:8000"


def run(args: ParsedArguments) -> Any:
    """Serve over HTTP, or with `--mcp` alone over standard input and output."""
    if args.mcp and args.http is None:
        return _serve_stdio(args)
    from operations.serving import server  # noqa: F401  # the extra is named before anything is started

    return _serve(args)


async def _serve(args: ParsedArguments) -> int:
    from operations.serving.server import HTTPServer

    config = require_configuration(args)
    settings = _settings(config)
    async with contextlib.AsyncExitStack() as stack:
        workspace = await stack.enter_async_context(open_sources(config))
        told = await stack.enter_async_context(stopping())
        store_catalogue(workspace)
        report_failures(args, workspace.reports)
        served = _application(args, settings, config, workspace.registry)
        tls = settings.tls
        folder = config.path.parent
        try:
            server = HTTPServer(
                served,
                args.http or settings.http or _DEFAULT_ADDRESS,
                insecure=args.insecure or settings.insecure,
                certificate=str(folder / tls.certificate) if tls is not None else None,
                key=str(folder / tls.key) if tls is not None else None,
            )
        except ValueError as error:
            hint = "--insecure serves without credentials; tokens, keys and hosts stand in [serve]"
            raise CommandError(str(error), hint) from None
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            raise CommandError(
                f"cannot listen: {error.strerror or error}", "--http names another address", exit_code=TRANSPORT
            ) from None
        count = len(served.exposure.operations)
        print_event(
            args,
            "serving",
            f"serving {counted(count, 'operation')} at {server.url}; the document is {server.url}/docs; Ctrl-C ends",
            url=server.url,
            operations=count,
        )
        await told.wait()
        print_event(args, "stopping", "stopping; calls that run may finish")
    return OK


def _application(
    args: ParsedArguments, settings: ServeSettings, config: Config, registry: OperationRegistry
) -> ServedApp:
    from operations.cli.credentials import authenticator_of
    from operations.serving import Limits, app
    from operations.serving.admission import LOOPBACK_HOSTS

    limits = {
        **msgspec.structs.asdict(settings.limits),
        "concurrency": args.concurrency,
        "drain_seconds": args.grace,
    }
    authenticator = authenticator_of(settings, args, config)
    return app(
        registry,
        authenticator=authenticator,
        allow_anonymous=settings.anonymous if authenticator is not None else None,
        allow=[*settings.allow, *args.allow],
        deny=[*settings.deny, *args.deny],
        read_only=settings.read_only or args.read_only,
        mcp=settings.mcp,
        websocket=settings.websocket,
        title=settings.title,
        version=settings.version,
        public_url=args.public_url or settings.public_url,
        hosts=(*LOOPBACK_HOSTS, *settings.hosts, *args.host),
        origins=[*settings.origins, *args.origin],
        audiences=settings.issuer.audience if settings.issuer is not None else (),
        authorization_servers=[settings.issuer.url] if settings.issuer is not None else (),
        limits=Limits(**limits),
        audit=None if args.quiet and not args.json else lambda record: _tell(args, record),
    )


async def _serve_stdio(args: ParsedArguments) -> int:
    from operations.serving.mcp.stdio import (  # type: ignore[import-not-found, unused-ignore]
        serve_mcp_stdio,
    )

    config = require_configuration(args)
    settings = _settings(config)
    async with open_sources(config) as workspace:
        report_failures(args, workspace.reports)
        await serve_mcp_stdio(
            workspace.registry,
            allow=[*settings.allow, *args.allow],
            deny=[*settings.deny, *args.deny],
            read_only=settings.read_only or args.read_only,
            name=settings.title,
            version=settings.version,
            stdout=results().fileno(),  # descriptor 1 is for what operations print
        )
    return OK


def _settings(config: Config) -> ServeSettings:
    if "serve" in config.unusable:
        raise CommandError(config.unusable["serve"], "set the variable, or write ${NAME:-default}")
    return config.serve or ServeSettings()


def _tell(args: ParsedArguments, record: AuditRecord) -> None:
    """Say who called what: one line for each call."""
    caller = record.caller or "anonymous"
    text = f"{record.door} {record.operation_id} {record.code} {record.milliseconds:g} ms, {caller} at {record.address}"
    print_event(args, "called", text, **msgspec.to_builtins(record))


COMMAND = Command(
    name="serve",
    summary=SUMMARIES["serve"],
    run=run,
    options=(
        Option("--http", f"the address: host:port, :port or a port; {_DEFAULT_ADDRESS} by default", value="ADDRESS"),
        Option("--mcp", "without --http: serve MCP on standard input and output, for an editor"),
        Option("--allow", "only operations that this pattern matches; may be repeated", value="PATTERN", many=True),
        Option("--deny", "no operation that this pattern matches; may be repeated", value="PATTERN", many=True),
        Option("--read-only", "serve no mutations"),
        Option("--keys", "the file of API keys that `ops keys` writes", value="FILE", completes="file"),
        Option(
            "--token-file", f"the file that holds the one token; else {TOKEN_VARIABLE}", value="FILE", completes="file"
        ),
        Option("--scope", "a scope that whoever shows that token holds; may be repeated", value="SCOPE", many=True),
        Option("--insecure", "serve without credentials elsewhere than on loopback"),
        Option("--host", "a host name that callers use; may be repeated", value="HOST", many=True),
        Option("--origin", "a page of another host that may call; may be repeated", value="ORIGIN", many=True),
        Option("--public-url", "the address that callers use", value="URL"),
        Option("--concurrency", "how many calls at a time", value="NUMBER", convert=whole_number, default=1_024),
        Option("--grace", "how long running calls may take at the end", value="SECONDS", convert=seconds, default=30.0),
    ),
    notes="""
HTTP at /<namespace>/<name>, its OpenAPI document at /openapi.json and /docs, MCP at /mcp, the call protocol at /ws.
Only programs of this machine reach it unless --http says otherwise, which needs credentials or --insecure. Who may
call is in [serve] of the configuration: tokens, API keys, JWT or an issuer.
""",
    examples=(
        ("ops serve", "at http://127.0.0.1:8000"),
        ("ops serve --http 9000 --read-only --deny 'admin.*'", "queries and streams only, without some"),
        ("ops serve --http :8000 --keys keys.json --host api.example.com", "for others, who show API keys"),
        ("ops serve --mcp", "over standard input and output, as an editor starts it"),
    ),
    fast_loop=True,
)
