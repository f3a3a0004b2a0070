"""Real servers from npm over stdio and HTTP: envelopes agree with the server's results, field by field."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp import ClientSession, StdioServerParameters
from operations import MCPResponseMeta, OperationRegistry, operation
from operations.sources.mcp import MCPClient, MCPClientConfig, MCPServerRequest, create_mcp_client
from tests.ports import free_port
from tests.sources.mcp.peers import everything, everything_over_http, node_server
from tests.waiting import until

CALLS: dict[str, dict[str, Any]] = {
    "echo": {"message": "hello"},
    "get-annotated-message": {"messageType": "error", "includeImage": True},
    "get-env": {},
    "get-resource-links": {"count": 3},
    "get-resource-reference": {"resourceType": "Blob", "resourceId": 2},
    "get-structured-content": {"location": "Chicago"},
    "get-sum": {"a": 2, "b": 3},
    "get-tiny-image": {},
    "gzip-file-as-resource": {
        "name": "a.gz",
        "data": "data:text/plain;base64,aGVsbG8=",
        "outputType": "resource",
    },
    "simulate-research-query": {"topic": "tea", "ambiguous": False},
    "toggle-simulated-logging": {},
    "toggle-subscriber-updates": {},
    "trigger-long-running-operation": {"duration": 0.1, "steps": 2},
}
TASK = "simulate-research-query"
"""A tool that runs only as a task; the server refuses the raw call."""
CHANGING = ("gzip-file-as-resource", "toggle-simulated-logging", "toggle-subscriber-updates", "get-resource-reference")
"""Tools whose result contains a session or the time: only their texts may differ between two calls."""


@contextlib.asynccontextmanager
async def bare_session(transport: Any) -> AsyncIterator[ClientSession]:
    async with transport as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def call_raw(session: ClientSession, name: str) -> dict[str, Any]:
    params = types.CallToolRequestParams(name=name, arguments=CALLS[name])
    result = await session.send_request(types.CallToolRequest(params=params), types.CallToolResult)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def compare(registry: OperationRegistry, session: ClientSession) -> None:
    """Every tool is listed, and each envelope agrees with the raw result."""
    listed = {tool.name: tool for tool in (await session.list_tools()).tools}
    assert set(listed) == set(CALLS) == {spec.name for spec in registry.list() if spec.namespace == "ev"}
    for name, tool in listed.items():
        spec = registry.get_spec(f"ev.{name}")
        assert spec is not None
        assert (spec.description, spec.title) == (tool.description, tool.title)
        assert spec.type == ("query" if tool.annotations and tool.annotations.read_only_hint else "mutation")
        assert spec.output_schema.is_unknown == (tool.output_schema is None)
        envelope = await registry.execute(f"ev.{name}", CALLS[name])
        if name == TASK:
            assert isinstance(envelope.meta, MCPResponseMeta)
            assert not envelope.meta.is_error
            assert "Research Report: tea" in envelope.data[0]["text"]
            assert (await call_raw(session, name))["isError"] is True
        else:
            compare_result(name, envelope.to_dict(), await call_raw(session, name))


def compare_result(name: str, envelope: dict[str, Any], raw: dict[str, Any]) -> None:
    meta, data = envelope["meta"], envelope["data"]
    raw.pop("resultType")
    if name in CHANGING:
        blur(meta["content"])
        blur(raw["content"])
        blur(data)
    assert meta == {"source": "mcp", **raw}
    assert data == raw.get("structuredContent", raw["content"])


def blur(blocks: list[dict[str, Any]]) -> None:
    for block in blocks:
        for place in (block, block.get("resource", {})):
            for field in ("text", "blob", "uri"):
                if field in place:
                    place[field] = "…"


async def register(client: MCPClient) -> OperationRegistry:
    registry = OperationRegistry()
    client.register_all(registry)
    return registry


@pytest.mark.slow
async def test_nothing_of_server_everything_is_lost_or_invented_over_stdio() -> None:
    config = everything()
    assert config.command is not None
    parameters = StdioServerParameters(command=config.command, args=list(config.args))
    async with await create_mcp_client("ev", config) as client, bare_session(stdio_client(parameters)) as session:
        await compare(await register(client), session)


@pytest.mark.slow
async def test_nothing_of_server_everything_is_lost_or_invented_over_http() -> None:
    async with (
        everything_over_http() as url,
        await create_mcp_client("ev", MCPClientConfig(url=url)) as client,
        bare_session(streamable_http_client(url)) as session,
    ):
        await compare(await register(client), session)


@pytest.mark.slow
async def test_a_restart_of_a_real_http_server_is_noticed_before_the_next_call() -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await first.enter_async_context(everything_over_http(port))
        client = await stack.enter_async_context(await create_mcp_client("ev", MCPClientConfig(url=url)))
        registry = await register(client)
        assert (await registry.execute("ev.echo", {"message": "a"})).data[0]["text"] == "Echo: a"
        session = client._connection.session
        await first.aclose()
        await stack.enter_async_context(everything_over_http(port))
        # The stream of notifications detects the restart, so that even a mutation does not fail.
        await until(lambda: client._connection.session not in (None, session))
        toggled = await registry.execute("ev.toggle-simulated-logging")
        assert "Started simulated" in toggled.data[0]["text"]


@operation(id="local.describe")
async def describe(temperature: float, conditions: str, humidity: float) -> str:
    """Says the weather."""
    return f"{conditions} at {temperature:.0f}"


async def test_a_tool_with_an_output_schema_composes_without_a_cast() -> None:
    async with await create_mcp_client("ev", everything()) as client:
        registry = await register(client)
        registry.register(describe)
        weather = await registry.execute("ev.get-structured-content", {"location": "New York"})
        assert (await registry.execute("local.describe", weather.data)).data == "Cloudy at 33"


async def test_resources_and_prompts_are_operations() -> None:
    async with await create_mcp_client("ev", everything()) as client:
        registry = await register(client)
        found = (await registry.execute("ev.resources.list")).data
        assert {template["uriTemplate"] for template in found["resourceTemplates"]} >= {
            "demo://resource/dynamic/text/{resourceId}"
        }
        uri = found["resources"][0]["uri"]
        read = await registry.execute("ev.resources.read", {"uri": uri})
        assert isinstance(read.meta, MCPResponseMeta)
        assert read.data[0]["uri"] == uri
        assert read.meta.content[0].to_dict() == {"type": "resource", "resource": read.data[0]}
        prompts = (await registry.execute("ev.prompts.list")).data
        assert {"simple-prompt", "args-prompt"} <= {prompt["name"] for prompt in prompts}
        prompt = await registry.execute("ev.prompts.get", {"name": "args-prompt", "arguments": {"city": "Oslo"}})
        assert "Oslo" in prompt.data["messages"][0]["content"]["text"]
        assert registry.mismatches.counts() == {}


async def test_questions_of_a_real_server_are_answered() -> None:
    async def respond(request: MCPServerRequest) -> dict[str, Any]:
        if request.method == "sampling/createMessage":
            return {"role": "assistant", "model": "parrot", "content": {"type": "text", "text": "a parrot's answer"}}
        return {"action": "accept", "content": {"name": "Ada"}}

    async with await create_mcp_client("ev", everything(elicitation=respond, sampling=respond)) as client:
        registry = await register(client)
        sampled = await registry.execute("ev.trigger-sampling-request", {"prompt": "speak", "maxTokens": 10})
        assert "a parrot's answer" in sampled.data[0]["text"]
        elicited = await registry.execute("ev.trigger-elicitation-request")
        assert "Ada" in "".join(block["text"] for block in elicited.data)


async def test_a_file_server_lists_and_reads(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("remember the milk")
    config = MCPClientConfig(command=node_server("mcp-server-filesystem"), args=[str(tmp_path)])
    async with await create_mcp_client("files", config) as client:
        registry = await register(client)
        read = await registry.execute("files.read_text_file", {"path": str(tmp_path / "note.txt")})
        assert read.data == {"content": "remember the milk"}
        missing = await registry.execute("files.read_text_file", {"path": str(tmp_path / "none.txt")})
        assert isinstance(missing.meta, MCPResponseMeta)
        assert missing.meta.is_error


async def test_a_memory_server_keeps_its_notes(tmp_path: Path) -> None:
    config = MCPClientConfig(
        command=node_server("mcp-server-memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    )
    async with await create_mcp_client("memory", config) as client:
        registry = await register(client)
        entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
        await registry.execute("memory.create_entities", {"entities": [entity]})
        graph = await registry.execute("memory.read_graph")
        assert graph.data["entities"] == [entity]
        assert registry.mismatches.counts() == {}
