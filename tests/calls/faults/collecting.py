"""A pytest plugin that prints the tests of each fault and transport as one line of JSON."""

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
"""The names of the tests, by fault number and transport."""


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
    """Return the transport of a test, from its mark or its parameters; "redis cluster" is redis."""
    if "on" in mark.kwargs:
        return str(mark.kwargs["on"]).split()
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    words = {str(value).split()[0].replace("valkey", "redis") for value in values if str(value)}
    return [transport for transport in TRANSPORTS if transport in words]


def collect() -> Shown:
    """Collect the tests of each fault in a separate process."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.calls.faults.collecting"]
    done = subprocess.run(
        [*command, "-m", "", "tests/calls", "tests/contracts", "tests/jobs", "tests/pubsub"],
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
