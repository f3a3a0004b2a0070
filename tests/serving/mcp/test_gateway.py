"""A server that serves imported operations, notifies clients of changes, completes arguments, and limits and audits
calls.
"""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest

from mcp import Client
from operations import OperationRegistry, operation
from operations.envelope import MCPResponseMeta
from operations.serving.audit import AuditRecord, AuditWriter
from operations.serving.limits import Limits
from operations.serving.mcp import prompt, resource
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from tests.serving.mcp.fixture import REGISTRY
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import message, post

ERAS = pytest.mark.parametrize("protocol", ["legacy", "2026-07-28"])


@resource("notes://today", id="notes.today")
async def today() -> str:
    return "a note"


@resource("notes://of/{day}", id="notes.of")
async def of(day: str) -> bytes:
    return day.encode()


@prompt("greet", id="notes.greet")
async def greet(name: str) -> str:
    return f"Greet {name}"


@operation("notes.ping", type="query")
async def ping() -> str:
    return "pong"


@ERAS
async def test_resources_and_prompts_of_an_imported_server_are_passed_on(protocol: str) -> None:
    async with serve_endpoint(OperationRegistry([today, of, greet, ping])) as (inner, _):
        client = await create_mcp_client("far", MCPClientConfig(url=inner, protocol=protocol))
        async with client:
            gateway = OperationRegistry()
            client.register_all(gateway)
            mode = "legacy" if protocol == "legacy" else "auto"
            async with serve_endpoint(gateway) as (outer, _), Client(outer, mode=mode) as outside:
                assert [str(each.uri) for each in (await outside.list_resources()).resources] == ["notes://today"]
                templates = (await outside.list_resource_templates()).resource_templates
                assert [each.uri_template for each in templates] == ["notes://of/{day}"]
                read = await outside.read_resource("notes://of/monday")
                assert isinstance(read, types.ReadResourceResult)
                assert isinstance(read.contents[0], types.BlobResourceContents)
                assert [each.name for each in (await outside.list_prompts()).prompts] == ["far.greet"]
                got = await outside.get_prompt("far.greet", {"name": "Ann"})
                assert isinstance(got, types.GetPromptResult)
                assert isinstance(got.messages[0].content, types.TextContent)
                assert got.messages[0].content.text == "Greet Ann"
                with pytest.raises(Exception, match="not found"):
                    await outside.read_resource("notes://other")


@ERAS
async def test_content_blocks_pass_a_gateway_untouched(protocol: str) -> None:
    async with serve_endpoint(REGISTRY) as (inner, _):
        config = MCPClientConfig(url=inner, protocol=protocol)
        async with await create_mcp_client("far", config) as client:
            gateway = OperationRegistry(client.operations)
            direct = await gateway.execute("far.conformance.test_multiple_content_types")
            assert isinstance(direct.meta, MCPResponseMeta)
            async with serve_endpoint(gateway) as (outer, _):
                sent = message("tools/call", {"name": "far.conformance.test_multiple_content_types"})
                _, answer = await post(outer, sent)
                assert answer["result"]["content"] == [block.to_dict() for block in direct.meta.content]


@ERAS
async def test_changes_of_the_registry_reach_clients(protocol: str) -> None:
    here = OperationRegistry([ping])
    async with serve_endpoint(here) as (url, _):
        client = await create_mcp_client("far", MCPClientConfig(url=url, protocol=protocol))
        async with client:
            there = OperationRegistry()
            client.register_all(there)
            changed = asyncio.Event()
            there.watch(changed.set)
            async with asyncio.timeout(20):
                while "far.notes.added" not in there:
                    # The client may subscribe only now.
                    if "notes.added" in here:
                        here.unregister("notes.added")
                    here.register(operation("notes.added", type="query")(ping.function))
                    try:
                        async with asyncio.timeout(1):
                            await changed.wait()
                    except TimeoutError:
                        continue
                    changed.clear()
            assert (await there.execute("far.notes.added")).data == "pong"


async def test_completions_come_from_an_operation_or_the_schema() -> None:
    from typing import Literal

    @prompt("travel", id="trips.travel", completions={"city": "trips.cities"})
    async def travel(city: str, by: Literal["train", "tram", "boat"]) -> str:
        return f"{city} {by}"

    @operation("trips.cities", type="query")
    async def cities(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{value}{index}{arguments.get('by', '')}" for index in range(150)]

    async with serve_endpoint(OperationRegistry([travel, cities])) as (url, _):

        async def complete(name: str, value: str, **context: Any) -> Any:
            reference = {"type": "ref/prompt", "name": "travel"}
            params = {"ref": reference, "argument": {"name": name, "value": value}, **context}
            return (await post(url, message("completion/complete", params)))[1]["result"]["completion"]

        found = await complete("city", "Par", context={"arguments": {"by": "train"}})
        assert (len(found["values"]), found["total"], found["hasMore"]) == (100, 150, True)
        assert found["values"][0] == "Par0train"
        assert (await complete("by", "tra"))["values"] == ["train", "tram"]
        assert (await complete("other", "x"))["values"] == []


async def test_calls_are_reported_and_limited() -> None:
    waiting, release = asyncio.Event(), asyncio.Event()

    @operation("slow.wait")
    async def wait() -> str:
        waiting.set()
        await release.wait()
        return "done"

    records: list[AuditRecord] = []
    registry = OperationRegistry([wait, ping])
    async with serve_endpoint(registry, audit=AuditWriter(records.append), limits=Limits(calls=1)) as (url, _):
        first = asyncio.create_task(post(url, message("tools/call", {"name": "slow.wait"}), **{"x-caller": "ann"}))
        await waiting.wait()
        refused = await post(url, message("tools/call", {"name": "notes.ping"}), **{"x-caller": "ann"})
        assert refused[1]["result"]["_meta"]["operations/error"]["details"]["reason"] == "RATE_LIMITED"
        other = await post(url, message("tools/call", {"name": "notes.ping"}), **{"x-caller": "bob"})
        assert other[1]["result"]["isError"] is False
        release.set()
        assert (await first)[1]["result"]["content"][0]["text"] == "done"
    told = {(record.operation_id, record.caller, record.code) for record in records}
    assert {("notes.ping", "bob", "OK"), ("slow.wait", "ann", "OK")} <= told
