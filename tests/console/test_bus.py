"""Jobs and workers of a real Redis in the console, in a real Chromium: dead letters, retries, killed workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import Identity, OperationRegistry
from operations.calls import from_call
from operations.identity import Principal, StaticTokens
from operations.jobs import Jobs
from operations.pubsub import connect
from operations.serving import HTTPServer, app
from tests.console.test_console import ASSETS, NODE
from tests.jobs.worker import options
from tests.redis_servers import shared_server

ROOT = Path(__file__).parent.parent.parent
TOKENS = {"eye-token": Principal(Identity("eye", ("operations:watch", "jobs.admin")))}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextlib.asynccontextmanager
async def _workers(url: str, prefix: str) -> AsyncIterator[None]:
    """Two worker processes; one that ends is replaced."""
    command = [sys.executable, "-m", "tests.jobs.worker", url, prefix]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    quiet = {"cwd": ROOT, "env": environment, "stderr": asyncio.subprocess.DEVNULL}

    async def keep_one() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(*command, **quiet)  # type: ignore[arg-type]
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    keeping = [asyncio.create_task(keep_one()) for _ in range(2)]
    try:
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


async def _walk(node: str, url: str) -> dict[str, Any]:
    script = str(ROOT / "tests" / "console" / "walk_bus.mjs")
    walk = await asyncio.create_subprocess_exec(
        node, script, f"{url}/console/", "eye-token", stdout=asyncio.subprocess.PIPE
    )
    told, _ = await walk.communicate()
    return dict(json.loads(told))


async def test_dead_letters_are_retried_and_lost_workers_are_shown() -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "axe-core").exists():
        pytest.skip("the browser is not installed: `make test` does it, or `npm ci` in tests/node")
    if not (ASSETS / "index.html").exists():
        pytest.skip("the console is not built: `make console` does it")
    url, prefix = shared_server("redis").url, f"console{os.urandom(4).hex()}"
    registry = OperationRegistry()
    async with (
        connect(url, prefix=prefix, **options(url)) as bus,
        from_call(bus, registry=registry) as remote,
        Jobs(bus) as jobs,
        _workers(url, prefix),
    ):
        await remote.ready("math.square", timeout=60)
        served = app(registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False, jobs=jobs)
        async with HTTPServer(served, "127.0.0.1:0") as server:
            seen = await _walk(node, server.url)
    assert "failed" not in seen, seen["failed"]
    assert (seen["errors"], seen["axe"]) == ([], [])
    assert "worker, redis" in seen["worker"]
    assert "/ 32" in seen["worker"]
    assert seen["states"] == "1 dead, 1 done"
    assert "lost" in seen["lost"]
