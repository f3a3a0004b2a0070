"""Real NATS servers on free loopback ports: the one in PATH, else the one that pip installed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_ports

STARTED_WITHIN = 20.0
MAX_PAYLOAD = 16 << 20


@functools.cache
def binary() -> str:
    """The server's program; a missing one fails the tests that need it."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if found is None:
        raise RuntimeError("no nats-server is installed: run `make test`, or put one on PATH")
    return found


class NatsServer:
    """One server process, its configuration and its store; it keeps its port when it is started again."""

    def __init__(
        self, config: str = "", *, port: int = -1, jetstream: bool = True, max_payload: int = MAX_PAYLOAD
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nats-"))
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        # Written to disk immediately, so that stored messages survive a kill.
        store = f'jetstream {{ store_dir: "{self.folder}/store", sync_interval: always }}\n' if jetstream else ""
        self._config = (
            f'{store}max_payload: {max_payload}\nports_file_dir: "{self.folder}"\n'
            f'log_file: "{self.folder}/log"\n{config}\n'
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def start(self) -> NatsServer:
        """Start it, and return once it listens."""
        config = self.folder / "nats.conf"
        config.write_text(self._config)
        command = [binary(), "-c", str(config), "-a", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ports = self.folder / f"nats-server_{self.process.pid}.ports"
        end = time.monotonic() + STARTED_WITHIN
        while not ports.exists() or not ports.read_text().strip():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"nats-server did not start:\n{self.log[-2000:]}")
            time.sleep(0.005)
        urls = json.loads(ports.read_text())["nats"]
        self.port = int(urls[0].rpartition(":")[2])
        return self

    def kill(self) -> None:
        """Kill it."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)
            self.process = None

    def terminate(self) -> None:
        """Let it shut down."""
        self._signal(signal.SIGTERM)
        if self.process is not None:
            self.process.wait(20)
            self.process = None

    def announce_shutdown(self) -> None:
        """Enter lame duck mode: clients are notified, and disconnected later."""
        self._signal(signal.SIGUSR2)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def remove(self) -> None:
        """End it and its store."""
        self.thaw()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def nats_server(config: str = "", **options: int | bool) -> Iterator[NatsServer]:
    """A server for the length of a block."""
    server = NatsServer(config, **options)  # type: ignore[arg-type]
    try:
        yield server.start()
    finally:
        server.remove()


@contextlib.contextmanager
def nats_cluster(size: int = 3) -> Iterator[list[NatsServer]]:
    """Servers that form one cluster."""
    ports = free_ports(2 * size)
    clients, routes = ports[:size], ports[size:]
    everybody = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    servers = [
        NatsServer(
            f'server_name: "n{number}"\n'
            f'cluster {{ name: "test", listen: "127.0.0.1:{routes[number]}", routes: [{everybody}] }}',
            port=clients[number],
        )
        for number in range(size)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.remove()


@functools.cache
def shared_server() -> NatsServer:
    """One server for all tests that do not disturb it; each has its own subjects."""
    server = NatsServer().start()
    atexit.register(server.remove)
    return server
