"""The Redis transport on real servers: URLs, logins, TLS, guarantees of queues, Sentinel and Cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from operator import gt
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.pubsub import DeliveryRefused, connect
from operations.pubsub.connection_errors import UNTRUSTED
from operations.pubsub.redis import RedisTransport
from operations.pubsub.redis.addresses import RedisNode, parse_address
from operations.pubsub.redis.servers import slot_of
from operations.testing import error_of
from tests.certificates import make_certificate
from tests.receiving import into
from tests.redis_servers import Cluster, Sentinel, Server, own_server, shared_cluster, shared_server, wait_for
from tests.waiting import until

ENGINES = ["redis", "valkey"]


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest) -> Server:
    return shared_server(request.param)


@pytest.fixture
def prefix() -> str:
    return os.urandom(8).hex()


@pytest.mark.parametrize(
    ("url", "nodes", "more"),
    [
        ("redis://localhost", [("localhost", 6379)], {}),
        ("redis://h:1/3", [("h", 1)], {"database": 3}),
        ("redis://h?db=2", [("h", 6379)], {"database": 2}),
        ("redis://ada:p%40ss@h", [("h", 6379)], {"username": "ada", "password": "p@ss"}),
        ("redis://:word@h", [("h", 6379)], {"username": None, "password": "word"}),
        ("rediss://[::1]:7", [("::1", 7)], {"tls": True}),
        ("unix:///run/redis.sock?db=1", [("/run/redis.sock", 0)], {"database": 1}),
        ("redis+unix://ada:x@/run/redis.sock", [("/run/redis.sock", 0)], {"username": "ada"}),
        ("redis+cluster://a:1,b:2", [("a", 1), ("b", 2)], {"arrangement": "cluster"}),
        ("redis+sentinel://a,b:2/main/4", [("a", 26379), ("b", 2)], {"service": "main", "database": 4}),
    ],
)
def test_urls_are_read(url: str, nodes: list[tuple[str, int]], more: dict[str, Any]) -> None:
    address = parse_address(url)
    assert address.nodes == tuple(RedisNode(*node) for node in nodes)
    for name, value in more.items():
        assert getattr(address, name) == value


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:6379", "not a Redis URL"),
        ("http://localhost", "unknown scheme 'http'"),
        ("redis://h:port", "'port' is not a number"),
        ("redis://h/first", "the database 'first' is not a number"),
        ("redis+sentinel://h", "it has no service"),
        ("redis+cluster://h/3", "only the database 0"),
    ],
)
def test_invalid_urls_are_refused(url: str, says: str) -> None:
    with pytest.raises(CallError, match=says):
        parse_address(url)


def test_an_address_does_not_show_its_password() -> None:
    assert "secret" not in repr(parse_address("redis://ada:secret@h"))


def test_a_missing_library_names_the_extra() -> None:
    code = "import sys; sys.modules['hiredis'] = None; from operations.pubsub import connect; connect('redis://h')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: hiredis is not installed: pip install 'operations[redis]'"


async def exchange(one: RedisTransport, two: RedisTransport) -> None:
    """A message each way: through a queue, and to an inbox."""
    asked: list[bytes] = []
    answered: list[bytes] = []
    two.listen("work.some", into(asked.append), group="workers.some")
    one.listen(f"inbox.{one.peer}", into(answered.append))
    for _ in range(2_000):
        refused: list[str] = []
        one.send("work.some", b"question", refused.append)
        await until(lambda refused=refused: bool(asked or refused))  # type: ignore[misc]
        if asked:
            break
        await asyncio.sleep(0.01)
    two.send(f"inbox.{one.peer}", b"answer")
    await until(lambda: bool(answered))
    assert (asked, answered) == ([b"question"], [b"answer"])


async def test_a_transport_is_opened_by_its_url(server: Server, prefix: str) -> None:
    async with connect(server.url, prefix=prefix) as one, connect(server.url, prefix=prefix) as two:
        await exchange(one, two)


async def test_databases_and_unix_sockets(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    async with own_server("redis", "--unixsocket", str(path)):
        url = f"unix://{path}?db=3"
        async with RedisTransport(url, prefix=prefix) as one, RedisTransport(url, prefix=prefix) as two:
            await exchange(one, two)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_password_is_required_if_the_server_has_one(engine: str, prefix: str) -> None:
    async with own_server(engine, "--requirepass", "word") as server:
        for login in ("", "ada:word@", ":wrong@"):
            with pytest.raises(CallError) as caught:
                await RedisTransport(f"redis://{login}127.0.0.1:{server.port}").__aenter__()
            assert caught.value.code is ErrorCode.ACCESS_DENIED
            assert "Redis refused the connection" in caught.value.message
        url = f"redis://:word@127.0.0.1:{server.port}"
        async with RedisTransport(url, prefix=prefix) as one, RedisTransport(url, prefix=prefix) as two:
            await exchange(one, two)


@contextlib.asynccontextmanager
async def tls_proxy(target: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """TLS in front of a server that has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        try:
            await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        finally:
            writer.close()
            inner_writer.close()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    proxy = await asyncio.start_server(start, "127.0.0.1", 0, ssl=context)
    yield proxy.sockets[0].getsockname()[1]
    proxy.close()
    if tasks:
        await asyncio.wait(tasks, timeout=5)
    for task in tasks:
        task.cancel()


