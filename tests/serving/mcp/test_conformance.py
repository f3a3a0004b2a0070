"""The conformance suite's server scenarios, run against operations that our application serves."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from operations import OperationRegistry
from operations.jobs import Jobs
from operations.serving import HTTPServer, app
from tests.serving.mcp.fixture import REGISTRY
from tests.serving.mcp.task_fixture import TASK_OPERATIONS
from tests.sources.mcp.peers import NODE, node_server

TOTAL = re.compile(r"^Total: (\d+) passed, (\d+) failed", re.M)


@pytest.mark.conformance
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("version", "checks"), [("2025-11-25", 84), ("2026-07-28", 152)])
async def test_every_check_of_the_server_suite_passes(version: str, checks: int, tmp_path: Path) -> None:
    async with HTTPServer(app(REGISTRY), "127.0.0.1:0") as server:
        process = await asyncio.create_subprocess_exec(
            node_server("conformance"),
            *("server", "--url", f"{server.url}/mcp", "--suite", "all"),
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


TASK_SCENARIOS = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""The scenarios of the tasks extension and the number of their checks."""


@pytest.mark.conformance
@pytest.mark.timeout(240)
async def test_every_check_of_the_tasks_extension_passes(tmp_path: Path) -> None:
    registry = OperationRegistry(TASK_OPERATIONS)
    passed: dict[str, int] = {}
    async with Jobs(registry) as jobs, HTTPServer(app(registry, jobs=jobs), "127.0.0.1:0") as server:
        for scenario in TASK_SCENARIOS:
            process = await asyncio.create_subprocess_exec(
                node_server("conformance"),
                *("server", "--url", f"{server.url}/mcp", "--scenario", scenario),
                *("--spec-version", "2026-07-28", "--force", "-o", str(tmp_path / scenario)),
                env={**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output = (await process.communicate())[0].decode()
            assert _unmet(tmp_path / scenario) == [], output[-3000:]
            checks = [
                each for path in (tmp_path / scenario).glob("*/checks.json") for each in json.loads(path.read_text())
            ]
            passed[scenario] = sum(each["status"] == "SUCCESS" for each in checks)
    assert passed == TASK_SCENARIOS


def _unmet(folder: Path) -> list[str]:
    """Return the names of failed checks and of warnings."""
    found: list[str] = []
    for path in folder.glob("*/checks.json"):
        for check in json.loads(path.read_text()):
            if check["status"] not in ("SUCCESS", "INFO", "SKIPPED"):
                found.append(f"{check['id']}: {check.get('errorMessage')}")
    return found
