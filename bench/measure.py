"""Timing of several contenders on a noisy machine: interleaved rounds, medians, ratios."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


Clock = Callable[[], float]


async def time_calls(
    contenders: Mapping[str, Callable[[], Awaitable[object]]],
    *,
    rounds: int = 15,
    seconds: float = 0.05,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Return the seconds of one call of each contender: the median over interleaved rounds.

    For work in one process, use `time.process_time` as the clock: other load on the machine affects it less.
    """
    counts = {name: await _calibrate(call, seconds, clock) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            samples[name].append(await _time(call, counts[name], clock))
    return {name: statistics.median(taken) for name, taken in samples.items()}


def time_processes(commands: Mapping[str, list[str]], *, rounds: int = 9) -> dict[str, float]:
    """Return the CPU seconds (user and system) of each command: the median over interleaved rounds."""
    samples: dict[str, list[float]] = {name: [] for name in commands}
    # Bytecode is cached, as for an installed package; the first round writes it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"{name}: {' '.join(command)} ended with {process.returncode}")
            samples[name].append(usage.ru_utime + usage.ru_stime)
    return {name: statistics.median(taken[1:]) for name, taken in samples.items()}


def report(title: str, times: Mapping[str, float], base: str) -> None:
    """Print each contender's time as a multiple of the base's."""
    print(f"\n{title}")
    width = max(map(len, times))
    for name, taken in sorted(times.items(), key=lambda pair: pair[1]):
        print(f"  {name:<{width}}  {taken / times[base]:10.2f} x")


def save(name: str, results: object) -> None:
    """Save results as JSON, for comparison with later runs."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")


async def _calibrate(call: Callable[[], Awaitable[object]], seconds: float, clock: Clock) -> int:
    await _time(call, 10, clock)  # warm-up: compilation on first use is not measured
    count = 1
    while True:
        taken = await _time(call, count, clock) * count
        if taken >= seconds / 4:
            return max(1, round(count * seconds / taken))
        count *= 4


async def _time(call: Callable[[], Awaitable[object]], count: int, clock: Clock) -> float:
    start = clock()
    for _ in range(count):
        await call()
    return (clock() - start) / count
