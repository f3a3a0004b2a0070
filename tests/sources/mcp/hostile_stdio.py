"""A raw JSON-RPC server over stdio that does everything a server should not: `hostile_stdio.py [MODE] [FOLDER]`.

It is written without the SDK, so that it can send what the SDK would refuse to send.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "tools"
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())

held: dict[Any, str] = {}
cancelled: list[Any] = []
extra_tools: list[dict[str, Any]] = []
pongs: list[Any] = []


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def remember(name: str) -> int:
    """Count calls of a tool in a file, which outlives this process."""
    with (FOLDER / name).open("a") as file:
        file.write("x")
    return len((FOLDER / name).read_text())


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


READ = {"annotations": {"readOnlyHint": True}}
TOOLS: list[Any] = [
    tool("echo", title="Echo", description="Gives back its input", **READ),
    tool("list_output", outputSchema={"type": "array", "items": {"type": "integer"}}),
    tool("nonsense_output", outputSchema="nonsense"),
    {"name": "nonsense_input", "inputSchema": 7},
    {"title": "has no name"},
    "not a tool",
    tool("violates", outputSchema=NUMBER),
    tool("json_text", outputSchema=NUMBER),
    tool("other_text", outputSchema=NUMBER),
    tool("unknown_block"),
    tool("odd_content"),
    tool("big"),
    tool("crash"),
    tool("crash_once", **READ),
    tool("hang"),
    tool("garbage"),
    tool("fails", outputSchema=NUMBER),
    tool("refuses"),
    tool("hold"),
    tool("release"),
    tool("cancelled"),
    tool("progress", outputSchema=NUMBER),
    tool("meta"),
    tool("complain"),
    tool("grow"),
    tool("shrink"),
    tool("forget"),
    tool("change_and_crash"),
    tool("change"),
    tool("ask"),
    tool("sample"),
    tool("dotted.name", _meta={"vendor/x": 1}),
    tool("dotted name"),
    tool("dotted_name"),
    tool("echo", description="a second tool of the same name"),
    tool("nested"),
    tool("flood"),
    tool("pings"),
    tool("pongs"),
    tool("slow", execution={"taskSupport": "required"}),
]


def unknown_block(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "hologram", "depth": 3}, {"type": "text", "text": "after it", "colour": "red"}]}


def crash(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    remember("crash")
    os._exit(3)


def crash_once(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    if remember("crash_once") == 1:
        os._exit(3)
    return text("survived")


def garbage(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    sys.stdout.flush()
    sys.stdout.buffer.write(b'Debugger attached.\n\xff\xfe\x00 not text\n{"half": \n[]\n{"jsonrpc": "2.0"}\n\n')
    sys.stdout.buffer.write(b'{"jsonrpc": "2.0", "id": 4711, "result": {}}\n')
    sys.stdout.buffer.flush()
    return text("after the garbage")


def progress(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    token = request["params"].get("_meta", {}).get("progressToken")
    for step in (1, 2, 3):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"}
            write({"method": "notifications/progress", "params": params})
    return {"content": [], "structuredContent": {"n": 3}}


def nested(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    """Answer with arrays in arrays, which `json` cannot write; the id goes first or last."""
    deep = "[" * arguments["levels"] + "]" * arguments["levels"]
    result = f'"result": {{"structuredContent": {{"deep": {deep}}}}}'
    members = [f'"jsonrpc": "2.0", "id": {request["id"]}', result]
    sys.stdout.write("{" + ", ".join(reversed(members) if arguments.get("id_last") else members) + "}\n")
    sys.stdout.flush()


def flood(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Report progress many times, each with a long message."""
    token = request["params"].get("_meta", {}).get("progressToken")
    for step in range(1, arguments["times"] + 1):
        params = {"progressToken": token, "progress": step, "message": "m" * arguments["length"]}
        write({"method": "notifications/progress", "params": params})
    return text("flooded")