async def test_tls_is_used_and_checked(prefix: str, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with tls_proxy(shared_server("redis").port, certificate, key) as port:
        url = f"rediss://127.0.0.1:{port}"
        believing = ssl.create_default_context(cafile=certificate)
        async with (
            RedisTransport(url, prefix=prefix, tls=believing) as one,
            RedisTransport(url, prefix=prefix, tls=believing) as two,
        ):
            await exchange(one, two)
        error = await error_of(RedisTransport(url).__aenter__())
        assert (error.code, error.details["reason"]) == (ErrorCode.UNAVAILABLE, UNTRUSTED)
        assert f"127.0.0.1:{port}" in error.message


async def test_a_missing_database_is_reported_immediately() -> None:
    error = await error_of(RedisTransport(shared_server("redis").url + "/99").__aenter__())
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    assert "database 99" in error.message


async def test_connecting_waits_for_a_server_that_is_not_running_yet(prefix: str) -> None:
    server = Server()
    transport = RedisTransport(server.url, prefix=prefix)
    opening = asyncio.create_task(transport.__aenter__())
    await until(lambda: transport.failures > 0)
    try:
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(30):
            await opening
        await exchange(transport, transport)
    finally:
        await transport.close()
        server.remove()


async def test_a_missing_worker_is_reported_immediately_and_a_dead_workers_registration_does_not_count(
    server: Server, prefix: str
) -> None:
    reasons: list[str] = []
    async with RedisTransport(server.url, prefix=prefix) as caller:
        caller.send("work.some", b"x", reasons.append)
        await until(lambda: len(reasons) == 1)
        # A worker that died: its registration still exists, but has expired.
        server.command("ZADD", f"{prefix}:{{some}}:workers", 1, "dead")
        caller.send("work.some", b"x", reasons.append)
        await until(lambda: len(reasons) == 2)
    assert reasons == ["no worker listens at work.some"] * 2
    assert server.command("EXISTS", f"{prefix}:{{some}}:queue") == 0


async def test_a_queue_without_workers_is_deleted(server: Server, prefix: str) -> None:
    server.command("ZADD", f"{prefix}:{{some}}:workers", 10**15, "silent")
    async with RedisTransport(server.url, prefix=prefix) as caller:
        caller.send("work.some", b"x", lambda reason: None)
        await until(lambda: server.command("LLEN", f"{prefix}:{{some}}:queue") == 1)
        assert 0 < server.command("PTTL", f"{prefix}:{{some}}:queue") <= 60_000


async def test_a_worker_that_stops_leaves_the_rest_to_others(server: Server, prefix: str) -> None:
    taken: dict[str, list[bytes]] = {"one": [], "two": []}
    async with (
        RedisTransport(server.url, prefix=prefix) as caller,
        RedisTransport(server.url, prefix=prefix) as first,
        RedisTransport(server.url, prefix=prefix) as second,
    ):
        stop = first.listen("work.some", into(taken["one"].append), group="w")
        second.listen("work.some", into(taken["two"].append), group="w")
        await until(lambda: server.command("ZCARD", f"{prefix}:{{some}}:workers") == 2)
        lost: list[str] = []
        for number in range(500):
            caller.send("work.some", b"%d" % number, lost.append)
            if number == 200:
                stop()
                before = len(taken["one"])
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(taken["one"]) + len(taken["two"]) + len(lost) == 500)
        assert lost == []
        assert len(taken["one"]) == before
        assert sorted(map(int, taken["one"] + taken["two"])) == list(range(500))
        assert server.command("ZCARD", f"{prefix}:{{some}}:workers") == 1


