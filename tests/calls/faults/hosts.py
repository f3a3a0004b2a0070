"""Hosts and a separate network between them: network namespaces if the user may create them, else TCP proxies.

Namespaces are connected to two switches with one cable between them: a host can be unplugged, its connections reset, or
the whole network split. Nothing outside the namespaces is touched. With proxies, every host reaches the broker through
its own proxy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from tests.calls.proxy import Proxy
from tests.ports import free_ports

_SUBNET = "10.83.0"
_SIDES = ("left", "right")


class Network(Protocol):
    """Hosts and the network between them."""

    def address(self, host: str) -> str:
        """Return the address that a host listens at."""

    def reach(self, host: str, port: int, *, by: str) -> tuple[str, int]:
        """Return the address by which one host reaches a port of another."""

    def start(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        """Run a program on a host."""

    def drop(self, host: str) -> None:
        """Drop every packet from and to a host silently."""

    def reset(self, host: str) -> None:
        """Reset every connection of a host."""

    def heal(self, host: str) -> None:
        """Undo all faults of the network."""


def ip(*arguments: str) -> None:
    """Run `ip`; raise with its output if it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@functools.cache
def can_make_namespaces() -> bool:
    """Return whether this user may create network namespaces."""
    name = f"ops{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except OSError:
        return False
    return shutil.which("ss") is not None


class Namespaces:
    """Hosts that are network namespaces; each is on the left or the right switch."""

    def __init__(self, left: list[str], right: list[str]) -> None:
        self._prefix = f"ops{os.getpid()}-{os.urandom(2).hex()}-"
        self._sides = {**dict.fromkeys(left, "left"), **dict.fromkeys(right, "right")}
        self._addresses = {host: f"{_SUBNET}.{number}" for number, host in enumerate(self._sides, 1)}
        self._made: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Namespaces:
        try:
            for side in _SIDES:
                self._make(side)
                self._in(side, "link", "add", "switch", "type", "bridge")
                self._in(side, "link", "set", "switch", "up")
            self._plug("left", "cable", "right", "cable")
            self._in("left", "link", "set", "cable", "master", "switch")
            for host, side in self._sides.items():
                self._make(host)
                self._plug(host, "eth0", side, host)
                self._in(host, "addr", "add", f"{self._addresses[host]}/24", "dev", "eth0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()
        for name in self._made:
            ip("netns", "del", name)

    def _make(self, name: str) -> None:
        ip("netns", "add", self._prefix + name)
        self._made.append(self._prefix + name)
        self._in(name, "link", "set", "lo", "up")

    def _in(self, name: str, *arguments: str) -> None:
        ip("-n", self._prefix + name, *arguments)

    def _plug(self, host: str, device: str, side: str, port: str) -> None:
        """Connect a device of a host to a port of a switch."""
        ends = ("netns", self._prefix + host), ("netns", self._prefix + side)
        ip("link", "add", device, *ends[0], "type", "veth", "peer", "name", port, *ends[1])
        self._in(host, "link", "set", device, "up")
        self._in(side, "link", "set", port, "up", "master", "switch")

    def address(self, host: str) -> str:
        return self._addresses[host]

    def reach(self, host: str, port: int, *, by: str) -> tuple[str, int]:
        return self._addresses[host], port

    def start(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._prefix + host, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
        )
        self._started.append(process)
        return process

    def drop(self, host: str) -> None:
        self._in(self._sides[host], "link", "set", host, "down")

    def reset(self, host: str) -> None:
        command = ["ip", "netns", "exec", self._prefix + host, "ss", "-K", "dst", f"{_SUBNET}.0/24"]
        subprocess.run(command, capture_output=True, check=False, timeout=20)

    def heal(self, host: str) -> None:
        self._in(self._sides[host], "link", "set", host, "up")

    def split(self) -> None:
        """Disconnect the two switches."""
        self._in("left", "link", "set", "cable", "down")

    def join(self) -> None:
        """Connect the two switches again."""
        self._in("left", "link", "set", "cable", "up")


class Proxied:
    """Hosts that are local processes; each reaches the broker through its own proxy."""

    def __init__(self, proxies: dict[str, Proxy]) -> None:
        self._proxies = proxies
        self._started: list[subprocess.Popen[bytes]] = []

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def reach(self, host: str, port: int, *, by: str) -> tuple[str, int]:
        proxy = self._proxies[by]
        proxy.target = port
        return "127.0.0.1", proxy.port

    def start(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr)
        self._started.append(process)
        return process

    def _links(self, host: str) -> list[Proxy]:
        """Return the proxies of one host; those of all hosts for the broker, which the others reach."""
        return [self._proxies[host]] if host in self._proxies else list(self._proxies.values())

    def drop(self, host: str) -> None:
        for proxy in self._links(host):
            proxy.swallow()

    def reset(self, host: str) -> None:
        for proxy in self._links(host):
            proxy.reset()

    def heal(self, host: str) -> None:
        for proxy in self._links(host):
            proxy.passing.set()

    def end(self) -> None:
        """Stop all processes and proxies."""
        for process in self._started:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.asynccontextmanager
async def four_hosts(kind: str) -> AsyncIterator[Network]:
    """A broker, a caller and two workers."""
    others = ["caller", "one", "two"]
    if kind == "namespaces":
        with Namespaces(["broker", "caller"], ["one", "two"]) as network:
            yield network
        return
    async with contextlib.AsyncExitStack() as stack:
        proxied = Proxied({host: await stack.enter_async_context(Proxy(0)) for host in others})
        try:
            yield proxied
        finally:
            proxied.end()


class Cluster(NamedTuple):
    """Three servers of a cluster, and two hosts for workers and one for a caller, in a network that can be split."""

    network: Network
    clients: dict[str, str]
    """The client addresses of the servers."""
    routes: dict[str, str]
    """The addresses at which the servers listen for each other."""
    advertised: dict[str, str]
    """The addresses by which the servers reach each other."""
    split: Callable[[], None]
    join: Callable[[], None]


@contextlib.asynccontextmanager
async def cluster_of_three(kind: str) -> AsyncIterator[Cluster]:
    """Split the network: namespaces in two halves; behind proxies, each server from both others."""
    hosts = ("n1", "n2", "n3")
    if kind == "namespaces":
        with Namespaces(["n1", "caller", "one"], ["n2", "n3", "two"]) as network:
            clients = {host: f"{network.address(host)}:4222" for host in hosts}
            routes = {host: f"{network.address(host)}:6222" for host in hosts}
            yield Cluster(network, clients, routes, routes, network.split, network.join)
        return
    ports = free_ports(6)
    async with contextlib.AsyncExitStack() as stack:
        proxies = {
            host: await stack.enter_async_context(Proxy(port)) for host, port in zip(hosts, ports[3:], strict=True)
        }
        proxied = Proxied(proxies)
        stack.callback(proxied.end)
        yield Cluster(
            proxied,
            {host: f"127.0.0.1:{port}" for host, port in zip(hosts, ports[:3], strict=True)},
            {host: f"127.0.0.1:{port}" for host, port in zip(hosts, ports[3:], strict=True)},
            {host: f"127.0.0.1:{proxy.port}" for host, proxy in proxies.items()},
            lambda: proxied.drop("everybody"),
            lambda: proxied.heal("everybody"),
        )
