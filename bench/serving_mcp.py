"""Server CPU of one `tools/call` over HTTP, protocol 2026-07-28: raw JSON-RPC, ours, the SDK's server and FastMCP.

All servers get the same client with 64 connections; ours verifies a token and serves 1,224 tools.

`python -m bench.serving_mcp`
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.comparisons import Comparison, keep
from bench.load import cpu_seconds, load, post
from bench.measure import save

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-for-the-benchmark"
TOOLS = 1_224
ROUNDS = 7
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
RAW, OURS, SDK, FASTMCP = "raw JSON-RPC", "operations", "SDK", "FastMCP"
NAMES = {RAW: "bench.add", OURS: "bench.add", SDK: "add", FASTMCP: "add"}


def request(contender: str, port: int, method: str = "tools/call") -> bytes:
    """Return the request for a contender."""
    name = NAMES[contender]
    params: dict[str, Any] = {"_meta": META}
    if method == "tools/call":
        params |= {"name": name, "arguments": {"a": 1, "b": 2}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {
        "content_type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp_protocol_version": "2026-07-28",
        "mcp_method": method,
        "authorization": f"Bearer {TOKEN}",
    }
    if method == "tools/call":
        headers["mcp_name"] = name
    return post("/mcp", body, port, **headers)


@contextlib.contextmanager
def serving(contender: str) -> Iterator[tuple[int, int]]:
    """Start a contender's server and yield its port and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.serving_mcp", "serve", contender, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield port, process.pid
        finally:
            process.terminate()


async def measure(port: int, process: int, contender: str) -> float:
    """Return the CPU seconds of one call."""
    before = cpu_seconds(process)
    count, failed = await load(port, request(contender, port))
    assert not failed, f"{contender}: {failed} of {count} calls failed"
    return (cpu_seconds(process) - before) / count


async def main() -> None:
    """Measure in interleaved rounds, print the ratios and save the results."""
    contenders = [RAW, OURS, SDK]
    if importlib.util.find_spec("fastmcp") is not None:
        contenders.append(FASTMCP)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(serving(name)) for name in contenders}
        for number in range(ROUNDS + 1):
            for name, (port, process) in servers.items():
                taken = await measure(port, process, name)
                if number:  # the first round is a warm-up
                    samples[name].append(taken)
    least = {name: min(taken) for name, taken in samples.items()}
    median = {name: statistics.median(taken) for name, taken in samples.items()}
    print("\nserver CPU of one tools/call (2026-07-28 over HTTP, 64 connections)")
    for name, taken in sorted(least.items(), key=lambda pair: pair[1]):
        print(f"  {name:<14} {taken * 1e6:8.1f} µs  {taken / least[RAW]:6.2f} x raw")
    first, later = await listing()
    print(f"tools/list of {TOOLS:,} tools: first {first * 1e3:.1f} ms, later {later * 1e3:.3f} ms")
    save("serving_mcp", {"least": least, "median": median, "list": {"first": first, "later": later}})
    listed = f"`tools/list` of {TOOLS:,} tools, after the first"
    comparisons = [Comparison(listed, "CPU of the server", "seconds", later, at_most=0.002)]
    if FASTMCP in least:
        ratio = least[FASTMCP] / least[OURS]
        comparisons.append(Comparison("MCP `tools/call` served", "FastMCP", "faster", ratio, at_least=20))
    keep("bench.serving_mcp", comparisons)


async def listing() -> tuple[float, float]:
    """Return the CPU seconds of listing all tools: the first time, and the minimum of later ones."""
    from operations.serving.exposure import Exposure
    from operations.serving.mcp.tools import ToolList

    listed = ToolList(Exposure(many_tools()), b"")

    async def whole() -> float:
        began = time.process_time()
        cursor = None
        count = 0
        while True:
            page = await listed.page(None, cursor, modern=True)
            assert page is not None
            count += 1
            at = page.rfind(b'"nextCursor":"')
            if at < 0:
                break
            cursor = page[at + 14 :].split(b'"', 1)[0].decode()
        assert count == -(-TOOLS // 200)
        return time.process_time() - began

    first = await whole()
    return first, min([await whole() for _ in range(20)])


def many_tools() -> Any:
    """Return as many operations as GitHub's API has."""
    from operations import OperationRegistry, operation

    @operation("bench.add", type="query")
    async def add(a: int, b: int) -> dict[str, int]:
        """Add two numbers."""
        return {"sum": a + b}

    others = [operation(id=f"other.add_{index}", type="query")(add.function) for index in range(TOOLS - 1)]
    return OperationRegistry([add, *others])


def serve(contender: str, port: int) -> None:
    """Run a contender's server: ours as `ops serve` does, the others on uvicorn."""
    import uvicorn

    if contender == OURS:
        import uvloop

        uvloop.run(_serve_ours(port))
        return

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print("ready", flush=True)

    app = {RAW: _raw, OURS: _ours, SDK: _sdk, FASTMCP: _fastmcp}[contender]()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)
    Announcing(config).run()


async def _serve_ours(port: int) -> None:
    from operations.serving import HTTPServer

    async with HTTPServer(_ours(), f"127.0.0.1:{port}"):
        print("ready", flush=True)
        await asyncio.Event().wait()


def _raw() -> Any:
    import msgspec

    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        message = decode((await receive())["body"])
        given = message["params"]["arguments"]
        data = {"sum": given["a"] + given["b"]}
        result = {
            "content": [{"type": "text", "text": encode(data).decode()}],
            "structuredContent": data,
            "isError": False,
            "resultType": "complete",
        }
        body = encode({"jsonrpc": "2.0", "id": message["id"], "result": result})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def _ours() -> Any:
    from operations.context import Identity
    from operations.identity.tokens import Principal, StaticTokens
    from operations.serving.app import app

    return app(many_tools(), search=False, authenticator=StaticTokens({TOKEN: Principal(Identity("bench"))}))


def _sdk() -> Any:
    import mcp_types as types
    from mcp.server import Server

    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    total = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="add", input_schema=numbers, output_schema=total)])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        data = {"sum": given["a"] + given["b"]}
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(data))], structured_content=data)

    server: Server[Any] = Server(
        "bench",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: numbers,
    )
    server.middleware.clear()
    return server.streamable_http_app(json_response=True, stateless_http=True)


def _fastmcp() -> Any:
    from fastmcp import FastMCP

    server = FastMCP("bench")

    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    server.tool(add)
    return server.http_app(json_response=True, stateless_http=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        asyncio.run(main())
