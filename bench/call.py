"""One trivial typed call, and a cold import: against a bare await, pydantic's validation, and FastMCP.

`python -m bench.call`
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bench.measure import report, save, time_calls, time_processes
from operations import OperationContext, OperationRegistry, operation

INPUT = {"a": 1, "b": 2}


async def plain_add(a: int, b: int) -> int:
    return a + b


add = operation(id="math.add", type="query")(plain_add)


@operation(id="math.add_with_context", type="query")
async def add_with_context(a: int, b: int, context: OperationContext) -> int:
    return a + b


async def contenders() -> dict[str, Callable[[], Awaitable[object]]]:
    """Each way to make the call."""
    registry = OperationRegistry([add, add_with_context])
    deadline = OperationContext(request_id="r", deadline=2**50)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "bare await": lambda: plain_add(1, 2),
        "operations execute, by id": lambda: registry.execute("math.add", INPUT),
        "operations execute, by function": lambda: registry.execute(add, INPUT),
        "operations execute, context and env": lambda: registry.execute("math.add_with_context", INPUT),
        "operations execute, deadline": lambda: registry.execute("math.add", INPUT, deadline),
    }
    return calls | pydantic_calls() | await fastmcp_calls()


def pydantic_calls() -> dict[str, Callable[[], Awaitable[object]]]:
    """The function behind pydantic's validation alone: no output, no envelope."""
    try:
        from pydantic import TypeAdapter
        from pydantic_core import ArgsKwargs
    except ImportError:
        print("pydantic is not installed: its row is left out")
        return {}
    function: Any = plain_add
    adapter: Any = TypeAdapter(function)
    return {"pydantic TypeAdapter(fn)": lambda: adapter.validate_python(ArgsKwargs((), INPUT))}


async def fastmcp_calls() -> dict[str, Callable[[], Awaitable[object]]]:
    """The function as a FastMCP tool, called on the server object in process."""
    try:
        from fastmcp import FastMCP
    except ImportError:
        print("FastMCP is not installed: its rows are left out")
        return {}
    server: Any = FastMCP("bench")
    server.tool(plain_add, name="add")
    return {"FastMCP server.call_tool": lambda: server.call_tool("add", INPUT)}


def imports() -> dict[str, float]:
    """CPU time of a cold import, each in a process of its own."""
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


async def main() -> None:
    """Measure, print the ratios, keep the results."""
    calls = await time_calls(await contenders())
    report("a trivial typed call, as a multiple of a bare await", calls, "bare await")
    own = calls["operations execute, by id"]
    verdicts: dict[str, float] = {}
    if "FastMCP server.call_tool" in calls:
        verdicts["times faster than FastMCP (wanted: 50 or more)"] = calls["FastMCP server.call_tool"] / own
    if "pydantic TypeAdapter(fn)" in calls:
        verdicts["times pydantic's validation alone (wanted: 3 or less)"] = own / calls["pydantic TypeAdapter(fn)"]
    cold = imports()
    report("a cold import in CPU time, as a multiple of a bare interpreter", cold, "bare interpreter")
    verdicts["times a bare interpreter to import (wanted: 9 or less)"] = (
        cold["import operations"] / cold["bare interpreter"]
    )
    print("\nexecute by id is, and the import is:")
    for text, ratio in verdicts.items():
        print(f"  {ratio:8.2f} {text}")
    save("call", {"calls": calls, "imports": cold, "verdicts": verdicts})


if __name__ == "__main__":
    asyncio.run(main())
