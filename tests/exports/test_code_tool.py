from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

import pytest

from operations import AccessControl, ErrorCode, Identity, OperationContext, OperationRegistry, OperationType, operation
from operations.exports.code_limits import CodeLimits
from operations.exports.code_tool import CodeTool
from operations.exports.sandbox_pool import SandboxPool
from operations.interceptors import Approval, Only
from operations.testing import stub_operation

CALLS: list[str] = []


@operation(id="shop.quote", type=OperationType.QUERY)
async def quote(item: str, count: int = 1) -> dict[str, int]:
    """What some of an item would cost."""
    CALLS.append(f"quote {item}")
    return {"total": 3 * count}


class Order(TypedDict):
    item: str
    caller: str | None
    api_key: str


@operation(id="shop.order", type=OperationType.MUTATION)
async def order(context: OperationContext, item: str) -> Order:
    """Order an item."""
    CALLS.append(f"order {item}")
    return {"item": item, "caller": context.identity.id if context.identity else None, "api_key": "k-12345678"}


@operation(id="shop.watch", type=OperationType.SUBSCRIPTION)
async def watch(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    CALLS.clear()


def registry() -> OperationRegistry:
    return OperationRegistry([quote, order, watch])


def tool(limits: CodeLimits | None = None, **options: Any) -> CodeTool:
    return CodeTool(registry().tools(**options), limits=limits)


async def test_a_script_of_twenty_calls() -> None:
    code = """
total = 0
for count in range(10):
    total += (await env.shop.quote(item="tea", count=count))["total"]
import asyncio
for each in await asyncio.gather(*[env.shop.quote(item="rice") for _ in range(10)]):
    total += each["total"]
print("prices:")
{"sum": total}
"""
    async with tool() as tools:
        result = await tools.call("run_python", {"code": code})
    assert (result.is_error, result.text) == (False, 'prices:\n{"sum":165}')
    assert CALLS == ["quote tea"] * 10 + ["quote rice"] * 10


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        ("await env.shop.quote(item=3)", "Expected `str`"),
        ("await env.shop.quote()", "No argument provided for required parameter `item`"),
        ("await env.shop.quote(item='tea', colour='green')", "`colour` does not match"),
        ("(await env.shop.order(item='tea'))['price']", 'Unknown key "price"'),
        ("await env.shop.qoute(item='tea')", "env.shop has quote"),
        ("await env.shops.quote(item='tea')", "env has shop"),
        ("env.shop.quote(item='tea')", "is not awaited"),
        ("await env.shop.quote(item='tea'", "invalid-syntax"),
    ],
)
async def test_type_errors_are_found_before_a_script_runs(mistake: str, problem: str) -> None:
    async with tool() as tools:
        result = await tools.run(f"await env.shop.order(item='first')\n{mistake}")
    assert problem in result.text
    assert result.error is not None
    assert (result.error.code, result.error.details["executed"]) == (ErrorCode.VALIDATION_ERROR, "no")
    assert CALLS == []


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "import socket",
        "import os\nos.system('true')",
        "open('/etc/passwd').read()",
        "import pathlib\npathlib.Path('/etc/passwd').read_text()",
        "exec('import subprocess')",
        "exec(\"open('/etc/passwd')\")",
        "exec('import os\\nos.environ[\"HOME\"]')",
        "env.__class__.__mro__",
        "env.shop.quote.__globals__",
    ],
)
async def test_a_script_cannot_access_the_system(code: str) -> None:
    async with tool() as tools:
        assert (await tools.run(code)).is_error


BOMBS = {
    "endless loop": "while True:\n    pass",
    "endless recursion": "def f(n: int) -> int:\n    return f(n + 1)\nf(0)",
    "long list": "found = []\nwhile True:\n    found.append('x' * 1000)",
    "long string": "len('x' * 10**10)",
    "large number": "10 ** 10 ** 8",
    "much output": "while True:\n    print('x' * 1000)",
    "many calls": "while True:\n    await env.shop.quote(item='tea')",
    "ignored limit": "while True:\n  try:\n    await env.shop.quote(item='tea')\n  except RuntimeError:\n    pass",
}
SMALL = CodeLimits(cpu_seconds=0.3, memory_bytes=16 * 1024 * 1024, output_bytes=50_000, calls=30)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_script_that_uses_too_much_fails_by_itself(bomb: str) -> None:
    async with tool(SMALL) as tools:
        failed = await tools.run(BOMBS[bomb])
        assert failed.is_error
        assert (
            "limit exceeded" in failed.text
            or "recursion" in failed.text
            or "30 calls" in failed.text
            or ("suspension" in failed.text)
        )
        assert len(CALLS) <= 30
        assert (await tools.run("1 + 1")).text == "2"


