"""During and between calls: progress, list changes, requests of the server, `_meta`."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode, Identity, Operation, OperationContext, OperationRegistry
from operations.progress import ProgressEvent, ProgressQueue
from operations.sources.mcp import (
    MCPClient,
    MCPClientLoader,
    MCPClientState,
    MCPServerRequest,
    create_mcp_client,
    is_progress,
)
from operations.testing import error_of, stub_operation
from tests.sources.mcp.peers import hostile
from tests.waiting import until


async def connect(directory: Path | None = None, **options: Any) -> tuple[MCPClient, OperationRegistry]:
    client = await create_mcp_client("s", hostile("tools", directory, **options))
    registry = OperationRegistry()
    client.register_all(registry)
    return client, registry


async def test_progress_reaches_the_callback_of_the_context() -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    client, registry = await connect()
    async with client:
        context = OperationContext(progress=lambda *report: heard.append(report))
        assert (await registry.execute("s.progress", {}, context)).data == {"n": 3}
        assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_progress_is_the_events_of_a_subscription_and_the_result_its_end() -> None:
    heard: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    client, registry = await connect()
    async with client:
        events = [event async for event in registry.subscribe("s.progress", {}, OperationContext(progress=report))]
        assert [is_progress(event) for event in events] == [True, True, True, False]
        assert events[0].data == {"progress": 1, "total": 3, "message": "step 1"}
        assert events[-1].data == {"n": 3}
        assert heard == [1, 2, 3]
        assert registry.mismatches.counts() == {}


async def test_leaving_a_subscription_cancels_the_call(tmp_path: Path) -> None:
    client, registry = await connect(tmp_path)
    async with client:

        async def follow() -> None:
            async for _ in registry.subscribe("s.hold"):
                pass

        following = asyncio.create_task(follow())
        await until((tmp_path / "held").exists)
        following.cancel()
        await asyncio.wait((following,))
        await until((tmp_path / "cancelled").exists)


async def test_a_failing_subscription_reports_why() -> None:
    client, registry = await connect()
    async with client:
        with pytest.raises(CallError) as caught:
            async for _ in registry.subscribe("s.refuses", {"code": -32601}):
                pass
        assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_a_registry_follows_the_list_of_tools() -> None:
    client, registry = await connect()
    async with client:
        before = registry.get_operation("s.echo")
        await registry.execute("s.grow")
        await until(lambda: "s.grown" in registry)
        assert "s.grown" in [operation.id for operation in client.operations]
        assert (await registry.execute("s.grown")).data[0]["text"] == "grown"
        await registry.execute("s.change")
        await until(lambda: (spec := registry.get_spec("s.grown")) is not None and spec.description == "has changed")
        await registry.execute("s.shrink")
        await until(lambda: "s.grown" not in registry)
        assert registry.get_operation("s.echo") is before


class RecordingRegistry(OperationRegistry):
    """A registry that records its changes, and may refuse them."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.refuses = False
        super().__init__()

    def register_all(self, operations: Iterable[Operation[Any]], *, replace: bool = False) -> None:
        operations = list(operations)
        if self.refuses:
            raise RuntimeError("the registry is closed")
        known = {operation.id for operation in operations if operation.id in self}
        super().register_all(operations, replace=replace)
        self.changes += [f"{'=' if each.id in known else '+'}{each.id}" for each in operations]

    def unregister(self, operation_id: str) -> Operation[Any]:
        self.changes.append(f"-{operation_id}")
        return super().unregister(operation_id)


async def test_every_registry_of_a_loader_gets_each_change_once() -> None:
    async with MCPClientLoader() as loader:
        await loader.load({"s": hostile(), "t": hostile()})
        registries = [RecordingRegistry(), RecordingRegistry()]
        for registry in registries:
            loader.register_all(registry)
            registry.changes.clear()
        first = registries[0]
        for tool in ("grow", "change", "shrink"):
            seen = len(first.changes)
            await first.execute(f"s.{tool}")
            await until(lambda seen=seen: len(first.changes) > seen)  # type: ignore[misc]
        for registry in registries:
            assert registry.changes == ["+s.grown", "=s.grown", "-s.grown"]


async def test_unregistered_tools_stay_unregistered() -> None:
    client, registry = await connect()
    async with client:
        registry.unregister("s.fails")
        await registry.execute("s.grow")
        await until(lambda: "s.grown" in registry)
        assert "s.fails" not in registry


async def test_a_registry_that_refuses_a_change_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect()
    async with client:
        broken = RecordingRegistry()
        client._registries.insert(0, broken)
        broken.refuses = True
        await registry.execute("s.grow")
        await until(lambda: "s.grown" in registry)
        assert client.state is MCPClientState.CONNECTED
    assert "cannot update a registry: RuntimeError: the registry is closed" in caplog.text


