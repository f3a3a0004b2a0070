"""Code mode over MCP: a script calls operations with the identity, the limits and the approval of its caller."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from mcp import Client, StdioServerParameters
from operations import OperationRegistry, operation
from operations.exports.code_limits import CodeLimits
from operations.interceptors import Approval
from operations.serving.app import app
from operations.serving.audit import AuditRecord, AuditWriter
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from tests.asgi_server import serving_here
from tests.serving.mcp.examples import ELICITS, OPERATIONS
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import message, post

RUN = "run_python"
BOUGHT: list[str] = []


@operation("shop.buy")
async def buy(item: str) -> dict[str, str]:
    """Buy an item."""
    BOUGHT.append(item)
    return {"bought": item}


@pytest.fixture(autouse=True)
def forget_purchases() -> None:
    BOUGHT.clear()


async def call(url: str, code: Any, *, meta: Any = None, more: Any = None, **headers: str) -> Any:
    params = {"name": RUN, "arguments": {"code": code}, **(more or {})}
    return (await post(url, message("tools/call", params, meta=meta), **headers))[1]


async def text(url: str, code: str, **headers: str) -> str:
    return str((await call(url, code, **headers))["result"]["content"][0]["text"])


async def listed(url: str, **headers: str) -> list[Any]:
    tools: list[Any] = (await post(url, message("tools/list"), **headers))[1]["result"]["tools"]
    return tools


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_of_either_version_runs_a_script_of_twenty_calls(mode: Any) -> None:
    code = """
total = 0.0
for count in range(20):
    total += (await env.shop.quote(item="tea", count=count))["price"]
total
"""
    async with (
        serving_here(app(OperationRegistry(OPERATIONS), code=True)) as url,
        Client(url.replace("ws:", "http:") + "mcp", mode=mode) as client,
    ):
        (tool,) = (await client.list_tools()).tools
        assert tool.name == RUN
        assert "async def quote(" in str(tool.description)
        result = await client.call_tool(RUN, {"code": code})
        assert (result.is_error, result.content[0].text) == (False, "475.0")  # type: ignore[union-attr]
        wrong = await client.call_tool(RUN, {"code": "await env.shop.quote(itm='tea')"})
        assert wrong.is_error
        assert "`itm` does not match" in wrong.content[0].text  # type: ignore[union-attr]
        direct = await client.call_tool("shop.quote", {"item": "tea"})
        assert direct.structured_content == {"item": "tea", "price": 2.5}


async def test_a_script_reaches_only_permitted_operations() -> None:
    admin = {"x-caller": "ann admin"}
    async with serve_endpoint(OperationRegistry(OPERATIONS), code=True) as (url, _):
        assert await text(url, "await env.admin.stop()", **admin) == "stopped"
        refused = await call(url, "await env.admin.stop()")
        assert refused["result"]["isError"] is True
        assert "VALIDATION_ERROR: the code did not run" in refused["result"]["content"][0]["text"]
        for hidden in (
            "await env.admin.stop()  # type: ignore",
            "exec('env.admin.stop()')",
            "import env.admin",
            "await describe_operations(['admin.stop'])",
            "await search_operations('admin stop')",
            "await search_operations('')",
        ):
            assert "stopped" not in (answer := await text(url, hidden))
            assert "admin.stop()" not in answer.replace(hidden, "")
        assert "stop" in (await listed(url, **admin))[0]["description"]
        assert "admin" not in (await listed(url))[0]["description"]


async def test_results_and_failures_of_calls() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), code=True) as (url, _):
        assert json.loads(await text(url, "await env.shop.ticks()")) == [0, 1, 2]
        assert await text(url, "(await env.shop.binary())['a']") == "<2 bytes>"
        failing = """
for name in ("domain", "secret"):
    try:
        if name == "domain":
            await env.shop.domain_failure()
        else:
            await env.shop.secret_failure()
    except RuntimeError as error:
        print(error)
"""
        shown = await text(url, failing)
        assert "OUT_OF_STOCK: no tea left" in shown
        assert "shop.secret_failure failed" in shown
        assert "hunter2" not in shown
        assert "hunter2" not in json.dumps(await call(url, "await env.shop.secret_failure()"))
        assert (await call(url, 7))["result"]["isError"] is True


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("action", ["accept", "decline", None])
async def test_the_caller_is_asked_for_each_call_that_needs_approval(mode: Any, action: Any) -> None:
    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=action, content={} if action == "accept" else None)

    code = """
import asyncio
async def buy(item: str) -> str:
    try:
        return (await env.shop.buy(item=item))["bought"]
    except RuntimeError as error:
        return str(error)[:13]
