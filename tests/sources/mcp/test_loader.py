"""MCPClientLoader: servers in parallel, independent of each other."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from operations import CallError, ErrorCode, OperationRegistry
from operations.sources.mcp import MCPClientConfig, MCPClientLoader, MCPClientState
from tests.sources.mcp.peers import HOSTILE, hostile
from tests.waiting import until


@pytest.mark.slow
async def test_ten_servers_that_each_take_a_second_load_concurrently(tmp_path: Path) -> None:
    # None of them responds before all ten have started: loaded one by one, the first would never respond.
    async with asyncio.timeout(30), MCPClientLoader() as loader:
        loaded = await loader.load({f"s{n}": hostile("together", tmp_path) for n in range(10)})
        assert len(loaded) == 10
        assert loader.errors == {}
        assert {client.state for client in loader.get_all_wrappers()} == {MCPClientState.CONNECTED}


async def test_a_failing_one_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with MCPClientLoader() as loader:
        loaded = await loader.load({"good": hostile(), "dead": hostile("dies"), "none": {"command": "/nowhere/x"}})
        assert [client.name for client in loaded] == ["good"]
        assert set(loader.errors) == {"dead", "none"}
        assert loader.errors["dead"].code is ErrorCode.UNAVAILABLE
        dead = loader.get_client("dead")
        assert dead is not None
        assert (dead.state, dead.operations, dead.error) == (MCPClientState.FAILED, [], loader.errors["dead"])
        assert "dead: not loaded" in caplog.text
        registry = OperationRegistry()
        loader.register_all(registry)
        assert (await registry.execute("good.echo")).data[0]["text"] == "{}"
        assert {operation.id for operation in loader.get_all_operations()} == {spec.id for spec in registry.list()}


async def test_the_mapping_of_editors_is_accepted_unchanged() -> None:
    entry = {
        "type": "stdio",
        "command": sys.executable,
        "args": [HOSTILE, "stuck"],
        "env": {"A": "b"},
        "autoApprove": [],
    }
    async with MCPClientLoader() as loader:
        loaded = await loader.load({"mcpServers": {"my server": entry, "off": {**entry, "disabled": True}}})
        assert [(client.name, client.namespace) for client in loaded] == [("my server", "my_server")]
        assert loaded[0].server_info is not None
        assert (loaded[0].server_info.name, loaded[0].server_info.version) == ("hostile", "6.6.6")
        assert loader.get_client("off") is None


async def test_an_invalid_config_is_reported_like_any_failure() -> None:
    async with MCPClientLoader() as loader:
        entries = {
            "both": {"command": "x", "url": "http://x"},
            "neither": {"args": ["x"]},
            "text": "npx server",
            "args": {"command": "x", "args": "a b"},
        }
        assert await loader.load(entries) == []
        assert {error.code for error in loader.errors.values()} == {ErrorCode.VALIDATION_ERROR}
        assert set(loader.errors) == set(entries)


async def test_a_name_may_be_loaded_once_and_again_when_it_is_gone(tmp_path: Path) -> None:
    async with MCPClientLoader() as loader:
        await loader.load({"a b": hostile("stuck")})
        assert await loader.load({"a_b": hostile("stuck")}) == []
        assert "is used by server 'a b'" in loader.errors["a_b"].message
        first = loader.get_client("a b")
        assert first is not None
        await first.close()
        assert len(await loader.load({"a b": hostile("stuck")})) == 1


async def test_handlers_of_the_loader_are_for_every_server_without_its_own() -> None:
    async def decline(request: object) -> None:
        return None

    async with MCPClientLoader(elicitation=decline) as loader:
        await loader.load({"s": hostile()})
        registry = OperationRegistry()
        loader.register_all(registry)
        assert (await registry.execute("s.ask")).data[0]["text"] == '{"action": "decline"}'


async def test_close_all_closes_from_another_task() -> None:
    loader = MCPClientLoader()
    await asyncio.create_task(loader.load({"a": hostile("stuck"), "b": hostile("stuck")}))
    await asyncio.create_task(loader.close_all())
    await until(lambda: {client.state for client in loader.get_all_wrappers()} == {MCPClientState.CLOSED})


def test_a_server_has_a_command_or_a_url() -> None:
    for given in ({}, {"command": "x", "url": "http://x"}):
        with pytest.raises(CallError, match=r"either a command .* or a url"):
            MCPClientConfig(**given)  # type: ignore[arg-type]
    with pytest.raises(CallError, match="headers cannot be used by an MCP server with a command"):
        MCPClientConfig(command="x", headers={"a": "b"})
    with pytest.raises(CallError, match="args, env cannot be used by an MCP server with a url"):
        MCPClientConfig(url="http://x", args=["a"], env={"a": "b"})
