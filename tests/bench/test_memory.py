"""Operations that are not used take little memory: sources have thousands, of which a program calls a few."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURE = """
from bench import memory
memory.COUNT = 2_000
print(memory.measure(memory.{build})[1])
"""


@pytest.mark.parametrize("build", ["functions", "endpoints"])
def test_an_operation_takes_at_most_two_kilobytes_before_its_first_use(build: str) -> None:
    # In a new process: in this one, other tests may have changed what the interpreter shares between instances.
    command = [sys.executable, "-c", MEASURE.format(build=build)]
    measured = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(measured.stdout) <= 2_048
