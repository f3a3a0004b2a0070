"""Third-party clients list and call tools: the SDK's, FastMCP's and the MCP Inspector's command line."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import mcp_types as types
import pytest

from mcp import Client
from operations import OperationRegistry
from operations.serving import HTTPServer, app
from operations.serving.mcp import prompt, resource
from tests.serving.mcp.examples import domain_failure, number, quote
from tests.sources.mcp.peers import NODE, node_server

FASTMCP = Path(__file__).parents[3] / ".venv-fastmcp" / "bin" / "python"
NAMES = ["shop.domain_failure", "shop.number", "shop.quote"]


@resource("notes://today", id="notes.today")
async def today() -> str:
    return "a note"


@prompt("greet", id="notes.greet")
async def greet(name: str) -> str:
    return f"Greet {name}"


def served() -> HTTPServer:
    return HTTPServer(app(OperationRegistry([quote, number, domain_failure, today, greet])), "127.0.0.1:0")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client(mode: str) -> None:
    async with served() as server, Client(f"{server.url}/mcp", mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
        result = await client.call_tool("shop.quote", {"item": "tea", "count": 2})
        assert isinstance(result, types.CallToolResult)
        assert result.structured_content == {"item": "tea", "price": 5.0}
        assert (await client.list_resources()).resources[0].uri == "notes://today"
        got = await client.get_prompt("greet", {"name": "Ann"})
        assert isinstance(got, types.GetPromptResult)
        assert isinstance(got.messages[0].content, types.TextContent)
        assert got.messages[0].content.text == "Greet Ann"


@pytest.mark.conformance
async def test_fastmcps_client() -> None:
    assert FASTMCP.exists(), "FastMCP is not installed: run `make conformance`"
    async with served() as server:
        script = str(Path(__file__).parent / "fastmcp_client.py")
        told = json.loads(await output(str(FASTMCP), script, f"{server.url}/mcp"))
    assert told == {
        "tools": NAMES,
        "structured": {"item": "tea", "price": 5.0},
        "error": "OUT_OF_STOCK: no tea left",
        "resources": ["notes://today"],
        "prompts": ["greet"],
        "read": "a note",
    }


@pytest.mark.conformance
async def test_the_inspectors_command_line() -> None:
    async with served() as server:
        inspector = [node_server("mcp-inspector"), "--cli", f"{server.url}/mcp", "--transport", "http"]
        listed = json.loads(await output(*inspector, "--method", "tools/list"))
        assert [tool["name"] for tool in listed["tools"]] == NAMES
        given = ["--tool-name", "shop.quote", "--tool-arg", "item=tea", "--tool-arg", "count=2"]
        called = json.loads(await output(*inspector, "--method", "tools/call", *given))
        assert called["structuredContent"] == {"item": "tea", "price": 5.0}


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-3000:]
    return out.decode()
