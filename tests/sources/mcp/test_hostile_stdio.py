"""A stdio server that misbehaves in every way: each has a defined outcome, and none hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode, MCPResponseMeta, OperationContext, OperationRegistry, OperationType
from operations.sources.mcp import MCPClient, MCPClientConfig, MCPClientState, create_mcp_client
from operations.testing import error_of
from tests.sources.mcp.peers import children, hostile
from tests.waiting import until


async def connect(
    mode: str = "tools", directory: Path | None = None, **options: Any
) -> tuple[MCPClient, OperationRegistry]:
    client = await create_mcp_client("hostile", hostile(mode, directory, **options))
    registry = OperationRegistry()
    client.register_all(registry)
    return client, registry


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def count(directory: Path, name: str) -> int:
    path = directory / name
    return len(path.read_text()) if path.exists() else 0


async def test_a_bad_tool_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect()
    async with client:
        assert registry.get_spec("hostile.echo") is not None
        assert (await registry.execute("hostile.list_output")).data == [1, 2]
        for name in ("nonsense_output", "nonsense_input"):
            assert name in caplog.text
            assert (await registry.execute(f"hostile.{name}")).data == [{"type": "text", "text": name}]
        assert registry.get_spec("hostile.nonsense_output").output_schema.is_unknown  # type: ignore[union-attr]
    assert "skipped 2 tools without a name" in caplog.text
    assert "duplicate tool" in caplog.text


async def test_specs_have_the_servers_descriptions() -> None:
    client, registry = await connect()
    async with client:
        echo = registry.get_spec("hostile.echo")
        assert echo is not None
        assert (echo.title, echo.description, echo.version) == ("Echo", "Gives back its input", "6.6.6")
        assert echo.type is OperationType.QUERY
        assert registry.get_spec("hostile.crash").type is OperationType.MUTATION  # type: ignore[union-attr]
        named = {spec.annotations.get("sourceName"): spec for spec in registry.list() if "dotted" in spec.name}
        assert {spec.name for spec in named.values()} == {"dotted_name", "dotted_name_10c733ab", "dotted_name_982f7043"}
        assert named["dotted.name"].annotations["mcp"] == {"_meta": {"vendor/x": 1}}
        for original, spec in named.items():
            response = await registry.execute(spec.id)
            assert response.data[0]["text"] == (original or "dotted_name")


async def test_output_that_violates_its_schema_is_data_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect()
    async with client:
        envelope = await registry.execute("hostile.violates")
        assert envelope.data == {"n": "many"}
        assert isinstance(envelope.meta, MCPResponseMeta)
        assert envelope.meta.structured_content == {"n": "many", "extra": True}
        assert "hostile.violates: result mismatch at /n" in caplog.text


async def test_json_text_is_data_if_it_matches_the_schema() -> None:
    client, registry = await connect()
    async with client:
        assert (await registry.execute("hostile.json_text")).data == {"n": 5}
        assert (await registry.execute("hostile.other_text")).data == [{"type": "text", "text": '{"n": "five"}'}]
        assert registry.mismatches.counts() == {}


async def test_a_tool_that_requires_tasks_is_refused_with_the_reason() -> None:
    client, registry = await connect()
    async with client:
        error = await error_of(registry.execute("hostile.slow"))
        assert (error.code, error.details["code"]) == (ErrorCode.EXECUTION_ERROR, -32601)
        assert "requires MCP tasks" in error.message


async def test_an_error_result_is_data() -> None:
    client, registry = await connect()
    async with client:
        envelope = await registry.execute("hostile.fails")
        assert isinstance(envelope.meta, MCPResponseMeta)
        assert envelope.meta.is_error
        assert envelope.data == [{"type": "text", "text": "it went wrong"}]
        with pytest.raises(CallError, match="it went wrong"):
            envelope.raise_for_error()


async def test_unknown_and_malformed_blocks_are_kept_as_text() -> None:
    client, registry = await connect()
    async with client:
        envelope = await registry.execute("hostile.unknown_block")
        assert json.loads(envelope.data[0]["text"]) == {"type": "hologram", "depth": 3}
        assert envelope.data[1] == {"type": "text", "text": "after it", "colour": "red"}
        odd = await registry.execute("hostile.odd_content")
        assert [block["text"] for block in odd.data] == ["null", "3", '{"type":"image"}']
        assert odd.meta.extensions == {"a/b": 1}  # type: ignore[union-attr]


@pytest.mark.slow
async def test_a_result_of_twenty_megabytes_arrives_whole() -> None:
    client, registry = await connect()
    async with client:
        envelope = await registry.execute("hostile.big")
        assert len(envelope.data[0]["text"]) == 20_000_000


async def test_a_message_over_the_limit_ends_the_connection_and_the_next_call_works() -> None:
    client, registry = await connect(max_message_bytes=1_000_000)
    async with client:
        error = await error_of(registry.execute("hostile.big"))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
        assert (await registry.execute("hostile.echo", {"a": 1})).data[0]["text"] == '{"a": 1}'


async def test_a_crash_in_a_mutation_is_reported_and_never_replayed(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path)
    async with client:
        waiting = asyncio.create_task(error_of(registry.execute("hostile.hang")))
        error = await error_of(registry.execute("hostile.crash"))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
        assert (await waiting).code is ErrorCode.UNAVAILABLE
        assert (await registry.execute("hostile.echo")).data[0]["text"] == "{}"
        assert client.state is MCPClientState.CONNECTED
        assert count(tmp_path, "crash") == 1


async def test_a_query_is_sent_again_after_a_crash(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path)
    async with client:
        assert (await registry.execute("hostile.crash_once")).data[0]["text"] == "survived"
        assert count(tmp_path, "crash_once") == 2


async def test_a_hang_ends_at_the_deadline_and_the_server_gets_a_cancellation(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path)
    async with client:
        context = OperationContext(deadline=int(time.time() * 1000) + 500)
        error = await error_of(registry.execute("hostile.hang", {}, context))
        assert error.code is ErrorCode.TIMEOUT
        await until(lambda: count(tmp_path, "cancelled") == 1)
        assert (await registry.execute("hostile.cancelled")).data[0]["text"] == "1"


async def test_a_hang_without_a_deadline_ends_with_the_configured_time(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path, timeout=0.1)
    async with client:
        error = await error_of(registry.execute("hostile.hang"))
        assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "unknown")
        await until(lambda: count(tmp_path, "cancelled") == 1)


async def test_cancelling_the_caller_cancels_at_the_server(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path)
    async with client:
        call = asyncio.create_task(registry.execute("hostile.hold"))
        await until(lambda: count(tmp_path, "held") == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: count(tmp_path, "cancelled") == 1)


async def test_garbage_on_stdout_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect()
    async with client:
        assert (await registry.execute("hostile.garbage")).data[0]["text"] == "after the garbage"
        assert (await registry.execute("hostile.echo")).data[0]["text"] == "{}"
    assert "hostile: ignored a line on stdout that is not a message: Debugger attached." in caplog.text


async def test_stderr_goes_to_the_log_under_the_name_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.mcp")
    client, registry = await connect()
    async with client:
        await registry.execute("hostile.complain")
    assert "hostile: something is wrong in here" in caplog.messages
    assert max(map(len, caplog.messages)) < 10_000


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32601, ErrorCode.OPERATION_NOT_FOUND),
        (-32602, ErrorCode.VALIDATION_ERROR),
        (-32603, ErrorCode.EXECUTION_ERROR),
        (-32000, ErrorCode.EXECUTION_ERROR),
        (7, ErrorCode.EXECUTION_ERROR),
    ],
)
async def test_a_protocol_error_has_the_right_code(code: int, expected: ErrorCode) -> None:
    client, registry = await connect()
    async with client:
        error = await error_of(registry.execute("hostile.refuses", {"code": code}))
        assert error.code is expected
        details = {"server": "hostile", "code": code, "message": "refused", "data": {"why": "because"}}
        assert error.details == details


async def test_arguments_that_are_not_json_do_not_end_the_session() -> None:
    client, registry = await connect()
    async with client:
        for arguments in ({"a": "\ud800"}, {"a": object()}, {"a": nest(300)}, {"a": nest(100_000)}):
            error = await error_of(registry.execute("hostile.nonsense_input", arguments))
            assert error.code is ErrorCode.VALIDATION_ERROR
        assert (await error_of(registry.execute("hostile.nonsense_input", [1]))).code is ErrorCode.VALIDATION_ERROR
        sent = {"n": 2**70, "x": 1.5, "t": "\u2028"}
        assert json.loads((await registry.execute("hostile.echo", sent)).data[0]["text"]) == sent


async def test_a_repeated_cursor_ends_the_list(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect("stuck")
    async with client:
        assert [spec.id for spec in registry.list()] == ["hostile.first"]
    assert "the server repeated a cursor" in caplog.text


async def test_endless_cursors_are_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect("endless")
    async with client:
        assert len(registry) == 0
    assert "more than 1,000 pages" in caplog.text


async def test_two_thousand_tools_over_forty_pages() -> None:
    client, registry = await connect("pages")
    async with client:
        assert len(registry) == 2_000
        assert (await registry.execute("hostile.tool-1999")).data[0]["text"] == "tool-1999"


async def test_two_hundred_concurrent_calls_half_of_them_cancelled(tmp_path: Path) -> None:
    client, registry = await connect(directory=tmp_path)
    async with client:
        calls = [asyncio.create_task(registry.execute("hostile.hold", {"key": str(n)})) for n in range(200)]
        await until(lambda: count(tmp_path, "held") == 200)
        for call in calls[::2]:
            call.cancel()
        await until(lambda: count(tmp_path, "cancelled") == 100)
        assert (await registry.execute("hostile.release")).data[0]["text"] == "100"
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for n, outcome in enumerate(outcomes):
            if n % 2 == 0:
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                assert not isinstance(outcome, BaseException)
                assert outcome.data[0]["text"] == str(n)


@pytest.mark.parametrize("mode", ["dies", "mute", "ancient"])
async def test_a_server_that_cannot_be_initialised_is_unavailable(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "operations.mcp")
    error = await error_of(create_mcp_client("bad", hostile(mode, connect_timeout=0.5)))
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    if mode == "dies":
        assert "bad: no configuration found" in caplog.messages
        assert error.message.endswith("the server's stderr ends with: no configuration found")


async def test_a_missing_command_is_unavailable() -> None:
    error = await error_of(create_mcp_client("bad", MCPClientConfig(command="/nowhere/server")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "/nowhere/server" in error.message


@pytest.mark.slow
async def test_a_server_that_does_not_end_is_ended() -> None:
    before = children()
    client, _ = await connect("lingers")
    assert len(children() - before) == 1
    await client.close()
    assert children() <= before


async def test_a_server_that_stays_away_is_reported_to_each_caller(tmp_path: Path) -> None:
    client, registry = await connect("once", tmp_path)
    async with client:
        assert (await error_of(registry.execute("hostile.crash"))).details["executed"] == "unknown"
        for _ in range(3):
            error = await error_of(registry.execute("hostile.echo"))
            assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        assert client.state is MCPClientState.RECONNECTING
        (tmp_path / "started").unlink()
        await until(lambda: client.state is MCPClientState.CONNECTED)
        assert (await registry.execute("hostile.echo")).data[0]["text"] == "{}"


async def test_closing_without_a_server_ends_immediately(tmp_path: Path) -> None:
    client, registry = await connect("once", tmp_path)
    await error_of(registry.execute("hostile.crash"))
    await until(lambda: client.state is MCPClientState.RECONNECTING)
    await client.close()
    assert client.state is MCPClientState.CLOSED


async def test_closing_ends_pending_calls() -> None:
    client, registry = await connect()
    call = asyncio.create_task(error_of(registry.execute("hostile.hang")))
    await registry.execute("hostile.echo")
    await client.close()
    assert (await call).code is ErrorCode.UNAVAILABLE
    assert (await error_of(registry.execute("hostile.echo"))).details["executed"] == "no"
    await client.close()