async def test_a_hundred_concurrent_scripts() -> None:
    bombs = [BOMBS["endless loop"], BOMBS["long list"], BOMBS["many calls"]]
    codes = [
        bombs[number % 3] if number % 20 == 0 else f"(await env.shop.quote(item='tea', count={number}))['total']"
        for number in range(100)
    ]
    async with tool(SMALL) as tools:
        results = await asyncio.gather(*map(tools.run, codes))
    for number, result in enumerate(results):
        assert result.is_error == (number % 20 == 0)
        assert result.is_error or result.text == str(3 * number)


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
async def test_a_crash_of_the_sandbox_fails_only_its_script() -> None:
    before = children()

    @operation(id="test.crash")
    async def crash() -> None:
        for process in children() - before:
            os.kill(process, signal.SIGKILL)

    async with CodeTool(OperationRegistry([crash]).tools(), processes=1) as tools:
        crashed = await tools.run("print('begun')\nawait env.test.crash()")
        assert "EXECUTION_ERROR: the script's sandbox crashed" in crashed.text
        assert "begun" in crashed.text
        assert (await tools.run("1 + 1")).text == "2"


async def test_calls_run_as_the_identity_with_its_permissions() -> None:
    secret = stub_operation("shop.secret", returns=1, access_control=AccessControl(required_scopes=["admin"]))
    everything = OperationRegistry([order, secret])
    async with CodeTool(everything.tools(identity=Identity("ann"))) as tools:
        assert (await tools.run("(await env.shop.order(item='tea'))['caller']")).text == "ann"
        assert "has no member `secret`" in (await tools.run("await env.shop.secret()")).text
        assert (await tools.run("import env\ngetattr(env.shop, 'secret')")).is_error
        assert "secret" not in tools.definitions()[0]["description"]


async def test_each_call_needs_approval() -> None:
    asked: list[Any] = []

    async def ask(request: Any) -> bool:
        asked.append(request.input["item"])
        return bool(request.input["item"] == "tea")

    code = """
done = []
for item in ["tea", "gold"]:
    try:
        await env.shop.order(item=item)
        done.append(item)
    except RuntimeError as error:
        print(error)
done
"""
    async with tool(approval=Approval(mutations="ask", ask=ask)) as tools:
        result = await tools.run(code)
    assert asked == ["tea", "gold"]
    assert CALLS == ["order tea"]
    assert "ACCESS_DENIED: shop.order was refused and did not run" in result.text
    assert result.text.endswith('["tea"]')


async def test_a_script_that_ignores_refusals_is_ended() -> None:
    asked: list[Any] = []

    async def refuse(request: Any) -> bool:
        asked.append(request.input["item"])
        return False

    one_by_one = """
while True:
    try:
        await env.shop.order(item="gold")
    except BaseException:
        pass
"""
    at_once = """
import asyncio
async def insist() -> None:
    try:
        await env.shop.order(item="gold")
    except BaseException:
        pass
await asyncio.gather(*[insist() for _ in range(50)])
"""
    for approval in (Approval(mutations="ask", ask=refuse), Approval({"*": "deny"})):
        for code in (one_by_one, at_once):
            asked.clear()
            async with tool(approval=approval) as tools:
                result = await tools.run(code)
            assert result.text.startswith("ACCESS_DENIED: the script was ended after")
            assert len(asked) <= 3
    assert CALLS == []


