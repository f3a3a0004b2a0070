"""A program that serves a few operations over standard input and output."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from operations import OperationContext, OperationRegistry, operation
from operations.serving.mcp.stdio import serve_mcp_stdio
from operations.spec import AccessControl


@operation("talk.hello", type="query")
async def hello(name: str) -> str:
    """Say hello, and print."""
    print("printed", flush=True)  # noqa: T201  # it must not reach the messages
    await asyncio.to_thread(subprocess.run, ["echo", "of a child"], check=True)
    return f"hello {name}"


@operation("talk.admin", access_control=AccessControl(required_scopes=("admin",), resource_type="door"))
async def admin() -> str:
    """Something that needs rights."""
    return "done"


@operation("talk.wait")
async def wait() -> str:
    """Wait for ever."""
    print("waiting", file=sys.stderr, flush=True)  # noqa: T201
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled", file=sys.stderr, flush=True)  # noqa: T201
    return ""


@operation("talk.ask")
async def ask(context: OperationContext) -> str:
    """Ask."""
    answer = await context.ask("Name?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"hello {answer.content['name']}"


if __name__ == "__main__":
    asyncio.run(serve_mcp_stdio(OperationRegistry([hello, admin, wait, ask]), name="talk"))
