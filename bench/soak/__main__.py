"""`make soak`: fifteen minutes at half the maximum rate on each transport; reports growth, saves and draws samples.

OPERATIONS_SOAK_SECONDS sets the duration, OPERATIONS_SOAK_TRANSPORTS the transports (`redis,nats,websocket`), and
OPERATIONS_SOAK_RATES the calls per second of each (`redis=9000,…`), which skips the search for the maximum.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.nats_server import NatsServer
from tests.ports import free_ports
from tests.redis_servers import Server

from bench.measure import save
from bench.soak.processes import sample_process
from bench.soak.timeline import Sample, draw, find_excess, find_growth

SECONDS = float(os.environ.get("OPERATIONS_SOAK_SECONDS", "900"))
TRANSPORTS = os.environ.get("OPERATIONS_SOAK_TRANSPORTS", "redis,nats,websocket").split(",")
RATES = dict(pair.split("=") for pair in os.environ.get("OPERATIONS_SOAK_RATES", "").split(",") if pair)
WHOLE = 900.0
"""Seconds. The chart in the guide is drawn only from runs of at least this length."""
EVERY = max(0.5, min(5.0, SECONDS / 60))
PICTURE = Path(__file__).parent.parent.parent / "docs" / "guide" / "soak.svg"
Look = Callable[[], dict[str, float]]


class Child:
    """A process of the soak, and its output."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "bench.soak.processes", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.told: dict[str, Any] = {}
        self.samples: list[Sample] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                if "sample" in said:
                    self.samples.append({"at": time.monotonic(), **said["sample"]})
                else:
                    self.told |= said
                self._news.notify_all()

    def wait_for(self, word: str, seconds: float = 30.0) -> Any:
        """Wait until the process prints a value for the key `word`, and return the value."""
        with self._news:
            if not self._news.wait_for(lambda: word in self.told, seconds):
                raise RuntimeError(f"a process of the soak did not report {word!r}")
            return self.told[word]

    def end(self) -> None:
        """Stop the process if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(20)
        self._thread.join(5)


@contextlib.contextmanager
def child(*arguments: object) -> Iterator[Child]:
    """Run a process for the duration of the block."""
    process = Child(*arguments)
    try:
        yield process
    finally:
        process.end()


@contextlib.contextmanager
def redis() -> Iterator[tuple[str, Look]]:
    """Start a Redis server; yield its URL and a function that samples it."""
    server = Server("valkey").start()

    def look() -> dict[str, float]:
        seen = sample_process(server.pid)  # first, because `command` opens a connection
        keyspace = server.command("INFO", "keyspace").decode()
        keys, expiring = (int(keyspace.partition(word)[2].partition(",")[0] or 0) for word in ("keys=", "expires="))
        # Keys that expire are ids of stored requests, kept for ten minutes: `find_excess` checks them.
        stored = server.command("XLEN", "operations:{soak}:stored")
        return {**seen, "entries": keys - expiring + stored, "kept": expiring}

    try:
        yield server.url, look
    finally:
        server.remove()


@contextlib.contextmanager
def nats() -> Iterator[tuple[str, Look]]:
    """Start a NATS server; yield its URL and a function that samples it."""
    (port,) = free_ports(1)
    server = NatsServer(f'http: "127.0.0.1:{port}"').start()

    def look() -> dict[str, float]:
        assert server.process is not None
        with urlopen(f"http://127.0.0.1:{port}/varz") as varz, urlopen(f"http://127.0.0.1:{port}/jsz") as jsz:
            entries = json.load(varz)["subscriptions"] + json.load(jsz)["messages"]
        return {**sample_process(server.process.pid), "entries": entries}

    try:
        yield server.url, look
    finally:
        server.remove()


@contextlib.contextmanager
def websocket() -> Iterator[tuple[str, Look | None]]:
    """Start a hub, which samples itself; yield its URL and a function that returns its last sample."""
    with child("hub", "", SECONDS + 60, EVERY) as hub:
        yield hub.wait_for("ready"), lambda: {key: value for key, value in hub.samples[-1].items() if key != "at"}


MIDDLES: dict[str, Callable[[], contextlib.AbstractContextManager[tuple[str, Any]]]] = {
    "redis": redis,
    "nats": nats,
    "websocket": websocket,
}


def soak(name: str) -> dict[str, Any]:
    """Soak one transport: find its maximum rate, then run at half of it."""
    with MIDDLES[name]() as (url, look), child("worker", url, SECONDS + 45, EVERY) as worker:
        worker.wait_for("ready")
        if name in RATES:
            rate = float(RATES[name])
        else:
            with child("most", url) as most:
                rate = most.wait_for("most", 90) / 2
        print(f"{name}: {rate:,.0f} calls a second for {SECONDS:,.0f} s", flush=True)
        middle: list[Sample] = []
        with child("caller", url, rate, SECONDS, EVERY) as caller:
            caller.wait_for("ready")
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(EVERY)
                middle.append({"at": time.monotonic(), **look()})
            tally = caller.wait_for("tally", 90)
    answered = tally.get("answered", 0)
    processes = {"caller": caller.samples, "worker": worker.samples, "middle": middle}
    begun = caller.samples[0]["at"]
    for samples in processes.values():
        samples[:] = [{**each, "at": each["at"] - begun} for each in samples if begun <= each["at"] <= end]
    return {
        "rate": rate,
        "seconds": SECONDS,
        "kept": answered / (rate * SECONDS),
        "calls per core": {
            process: answered
            / SECONDS
            * (samples[-1]["at"] - samples[0]["at"])
            / (samples[-1]["cpu"] - samples[0]["cpu"])
            for process, samples in processes.items()
        },
        "tally": tally,
        "counters": caller.told["counters"],
        "left": caller.told["left"],
        "processes": processes,
    }


def report(name: str, result: dict[str, Any]) -> list[str]:
    """Print the results of one transport and return its problems."""
    tally = result["tally"]
    problems = [*find_growth(result["processes"]), *find_excess(result)]
    wrong = [f"{name}: {problem}" for problem in problems]
    failed = {what: number for what, number in tally.items() if what.startswith("failed")}
    if failed:
        wrong.append(f"{name}: {failed}")
    if result["left"]:
        wrong.append(f"{name}: {result['left']} calls are still in flight")
    print(f"{name}: {result['kept']:.2f} of the rate was kept; {tally}; {result['counters']}", flush=True)
    shown = ", ".join(f"{rate:,.0f} {process}" for process, rate in result["calls per core"].items())
    print(f"  calls per second of one core: {shown}", flush=True)
    for process, samples in result["processes"].items():
        last = samples[-1]
        held = ", ".join(f"{key} {last[key]:,.0f}" for key in last if key not in ("at", "cpu"))
        print(f"  {process} at the end: {held}", flush=True)
    return wrong


def main() -> int:
    """Soak each transport; print, save and draw the results."""
    results: dict[str, Any] = {}
    wrong: list[str] = []
    for name in TRANSPORTS:
        results[name] = soak(name)
        wrong += report(name, results[name])
        save("soak", results)
        if SECONDS >= WHOLE:
            PICTURE.write_text(draw(results))
    print("\n".join(wrong) or "nothing grew and nothing failed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
