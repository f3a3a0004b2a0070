"""The served OpenAPI document of GitHub's operations: the time to build it, to return it from a cache, to import it.

Each time is a multiple of the time to encode the whole document once with msgspec, which is the lower bound.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bench.measure import report, save
from bench.npm import npm_package
from operations import Identity, OperationRegistry
from operations.serving.exposure import Exposure
from operations.serving.http.document import DocumentCache
from operations.sources.openapi import HTTPServiceConfig, from_openapi, from_openapi_file

ROUNDS = 5
CALLS = 1000


async def cpu_seconds(call: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    await call()
    return time.process_time() - began


async def longest_turn(call: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU seconds of the longest loop iteration during a call."""
    task = asyncio.ensure_future(call())
    longest = 0.0
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    await task
    return longest


async def bench_once(path: Any) -> tuple[dict[str, float], float, int]:
    config = HTTPServiceConfig(namespace="github", base_url="http://api.test")
    registry = OperationRegistry(await from_openapi_file(path, config))
    documents = DocumentCache(Exposure(registry), title="GitHub", version="1")
    times: dict[str, float] = {}
    began = time.process_time()
    longest = await longest_turn(lambda: documents.get(None))
    times["first document"] = time.process_time() - began
    # Another mount point needs a new document, like another set of rights.
    times["document of another caller"] = await cpu_seconds(lambda: documents.get(None, "3.1", "/other"))

    async def cached() -> None:
        for _ in range(CALLS):
            await documents.get(Identity("somebody", scopes=["any"]))

    times["cached document"] = await cpu_seconds(cached) / CALLS
    body = (await documents.get(None)).body
    whole = msgspec.json.decode(body)
    began = time.process_time()
    msgspec.json.encode(whole)
    times["encode once"] = time.process_time() - began
    began = time.process_time()
    from_openapi(body, config)
    times["import back"] = time.process_time() - began
    return times, longest, len(body)


async def main() -> None:
    """Measure, print the ratios and save the results."""
    logging.getLogger("operations.schema").setLevel(logging.ERROR)
    package = npm_package("@octokit/openapi", "23.0.2")
    if package is None:
        return
    path = package / "generated" / "api.github.com.json"
    samples = [await bench_once(path) for _ in range(ROUNDS)]
    times = {name: statistics.median(taken[name] for taken, _, _ in samples) for name in samples[0][0]}
    longest = statistics.median(turn for _, turn, _ in samples)
    report("the document of 1,223 operations: CPU, as a multiple of encoding it once", times, "encode once")
    size = f"{samples[0][2] / 1e6:.1f} MB"
    print(f"  {size}; the longest loop iteration takes {longest * 1000:.1f} ms (median of {ROUNDS})")
    save("document", {"times": times, "longest_turn": longest, "bytes": samples[0][2]})


if __name__ == "__main__":
    asyncio.run(main())
