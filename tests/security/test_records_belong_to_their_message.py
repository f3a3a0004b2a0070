"""A bus user that may only store requests can neither change nor add a record, even if it knows the id of a job."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from operations import Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.events import VERSION
from operations.calls.job_records import owner_key
from operations.jobs import Jobs
from operations.pubsub import Transport
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.redis import RedisTransport
from tests import redis_servers
from tests.calls.test_redis_permissions import rules
from tests.nats_server import nats_server
from tests.security.test_responses_go_to_the_caller import GUIDE, PASSWORDS
from tests.waiting import until

BOB = Identity("bob")


class Desk:
    """Workers whose operation returns a text once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered: list[str] = []

    def work(self, transport: Transport) -> CallHandler:
        @operation(id="stock.say", durable=True)
        async def say(text: str) -> str:
            self.entered.append(text)
            await self.gate.wait()
            return text

        return CallHandler(OperationRegistry([say]), transport)


class NatsIntruder:
    """A NATS user with the permissions of a caller."""

    def __init__(self, bus: NatsTransport) -> None:
        self._bus = bus

    async def store(self, message: bytes, key: str | None, link: str = "") -> None:
        jetstream = self._bus._queues.jetstream
        headers = b"Nats-Msg-Id: %b\r\n" % os.urandom(8).hex().encode()
        if key is not None:
            headers += f"Operations-Record: {key}{link}\r\n".encode()
        answer = await jetstream.request(b"calls.v1.queue.ada.stock", message, headers=headers)
        assert answer.error is None


class RedisIntruder:
    """A Redis user with the permissions of a caller."""

    def __init__(self, server: redis_servers.Server) -> None:
        self._server = server

    async def store(self, message: bytes, key: str | None, link: str = "") -> None:
        fields = ["message", message.decode(), "before", "0"]
        if key is not None:
            fields += ["record", key]
        assert self._server.command("XADD", "operations:{stock}:stored", "*", *fields)


@asynccontextmanager
async def open_bus(kind: str) -> AsyncIterator[tuple[Any, Any]]:
    """A bus with the permissions of the guide: a function that connects a worker, and an intruder."""
    async with AsyncExitStack() as stack:
        if kind == "nats":
            config = GUIDE.read_text().split("```conf\n")[1].split("```")[0]
            url = stack.enter_context(nats_server(config)).url

            async def connect_worker() -> Transport:
                return await stack.enter_async_context(
                    connect(url, user="stock", password=PASSWORDS["stock"], ack_wait=1.0)
                )

            ada = await stack.enter_async_context(connect(url, user="ada", password=PASSWORDS["ada"]))
            yield connect_worker, NatsIntruder(ada)
            return
        server = await stack.enter_async_context(redis_servers.own_server())
        for name, given in rules().items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"

        async def connect_redis_worker() -> Transport:
            return await stack.enter_async_context(RedisTransport(f"redis://worker:w0rker@127.0.0.1:{server.port}"))

        yield connect_redis_worker, RedisIntruder(server)


def forge(key: str, owner: str | None, text: str, **changes: Any) -> bytes:
    """A request of the intruder that names a record."""
    request_id, now = f"ada.{os.urandom(8).hex()}-1", int(time.time() * 1000)
    payload = {
        "requestId": request_id,
        "operationId": "stock.say",
        "input": {"text": text},
        "sentAt": now,
        "notAfter": now + 3_600_000,
        "job": {"key": key, "keep": 10**9, **({} if owner is None else {"owner": owner})},
        **changes,
    }
    event = {"v": VERSION, "type": "call.requested", "id": request_id, "to": "stock.say", "payload": payload}
    return msgspec.json.encode(event)


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_message_cannot_change_or_add_the_record_of_another(kind: str) -> None:
    async with asyncio.timeout(60), open_bus(kind) as (connect_worker, intruder):
        desk, jobs = Desk(), Jobs(await connect_worker())
        handler = desk.work(await connect_worker())
        job_id = await jobs.submit("stock.say", {"text": "genuine"})
        await until(lambda: desk.entered == ["genuine"])
        key = job_id.rpartition(".")[2]
        new = owner_key("bob") + "0" * 32
        for forged_key, owner in ((key, None), (new, "bob")):
            for named in (forged_key, None):
                for link in ("", ".", "." + "0" * 32):
                    await intruder.store(forge(forged_key, owner, "forged"), named, link)
                    await intruder.store(forge(forged_key, owner, "forged", notAfter=1), named, link)
        desk.gate.set()
        # Requests are handled in the order in which they were stored.
        assert (await jobs.wait(await jobs.submit("stock.say", {"text": "last"}), timeout=30)).data == "last"
        assert (await jobs.wait(job_id, timeout=30)).data == "genuine"
        assert await jobs.of(BOB).list() == []
        assert {job.id for job in await jobs.list(states=["done", "failed"])} >= {job_id}
        assert not [job for job in await jobs.list() if job.owner == "bob"]
        await handler.close()


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_released_message_does_not_take_over_a_record(kind: str) -> None:
    async with asyncio.timeout(60), open_bus(kind) as (connect_worker, intruder):
        desk, jobs = Desk(), Jobs(await connect_worker())
        first = desk.work(await connect_worker())
        job_id = await jobs.submit("stock.say", {"text": "genuine"})
        await until(lambda: "genuine" in desk.entered)
        key = job_id.rpartition(".")[2]
        await intruder.store(forge(key, None, "forged"), key)
        await intruder.store(forge(key, None, "unnamed"), None)
        await until(lambda: "unnamed" in desk.entered)
        await first.close()
        desk.gate.set()
        second = desk.work(await connect_worker())
        assert (await jobs.wait(job_id, timeout=30)).data == "genuine"
        await second.close()


async def test_a_message_that_is_delivered_again_is_not_a_duplicate_of_anothers() -> None:
    """A worker moves it to another queue, under a key that other callers cannot use before."""
    async with open_bus("nats") as (connect_worker, intruder), asyncio.timeout(30):
        desk, lost = Desk(), await connect_worker()
        handler = desk.work(lost)
        other = await connect_worker()
        pending = PendingRequestMap(other)
        call = asyncio.create_task(pending.call("stock.say", {"text": "hello"}, durable=True, wait=True))
        await until(lambda: desk.entered == ["hello"])
        jetstream = intruder._bus._queues.jetstream
        for number in range(1, 50):  # the sequence numbers of the next messages, and of the one above
            headers = b"Nats-Msg-Id: %b-%d\r\n" % (jetstream.stream.encode(), number)
            await jetstream.request(b"calls.v1.queue.ada.stock", b"x", headers=headers)
        await lost.close()
        desk.gate.set()
        again = desk.work(other)
        assert (await call).data == "hello"
        assert desk.entered == ["hello", "hello"]
        for each in (again, handler):
            await each.close()