async def test_one_question_at_a_time_also_for_an_approval_of_the_registry() -> None:
    open_questions, most = 0, 0

    async def ask(request: Any) -> bool:
        nonlocal open_questions, most
        open_questions += 1
        most = max(most, open_questions)
        await asyncio.sleep(0)
        open_questions -= 1
        return True

    guarded = OperationRegistry([order], interceptors=[Only(Approval(mutations="ask", ask=ask), ["shop.*"])])
    code = "import asyncio\nlen(await asyncio.gather(*[env.shop.order(item='tea') for _ in range(10)]))"
    async with CodeTool(guarded.tools()) as tools:
        assert (await tools.run(code)).text == "10"
    assert (most, len(CALLS)) == (1, 10)


async def test_no_call_starts_after_a_script_was_stopped() -> None:
    asking, ended = asyncio.Event(), asyncio.Event()

    async def ask(request: Any) -> bool:
        asking.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    code = "import asyncio\nawait asyncio.gather(*[env.shop.order(item='tea') for _ in range(20)])"
    async with tool(approval=Approval(mutations="ask", ask=ask)) as tools:
        running = asyncio.create_task(tools.run(code))
        await asking.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await ended.wait()
    assert CALLS == []


async def test_results_that_the_sandbox_cannot_take_are_errors_of_their_call() -> None:
    results: dict[str, Any] = {"long": [0] * 300_000, "text": "x" * 17_000_000}
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    results["deep"] = deep
    registry = OperationRegistry(stub_operation(f"test.{name}", returns=value) for name, value in results.items())
    async with CodeTool(registry.tools()) as tools:
        for name in results:
            code = f"try:\n    await env.test.{name}()\nexcept RuntimeError as error:\n    print(error)"
            result = await tools.run(code)
            assert (result.is_error, result.text.partition(":")[0]) == (False, "EXECUTION_ERROR")
            assert "the result" in result.text


@pytest.mark.parametrize("name", CodeLimits.__struct_fields__)
def test_limits_are_checked_when_they_are_created(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1: expected"):
        CodeLimits(**{name: -1})


async def test_a_script_names_a_limited_number_of_operations() -> None:
    many = [stub_operation(f"big.thing_{number}", returns=number) for number in range(201)]
    async with CodeTool(OperationRegistry(many).tools()) as tools:
        named = "# env.big " + " ".join(f"thing_{number}" for number in range(201))
        assert "names 201 operations: at most 200" in (await tools.run(named)).text


async def test_owners_share_the_sandboxes() -> None:
    """One owner's scripts, which wait for their calls, leave a sandbox to another."""
    waiting, released = asyncio.Event(), asyncio.Event()

    @operation(id="test.hold")
    async def hold() -> int:
        waiting.set()
        await released.wait()
        return 1

    async with SandboxPool(2, per_owner=1) as sandboxes:
        tools = CodeTool(OperationRegistry([hold]).tools(), sandboxes=sandboxes)
        held = [asyncio.create_task(tools.run("await env.test.hold()", owner="ann")) for _ in range(5)]
        await waiting.wait()
        assert (await tools.run("1 + 1", owner="bob")).text == "2"
        released.set()
        assert [(await each).text for each in held] == ["1"] * 5
        assert sandboxes._owners == {}


async def test_results_have_the_fields_and_redaction_of_the_set() -> None:
    async with tool(redact=True) as tools:
        assert (await tools.run("(await env.shop.order(item='tea'))['api_key']")).text == "[redacted]"
    async with tool(fields=["item"]) as tools:
        assert (await tools.run("await env.shop.order(item='tea')")).text == '{"item":"tea"}'
    async with tool(max_characters=10) as tools:
        assert (await tools.run("'x' * 100")).text.startswith("x" * 10 + "\n[truncated: 10 of 100")


async def test_a_stream_is_a_list() -> None:
    async with tool() as tools:
        assert (await tools.run("sum(await env.shop.watch(count=5))")).text == "10"


async def test_a_timeout_and_a_cancellation_reach_the_running_call() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @operation(id="test.wait")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with CodeTool(OperationRegistry([wait]).tools()) as tools:
        result = await tools.run("await env.test.wait()", timeout=0.1)
        assert result.error is not None
        assert result.error.code is ErrorCode.TIMEOUT
        if started.is_set():  # a busy machine may not get so far in time
            await ended.wait()
        started.clear()
        ended.clear()
        running = asyncio.create_task(tools.run("await env.test.wait()"))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await ended.wait()
        assert (await tools.run("1 + 1")).text == "2"


@pytest.mark.parametrize(
    "make",
    [
        "value = []\nfor _ in range(100_000):\n    value = [value]",
        "value = [0]\nfor _ in range(20):\n    value = [value] * 10",
        "value = ['x' * 1_000_000] * 1_000",
        "value = list(range(300_000))",
        "value = [10 ** 4_000] * 20_000",  # each takes 0.4 ms to write
        "value = [10 ** 600] * 20_000",
        "value = {10 ** 4_000 + number: 0 for number in range(100)}",
    ],
)
async def test_values_that_are_too_large_do_not_leave_the_sandbox(make: str) -> None:
    calls: list[Any] = []
    anything = stub_operation("test.any", returns=calls.append)
    async with CodeTool(OperationRegistry([anything]).tools()) as tools:
        assert (await tools.run(f"{make}\nawait env.test.any(value=value)")).is_error
        assert (await tools.run(f"{make}\nvalue")).is_error
        assert (await tools.run("1 + 1")).text == "2"
    assert calls == []


async def test_an_operation_may_have_the_name_of_a_type() -> None:
    schema = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}
    made = [stub_operation(f"shop.{name}", returns=1, input_schema=schema) for name in ("list", "get")]
    async with CodeTool(OperationRegistry(made).tools()) as tools:
        assert (await tools.run("await env.shop.list(ids=[1]) + await env.shop.get(ids=[2])")).text == "2"
        refused = await tools.run("await env.shop.list(ids=['x'])\nawait env.shop.get(ids=[2])")
        assert refused.text.startswith("VALIDATION_ERROR: the code did not run")


