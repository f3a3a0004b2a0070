"""`ops worker` and `ops call` over Redis and NATS, at the addresses and with the secrets of a configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from operations.cli import remote
from operations.cli.failures import CommandError
from operations.config.settings import TransportSettings
from tests.cli.driving import Project
from tests.cli.test_processes import line_with, running
from tests.nats_server import NatsServer
from tests.ports import free_ports
from tests.redis_servers import Server, shared_cluster

pytestmark = pytest.mark.slow
SECRET = "s3cret-of-the-bus"


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """A Redis and a NATS server that require a secret, with the transport table for each."""
    redis = Server("redis", "--requirepass", SECRET).start()
    nats = NatsServer(f'authorization {{ token: "{SECRET}" }}')
    nats.start()
    try:
        yield {
            "redis": f'url = "redis://:${{BUS_SECRET}}@127.0.0.1:{redis.port}"',
            "redis, as a token": f'url = "redis://127.0.0.1:{redis.port}"\ntoken = "${{BUS_SECRET}}"',
            "nats": f'url = "nats://127.0.0.1:{nats.port}"\ntoken = "${{BUS_SECRET}}"',
        }
    finally:
        redis.kill()
        nats.kill()


def on_bus(project: Project, table: str, secret: str = SECRET) -> Project:
    """A project with one transport, and the secret for it in the environment."""
    config = project.directory / "operations.toml"
    config.write_text(f"{config.read_text()}\n[transports.bus]\n{table}\n")
    project.environment["BUS_SECRET"] = secret
    return project


@pytest.mark.parametrize("bus", ["redis", "redis, as a token", "nats"])
def test_workers_and_calls_meet_on_a_bus(bus: str, addresses: dict[str, str], project: Project) -> None:
    on_bus(project, addresses[bus])
    with running(project, "worker", said="serving 11 operations") as (worker, _):
        called = project.run("call", "shop.quote", "item=tea", "count=2", "--url", "bus")
        assert called.code == 0, called.err
        assert called.data["total"] == 5.0
        assert "shop.quote\tquery\tbus\t" in project.run("ls", "--url", "bus").out
        streamed = project.run("sub", "shop.ticks", "--limit", "3", "--url", "bus")
        assert streamed.lines == [{"n": 0}, {"n": 1}, {"n": 2}]
        mapped = project.run("map", "other.double", "--url", "bus", stdin='{"value": 1}\n{"value": 2}\n')
        assert mapped.lines == [2.0, 4.0]
        assert project.run("call", "shop.fail", "--url", "bus").code == 5
        assert project.run("call", "shop.slow", "--timeout", "0.2", "--url", "bus").code == 7
        missing = project.run("call", "shop.qoute", "--url", "bus")
        assert missing.code == 3
        assert "did you mean shop.quote" in missing.err
        worker.send_signal(signal.SIGTERM)
        line_with(worker, "stopping")
        assert worker.wait(30) == 0
    gone = project.run("call", "shop.quote", "item=tea", "--url", "bus")
    assert gone.code == 6
    assert "no operations at" in gone.err
    assert "ops worker" in gone.err


def test_workers_and_calls_meet_on_a_cluster(project: Project) -> None:
    on_bus(project, f'url = "{shared_cluster("redis").url}"\noptions = {{ prefix = "{project.directory.name}" }}')
    with running(project, "worker", said="serving 11 operations"):
        assert project.run("call", "other.double", "value=2", "--url", "bus").data == 4.0


@pytest.mark.parametrize("bus", ["redis", "redis, as a token", "nats"])
@pytest.mark.parametrize(
    "words", [["worker"], ["call", "shop.quote", "--url", "bus", "--debug"]], ids=["worker", "call"]
)
def test_a_wrong_secret_is_refused_and_not_repeated(
    bus: str, words: list[str], addresses: dict[str, str], project: Project
) -> None:
    on_bus(project, addresses[bus], secret="not-the-s3cret-word")
    done = project.run(*words)
    assert done.code == 4
    assert "refused the connection" in done.err
    assert "not-the-s3cret-word" not in done.out + done.err


def test_an_address_of_a_server_is_not_that_of_its_transport(project: Project) -> None:
    done = project.run("ls", "--url", "http://me:s3cret@127.0.0.1:9/")
    assert done.code == 2
    assert "'http://127.0.0.1:9/' is not the address of a transport" in done.err
    assert "hint: the address of a server of 'ops serve' is ws://HOST:PORT/ws" in done.err


@pytest.mark.parametrize("scheme", ["redis", "nats", "ws"])
def test_a_refused_connection_is_reported(scheme: str, project: Project) -> None:
    url = f"{scheme}://127.0.0.1:{free_ports(1)[0]}/"
    done = project.run("call", "shop.quote", "--url", url)
    assert done.code == 6
    assert f"{url} cannot be reached: connection refused" in done.err
    with running(project, "worker", "--url", url, said="connecting") as (worker, _):
        assert "connection refused; retrying" in line_with(worker, "cannot be reached")


async def test_a_refused_connection_is_reported_when_the_time_limit_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def connecting() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(remote, "_CONNECT_TIMEOUT", 0.05)  # shorter than the second for which a server must refuse
    settings = TransportSettings(url=f"redis://127.0.0.1:{free_ports(1)[0]}")
    async with AsyncExitStack() as stack:
        with pytest.raises(CommandError, match="cannot be reached: connection refused"):
            await remote.connect_transport(stack, connecting(), settings)


def test_a_worker_reports_disconnects_and_reconnects(project: Project) -> None:
    server = NatsServer().start()
    try:
        with running(project, "worker", "--url", server.url, said="serving") as (worker, _):
            server.kill()
            assert "reconnecting" in line_with(worker, "disconnected")
            server.start()
            line_with(worker, "reconnected")
            assert project.run("call", "shop.quote", "item=tea", "--url", server.url).code == 0
    finally:
        server.kill()


def test_a_host_that_is_not_known_is_named(project: Project) -> None:
    done = project.run("call", "shop.quote", "--url", "redis://no-such-host.invalid")
    assert done.code == 6
    assert "unknown host no-such-host.invalid" in done.err


def test_unknown_transport_options_are_reported(addresses: dict[str, str], project: Project) -> None:
    on_bus(project, f"{addresses['redis']}\noptions = {{ heartbaet = 1 }}")
    done = project.run("call", "shop.quote", "--url", "bus")
    assert done.code == 2
    assert "heartbaet" in done.err
    assert SECRET not in done.err


@pytest.mark.parametrize("bus", ["redis", "nats", "ws"])
def test_invalid_options_are_reported(addresses: dict[str, str], project: Project, bus: str) -> None:
    address = addresses.get(bus, 'url = "ws://127.0.0.1:1"')
    on_bus(project, f"{address}\noptions = {{ heartbeat = 0 }}")
    done = project.run("call", "shop.quote", "--url", "bus")
    assert done.code == 2
    assert "127.0.0.1:" in done.err
    assert "heartbeat is 0: expected a number of seconds" in done.err
    assert SECRET not in done.err


def test_a_transport_of_another_package_is_found_by_its_scheme(addresses: dict[str, str], project: Project) -> None:
    nats_url, token = addresses["nats"].splitlines()
    on_bus(project, f"{nats_url.replace('nats:', 'pigeon:')}\n{token}")
    project.write("packages/pigeon-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    project.write(
        "packages/pigeon-1.0.dist-info/entry_points.txt", "[operations.transports]\npigeon = pigeon:connect\n"
    )
    project.write(
        "packages/pigeon.py",
        "from operations.pubsub import nats\n"
        "def connect(url, **options):\n"
        "    return nats.connect(url.replace('pigeon:', 'nats:'), **options)\n",
    )
    unknown = project.run("ls", "--url", "bus")
    assert unknown.code == 2
    assert "unknown scheme 'pigeon'" in unknown.err
    project.environment["PYTHONPATH"] = str(project.directory / "packages")
    with running(project, "worker", said="serving 11 operations"):
        called = project.run("call", "shop.quote", "item=tea", "count=2", "--url", "bus")
        assert called.code == 0, called.err
        assert called.data["total"] == 5.0
