"""Walks: the files and functions of `operations` that one call enters, and its switches between files.

`python -m bench.walks` prints a table and saves it as JSON. With `--steps hub` it prints the steps of one walk.

Method
- All peers of a walk run in one process and one event loop, so that caller, hub and worker are traced together. Servers
  that are not part of `operations` (HTTP, MCP, NATS) run in separate processes and are not counted.
- `sys.setprofile` and `threading.setprofile` report each function that is entered. Functions in files below
  `src/operations` count. The operation's own function, libraries, comprehensions and imports
  do not.
- The call is warm: it was made several times before, so that compiled schemas, caches and connections exist. `ops call`
  runs in a new process whose catalogue an earlier process has cached.
- `files` is the number of distinct files entered. `calls` is the number of functions entered; a coroutine or generator
  that resumes is not entered again. `switches` is the number of functions in another file than the function before.
- Each walk is traced several times and the run with the fewest calls is kept: other runs may include a heartbeat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import operations
from bench.measure import save
from operations import Identity, OperationRegistry, operation

WARM = 20
RUNS = 5
ROOT = Path(__file__).parent.parent
PACKAGE = str(Path(operations.__file__).parent) + os.sep
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
_FIRST_ENTRY = 0
"""The argument of the RESUME instruction at a function's start; where a coroutine or generator resumes, it differs."""


class Limit(NamedTuple):
    """Limits of a walk; None is unlimited."""

    files: int
    switches: int | None = None
    calls: int | None = None


LIMITS: dict[str, Limit] = {
    "local": Limit(7),
    "OpenAPI GET": Limit(14),
    "OpenAPI POST": Limit(16),
    "MCP": Limit(13),
    "hub": Limit(18, 35, 81),
    "NATS": Limit(18, 39, 75),
    "ops call": Limit(40),
}
"""Limits that `tests/bench/test_walks.py` checks."""


class Step(NamedTuple):
    """One entered function."""

    file: str
    function: str


class Walk(NamedTuple):
    """Figures of one call."""

    files: int
    calls: int
    switches: int


class Tracer:
    """Recorder of each function of `operations` entered in its block, in all threads started there."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._importing = 0

    def __enter__(self) -> Tracer:
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == "<module>":
            self._importing += 1 if event == "call" else -1
        elif event == "return" or self._importing or code.co_name in _COMPREHENSIONS:
            return
        elif code.co_code[frame.f_lasti + 1] & 3 == _FIRST_ENTRY:
            self.steps.append(Step(code.co_filename[len(PACKAGE) :], code.co_qualname))


def count(steps: list[Step]) -> Walk:
    """Return the figures of one walk."""
    switches = sum(one.file != other.file for one, other in itertools.pairwise(steps))
    return Walk(len({step.file for step in steps}), len(steps), switches)


async def trace(call: Callable[[], Awaitable[object]]) -> list[Step]:
    """Return the steps of a warm call."""
    for _ in range(WARM):
        await call()
    runs = []
    for _ in range(RUNS):
        with Tracer() as tracer:
            await call()
        runs.append(tracer.steps)
    return min(runs, key=len)


@operation(id="walk.quote", type="query")
async def quote(item: str, count: int = 1) -> dict[str, float]:
    """Return the price of an item."""
    return {"total": 2.5 * count}


INPUT = {"item": "tea", "count": 2}


async def walk_locally() -> list[Step]:
    """Trace a typed function of this process."""
    registry = OperationRegistry([quote])
    return await trace(lambda: registry.execute("walk.quote", INPUT))


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "walks", "version": "1"},
    "components": {
        "schemas": {
            "Item": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
                "required": ["id", "name"],
            }
        }
    },
    "paths": {
        "/items/{id}": {
            "get": {
                "operationId": "get_item",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
                    {"name": "q", "in": "query", "schema": {"type": "string"}},
                ],
                "responses": {
                    "200": {
                        "description": "an item",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
                    }
                },
            }
        },
        "/items": {
            "post": {
                "operationId": "add_item",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}, "tags": {"type": "array"}},
                                "required": ["name"],
                            }
                        }
                    },
                },
                "responses": {
                    "200": {
                        "description": "an item",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
                    }
                },
            }
        },
    },
}
SERVER = """
import asyncio
BODY = b'{"id": 1, "name": "tea"}'
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY) + BODY
async def serve(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        lengths = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0]) if lengths else 0)
        writer.write(ANSWER)
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.contextmanager
def http_server() -> Iterator[str]:
    """Start a small HTTP server in a separate process and yield its base URL."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


async def walk_openapi(name: str, input: dict[str, Any]) -> list[Step]:
    """Trace one operation of an API."""
    from operations.sources.openapi import HTTPServiceConfig, from_openapi

    with http_server() as url:
        api = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="api", base_url=url))
        registry = OperationRegistry(api)
        try:
            return await trace(lambda: registry.execute(f"api.{name}", input))
        finally:
            await api.close()


async def walk_mcp() -> list[Step]:
    """Trace a tool of an MCP server over stdio."""
    from bench.mcp import SERVE
    from operations.sources.mcp import MCPClientConfig, create_mcp_client

    config = MCPClientConfig(command=sys.executable, args=SERVE, cwd=ROOT)
    async with await create_mcp_client("bench", config) as client:
        registry = OperationRegistry()
        client.register_all(registry)
        return await trace(lambda: registry.execute("bench.add", {"a": 1, "b": 2}))


async def walk_hub() -> list[Step]:
    """Trace a call from a spoke through the hub to another spoke."""
    from operations.calls import CallHandler, PendingRequestMap
    from operations.calls.hub import Hub
    from operations.calls.hub.spoke import Spoke
    from operations.identity import Principal, StaticTokens

    tokens = StaticTokens({"caller": Principal(Identity("caller")), "worker": Principal(Identity("worker"), ("*",))})
    async with (
        Hub(tokens) as hub,
        Spoke(hub.url, token="caller") as caller,
        Spoke(hub.url, token="worker") as worker,
    ):
        return await walk_bus(CallHandler(OperationRegistry([quote]), worker), PendingRequestMap(caller), caller)


async def walk_nats() -> list[Step]:
    """Trace a call through a NATS server to a worker."""
    from tests.nats_server import nats_server

    from operations.calls import CallHandler, PendingRequestMap
    from operations.pubsub import nats

    with nats_server(jetstream=False) as server:
        async with (
            nats.connect(server.url, name="caller", trusted=True) as caller,
            nats.connect(server.url, name="worker", trusted=True) as worker,
        ):
            return await walk_bus(CallHandler(OperationRegistry([quote]), worker), PendingRequestMap(caller), caller)


async def walk_bus(handler: Any, pending: Any, caller: Any) -> list[Step]:
    """Trace a call from a caller to a worker on one transport."""
    from operations.calls import from_call

    async with from_call(caller) as remote:
        await remote.ready("walk.quote")
    try:
        return await trace(lambda: pending.call("walk.quote", INPUT))
    finally:
        await handler.close()


SHOP = '''
from operations import operation


@operation(id="shop.quote", type="query")
async def quote(item: str, count: int = 1) -> dict[str, float]:
    """Price of an item."""
    return {"total": 2.5 * count}
'''
COMMAND = """
import json, sys
from bench.walks import Tracer
from operations.cli.main import main

