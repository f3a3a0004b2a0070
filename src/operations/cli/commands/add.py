"""`ops add`: validate a new source and add it to the configuration.

`ops add --discover` finds the MCP servers in the files of editors, and includes these files in the configuration.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from operations.cli.arguments import Argument, Command, Option, ParsedArguments, UsageError
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import (
    ask,
    can_ask,
    config_file,
    ensure_trust,
    is_trusted_file,
    read_configuration,
    save_trust,
    trust_as_before,
)
from operations.cli.direct_sources import mcp_table, pair
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import counted, write_either, write_json
from operations.cli.stderr import warn_skipped
from operations.cli.terminal import paint, printable, printable_line, write_text
from operations.config import Config, SourceReport, load_catalogue, load_config, store_catalogue
from operations.config.actions import actions_of
from operations.config.editor_files import find_editor_files
from operations.config.file_writer import has_source, text_with_include, text_with_source, write_config
from operations.config.sources import OpenedSource
from operations.config.trust import refusal, shell_quoted
from operations.errors import CallError, ErrorCode
from operations.sources.scanner import Skipped

_NAME = Argument("NAME", "name of the source, and namespace of its operations")


def run_mcp(args: ParsedArguments) -> Any:
    """Add an MCP server."""
    if not args.server:
        raise UsageError(
            "missing SERVER: a URL, or -- and the command that starts the server", f"for example: {_MCP_EXAMPLE}"
        )
    headers, env = dict(pair(each, ":") for each in args.header), dict(pair(each, "=") for each in args.env)
    table = mcp_table(args.server, headers=headers, env=env)
    return _add(args, {**table, "type": "sse"} if args.sse and "url" in table else table)


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
    path = config_file(args)
    may_trust = _ensure_trust(args, path)
    text = _text_with(args, path, table)
    if args.no_check:
        write_config(path, text)
        trust_as_before(path, was_trusted=may_trust, by="ops add")
        write_either(args, {"config": str(path), "source": args.name}, f"{args.name} was added to {path}\n")
        return OK
    report = await _open_and_write(args, path, table, text, was_checked=may_trust)
    if not args.quiet:
        warn_skipped([(skip.path, skip.reason) for skip in report.skipped])
    data = {"config": str(path), "source": args.name, "state": report.state, "operations": report.operations}
    count = counted(report.operations, "operation")
    following = paint("bold", f"ops ls --source {shell_quoted(args.name)}")
    write_either(args, data, f"{args.name} was added to {path}: {count}\nNext: {following}\n")
    return OK


def _text_with(args: ParsedArguments, path: Path, table: dict[str, Any]) -> str:
    """Return the text of the configuration file with the new source added."""
    try:
        return text_with_source(path, args.name, table, replace=args.replace)
    except CallError as error:
        if args.replace or not has_source(path, args.name):
            raise
        hint = "choose another name, or pass --replace to replace the source"
        raise CallError(error.code, error.message, {**(error.details or {}), "hint": hint}) from None


async def _open_and_write(
    args: ParsedArguments, path: Path, table: dict[str, Any], text: str, *, was_checked: bool
) -> SourceReport:
    """Open the new source, then write the file; if the source cannot be opened, the file stays unchanged."""
    from operations.cli.session import open_sources, source_failure
    from operations.cli.stderr import spinner

    try:
        config = read_configuration(path, text)
    except CallError as error:
        raise CommandError(f"{args.name} was not added: {error.message}", "fix the file, then add it again") from None
    if not was_checked:  # the file was invalid: the user has not been asked about its other sources
        ensure_trust(args, config)
    before = load_catalogue(path)
    others = config.sources.keys() - {args.name}
    only = [args.name] if before is not None and others <= before.sources.keys() else None
    async with (
        spinner(f"opening {args.name}", quiet=args.quiet) as line,
        open_sources(config, only, line) as workspace,
    ):
        report = next(report for report in workspace.reports if report.name == args.name)
        if report.state != "ready":
            hint = "; ".join(filter(None, (report.hint, "--no-check adds it anyway")))
            raise source_failure(structs.replace(report, hint=hint), f"{args.name} was not added: it cannot be opened")
        if _is_api_key(table, workspace.opened[args.name]):
            table = {**table, "auth": {**table["auth"], "type": "api_key"}}
            text = text_with_source(path, args.name, table, replace=args.replace)
        write_config(path, text)
        workspace.config = read_configuration(path)
        save_trust(workspace.config, by="ops add")
        store_catalogue(workspace, before=before)
    stored = load_catalogue(path)
    source = None if stored is None else stored.sources.get(args.name)
    if source is None:
        return report
    # Unlike the report, the cache knows the ids of sources that were not opened, and counts no duplicates.
    skipped = [Skipped(name, reason) for name, reason in source.skipped]
    return structs.replace(report, operations=source.operations, skipped=skipped)


def _is_api_key(table: dict[str, Any], opened: OpenedSource) -> bool:
    """Whether the API's document declares the token of a new source as an API key."""
    if "auth" not in table:
        return False
    from operations.config.openapi_source import takes_api_key

    return takes_api_key(opened.operations)


def _ensure_trust(args: ParsedArguments, path: Path) -> bool:
    """Ask the user to trust the file before the source is added; return False if the file is invalid, else True."""
    if not path.exists():
        return True
    try:
        config = read_configuration(path)
    except CallError as error:
        if error.code != ErrorCode.VALIDATION_ERROR:
            raise
        return False
    ensure_trust(args, config)
    return True


def _relative_path(name: str, args: ParsedArguments) -> str:
    """Return a path relative to the configuration's directory; a URL or an absolute path stays as it is."""
    if "://" in name or os.path.isabs(name):
        return name
    return f"./{os.path.relpath(Path(name).expanduser(), config_file(args).parent)}"


