"""A pytest plugin that says which collected tests show which fault on which transport, as JSON on a line of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls.faults.scenarios import TRANSPORTS

ROOT = Path(__file__).parent.parent.parent.parent
_MARK = "FAULTS "
Shown = dict[int, dict[str, list[str]]]
"""By number and transport, the names of the tests."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Called by pytest."""
    found = [entry for item in session.items for entry in _entries(item)]
    print(_MARK + json.dumps(found))  # noqa: T201


def _entries(item: pytest.Item) -> Iterator[tuple[int, str, str]]:
    for mark in item.iter_markers("fault"):
        for number in mark.args:
            for transport in _transports(item, mark):
                yield number, transport, item.nodeid.partition("[")[0]


def _transports(item: pytest.Item, mark: pytest.Mark) -> list[str]:
    """Where a test runs: as its mark says, else as its parameters do; "redis cluster" is redis."""
    if "on" in mark.kwargs:
        return str(mark.kwargs["on"]).split()
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    words = {str(value).split()[0].replace("valkey", "redis") for value in values if str(value)}
    return [transport for transport in TRANSPORTS if transport in words]


def collect() -> Shown:
    """Which tests show which fault, found by collecting them in a process of its own."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.calls.faults.collecting"]
    done = subprocess.run(
        [*command, "-m", "", "tests/calls", "tests/contracts", "tests/pubsub"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    shown: Shown = {}
    for number, transport, name in json.loads(lines[0].removeprefix(_MARK)):
        names = shown.setdefault(number, {}).setdefault(transport, [])
        if name not in names:
            names.append(name)
    return shown
