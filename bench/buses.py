"""Calls over a broker against other libraries: the same comparison for every broker, in separate processes.

The benchmark measures rates at several concurrencies, and two workers against one. It also measures how the CPU time of
a call (caller, workers and broker together) grows with the number of workers and operations. For the growth, all
workers run in one process, each with separate connections and heartbeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import chain
from typing import Any, NamedTuple

from bench.calls import CONCURRENCIES, ROUNDS, TEXT, Figures, Wanted, echo, measure, run, summarise
from bench.comparisons import Comparison, keep
from bench.measure import save
from bench.soak.processes import sample_process
from operations import Operation, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub import connect

OURS = "operations"
COMPUTE_SECONDS = 0.004
IDLE_SECONDS = 4.0
ONE_AT_A_TIME, EIGHT_EACH, SIXTY_FOUR = "one call at a time", "8 callers for each worker", "64 callers in all"
GROWTH: dict[str, Sequence[tuple[int, int, int]]] = {
    ONE_AT_A_TIME: ((1, 10, 1), (64, 10, 1)),
    EIGHT_EACH: ((1, 10, 8), (8, 10, 64), (64, 10, 512)),
    SIXTY_FOUR: ((1, 10, 64), (8, 10, 64), (64, 10, 64)),
    "10, 1,000 and 10,000 operations": ((1, 10, 64), (1, 1_000, 64), (1, 10_000, 64)),
}
"""Loads as (workers, operations, callers); the first of each kind is the baseline."""


class Contender(NamedTuple):
    """One way to make calls over a broker."""

    serve: Callable[..., Coroutine[Any, Any, None]]
    call: Callable[..., Coroutine[Any, Any, Figures]]
    needs: str = "json"
    """The library that the contender requires."""
    concurrencies: Sequence[int] = CONCURRENCIES


class Bus(NamedTuple):
    """The comparison over one broker."""

    module: str
    """The module that starts the processes."""
    contenders: Mapping[str, Contender]
    wanted: Sequence[Wanted]
    """Targets: our rate relative to a contender's."""


@operation(id="bench.compute", type="query")
async def compute(text: str) -> int:
    """Use a fixed CPU time, as a CPU-bound handler does."""
    end = time.thread_time() + COMPUTE_SECONDS
    rounds = 0
    while time.thread_time() < end:
        rounds += 1
    return rounds


def many_operations(count: int) -> list[Operation[Any]]:
    """Return `count` operations, echo and compute among them."""

    def make(number: int) -> Operation[Any]:
        @operation(id=f"bench.other{number}", type="query")
        async def other(text: str) -> str:
            return text

        return other

    return [echo, compute, *(make(number) for number in range(count - 2))]