@pytest.mark.parametrize(
    "calls",
    [
        "kept = []\nfor number in range(90):\n    kept.append(env.shop.quote(item=text))",
        "import asyncio\nawait asyncio.gather(*[env.shop.quote(item=text) for number in range(90)])",
    ],
)
async def test_the_inputs_of_pending_calls_of_a_script_are_bounded(calls: str) -> None:
    """Previously, a script within its own memory limit could keep 16 MiB in each of 1,300 calls outside of it."""
    async with SandboxPool(1) as sandboxes:
        tools = CodeTool(registry().tools(), sandboxes=sandboxes)
        result = await tools.run(f"text = 'x' * 4_000_000\n{calls}")
        assert result.is_error
        assert "is too large together with those of pending calls" in result.text
        assert len(CALLS) == 0
        one_by_one = "text = 'x' * 4_000_000\nfor number in range(20):\n    await env.shop.quote(item=text)"
        assert not (await tools.run(one_by_one)).is_error
        assert len(CALLS) == 20


async def test_a_large_registry_is_searched_and_only_used_operations_are_typed() -> None:
    many = [stub_operation(f"big.thing_{number}/read", returns=number) for number in range(1_000)]
    async with CodeTool(OperationRegistry([*many, quote]).tools()) as tools:
        assert len(tools.definitions()[0]["description"]) < 3 * 2_000 + 1_000
        assert (
            "shop.quote(item: str, count?: int)"
            in (await tools.run("await search_operations('what does it cost')")).text
        )
        assert "What some of an item" in (await tools.run("await describe_operations(['shop.quote'])")).text
        assert (await tools.run("await env.big.thing_7_read()")).text == "7"


async def test_arguments_and_state_are_checked() -> None:
    tools = tool(CodeLimits(code_characters=100))
    assert "is not open" in (await tools.run("1")).text
    async with tools:
        assert "at most 100" in (await tools.run("1 + " * 100 + "1")).text
        assert "expected run_python" in (await tools.call("other", {"code": "1"})).text
        assert "expected a string" in (await tools.call("run_python", {"code": 1})).text
        assert "not JSON" in (await tools.call("run_python", "{")).text
        assert [each["function"]["name"] for each in tools.openai()] == ["run_python"]


def test_a_missing_sandbox_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code_tool", "sandbox_pool", "sandbox_script"):
        monkeypatch.delitem(sys.modules, f"operations.exports.{name}")
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(ImportError, match=r"pip install 'operations\[code\]'"):
        import_module("operations.exports.code_tool")