async def test_a_change_announced_just_before_a_restart_is_followed() -> None:
    client, registry = await connect()
    async with client, asyncio.timeout(30):
        for _ in range(3):
            assert (await error_of(registry.execute("s.change_and_crash"))).code is ErrorCode.UNAVAILABLE
            assert (await registry.execute("s.echo")).data[0]["text"] == "{}"


async def test_a_full_queue_of_progress_drops_the_oldest_events() -> None:
    queue = ProgressQueue(max_events=2)
    for step in range(5):
        queue.put(ProgressEvent(step, None, None))
    queue.end()
    assert [await queue.get(), await queue.get()] == [(3, None, None), (4, None, None)]
    assert await queue.get() is None


async def test_a_tool_removed_without_a_notification_is_not_found() -> None:
    client, registry = await connect()
    async with client:
        await registry.execute("s.grow")
        await until(lambda: "s.grown" in registry)
        await registry.execute("s.forget")
        error = await error_of(registry.execute("s.grown"))
        assert error.code is ErrorCode.OPERATION_NOT_FOUND
        assert "s.grown" not in registry


async def test_operations_of_other_sources_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    client, registry = await connect()
    async with client:
        mine = stub_operation("s.grown", returns="mine")
        registry.register(mine)
        await registry.execute("s.grow")
        await until(lambda: "which another source has registered" in caplog.text)
        assert registry.get_operation("s.grown") is mine
        await registry.execute("s.shrink")
        await until(lambda: "s.grown" not in [operation.id for operation in client.operations])
        assert registry.get_operation("s.grown") is mine


async def test_the_trace_context_is_sent_and_the_identity_only_if_selected() -> None:
    identity = Identity("ada", scopes=("read",), claims={"email": "a@b.c", "card": "4711"})
    context = OperationContext(identity=identity, metadata={"traceparent": "00-aa-bb-01", "authorization": "secret"})
    client, registry = await connect()
    async with client:
        meta = json.loads((await registry.execute("s.meta", {}, context)).data[0]["text"])
        assert meta == {"traceparent": "00-aa-bb-01"}
    client, registry = await connect(trace=False, identity_fields=["id", "scopes", "claims.email", "claims.none"])
    async with client:
        meta = json.loads((await registry.execute("s.meta", {}, context)).data[0]["text"])
        assert meta == {"operations/identity": {"id": "ada", "scopes": ["read"], "claims": {"email": "a@b.c"}}}


async def answered(client: MCPClient, registry: OperationRegistry, tool: str) -> Any:
    async with client:
        return json.loads((await registry.execute(tool)).data[0]["text"])


async def test_elicitation_is_answered_by_the_users_handler() -> None:
    asked: list[MCPServerRequest] = []

    async def respond(request: MCPServerRequest) -> dict[str, Any]:
        asked.append(request)
        return {"action": "accept", "content": {"name": "Ada"}}

    result = await answered(*await connect(elicitation=respond), "s.ask")
    assert result == {"action": "accept", "content": {"name": "Ada"}}
    assert (asked[0].server, asked[0].method, asked[0].params["message"]) == ("s", "elicitation/create", "Who?")


async def test_sampling_is_answered_by_the_users_handler() -> None:
    async def respond(request: MCPServerRequest) -> dict[str, Any]:
        text = request.params["messages"][0]["content"]["text"]
        return {"role": "assistant", "model": "parrot", "content": {"type": "text", "text": text}}

    result = await answered(*await connect(sampling=respond), "s.sample")
    assert (result["model"], result["content"]["text"]) == ("parrot", "Say something")


async def test_questions_without_a_handler_are_refused_immediately() -> None:
    for tool in ("s.ask", "s.sample"):
        assert (await answered(*await connect(), tool))["code"] == -32600


async def test_a_handler_can_decline() -> None:
    async def decline(request: MCPServerRequest) -> None:
        return None

    assert await answered(*await connect(elicitation=decline), "s.ask") == {"action": "decline"}
    assert (await answered(*await connect(sampling=decline), "s.sample"))["code"] == -32600


async def test_a_failing_handler_affects_only_its_response() -> None:
    async def fail(request: MCPServerRequest) -> dict[str, Any]:
        raise ValueError("private text")

    async def nonsense(request: MCPServerRequest) -> dict[str, Any]:
        return {"action": 7}

    for handler in (fail, nonsense):
        refusal = await answered(*await connect(elicitation=handler), "s.ask")
        assert refusal["code"] == -32603
        assert "private" not in refusal["message"]


async def test_a_client_is_opened_in_one_task_and_closed_in_another() -> None:
    opened = await asyncio.create_task(connect())
    client, registry = opened
    assert (await asyncio.create_task(registry.execute("s.echo"))).data[0]["text"] == "{}"
    await asyncio.create_task(client.close())
    assert (await error_of(registry.execute("s.echo"))).code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 50])
async def test_cancelling_the_opening_task_closes_everything(turns: int) -> None:
    opening = asyncio.create_task(create_mcp_client("s", hostile("mute")))
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    gc.collect()  # a process that was not waited for warns when it is collected
