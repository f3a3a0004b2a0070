"""`ops add`: validate a new source and add it to the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Any

from operations.cli.arguments import Argument, Command, Option, ParsedArguments, UsageError
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import ensure_trust, read_configuration, require_config_path, save_trust, search
from operations.cli.failures import OK, CommandError
from operations.cli.output import counted, write_either, write_json
from operations.cli.stderr import warn_skipped
from operations.cli.terminal import paint
from operations.config import add_source
from operations.errors import CallError, ErrorCode

_NAME = Argument("NAME", "name of the source, and namespace of its operations")


def run_mcp(args: ParsedArguments) -> Any:
    """Add an MCP server."""
    table: dict[str, Any] = {}
    if not args.server:
        raise UsageError("missing SERVER: a URL, or -- and the command that starts it", f"for example: {_MCP_EXAMPLE}")
    if args.server[0].startswith(("http://", "https://")):
        table["url"] = args.server[0]
        if args.header:
            table["headers"] = dict(_pair(header, ":") for header in args.header)
    else:
        table["command"], *table["args"] = args.server
        if args.env:
            table["env"] = dict(_pair(variable, "=") for variable in args.env)
    return _add(args, {key: value for key, value in table.items() if value})


def run_openapi(args: ParsedArguments) -> Any:
    """Add an OpenAPI document."""
    table: dict[str, Any] = {"openapi": _relative_path(args.document, args)}
    if args.base_url:
        table["base_url"] = args.base_url
    if args.token_variable:
        table["auth"] = {"type": "bearer", "token": f"${{{args.token_variable}}}"}
    return _add(args, table)


def run_py(args: ParsedArguments) -> Any:
    """Add Python code."""
    is_path = os.sep in args.code or args.code.endswith(".py") or Path(args.code).is_dir()
    return _add(args, {"python": _relative_path(args.code, args) if is_path else args.code})


async def _add(args: ParsedArguments, table: dict[str, Any]) -> int:
    from operations.cli.session import refresh_catalogue, source_failure
    from operations.cli.stderr import spinner

    path = _target(args)
    may_trust = _ensure_trust(args, path)
    add_source(path, args.name, table)
    try:
        config = read_configuration(path)
        if may_trust:
            save_trust(config, by="ops add")
    except CallError as error:
        if not args.no_check:
            hint = "fix it, then run 'ops ls --refresh'"
            raise CommandError(f"{args.name} was added to {path}, which is invalid:\n  {error.message}", hint) from None
    if args.no_check:
        write_either(args, {"config": str(path), "source": args.name}, f"{args.name} was added to {path}\n")
        return OK
    async with spinner(f"opening {args.name}", quiet=args.quiet) as line:
        workspace = await refresh_catalogue(config, None, line)
    report = next(report for report in workspace.reports if report.name == args.name)
    if not args.quiet:
        warn_skipped([(skip.path, skip.reason) for skip in report.skipped])
    data = {
        "config": str(path),
        "source": args.name,
        "state": report.state,
        "operations": report.operations,
        "problem": report.problem,
    }
    if report.state == "ready":
        count, following = (
            counted(report.operations, "operation"),
            paint("bold", f"ops ls --source {quote(args.name)}"),
        )
        write_either(args, data, f"{args.name} was added to {path}: {count}\nNext: {following}\n")
        return OK
    if args.json:
        write_json(data)
    raise source_failure(report, f"{args.name} was added to {path}, but cannot be opened")


def _ensure_trust(args: ParsedArguments, path: Path) -> bool:
    """Ask for trust in the file's present content before adding to it; return False if the file is invalid."""
    try:
        config = read_configuration(path)
    except CallError as error:
        if error.code != ErrorCode.VALIDATION_ERROR:
            raise
        return False
    ensure_trust(args, config)
    return True


def _target(args: ParsedArguments) -> Path:
    """Return the configuration file; create one if there is none."""
    from operations.config import initialise

    found = search(args)
    if found.path is None and not found.refused:
        return initialise(Path(args.config or "."))
    return require_config_path(args)


def _relative_path(name: str, args: ParsedArguments) -> str:
    """Return a path relative to the configuration's directory."""
    if "://" in name:
        return name
    return f"./{os.path.relpath(Path(name).expanduser(), _target(args).parent)}" if not os.path.isabs(name) else name


def _pair(text: str, sign: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found:
        raise UsageError(f"invalid {text!r}: expected NAME{sign}VALUE")
    return name.strip(), value.strip()


_MCP_EXAMPLE = "ops add mcp files -- npx -y @modelcontextprotocol/server-filesystem ."
_CHECK = Option("--no-check", "do not open the source")

COMMAND = Command(
    name="add",
    summary=SUMMARIES["add"],
    parts=(
        Command(
            name="add mcp",
            summary="add an MCP server",
            run=run_mcp,
            arguments=(_NAME, Argument("SERVER", "URL, or -- and the command that starts it", False, many=True)),
            options=(
                Option(
                    "--env",
                    "environment variable for the command; ${NAME} is replaced when it starts",
                    value="NAME=VALUE",
                    many=True,
                ),
                Option("--header", "header for the URL; ${NAME} is replaced", value="NAME:VALUE", many=True),
                _CHECK,
            ),
            examples=(
                (_MCP_EXAMPLE, "a local server, over stdio"),
                (
                    "ops add mcp docs https://example.com/mcp --header 'Authorization: Bearer ${DOCS_TOKEN}'",
                    "a remote server, over HTTP",
                ),
            ),
        ),
        Command(
            name="add openapi",
            summary="add an API by its OpenAPI document",
            run=run_openapi,
            arguments=(_NAME, Argument("DOCUMENT", "path or URL of the document", completes="file")),
            options=(
                Option("--base-url", "base URL, instead of the document's servers", value="URL"),
                Option("--token-variable", "environment variable with the bearer token", value="NAME"),
                _CHECK,
            ),
            examples=(
                ("ops add openapi pets ./petstore.yaml", "a file"),
                (
                    "ops add openapi github https://example.com/github.json --token-variable GITHUB_TOKEN",
                    "a URL, with a bearer token",
                ),
            ),
        ),
        Command(
            name="add py",
            summary="add Python code: a directory, a file or a package",
            run=run_py,
            arguments=(_NAME, Argument("CODE", "directory, file or name of a package", completes="file")),
            options=(_CHECK,),
            examples=(
                ("ops add py shop ./shop", "a directory"),
                ("ops add py billing billing.operations", "a package"),
            ),
        ),
    ),
)
