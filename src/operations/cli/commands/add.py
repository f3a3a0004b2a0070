"""`add`: one more source in the configuration, checked before it is written."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Any

from operations.cli.arguments import Argument, Command, Given, Option, UsageError
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import ensure_trust, keep_trust, read_configuration, require_config_path, search
from operations.cli.failures import OK, CommandError
from operations.cli.output import counted, write_either, write_json
from operations.cli.stderr import warn_skipped
from operations.cli.terminal import paint
from operations.config import add_source
from operations.errors import CallError, ErrorCode

_NAME = Argument("NAME", "what to call the source; its operations are below it")


def run_mcp(given: Given) -> Any:
    """Add an MCP server."""
    table: dict[str, Any] = {}
    if not given.server:
        raise UsageError("which server? a URL, or -- and the command that starts it", f"for example: {_MCP_EXAMPLE}")
    if given.server[0].startswith(("http://", "https://")):
        table["url"] = given.server[0]
        if given.header:
            table["headers"] = dict(_pair(header, ":") for header in given.header)
    else:
        table["command"], *table["args"] = given.server
        if given.env:
            table["env"] = dict(_pair(variable, "=") for variable in given.env)
    return _add(given, {key: value for key, value in table.items() if value})


def run_openapi(given: Given) -> Any:
    """Add an API document."""
    table: dict[str, Any] = {"openapi": _place(given.document, given)}
    if given.base_url:
        table["base_url"] = given.base_url
    if given.token_variable:
        table["auth"] = {"type": "bearer", "token": f"${{{given.token_variable}}}"}
    return _add(given, table)


def run_py(given: Given) -> Any:
    """Add Python code."""
    is_path = os.sep in given.code or given.code.endswith(".py") or Path(given.code).is_dir()
    return _add(given, {"python": _place(given.code, given) if is_path else given.code})


async def _add(given: Given, table: dict[str, Any]) -> int:
    from operations.cli.session import refresh_catalogue, source_failure
    from operations.cli.stderr import spinning

    path = _target(given)
    may_trust = _ensure_trust(given, path)
    add_source(path, given.name, table)
    try:
        config = read_configuration(path)
        if may_trust:
            keep_trust(config, by="ops add")
    except CallError as error:
        if not given.no_check:
            hint = "ops ls --refresh opens it once that is fixed"
            raise CommandError(f"{given.name} was added to {path}, but:\n  {error.message}", hint) from None
    if given.no_check:
        write_either(given, {"config": str(path), "source": given.name}, f"{given.name} was added to {path}\n")
        return OK
    async with spinning(f"opening {given.name}", quiet=given.quiet) as line:
        workspace = await refresh_catalogue(config, None, line)
    report = next(report for report in workspace.reports if report.name == given.name)
    if not given.quiet:
        warn_skipped([(skip.path, skip.reason) for skip in report.skipped])
    told = {
        "config": str(path),
        "source": given.name,
        "state": report.state,
        "operations": report.operations,
        "problem": report.problem,
    }
    if report.state == "ready":
        count, following = (
            counted(report.operations, "operation"),
            paint("bold", f"ops ls --source {quote(given.name)}"),
        )
        write_either(given, told, f"{given.name} was added to {path}: {count}\nNext: {following}\n")
        return OK
    if given.json:
        write_json(told)
    raise source_failure(report, f"{given.name} was added to {path}, but cannot be opened")


def _ensure_trust(given: Given, path: Path) -> bool:
    """Ask for trust in what the file has already, before it is added to; return False for a file that is invalid."""
    try:
        config = read_configuration(path)
    except CallError as error:
        if error.code != ErrorCode.VALIDATION_ERROR:
            raise
        return False
    ensure_trust(given, config)
    return True


def _target(given: Given) -> Path:
    """Return the file to add to; where there is none, make one."""
    from operations.config import initialise

    found = search(given)
    if found.path is None and not found.refused:
        return initialise(Path(given.config or "."))
    return require_config_path(given)


def _place(name: str, given: Given) -> str:
    """A path as the configuration has it: relative to the file's folder."""
    if "://" in name:
        return name
    return f"./{os.path.relpath(Path(name).expanduser(), _target(given).parent)}" if not os.path.isabs(name) else name


def _pair(text: str, sign: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found:
        raise UsageError(f"{text!r} is not NAME{sign}VALUE")
    return name.strip(), value.strip()


_MCP_EXAMPLE = "ops add mcp files -- npx -y @modelcontextprotocol/server-filesystem ."
_CHECK = Option("--no-check", "do not open it")

COMMAND = Command(
    name="add",
    summary=SUMMARIES["add"],
    parts=(
        Command(
            name="add mcp",
            summary="add an MCP server",
            run=run_mcp,
            arguments=(_NAME, Argument("SERVER", "its URL, or -- and the command that starts it", False, many=True)),
            options=(
                Option(
                    "--env",
                    "a variable for the command; ${NAME} is filled in when it starts",
                    value="NAME=VALUE",
                    many=True,
                ),
                Option("--header", "a header for the URL; ${NAME} is filled in", value="NAME:VALUE", many=True),
                _CHECK,
            ),
            examples=(
                (_MCP_EXAMPLE, "a program, over stdio"),
                (
                    "ops add mcp docs https://example.com/mcp --header 'Authorization: Bearer ${DOCS_TOKEN}'",
                    "over HTTP",
                ),
            ),
        ),
        Command(
            name="add openapi",
            summary="add the API that an OpenAPI document describes",
            run=run_openapi,
            arguments=(_NAME, Argument("DOCUMENT", "the path or URL of the document", completes="file")),
            options=(
                Option("--base-url", "in place of the document's servers", value="URL"),
                Option("--token-variable", "the variable that holds its bearer token", value="NAME"),
                _CHECK,
            ),
            examples=(
                ("ops add openapi pets ./petstore.yaml", "a file"),
                (
                    "ops add openapi github https://example.com/github.json --token-variable GITHUB_TOKEN",
                    "with a token",
                ),
            ),
        ),
        Command(
            name="add py",
            summary="add Python code: a folder, a file or a package",
            run=run_py,
            arguments=(_NAME, Argument("CODE", "a folder, a file, or the name of a package", completes="file")),
            options=(_CHECK,),
            examples=(("ops add py shop ./shop", "a folder"), ("ops add py billing billing.operations", "a package")),
        ),
    ),
)