async def test_a_burst_is_shared_by_all_waiting_workers(server: Server, prefix: str) -> None:
    def beats() -> list[float]:
        """The time of each worker's last heartbeat."""
        return [float(server.command("ZSCORE", f"{prefix}:{{some}}:workers", end.peer)) for end in (first, second)]

    one: list[bytes] = []
    two: list[bytes] = []
    options: dict[str, Any] = {"prefix": prefix, "heartbeat": 0.3}  # a worker may be delayed by other tests
    async with (
        RedisTransport(server.url, **options) as caller,
        RedisTransport(server.url, **options) as first,
        RedisTransport(server.url, **options) as second,
    ):
        first.listen("work.some", into(one.append), group="w")
        second.listen("work.some", into(two.append), group="w")
        await until(lambda: server.command("ZCARD", f"{prefix}:{{some}}:workers") == 2)
        for _ in range(2):  # each worker learns at its next heartbeat that it is not alone
            before = beats()
            await until(lambda before=before: all(map(gt, beats(), before)))  # type: ignore[misc]
        for number in range(100):
            caller.send("work.some", b"%d" % number, pytest.fail)
        await until(lambda: len(one) + len(two) == 100)
    assert min(len(one), len(two)) >= 20


async def test_one_worker_takes_from_many_queues_on_one_connection(server: Server, prefix: str) -> None:
    taken: list[bytes] = []
    async with RedisTransport(server.url, prefix=prefix) as worker, RedisTransport(server.url, prefix=prefix) as caller:
        for number in range(20):
            worker.listen(f"work.space{number}", into(taken.append), group="w")
        await until(lambda: server.command("ZCARD", f"{prefix}:{{space19}}:workers") == 1)
        for number in range(20):
            for count in range(50):
                caller.send(f"work.space{number}", b"%d-%d" % (number, count), pytest.fail)
        await until(lambda: len(taken) == 1_000)
        clients = server.command("CLIENT", "LIST").decode()
        assert clients.count(f" name={worker.peer} ") == 2  # the main connection, and one for blocking commands


async def test_a_server_that_forgot_the_scripts_is_sent_them_again(server: Server, prefix: str) -> None:
    async with RedisTransport(server.url, prefix=prefix) as one, RedisTransport(server.url, prefix=prefix) as two:
        server.command("SCRIPT", "FLUSH")
        await exchange(one, two)


async def test_the_messages_of_one_loop_iteration_arrive_in_order(server: Server, prefix: str) -> None:
    got: list[bytes] = []
    async with RedisTransport(server.url, prefix=prefix) as one, RedisTransport(server.url, prefix=prefix) as two:
        two.listen("somewhere", into(got.append))
        await until(lambda: server.command("PUBSUB", "NUMSUB", f"{prefix}:somewhere")[1] == 1)
        sent = [b"%d" % number * (1 + number % 5 * 2_000) for number in range(1, 2_000)]
        for message in sent:
            one.send("somewhere", message)
        await until(lambda: len(got) == len(sent))
    assert got == sent


def test_only_listeners_at_work_addresses_have_a_group() -> None:
    transport = RedisTransport()
    with pytest.raises(ValueError, match="expected a group for"):
        transport.listen("work.some", lambda message, _: None)
    with pytest.raises(ValueError, match="expected a group for"):
        transport.listen("control.some", lambda message, _: None, group="g")


CALLER_RULES = (
    "on >word resetchannels &{prefix}:inbox.ada.* &{prefix}:workers &{prefix}:asks &{prefix}:control.* "
    "&{prefix}:peer.* ~{prefix}:* -@all +hello +ping +eval +evalsha +time +zcount +rpush +pexpire "
    "+publish +subscribe +unsubscribe"
)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_peer_without_permission_for_its_inbox_gets_an_error(engine: str, prefix: str) -> None:
    async with own_server(engine) as server:
        rules = CALLER_RULES.format(prefix=prefix).split()
        assert server.command("ACL", "SETUSER", "ada", *rules) == b"OK"
        url = f"redis://ada:word@127.0.0.1:{server.port}"
        async with RedisTransport(url, prefix=prefix, name="bob") as bob:
            reasons: list[str] = []
            bob.listen(f"inbox.{bob.peer}", lambda message, _: None)
            bob.send("work.some", b"x", lambda reason: None)
            await until(lambda: bob._refusal is not None)
            bob.send("work.some", b"x", reasons.append)
            await until(lambda: bool(reasons))
            assert isinstance(reasons[0], DeliveryRefused)
            assert "may not listen at" in reasons[0]


@pytest.mark.parametrize("key", [b"a", b"foo", b"{user}:1", b"x{}y", b"operations:{shop.orders}:queue"])
def test_the_slot_of_a_key_is_that_of_the_server(key: bytes) -> None:
    server = shared_cluster("redis").servers[0]
    assert slot_of(key) == server.command("CLUSTER", "KEYSLOT", key.decode())


