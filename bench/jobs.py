"""Jobs on Redis against taskiq and Celery: submit, run in one worker process, read the results.

`python -m bench.jobs` starts a Redis server and, for each contender, one worker process and one submitter process. A
round submits all jobs as fast as the library allows and ends when every result was read. Celery's worker is its own
program with the solo pool, one process without threads; taskiq's receiver and ours run one event loop. Celery's
submitter is synchronous, like its interface.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.measure import save

OURS = "operations"
JOBS = 4_000
ROUNDS = 5
TEXT = "hello" * 8
KEEP, WAIT = 600, 300
"""Seconds for which results are stored, and time limit of a wait."""


async def serve_ours(url: str) -> None:
    from operations import OperationRegistry, operation
    from operations.calls import CallHandler
    from operations.pubsub import connect

    @operation(id="bench.echo", durable=True)
    async def echo(text: str) -> str:
        return text

    async with connect(url) as transport:
        CallHandler(OperationRegistry([echo]), transport)
        await asyncio.Event().wait()


async def submit_ours(url: str, count: int, rounds: int, together: int | None) -> list[float]:
    from operations.jobs import JobLimits, Jobs
    from operations.pubsub import connect

    async with connect(url) as transport:
        jobs = Jobs(transport, limits=JobLimits(jobs=10_000_000))

        async def submit() -> str:
            return await jobs.submit("bench.echo", {"text": TEXT}, keep=KEEP)

        async def read(job_id: str) -> None:
            assert (await jobs.wait(job_id, timeout=WAIT)).data == TEXT

        return await measure(submit, read, count, rounds, together or 1_000)


async def measure(submit: Any, read: Any, count: int, rounds: int, together: int) -> list[float]:
    """Return the seconds of each round after a warm-up: submit all jobs, read all results, `together` at a time."""

    async def round_of(share: int) -> None:
        shares = await asyncio.gather(*(submit_some(share) for _ in range(together)))
        submitted = list(itertools.chain.from_iterable(shares))
        await asyncio.gather(*(read_some(submitted[start::together]) for start in range(together)))

    async def submit_some(share: int) -> list[Any]:
        return [await submit() for _ in range(share)]

    async def read_some(tasks: list[Any]) -> None:
        for task in tasks:
            await read(task)

    await round_of(1)
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await round_of(count // together)
        found.append(time.perf_counter() - begun)
    return found


def taskiq_broker(url: str) -> Any:
    from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

    broker: Any = ListQueueBroker(url, socket_timeout=None).with_result_backend(
        RedisAsyncResultBackend(url, result_ex_time=KEEP)
    )

    async def echo(text: str) -> str:
        return text

    return broker, broker.register_task(echo, task_name="bench:echo")


async def serve_taskiq(url: str) -> None:
    from taskiq.receiver import Receiver

    broker, _ = taskiq_broker(url)
    broker.is_worker_process = True
    await broker.startup()
    await Receiver(broker, max_async_tasks=4096, run_startup=False).listen(asyncio.Event())


async def submit_taskiq(url: str, count: int, rounds: int, together: int | None) -> list[float]:
    broker, echo = taskiq_broker(url)
    await broker.startup()

    async def read(task: Any) -> None:
        result = await task.wait_result(check_interval=0.01, timeout=WAIT)
        assert result.return_value == TEXT

    return await measure(lambda: echo.kiq(TEXT), read, count, rounds, together or 200)


def celery_app(url: str) -> Any:
    import celery

    app = celery.Celery("bench", broker=url, backend=url)
    app.conf.update(result_expires=KEEP, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)

    def echo(text: str) -> str:
        return text

    return app, app.task(name="bench.echo")(echo)


def serve_celery(url: str) -> None:
    app, _ = celery_app(url)
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"])


def submit_celery(url: str, count: int, rounds: int, together: int | None) -> list[float]:
    _, echo = celery_app(url)

    def round_of(share: int) -> None:
        results = [echo.delay(TEXT) for _ in range(share)]
        assert all(result.get(timeout=WAIT) == TEXT for result in results)

    round_of(64)
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        round_of(count)
        found.append(time.perf_counter() - begun)
    return found


CONTENDERS: dict[str, tuple[Any, Any, str]] = {
    OURS: (serve_ours, submit_ours, "operations"),
    "taskiq": (serve_taskiq, submit_taskiq, "taskiq_redis"),
    "Celery": (serve_celery, submit_celery, "celery"),
}


def part(name: str, role: str, url: str, count: int, rounds: int, together: int | None) -> None:
    """Run the worker or the submitter of a contender in this process."""
    serve, submit, _ = CONTENDERS[name]
    outcome = serve(url) if role == "serve" else submit(url, count, rounds, together)
    if asyncio.iscoroutine(outcome):
        outcome = asyncio.run(outcome)
    if role == "submit":
        print(json.dumps(outcome))


def run(name: str, url: str, count: int, together: int | None) -> float | None:
    """Return the jobs per second of one contender in one round, after a warm-up round; None if it failed."""
    command = [sys.executable, "-m", "bench.jobs", "--part", name, "--url", url, "--jobs", str(count)]
    command += [*(["--together", str(together)] if together else []), "--role"]
    worker = subprocess.Popen([*command, "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run([*command, "submit"], check=False, capture_output=True, text=True, timeout=600)
    finally:
        worker.terminate()
        worker.wait(30)
    if done.returncode:
        print(f"{name}: failed\n{done.stderr[-2_000:]}", flush=True)
        return None
    seconds: float = json.loads(done.stdout.splitlines()[-1])[0]
    return count / seconds


def compare(url: str, count: int, rounds: int, together: int | None) -> dict[str, list[float]]:
    """Return the jobs per second of each contender and round, in interleaved rounds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (_, _, module) in CONTENDERS.items():
            rate = run(name, url, count, together) if importlib.util.find_spec(module) is not None else None
            if rate is not None:
                found.setdefault(name, []).append(rate)
                print(f"{name:<12} {rate:>9,.0f} jobs/s", flush=True)
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part")
    parser.add_argument("--role", choices=["serve", "submit"])
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--together", type=int, help="jobs in flight (default: 1,000 for operations, 200 for taskiq)")
    options = parser.parse_args()
    if options.part:
        part(options.part, options.role, options.url, options.jobs, 1, options.together)
        return
    from tests.redis_servers import Server

    server = Server("redis").start()
    try:
        found = compare(server.url, options.jobs, options.rounds, options.together)
    finally:
        server.remove()
    for name, rates in found.items():
        ratios = [ours / rate for ours, rate in zip(found[OURS], rates, strict=False)]
        print(f"{name:<12} {statistics.median(rates):>9,.0f} jobs/s (median)", flush=True)
        if name != OURS:
            print(f"{statistics.median(ratios):.1f} times {name} (target: at least 5)")
    save("jobs", found)


if __name__ == "__main__":
    main()
