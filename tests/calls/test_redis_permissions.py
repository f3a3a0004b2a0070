"""The Redis permissions of the guide, on a real server: what they allow and what they refuse."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.pubsub.redis import RedisTransport
from operations.pubsub.redis.request_queues import REGISTER, RETURN
from operations.testing import error_of
from tests.redis_servers import Server, own_server
from tests.waiting import stays, until

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "redis.md"


def rules() -> dict[str, list[str]]:
    """Return the users of the guide with their ACL rules."""
    block = re.search(r"^```acl\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    assert block is not None
    lines = [line.split(" ") for line in block[1].splitlines()]
    return {name: rest for _, name, *rest in lines}


@operation(id="shop.price", type="query")
async def price(item: str) -> int:
    return len(item)


@operation(id="shop.order", durable=True)
async def order(item: str) -> str:
    return item


@operation(id="shop.count")
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


@pytest.fixture(params=["redis", "valkey"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with own_server(request.param) as server:
        users = rules()
        if request.param == "valkey":
            users["worker"].append("+blmpop")
        users["bob"] = [rule.replace("ada", "bob") for rule in users["ada"]]
        for name, given in users.items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        yield server


def url(server: Server, login: str) -> str:
    return f"redis://{login}@127.0.0.1:{server.port}"


async def test_the_permissions_of_the_guide_suffice_for_callers_and_workers(server: Server) -> None:
    async with (
        RedisTransport(url(server, "worker:w0rker"), heartbeat=0.1) as worker,
        RedisTransport(url(server, "ada:s3cret"), heartbeat=0.1) as ada,
    ):
        assert ada.peer.startswith("ada.")
        handler = CallHandler(OperationRegistry([price, order, count]), worker)
        async with from_call(ada) as remote, asyncio.timeout(30):
            await remote.ready("shop.price", "shop.order")
            assert (await remote.registry.execute("shop.price", {"item": "tea"})).data == 3
            assert (await remote.registry.execute("shop.order", {"item": "tea"})).data == "tea"
            stream = PendingRequestMap(ada).subscribe("shop.count", {"to": 1_000})
            assert [envelope.data async for envelope in stream] == list(range(1_000))
        # A few heartbeats, whose commands must be allowed as well.
        await stays(lambda: (worker.reconnects, ada.reconnects) == (0, 0), seconds=0.5)
        await handler.drain()
        error = await error_of(PendingRequestMap(ada).call("shop.price", {"item": "tea"}))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")


class ByHand:
    """A hostile user with the permissions of a caller."""

    def __init__(self, server: Server, name: str, password: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        self._reader = hiredis.Reader()
        assert self.ask("AUTH", name, password) == b"OK"

    def ask(self, *command: str | int) -> Any:
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        return reply

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(
    "command",
    [
        ("LPOP", "operations:{shop}:queue"),
        ("BLPOP", "operations:{shop}:queue", 1),
        ("LRANGE", "operations:{shop}:queue", 0, -1),
        ("ZADD", "operations:{shop}:workers", 10**15, "bob"),
        ("ZREM", "operations:{shop}:workers", "worker"),
        ("XREADGROUP", "GROUP", "workers", "bob", "STREAMS", "operations:{shop}:stored", ">"),
        ("XRANGE", "operations:{shop}:stored", "-", "+"),
        ("EVAL", "return redis.call('LPOP', KEYS[1])", 1, "operations:{shop}:queue"),
        ("EVAL", "return redis.call('ZADD', KEYS[1], 1, 'bob')", 1, "operations:{shop}:workers"),
        ("EVAL", "return 1", 0),
        ("SCRIPT", "LOAD", "return 1"),
        ("SCRIPT", "FLUSH"),
        ("SUBSCRIBE", "operations:inbox.ada.1234"),
        ("PSUBSCRIBE", "operations:*"),
        ("PUBLISH", "operations:inbox.ada.1234", "forged"),
        ("SET", "elsewhere", "x"),
        ("KEYS", "*"),
        ("MONITOR",),
        ("CONFIG", "GET", "*"),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
async def test_a_caller_can_do_nothing_else(server: Server, command: tuple[str | int, ...]) -> None:
    bob = ByHand(server, "bob", "s3cret")
    reply = await asyncio.to_thread(bob.ask, *command)
    bob.close()
    assert isinstance(reply, hiredis.ReplyError)
    # The server has another message for commands that a script may not run.
    assert re.search(r"NOPERM|ACL failure|can't run this command", str(reply))


async def test_callers_run_only_the_scripts_that_workers_loaded(server: Server) -> None:
    async with RedisTransport(url(server, "ada:s3cret"), heartbeat=0.1) as ada, asyncio.timeout(30):
        pending = PendingRequestMap(ada)
        for durable in (False, True):  # no worker was ever connected
            error = await error_of(pending.call("shop.order", {"item": "tea"}, durable=durable))
            assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        for _ in range(2):
            async with RedisTransport(url(server, "worker:w0rker"), heartbeat=0.1) as worker:
                handler = CallHandler(OperationRegistry([price, order]), worker)
                assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
                assert (await pending.call("shop.order", {"item": "tea"}, durable=True)).data == "tea"
                assert server.command("SCRIPT", "FLUSH") == b"OK"  # as after a restart of the server
                worker.drop_connection()
                await until(lambda: worker.reconnects == 1)
                assert (await pending.call("shop.price", {"item": "tea"}, wait=True)).data == 3
                assert (await pending.call("shop.order", {"item": "tea"}, durable=True)).data == "tea"
                await handler.close()
        mallory = ByHand(server, "ada", "s3cret")
        for script, keys in ((REGISTER, ("workers", "queue")), (RETURN, ("workers", "queue"))):
            names = [f"operations:{{shop}}:{key}" for key in keys]
            command: tuple[str | int, ...] = (
                "EVALSHA",
                script.digest.decode(),
                len(names),
                *names,
                "mallory",
                60_000,
                60_000,
            )
            reply = await asyncio.to_thread(mallory.ask, *command)
            assert isinstance(reply, hiredis.ReplyError), "the permissions of the user apply in a script"
        mallory.close()


async def test_a_worker_that_may_register_but_not_take_does_not_hold_requests_up(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    taking = "-blpop" if server.engine == "redis" else "-blmpop"
    assert server.command("ACL", "SETUSER", "worker", taking) == b"OK"
    login = url(server, "worker:w0rker")
    async with RedisTransport(login, heartbeat=0.1) as worker, RedisTransport(url(server, "ada:s3cret")) as ada:
        handler = CallHandler(OperationRegistry([price]), worker)
        await until(lambda: "may not take requests" in caplog.text)
        await until(lambda: server.command("ZCARD", "operations:{shop}:workers") == 0)
        error = await error_of(PendingRequestMap(ada).call("shop.price", {"item": "tea"}))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        assert worker.reconnects == 0
        await handler.close()


async def test_a_caller_without_permission_to_send_gets_an_error(server: Server) -> None:
    assert server.command("ACL", "SETUSER", "ada", "-rpush") == b"OK"
    async with RedisTransport(url(server, "worker:w0rker")) as worker, RedisTransport(url(server, "ada:s3cret")) as ada:
        handler = CallHandler(OperationRegistry([price]), worker)
        error = await error_of(PendingRequestMap(ada).call("shop.price", {"item": "tea"}, wait=True))
        assert (error.code, error.details["executed"]) == (ErrorCode.ACCESS_DENIED, "no")
        await handler.close()


async def test_a_caller_that_tries_to_serve_gets_no_requests(server: Server) -> None:
    async with RedisTransport(url(server, "bob:s3cret")) as bob, RedisTransport(url(server, "ada:s3cret")) as ada:
        impostor = CallHandler(OperationRegistry([price]), bob)
        await until(lambda: bob.is_up)
        with pytest.raises(CallError) as caught:
            await PendingRequestMap(ada).call("shop.price", {"item": "tea"})
        assert (caught.value.code, caught.value.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        await impostor.close()
