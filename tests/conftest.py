"""Tests that kill, freeze and cut processes and networks are run once more where they fail.

They wait for events, but within limits, and a busy machine may be slower than any limit. What fails three times is
broken; what was run again is told at the end of the run, with the reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_LINES = 12
_LIVELY = {"calls", "cli", "contracts", "pubsub"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs against other processes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in _LIVELY:
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were run again: what fails now and then may be a fault of ours as well."""
    again: list[pytest.TestReport] = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section("run again")
    for report in again:
        terminalreporter.write_line(f"{report.nodeid}, {report.when}")
        for line in report.longreprtext.splitlines()[-_LINES:]:
            terminalreporter.write_line(f"    {line}")
