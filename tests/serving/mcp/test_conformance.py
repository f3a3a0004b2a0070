"""The conformance suite's server scenarios, run against operations that our application serves."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from operations.serving.app import app
from tests.asgi_server import serving_here
from tests.serving.mcp.fixture import REGISTRY
from tests.sources.mcp.peers import NODE, node_server

TOTAL = re.compile(r"^Total: (\d+) passed, (\d+) failed", re.M)


@pytest.mark.conformance
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("version", "checks"), [("2025-11-25", 84), ("2026-07-28", 152)])
async def test_every_check_of_the_server_suite_passes(version: str, checks: int, tmp_path: Path) -> None:
    async with serving_here(app(REGISTRY)) as url:
        process = await asyncio.create_subprocess_exec(
            node_server("conformance"),
            *("server", "--url", url.replace("ws:", "http:") + "mcp", "--suite", "all"),
            *("--spec-version", version, "-o", str(tmp_path)),
            env={**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
    total = TOTAL.search(output)
    assert total is not None, output[-3000:]
    assert _unmet(tmp_path) == []
    assert (int(total[1]), int(total[2]), process.returncode) == (checks, 0, 0), output[-6000:]


def _unmet(folder: Path) -> list[str]:
    """What failed or was warned of, by name."""
    found: list[str] = []
    for path in folder.glob("*/checks.json"):
        for check in json.loads(path.read_text()):
            if check["status"] not in ("SUCCESS", "INFO", "SKIPPED"):
                found.append(f"{check['id']}: {check.get('errorMessage')}")
    return found
