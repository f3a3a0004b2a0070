"""Jobs while workers and the broker are killed: each ends in a result or a dead letter, and none is unaccounted for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from operations import CallError
from operations.jobs import JobLimits, Jobs, JobState
from operations.pubsub import connect
from tests.jobs.places import BUSES
from tests.jobs.worker import POISON, options
from tests.nats_server import NatsServer
from tests.redis_servers import Server
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
WORKERS = 3
SUBMITTERS = 40
TOGETHER = 500


def start_broker(kind: str) -> Any:
    """A broker that writes to disk before it confirms, so that data survives a kill."""
    if kind == "nats":
        return NatsServer().start()
    return Server("redis", "--appendonly", "yes", "--appendfsync", "always").start()


class Workers:
    """Worker processes, each of which is replaced when it ends."""

    def __init__(self, url: str, prefix: str) -> None:
        self._command = [sys.executable, "-m", "tests.jobs.worker", url, prefix]
        self._processes = [self._start() for _ in range(WORKERS)]
        self.kills = 0
        self.losses = 0

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        return subprocess.Popen(
            self._command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def replace(self) -> None:
        """Start another process for each that ended."""
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                self.losses += 1
                self._processes[index] = self._start()

    def kill(self, chance: random.Random) -> None:
        """Kill one of them."""
        self.kills += 1
        chance.choice(self._processes).kill()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def disturb(workers: Workers, broker: Any, chance: random.Random, every: float, calm: asyncio.Event) -> int:
    """Kill workers and the broker at random until it is calm; afterwards only replace what ends."""
    restarts = 0
    while True:
        await asyncio.sleep(every * chance.uniform(0.5, 1.5))
        await asyncio.to_thread(workers.replace)
        if calm.is_set():
            continue
        if chance.random() < 0.25:
            restarts += 1
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        else:
            workers.kill(chance)


class Submitted:
    """What was submitted: the ids that were returned, by input."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.refused: Counter[str] = Counter()

    async def submit(self, jobs: Jobs, values: list[int]) -> None:
        while values:
            value = values.pop()
            try:
                self.values[await jobs.submit("math.square", {"value": value})] = value
            except CallError as error:
                self.refused[str(error.code)] += 1
                values.append(value)


async def outcome(jobs: Jobs, job_id: str, turns: asyncio.Semaphore) -> Any:
    """The result of a job, or the code of its error; waits while the broker is down."""
    while True:
        async with turns:
            with contextlib.suppress(CallError):
                await jobs.wait(job_id, timeout=60)
            with contextlib.suppress(CallError):
                status = await jobs.status(job_id)
                if status.state is JobState.DONE:
                    return (await jobs.result(job_id)).data
                if status.is_final:
                    return status.code


async def run(kind: str, count: int, poison: int, every: float, seed: int) -> dict[str, Any]:
    """Submit jobs while workers and the broker are killed, and account for all of them."""
    broker, prefix, chance = start_broker(kind), f"f{os.urandom(4).hex()}", random.Random(seed)
    workers, calm, submitted = Workers(broker.url, prefix), asyncio.Event(), Submitted()
    disturbing = asyncio.create_task(disturb(workers, broker, chance, every, calm))
    try:
        async with connect(broker.url, prefix=prefix, **options(broker.url)) as transport:
            jobs = Jobs(transport, limits=JobLimits(jobs=10 * count))
            values = [POISON] * poison + list(range(count - poison))
            chance.shuffle(values)
            later = [values.pop() for _ in range(count // 2)]
            await asyncio.gather(*(submitted.submit(jobs, values) for _ in range(SUBMITTERS)))
            await until(lambda: workers.kills > 0)  # however fast the first half was
            await asyncio.gather(*(submitted.submit(jobs, later) for _ in range(SUBMITTERS)))
            calm.set()
            ids, turns = list(submitted.values), asyncio.Semaphore(TOGETHER)
            found = await asyncio.gather(*(outcome(jobs, each, turns) for each in ids))
            results = dict(zip(ids, found, strict=True))
            listed = await jobs.list(limit=10 * count)
    finally:
        disturbing.cancel()
        await asyncio.wait((disturbing,))
        workers.close()
        await asyncio.to_thread(broker.kill)
    states = Counter(job.state for job in listed)
    wrong = {each: results[each] for each, value in submitted.values.items() if results[each] != value * value}
    dead = {job.id for job in listed if job.state is JobState.DEAD}
    return {
        "accepted": len(ids),
        "states": dict(states),
        "listed": {job.id for job in listed} >= set(ids),
        "unfinished": [job for job in listed if not job.is_final],
        "wrong": {each: result for each, result in wrong.items() if each not in dead},
        "poison": [job_id for job_id, value in submitted.values.items() if value == POISON],
        "dead": dead,
        "attempts": max(job.attempts for job in listed),
        "kills": workers.kills,
        "losses": workers.losses,
        "refused": dict(submitted.refused),
    }


def check(told: dict[str, Any], count: int, poison: int) -> None:
    assert told["accepted"] == count
    assert told["listed"]
    assert told["unfinished"] == []
    assert told["wrong"] == {}
    assert set(told["poison"]) <= told["dead"]
    assert len(told["poison"]) == poison


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("kind", BUSES)
async def test_jobs_survive_the_loss_of_workers_and_of_the_broker(kind: str) -> None:
    told = await run(kind, 400, poison=1, every=0.3, seed=1)
    check(told, 400, 1)
    assert told["kills"] > 0


@pytest.mark.faults
@pytest.mark.fault(44)
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", BUSES)
async def test_ten_thousand_jobs_while_workers_and_the_broker_are_killed(kind: str) -> None:
    told = await run(kind, 10_000, poison=5, every=0.2, seed=2)
    sys.stdout.write(f"{kind}: { {name: value for name, value in told.items() if name not in ('poison', 'dead')} }\n")
    check(told, 10_000, 5)
    assert told["kills"] > 3
