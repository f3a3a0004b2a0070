"""No peer can make a worker respond to another peer's call, with the permissions that the guides recommend."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.caller import random_id
from operations.pubsub import Stores
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.redis import RedisTransport
from tests.nats_server import NatsServer, nats_server
from tests.redis_servers import shared_server
from tests.waiting import until

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "nats.md"
PASSWORDS = {"ada": "a-secret", "bob": "b-secret", "stock": "s-secret"}


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    config = re.search(r"^```conf\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    assert config is not None
    with nats_server(config[1]) as server:
        yield server


class Stock:
    """A worker that responds when the test releases it, and records its runs."""

    def __init__(self, transport: NatsTransport) -> None:
        self.go = asyncio.Event()
        self.ran: list[str] = []

        @operation(id="stock.slow", durable=True)
        async def slow() -> str:
            self.ran.append("slow")
            await self.go.wait()
            return "genuine"

        @operation(id="stock.echo", type="query", durable=True)
        async def echo(text: str) -> str:
            self.ran.append("echo")
            return text

        self.handler = CallHandler(OperationRegistry([slow, echo]), transport)


def request(request_id: str, **changes: Any) -> bytes:
    """Return a request with a chosen id and a chosen response."""
    payload = {"requestId": request_id, "operationId": "stock.echo", "input": {"text": "forged"}}
    event = {"v": 1, "type": "call.requested", "id": request_id, "to": "stock.echo", "payload": payload}
    return msgspec.json.encode(event | changes)


ATTACKS = {
    "request": lambda id: request(id),
    "stream": lambda id: request(id, stream=True),
    "ids that differ": lambda id: request(id, payload={"requestId": "x", "operationId": "stock.echo"}),
    "unreadable": lambda id: request(id, payload=7),
    "signed": lambda id: b"\x01\x01\x00\x01" + b"t" + bytes(16) + request(id),
    "wrong address": lambda id: request(id, to="stock.slow"),
    "no such namespace": lambda id: request(id, to="elsewhere.echo"),
}


@pytest.mark.parametrize("durable", [False, True], ids=["sent", "stored"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_request_under_anothers_id_gets_no_answer(nats: NatsServer, attack: str, durable: bool) -> None:
    async with AsyncExitStack() as stack:
        worker, ada, bob = [
            await stack.enter_async_context(connect(nats.url, user=user, password=PASSWORDS[user]))
            for user in ("stock", "ada", "bob")
        ]
        stock = Stock(worker)
        await worker.flush()
        pending = PendingRequestMap(ada)
        async with asyncio.timeout(20):
            # The worker makes the streams; callers may not.
            assert (await pending.call("stock.echo", {"text": "mine"}, wait=True, durable=True)).data == "mine"
            stock.ran.clear()
            call = asyncio.create_task(pending.call("stock.slow", wait=True))
            await until(lambda: stock.ran == ["slow"])
            [request_id] = pending._endpoint.pending
            message = ATTACKS[attack](request_id)
            if durable:
                stores, stored = bob.optional(Stores), asyncio.Event()
                assert stores is not None
                stores.store("queue.stock", message, key=attack, stored=stored.set, undelivered=lambda reason: None)
                await stored.wait()
            else:
                bob.send("work.stock/echo", message)
            await bob.flush()
            counters = stock.handler.counters
            await until(lambda: counters.foreign + counters.malformed > 0)
            stock.go.set()
            assert (await call).data == "genuine"
        assert stock.ran == ["slow"]
        await stock.handler.close()


async def test_no_user_receives_the_id_of_anothers_request_on_redis() -> None:
    """Redis users who may send control messages may also receive them; with a request id they could forge responses."""

    @operation(id="stock.count")
    async def count() -> AsyncIterator[int]:
        for number in itertools.count():
            yield number

    slow_started = asyncio.Event()

    @operation(id="stock.slow")
    async def slow() -> None:
        slow_started.set()
        await asyncio.Event().wait()

    server, prefix = shared_server("redis"), f"t{os.urandom(8).hex()}"
    async with AsyncExitStack() as stack:
        worker, ada, mallory = [
            await stack.enter_async_context(RedisTransport(server.url, prefix=prefix)) for _ in range(3)
        ]
        heard: list[bytes] = []
        for address in ("control.stock", f"peer.{worker.peer}", "workers", "asks"):
            mallory.listen(address, lambda message, arrival: heard.append(message))
        await mallory.flush()
        handler = CallHandler(OperationRegistry([count, slow]), worker)
        pending = PendingRequestMap(ada)
        async with asyncio.timeout(20):
            call = asyncio.create_task(pending.call("stock.slow", wait=True))
            await slow_started.wait()
            stream = pending.subscribe("stock.count")
            assert [(await anext(stream)).data for _ in range(2_000)] == list(range(2_000))
            ids = list(pending._endpoint.pending)
            await stream.aclose()  # type: ignore[attr-defined]
            call.cancel()
            await until(lambda: handler.in_flight == 0)
            await until(lambda: sum(b"call.aborted" in message for message in heard) >= 2)
        assert any(b"call.credit" in message for message in heard)
        assert len(ids) == 2
        assert not [message for message in heard for request_id in ids if request_id.encode() in message]
        await handler.close()


async def test_request_ids_cannot_be_guessed() -> None:
    ids = {random_id("ada").removeprefix("ada-") for _ in range(1_000)}
    assert len(ids) == len({found[:16] for found in ids}) == len({found[16:] for found in ids}) == 1_000
    assert all(re.fullmatch("[0-9a-f]{32}", found) for found in ids)
