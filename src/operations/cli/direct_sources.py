"""Sources named on the command line: `--mcp 'npx …'` and `--openapi URL`, without a configuration file.

The user typed them, so they need no trust. `${NAME}` in a header is replaced as in a configuration file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operations.cli.arguments import Option, ParsedArguments, UsageError

MCP, API = "mcp", "api"
"""Names of the sources of `--mcp` and `--openapi`; each name is also the namespace of the source's operations."""
DIRECT_OPTIONS = (
    Option("--mcp", f"use an MCP server: its command or URL; its operations are named {MCP}.…", value="SERVER"),
    Option("--openapi", f"use an API: path or URL of its document; its operations are named {API}.…", value="DOCUMENT"),
    Option(
        "--header",
        "header of requests to --mcp or --openapi; ${NAME} is replaced by the variable NAME",
        value="NAME:VALUE",
        many=True,
    ),
)


def direct_file(args: ParsedArguments) -> tuple[Path, str]:
    """Return the configuration that is equivalent to the options: path and text of a file that does not exist."""
    import shlex

    from operations.config.file_writer import text_with_source
    from operations.config.problems import DIRECT_FILE

    path = Path.cwd() / DIRECT_FILE
    headers = dict(pair(header, ":") for header in args.header)
    tables: dict[str, dict[str, Any]] = {}
    if args.mcp is not None:
        tables[MCP] = mcp_table(shlex.split(args.mcp), headers=headers)
    if args.openapi is not None:
        if not args.openapi:
            raise UsageError("missing document: expected a path or URL", "for example: --openapi api.yaml")
        tables[API] = {"openapi": args.openapi, **({"headers": headers} if headers else {})}
    return path, "\n".join(text_with_source(path, name, table) for name, table in tables.items())


def mcp_table(
    words: list[str], *, headers: dict[str, str] | None = None, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the table of an MCP server that is given as a URL, or as a command and its arguments."""
    if not words:
        raise UsageError("missing server: expected a URL or a command", "for example: npx -y some-server")
    if words[0].startswith(("http://", "https://")):
        table: dict[str, Any] = {"url": words[0], "headers": headers}
        if words[0].partition("?")[0].rstrip("/").endswith("/sse"):
            table["type"] = "sse"
    else:
        table = {"command": words[0], "args": words[1:], "env": env}
    return {key: value for key, value in table.items() if value}


def pair(text: str, sign: str) -> tuple[str, str]:
    """Split `NAME:VALUE` or `NAME=VALUE` at the first `sign`, which is `:` or `=`; return name and value."""
    name, found, value = text.partition(sign)
    if not found:
        raise UsageError(f"invalid {text!r}: expected NAME{sign}VALUE")
    return name.strip(), value.strip()