def pings(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Send pings with long ids, and read none of the responses meanwhile."""
    for step in range(arguments["times"]):
        write({"id": f"ping-{step}-{'x' * arguments['length']}", "method": "ping"})
    return text("pinged")


def hold(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    held[request["id"]] = arguments.get("key", "")
    remember("held")


def release(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Answer the calls of `hold` that were not cancelled."""
    for request_id, key in held.items():
        if request_id not in cancelled:
            write({"id": request_id, "result": text(key)})
    held.clear()
    return text(str(len(cancelled)))


def change_list(change: Callable[[], None]) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    def run(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        change()
        write({"method": "notifications/tools/list_changed"})
        return text("changed")

    return run


def forget(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Remove the added tools without a notification."""
    extra_tools.clear()
    return text("forgotten")


def complain(arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    sys.stderr.write("something is wrong in here\n" + "y" * 100_000 + "\n")
    sys.stderr.flush()
    return text("complained")


def refuse(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    error = {"code": arguments["code"], "message": "refused", "data": {"why": "because"}}
    write({"id": request["id"], "error": error})


def ask(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    """Send a request to the client, and return its response."""
    held[request["id"]] = "ask"
    params = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    write({"id": f"ask-{request['id']}", "method": "elicitation/create", "params": params})


def sample(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    held[request["id"]] = "ask"
    message = {"role": "user", "content": {"type": "text", "text": "Say something"}}
    params = {"messages": [message], "maxTokens": 10}
    write({"id": f"ask-{request['id']}", "method": "sampling/createMessage", "params": params})


def change_and_crash(arguments: dict[str, Any], request: dict[str, Any]) -> None:
    write({"method": "notifications/tools/list_changed"})
    os._exit(3)


CALLS: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None]] = {
    "echo": lambda arguments, request: text(json.dumps(arguments)),
    "list_output": lambda arguments, request: text("[1, 2]"),
    "violates": lambda arguments, request: {"content": [], "structuredContent": {"n": "many", "extra": True}},
    "json_text": lambda arguments, request: text('{"n": 5}'),
    "other_text": lambda arguments, request: text('{"n": "five"}'),
    "unknown_block": unknown_block,
    "odd_content": lambda arguments, request: {"content": [None, 3, {"type": "image"}], "_meta": {"a/b": 1}},
    "big": lambda arguments, request: text("x" * 20_000_000),
    "crash": crash,
    "crash_once": crash_once,
    "hang": lambda arguments, request: None,
    "garbage": garbage,
    "fails": lambda arguments, request: {**text("it went wrong"), "isError": True},
    "refuses": refuse,
    "hold": hold,
    "release": release,
    "cancelled": lambda arguments, request: text(str(len(cancelled))),
    "progress": progress,
    "meta": lambda arguments, request: text(json.dumps(request["params"].get("_meta", {}))),
    "complain": complain,
    "grow": change_list(lambda: extra_tools.append(tool("grown"))),
    "forget": forget,
    "change_and_crash": change_and_crash,
    "shrink": change_list(lambda: extra_tools.clear()),
    "change": change_list(lambda: extra_tools.__setitem__(0, tool("grown", description="has changed"))),
    "block": lambda arguments, request: time.sleep(600),
    "ask": ask,
    "sample": sample,
    "nested": nested,
    "flood": flood,
    "pings": pings,
    "pongs": lambda arguments, request: text(str(len(pongs))),
    "slow": lambda arguments, request: refuse({"code": -32601}, request),
}


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    cursor = params.get("cursor")
    if MODE == "stuck":
        return {"tools": [tool("first")], "nextCursor": "again"}
    if MODE == "deaf":
        return {"tools": [tool("block", description="reads nothing any more")]}
    if MODE == "heavy":
        return {"tools": [tool(f"tool-{cursor}", description="d" * 1_000_000)], "nextCursor": str(int(cursor or 0) + 1)}
    if MODE == "cursors":
        return {"tools": [], "nextCursor": str(int(cursor[:9] if cursor else 0) + 1).zfill(9) + "c" * 1_000_000}
    if MODE == "endless":
        return {"tools": [], "nextCursor": str(int(cursor or 0) + 1)}
    if MODE == "pages":
        page = int(cursor or 0)
        listed = [tool(f"tool-{page * 50 + index}") for index in range(50)]
        return {"tools": listed, **({"nextCursor": str(page + 1)} if page < 39 else {})}
    return {"tools": TOOLS + extra_tools}


def write_deep_tools(request: dict[str, Any]) -> None:
    """List a tool whose schema is nested a hundred thousand levels deep between two others."""
    deep = '{"not": ' * 100_000 + "true" + "}" * 100_000
    tools = f'{json.dumps(tool("first"))}, {{"name": "deep", "inputSchema": {deep}}}, {json.dumps(tool("echo"))}'
    sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {{"tools": [{tools}]}}}}\n')
    sys.stdout.flush()


def named_tools() -> list[dict[str, Any]]:
    listed = list_tools({"cursor": "39"})["tools"] if MODE == "pages" else TOOLS + extra_tools
    return [each for each in listed if isinstance(each, dict) and "name" in each]


def initialize() -> dict[str, Any]:
    if MODE == "together":
        # None of the ten answers before all ten have started.
        (FOLDER / str(os.getpid())).touch()
        while len(list(FOLDER.iterdir())) < 10:
            time.sleep(0.01)
        time.sleep(1)
    version = "1999-01-01" if MODE == "ancient" else "2025-11-25"
    info = {"name": "hostile", "version": "6.6.6"}
    return {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}


def respond(request: dict[str, Any]) -> None:
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        result: dict[str, Any] | None = initialize()
    elif method == "tools/list" and MODE == "deep":
        write_deep_tools(request)
        return
    elif method == "tools/list":
        result = list_tools(params)
    elif method == "tools/call" and params["name"] in CALLS:
        result = CALLS[params["name"]](params.get("arguments") or {}, request)
    elif method == "tools/call" and params["name"] in {listed["name"] for listed in named_tools()}:
        result = text(params["name"])
    elif method == "tools/call":
        write({"id": request["id"], "error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}})
        return
    else:
        write({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    if result is not None:
        write({"id": request["id"], "result": result})


def take_answer(message: dict[str, Any]) -> None:
    """The client's response to our request ends the call that made it; responses to pings are counted."""
    if str(message["id"]).startswith("ping-"):
        pongs.append(message["id"])
        return
    asked_by = int(message["id"].removeprefix("ask-"))
    held.pop(asked_by, None)
    write({"id": asked_by, "result": text(json.dumps(message.get("result") or message.get("error")))})


def main() -> None:
    if MODE == "dies" or (MODE == "once" and remember("started") > 1):
        sys.stderr.write("no configuration found\n")
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        if MODE == "mute":
            continue
        if message.get("method") == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
            remember("cancelled")
        elif "method" in message and "id" in message:
            respond(message)
        elif "method" not in message:
            take_answer(message)
    if MODE == "lingers":
        time.sleep(3600)


if __name__ == "__main__":
    main()