class EditorFile(NamedTuple):
    """An editor's file with its servers, or why it cannot be used."""

    path: Path
    config: Config | None
    state: str
    """`included`, `new`, or the problem."""

    def as_data(self) -> dict[str, Any]:
        """Return the file as `--json` prints it."""
        return {"file": str(self.path), "state": self.state, "servers": dict(self.servers())}

    def servers(self) -> list[tuple[str, str]]:
        """Return the name and the action of each server: the command that is started, or the URL that is contacted."""
        if self.config is None:
            return []
        actions = {action.name: " ".join(action.text.split()) for action in actions_of(self.config)}
        sources = self.config.sources
        return [(name, actions.get(name, f"connect to {sources[name].written.get('url', '')}")) for name in sources]


def run_discover(args: ParsedArguments) -> int:
    """List the editors' files; include the files that the command line names or the user chooses."""
    target = config_file(args)
    named = [Path(name).expanduser().absolute() for name in args.file]
    found = [_read(path, target) for path in named or find_editor_files(target.parent, os.environ)]
    if args.json:
        write_json([each.as_data() for each in found])
    if not found:
        raise CommandError(
            "no editor's file with MCP servers was found", "name one: ops add --discover FILE", exit_code=NOT_FOUND
        )
    for each in found:
        if not args.json:
            write_text("".join(f"{line}\n" for line in _lines(each)))
        chosen = bool(named) or (can_ask(args) and each.state == "new" and ask([], f"Include {each.path.name}?"))
        if chosen:
            _include(each, target, was_shown=not named)
            if not args.json:
                following = "" if not named else "; allow its servers with 'ops trust'"
                write_text(f"  included in {printable(str(target))}{following}\n")
    return OK


def _read(path: Path, target: Path) -> EditorFile:
    refused = refusal(path)
    if refused:
        return EditorFile(path, None, refused)
    try:
        config = load_config(path)
        present = read_configuration(target).files if target.exists() else ()
    except CallError as error:
        return EditorFile(path, None, error.message)
    return EditorFile(path, config, "included" if path in present else "new")


def _include(found: EditorFile, target: Path, *, was_shown: bool) -> None:
    """Add an editor's file to `include` of the configuration.

    A trusted configuration stays trusted only if the user has just seen the servers of the editor's file.
    """
    if found.state != "new":
        raise CommandError(f"{found.path}: {found.state}", "nothing was added")
    was_trusted = not target.exists() or is_trusted_file(target)
    text = text_with_include(target, [_written(found.path, target.parent)])
    try:
        read_configuration(target, text)
    except CallError as error:
        raise CommandError(f"{found.path} was not included: {error.message}", "nothing was changed") from None
    write_config(target, text)
    trust_as_before(target, was_trusted=was_trusted and was_shown, by="ops add --discover")


def _written(path: Path, directory: Path) -> str:
    """Return a path as the configuration states it: relative to `directory` or to the home directory, else absolute."""
    if path.is_relative_to(directory):
        return str(path.relative_to(directory))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _lines(found: EditorFile) -> list[str]:
    # A line break in a name must not look like another server.
    servers = [(printable_line(name), action) for name, action in found.servers()]
    widest = max((len(name) for name, _ in servers), default=0)
    head = f"{paint('bold', printable(str(found.path)))}  {printable(found.state)}"
    return [head, *(f"  {name:<{widest}}  {paint('dim', printable(action))}" for name, action in servers)]


_MCP_EXAMPLE = "ops add mcp files -- npx -y @modelcontextprotocol/server-filesystem ."
_ADD_OPTIONS = (
    Option("--replace", "replace the source of that name (default: an error)"),
    Option("--no-check", "add the source without opening it"),
)
_DISCOVER = Command(
    name="add --discover",
    summary="list the MCP servers of editors, and include their files",
    run=run_discover,
    arguments=(Argument("FILE", "include these files", required=False, many=True, completes="file"),),
    notes="""
Searches this directory and your home directory for the files of Claude, Cursor, VS Code, Gemini, Windsurf and others.
On a terminal, the command asks for each file whether to include it. A named FILE is included without a question;
afterwards run 'ops trust' to allow its servers.
""",
    examples=(
        ("ops add --discover", "list the servers in the files of editors"),
        ("ops add --discover .mcp.json", "include one file"),
    ),
)

COMMAND = Command(
    name="add",
    summary=SUMMARIES["add"],
    parts=(
        Command(
            name="add mcp",
            summary="add an MCP server",
            run=run_mcp,
            arguments=(
                _NAME,
                Argument("SERVER", "URL, or -- and the command that starts the server", False, many=True),
            ),
            options=(
                Option(
                    "--env",
                    "environment variable of the server; ${NAME} is replaced by the variable NAME",
                    value="NAME=VALUE",
                    many=True,
                ),
                Option(
                    "--header",
                    "header of requests to the URL; ${NAME} is replaced by the variable NAME",
                    value="NAME:VALUE",
                    many=True,
                ),
                Option("--sse", "use the older SSE transport (default for URLs that end with /sse)"),
                *_ADD_OPTIONS,
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
                Option(
                    "--base-url", "base URL of requests (default: the first of the document's servers)", value="URL"
                ),
                Option(
                    "--token-variable",
                    "environment variable with the bearer token or API key (default: no credentials)",
                    value="NAME",
                ),
                *_ADD_OPTIONS,
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
            arguments=(
                Argument("NAME", "name of the source"),
                Argument("CODE", "directory, file or name of a package", completes="file"),
            ),
            options=_ADD_OPTIONS,
            examples=(
                ("ops add py shop ./shop", "a directory"),
                ("ops add py billing billing.operations", "a package"),
            ),
        ),
        _DISCOVER,
    ),
)
