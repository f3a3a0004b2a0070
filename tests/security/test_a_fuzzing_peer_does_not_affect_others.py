"""Guarantee: no message of a peer without rights makes calls of others fail, or costs them much time or memory.

The hub, the fuzzing peer and an honest pair are a process each. `OPERATIONS_FAULT_SEED` and `OPERATIONS_FAULT_SECONDS`
repeat or change a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import AccessControl, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub.spoke import Spoke
from tests.calls.history import SCALE

AT_ONCE = 4
SLOWEST_SECONDS = 0.25
LONGEST_TURN = 0.05
"""CPU seconds for which the hub may let others wait."""
MOST_MEMORY = 50 << 20


@operation(id="shop.echo", type="query", access_control=AccessControl(required_scopes=["shop"]))
async def echo(text: str) -> str:
    return text


@contextlib.asynccontextmanager
async def program(module: str, *arguments: object) -> AsyncIterator[Process]:
    words = [sys.executable, "-m", f"tests.security.{module}", *map(str, arguments)]
    # The C library gives large blocks back as soon as they are free: what is measured is what the hub keeps.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_line(process: Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def memory_of(process: Process, field: str) -> int:
    """The resident memory of a process in bytes: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kilobytes) << 10


class HonestPair:
    """A worker and a caller at the hub under attack."""

    def __init__(self, port: int) -> None:
        self.spokes = [Spoke(f"ws://127.0.0.1:{port}/", token=token) for token in ("shop", "ada")]
        self.calls = 0
        self.slowest = 0.0

    async def call_until(self, attack: asyncio.Task[Any]) -> None:
        """Call until the attack is over."""
        worker_spoke, caller_spoke = self.spokes
        async with worker_spoke, caller_spoke:
            worker = CallHandler(OperationRegistry([echo]), worker_spoke)
            await worker.registered()
            pending = PendingRequestMap(caller_spoke)
            await asyncio.gather(*(self._call_in_turn(pending, attack) for _ in range(AT_ONCE)))
            await worker.close()
        assert [spoke.reconnects for spoke in self.spokes] == [0, 0]

    async def _call_in_turn(self, pending: PendingRequestMap, attack: asyncio.Task[Any]) -> None:
        while not attack.done():
            self.calls += 1
            text = str(self.calls)
            started = time.perf_counter()
            assert (await pending.call("shop.echo", {"text": text})).data == text
            self.slowest = max(self.slowest, time.perf_counter() - started)
            await asyncio.wait((attack,), timeout=0.002)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(3.0, marks=pytest.mark.slow, id="short"),
        pytest.param(300.0, marks=[pytest.mark.faults, pytest.mark.timeout(0)], id="long"),
    ],
)
async def test_an_honest_pair_is_served_while_a_peer_without_rights_sends_anything(seconds: float) -> None:
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    is_long = seconds > 60
    if is_long:
        seconds = float(os.environ.get("OPERATIONS_FAULT_SECONDS", seconds))
    print(f"OPERATIONS_FAULT_SEED={seed} OPERATIONS_FAULT_SECONDS={seconds:g}", flush=True)  # noqa: T201
    async with program("fuzzed_hub") as hub:
        port = await read_line(hub)
        before = memory_of(hub, "VmRSS")
        async with program("fuzzing_peer", port, seed, seconds) as fuzzer:
            attack = asyncio.create_task(read_line(fuzzer))
            pair = HonestPair(port)
            await pair.call_until(attack)
            sent = attack.result()
        grown, peak = (memory_of(hub, field) - before for field in ("VmRSS", "VmHWM"))
        assert hub.stdin is not None
        hub.stdin.close()
        counters = await read_line(hub)
        assert hub.stderr is not None
        assert await hub.stderr.read() == b""
    megabytes = f"{before >> 20} MB before, {grown >> 20} MB more after, {peak >> 20} MB more at the peak"
    print(f"{pair.calls} calls, slowest {pair.slowest:.3f} s; hub: {megabytes}; {counters}; sent: {sent}")  # noqa: T201
    assert sent["whole"] > 0
    assert counters["malformed"] > 0
    assert grown < MOST_MEMORY
    if is_long:
        assert counters["longest_turn"] < LONGEST_TURN
        assert peak < MOST_MEMORY
        assert pair.slowest < SLOWEST_SECONDS * SCALE
