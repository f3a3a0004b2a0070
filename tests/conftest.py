"""Settings of every test run: the signals of a foreground job, and hypothesis without a time limit per example.

A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP. Programs
inherit an ignored signal but no handler, so a handler here gives every program that a test starts the default.

A connection that a test leaves open fails a later test, in which it is collected. The report of that test names the
tests that connected to the same address.
"""

from __future__ import annotations

import re
import signal
import sys
import tracemalloc  # noqa: F401  # pytest imports it in a hook that can interrupt its own import
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A slow example means only that the machine is busy.
settings.register_profile("operations", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("operations")


def pytest_configure() -> None:
    """Replace ignored signals by handlers: Python's own for SIGINT, one that does nothing for the others."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_running = ""
_connected: dict[tuple[Any, ...], list[str]] = {}
"""The last tests that connected to an address."""


def _note_connection(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        tests = _connected.setdefault(arguments[1][:2], [])
        if _running not in tests:
            tests[:] = [*tests[-4:], _running]


sys.addaudithook(_note_connection)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the test that runs."""
    global _running
    _running = item.nodeid
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the tests that opened a connection which was never closed."""
    report = yield
    if report.failed and "unclosed" in report.longreprtext:
        for host, port in set(re.findall(r"addr=\('([^']+)', (\d+)", report.longreprtext)):
            if tests := _connected.get((host, int(port))):
                report.sections.append((f"Tests that connected to {host}:{port}", "\n".join(tests)))
    return report