async def test_a_slot_that_moves_is_followed(prefix: str) -> None:
    cluster = shared_cluster("redis")
    slot = slot_of(f"{prefix}:{{some}}:queue".encode())
    asked: list[bytes] = []
    async with RedisTransport(cluster.url, prefix=prefix) as one, RedisTransport(cluster.url, prefix=prefix) as two:
        await exchange(one, two)
        owner = next(server for server in cluster.servers if _has(server, slot))
        other = next(server for server in cluster.servers if server is not owner)
        ids = {server: server.command("CLUSTER", "MYID").decode() for server in cluster.servers}
        for key in owner.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            owner.command("DEL", key.decode())
        for server in (other, owner, *cluster.servers):
            server.command("CLUSTER", "SETSLOT", slot, "NODE", ids[other])
        two.listen("work.other{some}", into(asked.append), group="w")
        for _ in range(2_000):
            one.send("work.some", b"again", lambda reason: None)
            await asyncio.sleep(0.01)
            if two.reconnects or one.reconnects:
                break
        await until(lambda: one.is_up and two.is_up)
        wait_for(lambda: other.command("ZCARD", f"{prefix}:{{some}}:workers") == 1)
        for server in (owner, other, *cluster.servers):
            server.command("DEL", f"{prefix}:{{some}}:workers")
            server.command("CLUSTER", "SETSLOT", slot, "NODE", ids[owner])


async def test_a_cluster_is_congested_until_all_its_servers_have_read(prefix: str) -> None:
    changes: list[bool] = []
    async with RedisTransport(shared_cluster("redis").url, prefix=prefix) as bus:
        bus.watch_congestion(changes.append)
        assert bus.epoch is not None
        first, second, _ = bus.epoch._masters.values()
        first.pause_writing()  # as the loop does when much is unsent
        second.pause_writing()
        second.resume_writing()
        assert changes == [True]
        bus.drop_connection()
        await until(lambda: changes == [True, False])
        first.pause_writing()
        assert changes == [True, False]


def _has(server: Server, slot: int) -> bool:
    own = server.command("CLUSTER", "MYID")
    return any(
        first <= slot <= last and master[2] == own for first, last, master, *_ in server.command("CLUSTER", "SLOTS")
    )


@pytest.mark.slow
async def test_a_cluster_continues_with_the_replica_of_a_dead_master(prefix: str) -> None:
    cluster = Cluster(replicas=True)
    try:
        await asyncio.to_thread(cluster.start)
        async with RedisTransport(cluster.url, prefix=prefix) as one, RedisTransport(cluster.url, prefix=prefix) as two:
            await exchange(one, two)
            downs: list[str] = []
            one.watch(lambda: None, downs.append)
            cluster.servers[0].kill()
            await until(lambda: bool(downs))
            await until(lambda: one.is_up and two.is_up, seconds=60)
            for name in "abcdef":
                got: list[bytes] = []
                two.listen(f"work.{name}", into(got.append), group="w")
                for _ in range(1_000):
                    one.send(f"work.{name}", b"x", lambda reason: None)
                    await asyncio.sleep(0.02)
                    if got:
                        break
                assert got
    finally:
        cluster.remove()


@pytest.mark.slow
async def test_sentinels_name_the_current_master(prefix: str) -> None:
    master = Server()
    replica = Server("redis", "--replicaof", "127.0.0.1", str(master.port))
    sentinel = Sentinel(master)
    try:
        for each in (master, replica):
            await asyncio.to_thread(each.start)
        await asyncio.to_thread(wait_for, lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        await asyncio.to_thread(sentinel.start)
        await asyncio.to_thread(wait_for, lambda: len(sentinel.command("SENTINEL", "REPLICAS", "main")) == 1)
        async with (
            RedisTransport(sentinel.url, prefix=prefix) as one,
            RedisTransport(sentinel.url, prefix=prefix) as two,
        ):
            await exchange(one, two)
            master.kill()
            await until(lambda: bool(one.reconnects and two.reconnects and one.is_up and two.is_up), seconds=60)
            await asyncio.to_thread(wait_for, lambda: b"role:master" in replica.command("INFO", "replication"))
            wait_for(lambda: replica.command("ZCARD", f"{prefix}:{{some}}:workers") == 1)
            assert replica.command("SET", "still", "writable") == b"OK"
    finally:
        for each in (sentinel, replica, master):
            each.remove()


async def test_a_replica_is_not_written_to(prefix: str) -> None:
    async with own_server() as master, own_server("redis", "--replicaof", "127.0.0.1", str(master.port)) as replica:
        transport = RedisTransport(replica.url, longest_delay=0.01)
        opening = asyncio.create_task(transport.__aenter__())
        await until(lambda: transport.failures > 1)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
