"""MCP over standard input and output: messages stay apart from what operations print."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from mcp import Client, StdioServerParameters
from operations import OperationRegistry
from operations.serving.mcp.stdio import MAX_LINE
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from tests.serving.mcp.wire import message

PROGRAM = str(Path(__file__).parent / "stdio_server.py")


@asynccontextmanager
async def running() -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        async with asyncio.timeout(10):
            await process.wait()


async def ask(process: asyncio.subprocess.Process, *lines: bytes | dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    for line in lines:
        process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
    async with asyncio.timeout(20):
        await process.stdin.drain()
        return json.loads(await process.stdout.readline())


async def test_messages_get_responses_and_prints_go_to_stderr() -> None:
    async with running() as process:
        answer = await ask(process, message("tools/call", {"name": "talk.hello", "arguments": {"name": "Ann"}}, id="a"))
        assert answer["id"] == "a"
        assert answer["result"]["content"][0]["text"] == "hello Ann"
        admin = await ask(process, message("tools/call", {"name": "talk.admin"}))
        assert admin["result"]["content"][0]["text"] == "done"
        assert process.stderr is not None
        assert b"printed" in await process.stderr.readline()


async def test_malformed_and_endless_lines_do_not_end_the_server() -> None:
    async with running() as process:
        answer = await ask(process, b"\xff{", b"", b"[]", message("tools/call", {"name": "talk.admin"}, id=7))
        while answer.get("id") != 7:
            assert "error" in answer
            answer = await ask(process)
        too_long = await ask(process, b"x" * (MAX_LINE + 1))
        assert too_long["error"]["code"] == -32700
        assert (await ask(process, message("tools/list", id=8)))["id"] == 8


async def test_requests_before_the_end_of_the_input_are_answered() -> None:
    async with running() as process:
        lines = [message("tools/list", id=1), message("tools/call", {"name": "talk.admin"}, id=2)]
        async with asyncio.timeout(20):
            output, _ = await process.communicate(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert {json.loads(line)["id"] for line in output.splitlines()} == {1, 2}


async def test_a_call_is_cancelled_by_a_notification() -> None:
    async with running() as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(message("tools/call", {"name": "talk.wait"}, id=3)).encode() + b"\n")
        async with asyncio.timeout(10):
            assert await process.stderr.readline() == b"waiting\n"
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
            process.stdin.write(json.dumps(cancelled).encode() + b"\n")
            assert await process.stderr.readline() == b"cancelled\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_lists_calls_and_answers(mode: str) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Bob"})

    server = StdioServerParameters(command=sys.executable, args=[PROGRAM])
    async with Client(server, mode=mode, elicitation_callback=elicit) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["talk.admin", "talk.ask", "talk.hello", "talk.wait"]
        result = await client.call_tool("talk.ask", {})
        assert isinstance(result, types.CallToolResult)
        assert isinstance(result.content[0], types.TextContent)
        assert result.content[0].text == "hello Bob"


@pytest.mark.parametrize("protocol", ["legacy", "2026-07-28"])
async def test_our_own_client_calls(protocol: str) -> None:
    config = MCPClientConfig(command=sys.executable, args=[PROGRAM], protocol=protocol)
    async with await create_mcp_client("far", config) as client:
        registry = OperationRegistry(client.operations)
        assert (await registry.execute("far.talk.hello", {"name": "Ann"})).data == "hello Ann"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_configuration_of_ops_install_starts_a_server(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPERATIONS_TRUST", raising=False)
    for words in (["init"], ["install", "claude-code"]):
        await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "operations", *words], check=True)
    (entry,) = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"].values()
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=environment, cwd="/")
    async with Client(server, mode=mode) as client:
        result = await client.call_tool("hello.greet", {"name": "Ann"})
        assert isinstance(result, types.CallToolResult)
        assert result.structured_content == {"greeting": "Hello, Ann!"}