await asyncio.gather(buy("tea"), buy("rice"))
"""
    registry = OperationRegistry([buy], interceptors=[Approval(mutations="ask")])
    options: dict[str, Any] = {} if action is None else {"elicitation_callback": elicit}
    async with (
        serving_here(app(registry, code=True)) as url,
        Client(url.replace("ws:", "http:") + "mcp", mode=mode, **options) as client,
    ):
        result = await client.call_tool(RUN, {"code": code})
    answer = json.loads(result.content[0].text)  # type: ignore[union-attr]
    if action == "accept":
        assert (answer, sorted(BOUGHT), len(questions)) == (["tea", "rice"], ["rice", "tea"], 2)
    else:
        assert (answer, BOUGHT) == (["ACCESS_DENIED"] * 2, [])
        assert len(questions) == (0 if action is None else 2)


async def test_a_script_that_ignores_refusals_asks_three_times() -> None:
    questions: list[str] = []

    async def decline(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="decline")

    code = "while True:\n    try:\n        await env.shop.buy(item='gold')\n    except BaseException:\n        pass"
    registry = OperationRegistry([buy], interceptors=[Approval(mutations="ask")])
    async with (
        serving_here(app(registry, code=True)) as url,
        Client(url.replace("ws:", "http:") + "mcp", elicitation_callback=decline) as client,
    ):
        result = await client.call_tool(RUN, {"code": code})
    assert "ended after 3 refused calls" in result.content[0].text  # type: ignore[union-attr]
    assert (len(questions), BOUGHT) == (3, [])


async def test_an_answer_belongs_to_its_script_and_its_caller() -> None:
    code = "(await env.shop.buy(item='tea'))['bought']"
    registry = OperationRegistry([buy], interceptors=[Approval(mutations="ask")])
    async with serve_endpoint(registry, code=True) as (url, _):
        asked = (await call(url, code, meta=ELICITS, **{"x-caller": "ann"}))["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        more = {"inputResponses": {key: {"action": "accept", "content": {}}}, "requestState": asked["requestState"]}
        for other, who in ((code, "bob"), (code + " ", "ann")):
            stolen = await call(url, other, meta=ELICITS, more=more, **{"x-caller": who})
            assert stolen["error"]["message"] == "Invalid requestState"
        assert BOUGHT == []
        done = await call(url, code, meta=ELICITS, more=more, **{"x-caller": "ann"})
        assert done["result"]["content"][0]["text"] == "tea"
        assert BOUGHT == ["tea"]


async def test_scripts_have_limits_and_other_callers_a_sandbox() -> None:
    registry = OperationRegistry(OPERATIONS)
    limits = CodeLimits(cpu_seconds=0.3, memory_bytes=16 * 1024 * 1024, calls=5)
    bombs = [
        "while True:\n    pass",
        "x = []\nwhile True:\n    x.append('x' * 1000)",
        "while True:\n    await env.shop.number()",
        "while True:\n    print('x' * 1000)",
        "import socket",
    ]
    async with serve_endpoint(registry, code=limits) as (url, _):
        scripts = [call(url, bombs[number % 5], **{"x-caller": "mallory"}) for number in range(50)]
        scripts += [call(url, f"{number} + 1", **{"x-caller": "ann"}) for number in range(50)]
        results = [each["result"] for each in await asyncio.gather(*scripts)]
    assert all(each["isError"] for each in results[:50])
    assert [each["content"][0]["text"] for each in results[50:]] == [str(number + 1) for number in range(50)]


@pytest.mark.parametrize("code", ["raise Exception('x' * 1_000_000)", "while True: print('x' * 1_000)"])
async def test_the_errors_of_scripts_are_short(code: str) -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), code=True) as (url, _):
        result = (await call(url, code))["result"]
        assert result["isError"] is True
        assert "the script failed" in result["content"][0]["text"]
        assert len(json.dumps(result)) < 50_000


async def test_one_caller_cannot_hold_every_sandbox() -> None:
    started, released = asyncio.Event(), asyncio.Event()

    @operation("shop.hold")
    async def hold() -> int:
        started.set()
        await released.wait()
        return 1

    async with serve_endpoint(OperationRegistry([hold]), code=True) as (url, _):
        ann = {"x-caller": "ann"}
        held = [asyncio.create_task(call(url, "await env.shop.hold()", **ann)) for _ in range(130)]
        await started.wait()
        assert await text(url, "1 + 1", **{"x-caller": "bob"}) == "2"
        released.set()
        results = [(await each)["result"] for each in held]
    refused = [each for each in results if each["isError"]]
    assert len(refused) == 2
    assert "too many scripts at once: the limit is 128" in refused[0]["content"][0]["text"]


async def test_each_call_of_a_script_is_audited() -> None:
    records: list[AuditRecord] = []
    code = "await env.shop.number()\ntry:\n    await env.shop.domain_failure()\nexcept RuntimeError:\n    pass"
    async with serve_endpoint(OperationRegistry(OPERATIONS), code=True, audit=AuditWriter(records.append)) as (url, _):
        await call(url, code, **{"x-caller": "ann"})
    assert [(each.protocol, each.operation_id, each.code, each.caller) for each in records] == [
        ("mcp", "shop.number", "OK", "ann"),
        ("mcp", "shop.domain_failure", "OUT_OF_STOCK", "ann"),
    ]


async def test_a_cancelled_request_cancels_the_calls_of_its_script() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @operation("shop.hold")
    async def hold() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serve_endpoint(OperationRegistry([hold]), code=True) as (url, _):
        running = asyncio.create_task(call(url, "await env.shop.hold()"))
        await started.wait()
        running.cancel()
        async with asyncio.timeout(20):
            await ended.wait()


async def test_code_and_search_mode_together_and_an_importing_registry() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), code=True, search=True) as (url, _):
        names = [tool["name"] for tool in await listed(url)]
        assert names == [RUN, "search_operations", "describe_operations", "call_operation"]
        async with create_mcp_client("far", MCPClientConfig(url=url)) as client:
            imported = OperationRegistry(client.operations)
            assert (await imported.execute("far.shop.number")).data == 5
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        assert (await call(url, "1"))["error"]["code"] == -32602


async def test_ops_serve_with_code_over_standard_input_and_output(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from operations import operation\n\n@operation(type='query')\n"
        "async def add(a: int, b: int) -> int:\n    return a + b\n"
    )
    (tmp_path / "operations.toml").write_text('[sources.shop]\npython = "shop.py"\n')
    environment = {**os.environ, "OPERATIONS_TRUST": "1"}
    command = ["-m", "operations", "serve", "--mcp", "--code", "--config", str(tmp_path / "operations.toml")]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(parameters) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [RUN]
        result = await client.call_tool(RUN, {"code": "await env.shop.add(a=1, b=2)"})
        assert result.content[0].text == "3"  # type: ignore[union-attr]
