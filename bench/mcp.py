"""A call of a trivial MCP tool: `registry.execute` against the SDK's own `Client.call_tool`, on the same small server.

`python -m bench.mcp`
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import report, save, time_calls
from operations import OperationRegistry
from operations.sources.mcp import MCPClientConfig, create_mcp_client

INPUT = {"a": 1, "b": 2}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
SERVE = ["-m", "bench.mcp", "serve"]
ROOT = Path(__file__).parent.parent
OURS, THEIRS = "operations registry.execute", "SDK Client.call_tool"


async def compare(config: MCPClientConfig, server: Any) -> dict[str, float]:
    """Return the seconds of a call of both clients on the same server, measured in interleaved rounds."""
    from mcp import Client

    async with await create_mcp_client("bench", config) as ours, Client(server) as theirs:
        registry = OperationRegistry()
        ours.register_all(registry)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            OURS: lambda: registry.execute("bench.add", INPUT),
            THEIRS: lambda: theirs.call_tool("add", INPUT),
        }
        assert (await registry.execute("bench.add", INPUT)).data == {"sum": 3}
        assert (await theirs.call_tool("add", INPUT)).structured_content == {"sum": 3}
        return await time_calls(calls, rounds=21, seconds=0.25)


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """Start the small server over streamable HTTP and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, *SERVE, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:  # blocks, but only before measuring
        assert process.stdout is not None
        try:
            await asyncio.to_thread(process.stdout.readline)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


async def main() -> None:
    """Measure, print the ratios and save the results."""
    from mcp import StdioServerParameters

    ours = MCPClientConfig(command=sys.executable, args=SERVE, cwd=ROOT)
    theirs = StdioServerParameters(command=sys.executable, args=SERVE, cwd=ROOT)
    results = {"stdio": await compare(ours, theirs)}
    async with http_server() as url:
        results["streamable HTTP"] = await compare(MCPClientConfig(url=url), url)
    for name, times in results.items():
        report(f"a trivial tool over {name}, as a multiple of the SDK's own client", times, THEIRS)
    ratios = {name: times[OURS] / times[THEIRS] for name, times in results.items()}
    save("mcp", {name: {**times, "ratio": ratios[name]} for name, times in results.items()})
    limits = {"stdio": 0.7, "streamable HTTP": 1.15}
    keep(
        "bench.mcp",
        (
            Comparison(f"MCP call over {name}", "the SDK's `Client.call_tool`", "time", ratio, at_most=limits[name])
            for name, ratio in ratios.items()
        ),
    )


def serve(port: int | None) -> None:
    """Run the small server over stdio, or over HTTP on a port."""
    import mcp_types as types
    from mcp.server import Server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="add", input_schema=NUMBERS, output_schema=SUM)])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        total = arguments["a"] + arguments["b"]
        return types.CallToolResult(content=[types.TextContent(text=str(total))], structured_content={"sum": total})

    server: Server[Any] = Server("bench", version="1.0.0", on_list_tools=list_tools, on_call_tool=call_tool)
    if port is None:
        asyncio.run(_serve_stdio(server))
    else:
        _serve_http(server, port)


async def _serve_stdio(server: Any) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _serve_http(server: Any, port: int) -> None:
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print("ready", flush=True)

    app = server.streamable_http_app(streamable_http_path="/mcp", stateless_http=True, json_response=True)
    Announcing(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical")).run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        asyncio.run(main())
