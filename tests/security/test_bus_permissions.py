"""The recommended permissions separate users whose names begin alike, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub import connect
from operations.pubsub.nats import connect as connect_nats
from operations.pubsub.nats.wire import NatsMessage, publish, whole
from operations.pubsub.redis import RedisTransport
from tests.calls.test_redis_permissions import ByHand, rules
from tests.nats_server import NatsServer, nats_server
from tests.redis_servers import Server, own_server

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"
USERS = ("bob", "bob-admin")
"""Neither user may reach the messages of the other."""


@operation(id="stock.left", type="query")
async def left(item: str) -> str:
    return f"12 of {item}"


@pytest.fixture(params=["redis", "valkey"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with own_server(request.param) as server:
        users = rules()
        caller = users.pop("ada")
        users |= {user: [rule.replace("ada", user) for rule in caller] for user in USERS}
        if request.param == "valkey":
            users["worker"].append("+blmpop")
        for name, given in users.items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        yield server


def redis_end(server: Server, login: str) -> RedisTransport:
    return RedisTransport(f"redis://{login}@127.0.0.1:{server.port}")


@pytest.mark.parametrize(("one", "other"), [USERS, USERS[::-1]], ids=" against ".join)
async def test_a_redis_user_neither_reads_nor_forges_the_answers_of_one_whose_name_begins_alike(
    redis: Server, one: str, other: str
) -> None:
    async with redis_end(redis, "worker:w0rker") as worker, redis_end(redis, f"{other}:s3cret") as victim:
        handler = CallHandler(OperationRegistry([left]), worker)
        pending = PendingRequestMap(victim)
        async with asyncio.timeout(30):
            assert (await pending.call("stock.left", {"item": "tea"}, wait=True)).data == "12 of tea"
        attacker = ByHand(redis, one, "s3cret")
        channel = f"operations:inbox.{victim.peer}"
        for command in (
            ("SUBSCRIBE", channel),
            ("PSUBSCRIBE", f"operations:inbox.{other}.*"),
            ("PSUBSCRIBE", f"operations:inbox.{one}*"),
            ("PUBLISH", channel, "forged"),
        ):
            reply = await asyncio.to_thread(attacker.ask, *command)
            assert "NOPERM" in str(reply), command
        # It may use its own inbox only.
        assert await asyncio.to_thread(attacker.ask, "PUBLISH", f"operations:inbox.{one}.0", "mine") == 0
        attacker.close()
        assert (pending.counters.malformed, pending.counters.foreign) == (0, 0)
        await handler.close()


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    config = re.search(r"^```conf\n(.*?)^```$", (GUIDE / "nats.md").read_text(), re.M | re.S)
    assert config is not None
    text = config[1].replace("{ user: ada, password", '{ user: "bob-admin", password').replace(".ada.", ".bob-admin.")
    with nats_server(text) as server:
        yield server


PASSWORDS = {"bob": "b-secret", "bob-admin": "a-secret", "stock": "s-secret"}


@pytest.mark.parametrize(("one", "other"), [USERS, USERS[::-1]], ids=" against ".join)
async def test_a_nats_user_neither_reads_nor_forges_the_answers_of_one_whose_name_begins_alike(
    nats: NatsServer, one: str, other: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        worker, victim, attacker = [
            await stack.enter_async_context(connect_nats(nats.url, user=user, password=PASSWORDS[user]))
            for user in ("stock", other, one)
        ]
        handler = CallHandler(OperationRegistry([left]), worker)
        await worker.flush()
        heard: list[NatsMessage] = []
        for pattern in (f"{other}.>", f"{victim.peer.partition('.')[0]}.*", "*.*", ">"):
            attacker.subscribe(f"calls.v1.inbox.{pattern}".encode(), whole(heard.append))
        attacker.send(f"inbox.{victim.peer}", b"forged")
        await attacker.flush()
        pending = PendingRequestMap(victim)
        async with asyncio.timeout(30):
            assert (await pending.call("stock.left", {"item": "tea"}, wait=True)).data == "12 of tea"
        await attacker.flush()
        assert heard == []
        assert (pending.counters.malformed, pending.counters.foreign) == (0, 0)
        assert "Permissions Violation" in nats.log or "Publish Violation" in nats.log
        await handler.close()


async def test_a_nats_user_cannot_make_jetstream_respond_to_the_requests_of_others(nats: NatsServer) -> None:
    """JetStream confirms a stored message at the reply subject that its sender chose, whoever may publish there."""
    async with (
        connect_nats(nats.url, user="stock", password=PASSWORDS["stock"]) as worker,
        connect_nats(nats.url, user="bob", password=PASSWORDS["bob"]) as bob,
    ):
        assert await worker._queues.jetstream.make("queues") is None
        forged: list[NatsMessage] = []
        for _ in range(10):
            worker.replies.request(b"unanswered", forged.append, lambda reason: None)
        # The worker's name is a part of its announcements.
        for number in range(1, worker.replies.issued + 1):
            reply = f"calls.v1.inbox.{worker.peer}.{number}".encode()
            assert bob.publish(publish(b"calls.v1.queue.bob.elsewhere", b"{}", reply))
        assert (await bob._queues.jetstream.request(b"calls.v1.queue.bob.elsewhere", b"{}")).error is None
        await worker.flush()
        assert forged == []


@pytest.mark.parametrize("name", ["bob.admin", "bob*", "bob admin", "böb", "b" * 65])
@pytest.mark.parametrize("scheme", ["redis", "nats"])
async def test_a_name_that_could_be_part_of_anothers_is_refused(scheme: str, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters, digits, _ and -"):
        connect(f"{scheme}://127.0.0.1:1", name=name)
