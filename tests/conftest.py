"""Settings of every test run: the signals of a foreground job, and hypothesis without a time limit per example.

A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP. Programs
inherit an ignored signal but no handler, so a handler here gives every program that a test starts the default.
"""

from __future__ import annotations

import signal

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
