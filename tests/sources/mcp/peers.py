"""Servers to test against: real ones from npm, our hostile ones, and their processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from operations.sources.mcp import MCPClientConfig
from tests.ports import free_port

HERE = Path(__file__).parent
NODE = HERE.parents[1] / "node" / "node_modules" / ".bin"
HOSTILE = str(HERE / "hostile_stdio.py")


def node_server(name: str) -> str:
    """The command of a server from npm; its absence fails the test rather than skipping it."""
    path = NODE / name
    if not path.exists():
        raise AssertionError(f"{name} is not installed: run `npm ci --prefix tests/node`")
    return str(path)


def hostile(mode: str = "tools", directory: Path | None = None, **options: Any) -> MCPClientConfig:
    """The config of our hostile server in one of its modes."""
    args = [HOSTILE, mode, *([str(directory)] if directory else [])]
    return MCPClientConfig(command=sys.executable, args=args, **options)


def everything(**options: Any) -> MCPClientConfig:
    return MCPClientConfig(command=node_server("mcp-server-everything"), args=["stdio"], **options)


@contextlib.asynccontextmanager
async def everything_over_http(port: int | None = None) -> AsyncIterator[str]:
    """The address of a server-everything that runs for as long as the block lasts."""
    port = port or free_port()
    environment = {**os.environ, "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(
        node_server("mcp-server-everything"),
        "streamableHttp",
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while b"listening" not in await process.stderr.readline():
                assert process.returncode is None, "server-everything did not start"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def children() -> set[int]:
    """The processes this one has started and that are still there, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found
