"""One trivial typed call, and a cold import: against a bare await, pydantic's validation, and FastMCP.

`python -m bench.call`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import report, save, time_calls, time_processes
from operations import OperationContext, OperationRegistry, operation

INPUT = {"a": 1, "b": 2}


async def plain_add(a: int, b: int) -> int:
    return a + b


add = operation(id="math.add", type="query")(plain_add)


@dataclass
class Sum:
    sum: int
    digits: int


async def plain_sum(a: int, b: int) -> Sum:
    return Sum(a + b, len(str(a + b)))


add_object = operation(id="math.sum", type="query")(plain_sum)


@operation(id="math.add_with_context", type="query")
async def add_with_context(a: int, b: int, context: OperationContext) -> int:
    return a + b


async def contenders() -> dict[str, Callable[[], Awaitable[object]]]:
    """Return each way to make the call, by name."""
    registry = OperationRegistry([add, add_object, add_with_context])
    deadline = OperationContext(request_id="r", deadline=2**50)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "bare await": lambda: plain_add(1, 2),
        "operations execute, by id": lambda: registry.execute("math.add", INPUT),
        "operations execute, object result": lambda: registry.execute("math.sum", INPUT),
        "operations execute, by function": lambda: registry.execute(add, INPUT),
        "operations execute, context and env": lambda: registry.execute("math.add_with_context", INPUT),
        "operations execute, deadline": lambda: registry.execute("math.add", INPUT, deadline),
    }
    return calls | pydantic_calls() | await fastmcp_calls()


def pydantic_calls() -> dict[str, Callable[[], Awaitable[object]]]:
    """Return calls of the functions through pydantic, which validates the input but neither output nor envelope."""
    try:
        from pydantic import TypeAdapter
        from pydantic_core import ArgsKwargs
    except ImportError:
        print("pydantic is not installed: skipping its row")
        return {}
    functions: tuple[Any, Any] = (plain_add, plain_sum)
    add, sum_up = (TypeAdapter(each) for each in functions)
    return {
        "pydantic TypeAdapter(fn)": lambda: add.validate_python(ArgsKwargs((), INPUT)),
        "pydantic TypeAdapter(fn), object result": lambda: sum_up.validate_python(ArgsKwargs((), INPUT)),
    }


async def fastmcp_calls() -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the function as a FastMCP tool, called on the server object in process."""
    try:
        from fastmcp import FastMCP
    except ImportError:
        print("FastMCP is not installed: skipping its rows")
        return {}
    server: Any = FastMCP("bench")
    server.tool(plain_add, name="add")
    server.tool(plain_sum, name="sum")
    return {
        "FastMCP server.call_tool": lambda: server.call_tool("add", INPUT),
        "FastMCP server.call_tool, object result": lambda: server.call_tool("sum", INPUT),
    }


def imports() -> dict[str, float]:
    """Return the CPU time of each cold import, in separate processes."""
    commands = {
        "bare interpreter": ["-c", "pass"],
        "import asyncio": ["-c", "import asyncio"],
        "import asyncio, msgspec, jsonschema_rs": ["-c", "import asyncio, msgspec, jsonschema_rs"],
        "import operations": ["-c", "import operations"],
    }
    for name in ("pydantic", "fastmcp"):
        try:
            __import__(name)
        except ImportError:
            continue
        commands[f"import {name}"] = ["-c", f"import {name}"]
    return time_processes(commands)


def compare(calls: dict[str, float], cold: dict[str, float]) -> Iterator[Comparison]:
    """Yield the comparisons whose peer was measured."""
    own, own_object = calls["operations execute, by id"], calls["operations execute, object result"]
    pydantic, fastmcp = calls.get("pydantic TypeAdapter(fn)"), calls.get("FastMCP server.call_tool")
    if pydantic:
        of_object = own_object / calls["pydantic TypeAdapter(fn), object result"]
        yield Comparison("Typed call, an integer", "pydantic's validation alone", "time", own / pydantic, at_most=1.8)
        yield Comparison("Typed call, an object", "pydantic's validation alone", "time", of_object, at_most=1.8)
    if fastmcp:
        of_object = calls["FastMCP server.call_tool, object result"] / own_object
        yield Comparison("Typed call, an integer", "FastMCP's `call_tool`", "faster", fastmcp / own, at_least=50)
        yield Comparison("Typed call, an object", "FastMCP's `call_tool`", "faster", of_object, at_least=80)
    with_env = calls["operations execute, context and env"] / own
    yield Comparison("Call with context and env", "the call without", "time", with_env, at_most=1.3)
    with_deadline = calls["operations execute, deadline"] / own
    yield Comparison("Call with a deadline", "the call without", "time", with_deadline, at_most=2)
    imported = cold["import operations"]
    bare, needed = cold["bare interpreter"], cold["import asyncio, msgspec, jsonschema_rs"]
    yield Comparison("`import operations`", "a bare interpreter", "time", imported / bare, at_most=9)
    yield Comparison("`import operations`", "asyncio, msgspec, jsonschema-rs", "time", imported / needed, at_most=1.15)


async def main() -> None:
    """Measure, print the ratios and save the results."""
    calls = await time_calls(await contenders(), clock=time.process_time)
    report("a trivial typed call, as a multiple of a bare await", calls, "bare await")
    cold = imports()
    report("a cold import in CPU time, as a multiple of a bare interpreter", cold, "bare interpreter")
    save("call", {"calls": calls, "imports": cold})
    keep("bench.call", compare(calls, cold))


if __name__ == "__main__":
    asyncio.run(main())
