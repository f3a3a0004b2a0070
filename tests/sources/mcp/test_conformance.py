"""The conformance suite's client scenarios, run through our client."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.sources.mcp.peers import HERE, NODE, node_server

TOTAL = re.compile(r"^Total: (\d+) passed, (\d+) failed", re.M)
SCENARIO = re.compile(r"^\S+ (\S+): (\d+) passed, (\d+) failed", re.M)


@pytest.mark.conformance
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("version", "scenarios"), [("2025-11-25", 18), ("2026-07-28", 15)])
async def test_every_check_of_the_core_suite_passes(version: str, scenarios: int, tmp_path: Path) -> None:
    client = f"{sys.executable} {HERE / 'conformance_client.py'}"
    process = await asyncio.create_subprocess_exec(
        node_server("conformance"),
        *("client", "--command", client, "--suite", "core", "--spec-version", version),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    total = TOTAL.search(output)
    assert total is not None, output[-3000:]
    assert (int(total[2]), process.returncode) == (0, 0), output[-6000:]
    # A scenario without a check would count as passed.
    passed = {name: int(count) for name, count, _ in SCENARIO.findall(output)}
    assert len(passed) >= scenarios
    assert min(passed.values()) > 0
    assert int(total[1]) > 200