async def until_stdin_closes() -> None:
    """Print that the worker is ready, and wait until standard input closes."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def serve_ours(url: str, workers: int = 1, count: int = 2) -> None:
    """Run one or more of our workers in this process."""
    operations = many_operations(count)
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            transport = await stack.enter_async_context(connect(url))
            handler = CallHandler(OperationRegistry(operations), transport, concurrency=4096)
            stack.push_async_callback(handler.close)
            await transport.flush()
        async with connect(url) as probe:
            await PendingRequestMap(probe).call("bench.echo", {"text": ""}, wait=True)
        await until_stdin_closes()


async def call_ours(url: str, concurrency: int, what: str = "bench.echo") -> Figures:
    """Return the figures of our client."""
    async with connect(url) as transport:
        pending = PendingRequestMap(transport)
        return await measure(lambda: pending.call(what, {"text": TEXT}), concurrency)


async def spend(url: str, concurrency: int, calls: int) -> float:
    """Return the CPU seconds of `calls` calls at the caller, after as many warm-up calls."""
    async with connect(url) as transport:
        pending = PendingRequestMap(transport)

        async def work(left: Iterator[int]) -> None:
            for _ in left:
                await pending.call("bench.echo", {"text": TEXT})

        for _ in range(2):
            left = iter(range(calls))
            start = time.process_time()
            await asyncio.gather(*(work(left) for _ in range(concurrency)))
        return time.process_time() - start


class BrokerBenchmark:
    """One run of the comparison on one server."""

    def __init__(self, bus: Bus, url: str, server: int) -> None:
        self._bus = bus
        self._url = url
        self._server = server

    @contextmanager
    def worker(self, name: str = OURS, *options: int) -> Iterator[int]:
        """Run a worker in a separate process within the block; yield its process id."""
        command = [sys.executable, "-m", self._bus.module, "--server", name, self._url, *map(str, options)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the worker of {name} did not start")
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(20)
            process.stdout.close()

    def apart(self, *arguments: object) -> Any:
        """Run a client in a separate process, with a fresh heap, and return the result that it prints."""
        command = [sys.executable, "-m", self._bus.module, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
        return json.loads(done.stdout.splitlines()[-1])

    def rates(self) -> dict[str, dict[int, Figures]]:
        """Return the figures of every contender at every concurrency, measured in interleaved rounds."""
        results: dict[str, dict[int, list[Figures]]] = {}
        contenders = {name: each for name, each in self._bus.contenders.items() if is_installed(name, each.needs)}
        for number in range(ROUNDS):
            for name, contender in contenders.items():
                print(f"round {number + 1}: {name}", flush=True)
                with self.worker(name):
                    for concurrency in contender.concurrencies:
                        figures = self.apart("--client", name, self._url, concurrency)
                        results.setdefault(name, {}).setdefault(concurrency, []).append(figures)
        return summarise(results)

    def two_workers(self) -> float:
        """Return the rate of two workers relative to one, with a CPU-bound handler."""
        ratios: list[float] = []
        for _ in range(ROUNDS):
            with self.worker():
                one = self.apart("--client", OURS, self._url, 16, "bench.compute")["rate"]
                with self.worker():
                    ratios.append(self.apart("--client", OURS, self._url, 16, "bench.compute")["rate"] / one)
        return statistics.median(ratios)

    def growth(self) -> dict[str, dict[str, float]]:
        """Return the CPU time of a call under each load, relative to the first load of its kind."""
        taken: dict[tuple[int, int, int], list[float]] = {}
        for _ in range(ROUNDS):
            for load in sorted({load for loads in GROWTH.values() for load in loads}):
                taken.setdefault(load, []).append(self._cost(*load))
        grown = {}
        for kind, loads in GROWTH.items():
            first = statistics.median(taken[loads[0]])
            grown[kind] = {
                f"{workers} workers, {operations:,} operations": statistics.median(taken[load]) / first
                for load in loads
                for workers, operations, _ in (load,)
            }
        return grown

    def _cost(self, workers: int, operations: int, callers: int) -> float:
        """Return the CPU seconds of one call: caller, workers and server together."""
        calls = 2_000 if callers == 1 else 10_000
        with self.worker(OURS, workers, operations) as pid:
            before = self._spent(pid)
            caller: float = self.apart("--spend", self._url, callers, calls)
            # Half of the time: workers and server have also served the warm-up calls, which are as many.
            return (caller + (self._spent(pid) - before) / 2) / calls

    def _spent(self, pid: int) -> float:
        return sample_process(pid)["cpu"] + sample_process(self._server)["cpu"]

    def idle(self) -> dict[str, float]:
        """Return the share of a core that idle workers and their server use."""
        shares = {}
        for workers in (1, 64):
            with self.worker(OURS, workers) as pid:
                time.sleep(1.0)
                before = self._spent(pid)
                time.sleep(IDLE_SECONDS)
                shares[f"{workers} idle"] = (self._spent(pid) - before) / IDLE_SECONDS
        return shares

    def report(self, name: str, only: str | None = None) -> None:
        """Run the comparison, or one half of it; print and save the results."""
        if only != "growth":
            save(name, self._report_rates())
        if only != "rates":
            save(f"{name}-growth", self._report_growth())

    def _report_rates(self) -> dict[str, Any]:
        results = self.rates()
        print(f"\n{'':<20}" + "".join(f"{f'c{concurrency}':>12}" for concurrency in CONCURRENCIES))
        for contender, figures in results.items():
            print(f"{contender:<20}" + "".join(f"{each['rate']:>12,.0f}" for each in figures.values()))
        keep(self._bus.module, chain.from_iterable(each.compare(results) for each in self._bus.wanted))
        return {"results": results}

    def _report_growth(self) -> dict[str, Any]:
        shared, grown, idle = self.two_workers(), self.growth(), self.idle()
        work = "Two workers with a handler that computes"
        keep(f"{self._bus.module} --only growth", [Comparison(work, "one worker", "rate", shared, at_least=1.7)])
        for kind, costs in grown.items():
            print(f"  CPU of a call, {kind}: " + ", ".join(f"{load} {cost:.2f}" for load, cost in costs.items()))
        print(
            "  share of a core when idle: " + ", ".join(f"{share:.3f} for {workers}" for workers, share in idle.items())
        )
        return {"two workers over one": shared, "cost": grown, "idle": idle}


def is_installed(name: str, module: str) -> bool:
    """Whether a contender's library is installed; print a message if not."""
    try:
        __import__(module)
    except ImportError:
        print(f"{module} is not installed: skipping {name}")
        return False
    return True


def run_part(bus: Bus, options: argparse.Namespace) -> bool:
    """Run the child process that the arguments select; return whether they select one."""
    if options.server:
        name, url, *numbers = options.server
        run(bus.contenders[name].serve(url, *map(int, numbers)))
    elif options.client:
        name, url, concurrency, *what = options.client
        print(json.dumps(run(bus.contenders[name].call(url, int(concurrency), *what))))
    elif options.spend:
        url, callers, calls = options.spend
        print(json.dumps(run(spend(url, int(callers), int(calls)))))
    else:
        return False
    return True


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", nargs="+")
    parser.add_argument("--client", nargs="+")
    parser.add_argument("--spend", nargs=3)
    parser.add_argument("--only", choices=["rates", "growth"], help="one half of the comparison")
    return parser