with Tracer() as tracer:
    code = main(["call", "shop.quote", "item=tea", "count=4"])
json.dump(tracer.steps, open("steps.json", "w"))
sys.exit(code)
"""


def walk_command_line() -> list[Step]:
    """Trace `ops call` of a Python function, in a separate directory and process."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "shop").mkdir()
        (directory / "shop" / "selling.py").write_text(SHOP)
        (directory / "operations.toml").write_text('[sources.shop]\npython = "./shop"\n')
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(directory / "cache"),
            "PYTHONPATH": str(ROOT),
            "OPERATIONS_TRUST": "1",
        }
        command = [sys.executable, "-c", COMMAND]
        for _ in range(2):  # the first run caches the catalogue
            done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"ops call ended with {done.returncode}: {done.stderr}")
        return [Step(*step) for step in json.loads((directory / "steps.json").read_text())]


WALKS: dict[str, Callable[[], list[Step]]] = {
    "local": lambda: asyncio.run(walk_locally()),
    "OpenAPI GET": lambda: asyncio.run(walk_openapi("get_item", {"id": 1, "q": "a"})),
    "OpenAPI POST": lambda: asyncio.run(walk_openapi("add_item", {"name": "tea", "tags": ["green"]})),
    "MCP": lambda: asyncio.run(walk_mcp()),
    "hub": lambda: asyncio.run(walk_hub()),
    "NATS": lambda: asyncio.run(walk_nats()),
    "ops call": walk_command_line,
}


def main() -> None:
    """Count every walk, or print the steps of one."""
    parser = argparse.ArgumentParser(description="count the files, calls and switches of each walk")
    parser.add_argument("--steps", choices=list(WALKS), help="print each step of one walk")
    chosen = parser.parse_args().steps
    if chosen is not None:
        for step in WALKS[chosen]():
            print(f"{step.file:45} {step.function}")
        return
    walks = {name: count(walk()) for name, walk in WALKS.items()}
    print(f"{'walk':<14}{'files':>8}{'limit':>8}{'calls':>8}{'switches':>10}")
    for name, walk in walks.items():
        print(f"{name:<14}{walk.files:>8}{LIMITS[name].files:>8}{walk.calls:>8}{walk.switches:>10}")
    save("walks", {name: walk._asdict() for name, walk in walks.items()})


if __name__ == "__main__":
    main()
