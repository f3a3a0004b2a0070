"""Ctrl-C at any time, also during startup: exit code 130, no output and no traceback."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from operations.cli.runner import ENTRY
from tests.cli.driving import OPS, Project

STARTS = 60
LONGEST = 0.15
OURS = re.compile(r'File "[^"]*(/operations/|_operations_entry\.py", line \d+, in (?!<module>))')
"""A traceback of ours. The entry's own first lines set the handler: an interrupt before that cannot be caught."""


def start_and_interrupt(project: Project, after: float, *words: str) -> tuple[int, str]:
    """Exit code and output of a command that is interrupted some seconds after its start."""
    process = project.start(*words, stdout=subprocess.DEVNULL)
    time.sleep(after)  # the test is about the moment of the interrupt
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said.decode()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "doctor"])
def test_an_interrupt_during_startup_prints_no_traceback(words: str, project: Project) -> None:
    seed = random.randrange(10**9)
    moments = random.Random(seed)
    ends = [start_and_interrupt(project, moments.uniform(0, LONGEST), words) for _ in range(STARTS)]
    for code, said in ends:
        context = f"seed {seed}: {code}\n{said}"
        assert not OURS.search(said), context
        if said:  # Python's own start, or the lines of the script before its first import
            # CPython may report an interrupt of its own initialisation as another error.
            assert "KeyboardInterrupt" in said or said.startswith("Fatal Python error: init"), context
            assert code in (-signal.SIGINT, 0, 1, 2, 130), context
        else:
            assert code in (0, 130, -signal.SIGINT), context
    assert any(code == 130 for code, _ in ends), f"seed {seed}"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_an_interrupt_at_any_time_exits_silently_with_130() -> None:
    done = run_python(f"import {ENTRY}, os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not reached')")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_entry_imports_no_further_modules(tmp_path: object) -> None:
    done = run_python(
        f"import sys\nbefore = set(sys.modules)\nimport {ENTRY}\nprint(sorted(set(sys.modules) - before))"
    )
    assert done.stdout == f"['{ENTRY}']\n"


def test_ignored_interrupts_stay_ignored() -> None:
    done = run_python(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"import {ENTRY}, os\nos.kill(os.getpid(), signal.SIGINT)\nprint('reached')"
    )
    assert (done.returncode, done.stdout) == (0, "reached\n")


def test_an_interrupt_before_the_command_has_started_leaves_no_warning() -> None:
    done = run_python(
        "import asyncio\nfrom operations.cli import runner\n"
        "async def command(): return 0\n"
        "def interrupted(runner, main): raise KeyboardInterrupt\n"
        "asyncio.Runner.run = interrupted\n"
        "try:\n    runner.run(command())\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_both_commands_start_in_the_entry() -> None:
    for name in ("ops", "operations"):
        with open(os.path.join(os.path.dirname(OPS), name)) as script:
            assert f"from {ENTRY} import program" in script.read()


@pytest.mark.parametrize("words", [["ls"], ["call", "shop.slow", "seconds=0"]], ids=" ".join)
def test_an_interrupt_while_sources_are_opened_exits_silently_with_130(words: list[str], project: Project) -> None:
    """A module interrupts the program while it is imported, so that the moment is always the same."""
    project.write(
        "shop/interrupting.py", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    )
    done = project.run(*words)
    assert (done.code, done.err) == (130, "")


def test_an_interrupt_while_closing_prints_no_traceback(project: Project) -> None:
    project.write(
        "shop/atexit_.py",
        "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n",
    )
    project.run("ls")
    done = project.run("call", "shop.quote", "item=tea", "--quiet")
    assert (done.code, done.err) == (130, "")
    assert done.data["item"] == "tea"
