"""The 2026-07-28 protocol, which has no handshake: over HTTP and stdio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import ErrorCode, OperationRegistry
from operations.sources.mcp import MCPClientConfig, MCPServerRequest, create_mcp_client, is_progress
from operations.testing import error_of
from tests.ports import free_port
from tests.sources.mcp.modern_server import SCRIPT, ModernServer, modern_server
from tests.sources.mcp.peers import hostile
from tests.waiting import until


async def respond(request: MCPServerRequest) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": f"Ada of {request.server}"}}


@contextlib.asynccontextmanager
async def over_http(**options: Any) -> AsyncIterator[tuple[ModernServer, OperationRegistry]]:
    port = free_port()
    config = MCPClientConfig(url=f"http://127.0.0.1:{port}/mcp", **options)
    async with modern_server(port) as server, await create_mcp_client("m", config) as client:
        assert client.server_info is not None
        assert client.server_info.protocol_version == "2026-07-28"
        registry = OperationRegistry()
        client.register_all(registry)
        yield server, registry


@contextlib.asynccontextmanager
async def over_stdio(**options: Any) -> AsyncIterator[OperationRegistry]:
    async with await create_mcp_client(
        "m", MCPClientConfig(command=sys.executable, args=[SCRIPT], **options)
    ) as client:
        assert client.server_info is not None
        assert client.server_info.protocol_version == "2026-07-28"
        registry = OperationRegistry()
        client.register_all(registry)
        yield registry


@contextlib.asynccontextmanager
async def over(transport: str, **options: Any) -> AsyncIterator[OperationRegistry]:
    if transport == "stdio":
        async with over_stdio(**options) as registry:
            yield registry
    else:
        async with over_http(**options) as (_, registry):
            yield registry


both = pytest.mark.parametrize("transport", ["stdio", "http"])


@both
async def test_calls_questions_progress_and_changes(transport: str) -> None:
    async with over(transport, elicitation=respond) as registry:
        assert (await registry.execute("m.echo", {"a": 1})).data[0]["text"] == "{'a': 1}"
        assert (await registry.execute("m.ask")).data[0]["text"] == "accept {'name': 'Ada of m'}"
        events = [event async for event in registry.subscribe("m.steps")]
        assert [event.data["message"] for event in events if is_progress(event)] == ["step 1", "step 2"]
        await registry.execute("m.grow")
        await until(lambda: "m.grown" in registry)


@both
async def test_structured_content_may_be_any_json(transport: str) -> None:
    async with over(transport) as registry:
        envelope = await registry.execute("m.numbers")
        assert envelope.data == [1, 2]
        assert registry.mismatches.counts() == {}


async def test_a_question_without_a_handler_ends_the_call() -> None:
    async with over_http() as (_, registry):
        error = await error_of(registry.execute("m.ask"))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert "elicitation/create is not supported" in error.message


QUESTION_OF_THE_OLDER_PROTOCOL = """
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("asker")

class Name(BaseModel):
    name: str

@server.tool()
async def greet(context: Context) -> str:
    answer = await context.elicit("Who?", Name)
    return f"hello {answer.data.name}"

server.run()
"""


async def test_a_question_of_the_older_protocol_names_the_setting_that_allows_it(tmp_path: Path) -> None:
    script = tmp_path / "asker.py"
    script.write_text(QUESTION_OF_THE_OLDER_PROTOCOL)
    command: dict[str, Any] = {"command": sys.executable, "args": [str(script)]}
    async with create_mcp_client("m", MCPClientConfig(**command, elicitation=respond)) as client:
        error = await error_of(OperationRegistry(client.operations).execute("m.greet"))
        assert 'set protocol = "legacy" for this server' in error.message
    async with create_mcp_client("m", MCPClientConfig(**command, elicitation=respond, protocol="legacy")) as client:
        greeted = await OperationRegistry(client.operations).execute("m.greet")
        assert greeted.data == {"result": "hello Ada of m"}


async def test_cancelling_the_caller_cancels_at_the_server() -> None:
    async with over_http() as (server, registry):
        call = asyncio.create_task(registry.execute("m.hold"))
        await server.holding.wait()
        call.cancel()
        await asyncio.wait((call,))
        async with asyncio.timeout(30):
            await server.cancelled.wait()


async def test_a_missing_header_is_added_and_the_call_made_once() -> None:
    async with over_http() as (server, registry):
        server.want_region_as_header()
        assert (await registry.execute("m.region", {"region": "north"})).data[0]["text"] == "{'region': 'north'}"
        assert server.calls == ["region"]


async def test_a_protocol_version_can_be_required() -> None:
    async with over_stdio(protocol="2026-07-28"):
        pass
    async with await create_mcp_client("m", hostile("stuck", protocol="legacy")) as client:
        assert client.server_info is not None
        assert client.server_info.protocol_version == "2025-11-25"
    for config, code in (
        (hostile("stuck", protocol="2026-07-28"), ErrorCode.UNAVAILABLE),
        (hostile("stuck", protocol="1066"), ErrorCode.VALIDATION_ERROR),
    ):
        assert (await error_of(create_mcp_client("m", config))).code is code


OTHER_VERSIONS = """
import json, sys

DISCOVERED = json.loads(sys.argv[1])
INFO = {"name": "other", "version": "1"}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = {"tools": []}
    if request["method"] == "server/discover":
        result = DISCOVERED
    elif request["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize(
    "discovered",
    [
        {"nothing": "of the protocol"},
        {"supportedVersions": ["2025-11-25"], "capabilities": {}, "serverInfo": {"name": "o", "version": "1"}},
    ],
    ids=["invalid", "older"],
)
async def test_a_required_version_never_falls_back(discovered: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text(OTHER_VERSIONS)
    command: dict[str, Any] = {"command": sys.executable, "args": [str(script), json.dumps(discovered)]}
    async with await create_mcp_client("m", MCPClientConfig(**command)) as client:
        assert client.server_info is not None
        assert client.server_info.protocol_version == "2025-11-25"
    error = await error_of(create_mcp_client("m", MCPClientConfig(**command, protocol="2026-07-28")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "the server does not support protocol version 2026-07-28" in error.message
