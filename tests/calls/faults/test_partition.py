"""Network partitions between four hosts: no call hangs, none runs twice, and calls resume afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operations import CallError
from tests import nats_server, redis_servers
from tests.calls.faults.hosts import Cluster, Network, can_make_namespaces, cluster_of_three, four_hosts
from tests.calls.faults.stages import HEARTBEAT, JournaledHistory
from tests.calls.history import SCALE
from tests.ports import free_ports

CALL_SECONDS = 12 * HEARTBEAT
WITHIN = 15 * SCALE
PROGRAM = (sys.executable, "-m", "tests.calls.faults.programs")
HOSTS = ("one", "caller", "broker")
LONG = [pytest.mark.faults, pytest.mark.timeout(300)]
KINDS = ["namespaces", pytest.param("proxies", marks=LONG)] if can_make_namespaces() else ["proxies"]


def broker_command(transport: str, host: str, port: int, folder: Path) -> tuple[str, list[str]]:
    """The URL scheme of a broker, and its start command."""
    if transport == "redis":
        options = ["--port", str(port), "--bind", host, "--save", "", "--protected-mode", "no", "--dir", str(folder)]
        return "redis", [redis_servers.find_server("redis"), *options]
    if transport == "nats":
        return "nats", [nats_server.binary(), "-a", host, "-p", str(port), "-l", str(folder / "nats.log")]
    return "ws", [*PROGRAM, "hub", str(port), str(HEARTBEAT), host]


class Watcher:
    """Reads the outcomes of the calls of a caller's process."""

    def __init__(self, process: subprocess.Popen[bytes], history: JournaledHistory) -> None:
        self._process = process
        self._history = history
        self._news = asyncio.Condition()
        self.answered = 0
        self.failed = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await asyncio.to_thread(self._process.stdout.readline):
            self._note(json.loads(line))
            async with self._news:
                self._news.notify_all()

    def _note(self, told: dict[str, Any]) -> None:
        key, error = told["key"], None
        if told["code"] is not None:
            error = CallError(told["code"], "", {"executed": told["executed"]})
        self.failed += error is not None
        self.answered += error is None
        if "query" in key:
            self._history.repeatable.add(key)
        self._history.outcomes.setdefault(key, []).append(key if error is None else error)
        self._history.late += told["late"]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition on the outcomes."""
        try:
            async with asyncio.timeout(WITHIN), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.answered} answered, {self.failed} failed") from None

    async def until_answered(self, more: int, what: str) -> None:
        """Wait for a number of further successful calls."""
        before = self.answered
        await self.until(lambda: self.answered >= before + more, what)

    async def stop(self) -> None:
        """Stop the caller, wait for its last calls, and check the history."""
        self._process.terminate()
        async with asyncio.timeout(WITHIN):
            await self._reading
        assert await asyncio.to_thread(self._process.wait, 20) == 0


def start_worker(network: Network, host: str, url: str, journal: Path) -> subprocess.Popen[bytes]:
    return network.start(host, *PROGRAM, "worker", url, str(HEARTBEAT), str(journal), f"worker_{host}")


def start_caller(network: Network, url: str, history: JournaledHistory) -> Watcher:
    process = network.start("caller", *PROGRAM, "caller", url, str(HEARTBEAT), str(CALL_SECONDS))
    return Watcher(process, history)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", [("caller",), pytest.param(HOSTS, marks=LONG)], ids=len)
@pytest.mark.parametrize("transport", ["redis", "nats", "websocket"])
async def test_a_partition_and_its_healing(transport: str, kind: str, hosts: tuple[str, ...], tmp_path: Path) -> None:
    history = JournaledHistory(tmp_path / "journal")
    async with four_hosts(kind) as network:
        (port,) = free_ports(1)
        scheme, command = broker_command(transport, network.address("broker"), port, tmp_path)
        network.start("broker", *command)
        urls = {}
        for host in ("caller", "one", "two"):
            address, reached = network.reach("broker", port, by=host)
            urls[host] = f"{scheme}://{address}:{reached}"
        workers = [start_worker(network, host, urls[host], history.journal) for host in ("one", "two")]
        watcher = start_caller(network, urls["caller"], history)
        await watcher.until_answered(40, "before anything happened")
        for host in hosts:
            failed = watcher.failed
            network.drop(host)
            if host == "one":
                await watcher.until_answered(40, "with one worker unplugged")
            else:
                await watcher.until(lambda failed=failed: watcher.failed >= failed + 8, f"with the {host} unplugged")  # type: ignore[misc]
            network.heal(host)
            await watcher.until_answered(40, f"after the {host} was plugged in again")
        for host in hosts:
            network.reset(host)
            await watcher.until_answered(40, f"after the connections of the {host} were reset")
        await watcher.stop()
        for worker in workers:
            worker.kill()
            worker.wait(10)
    history.read()
    history.check(timing=False)


CLUSTER = """
listen: "{client}"
server_name: "{name}"
ping_interval: "{ping}s"
ping_max: 2
cluster {{ name: "split", listen: "{route}", advertise: "{advertised}", routes: [{routes}] }}
"""


def routes_of(log: Path) -> int:
    """Return the number of cluster routes that a server has opened, from its log."""
    text = log.read_text() if log.exists() else ""
    return text.count("Route connection created") - text.count("Router connection closed")


def lost_routes_of(log: Path) -> int:
    """Return the number of cluster routes that a server has closed as stale, from its log."""
    return len(re.findall("Stale Connection|Write Deadline|Slow Consumer|[Rr]ead [Ee]rror|timeout", log.read_text()))


async def until_logged(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def start_cluster(cluster: Cluster, folder: Path) -> None:
    routes = ", ".join(f'"nats://{place}"' for place in cluster.advertised.values())
    for host, client in cluster.clients.items():
        settings = {"client": client, "route": cluster.routes[host], "advertised": cluster.advertised[host]}
        config = folder / f"{host}.conf"
        config.write_text(CLUSTER.format(**settings, name=host, ping=f"{max(1, HEARTBEAT):.0f}", routes=routes))
        cluster.network.start(host, nats_server.binary(), "-c", str(config), "-l", str(folder / f"{host}.log"))


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cluster_of_three_that_is_split_and_joined(kind: str, tmp_path: Path) -> None:
    history = JournaledHistory(tmp_path / "journal")
    async with cluster_of_three(kind) as cluster:
        start_cluster(cluster, tmp_path)
        network, log = cluster.network, tmp_path / "n1.log"
        url = f"nats://{cluster.clients['n1']}"
        workers = [start_worker(network, "one", url, history.journal)]
        workers.append(start_worker(network, "two", f"nats://{cluster.clients['n2']}", history.journal))
        watcher = start_caller(network, url, history)
        await until_logged(lambda: routes_of(log) >= 2)
        for number in range(1, 3):
            await watcher.until_answered(40, f"before split {number}")
            lost = lost_routes_of(log)
            cluster.split()
            await until_logged(lambda lost=lost: lost_routes_of(log) > lost)  # type: ignore[misc]
            # The caller has a server and a worker on its side.
            await watcher.until_answered(40, f"during split {number}")
            cluster.join()
            await until_logged(lambda: routes_of(log) >= 2)
        await watcher.until_answered(40, "after both splits")
        await watcher.stop()
        for worker in workers:
            worker.kill()
            worker.wait(10)
    history.read()
    history.check(timing=False)
