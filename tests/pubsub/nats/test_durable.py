"""Durable calls in JetStream: they run at least once, exactly once without failures, and become dead letters after
three lost workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import CallError, ErrorCode, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.jobs import Jobs
from operations.pubsub import Delivery, Record, Stores
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.nats.durable_queues import NatsDelivery
from operations.pubsub.nats.records import NatsRecords
from operations.pubsub.nats.wire import NatsMessage
from operations.testing import error_of
from tests.nats_server import NatsServer, nats_server, shared_server
from tests.waiting import stays, until

_numbers = itertools.count(1)
WORKER = """
import asyncio, os, sys
from operations import OperationRegistry, operation
from operations.calls import serve_registry
from operations.pubsub.nats import connect
from operations.pubsub.nats.durable_queues import NatsDelivery

@operation(id="work.die", durable=True)
async def die(poison: bool) -> str:
    if poison:
        os._exit(9)
    return "alive"

async def main():
    async with connect(sys.argv[1], prefix=sys.argv[2], ack_wait=0.5) as transport:
        await serve_registry(OperationRegistry([die]), transport)

asyncio.run(main())
"""


class Mail:
    """A durable operation that records its runs, and waits if the test requests it."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

        @operation(id="mail.send", durable=True)
        async def send(to: str, context: OperationContext) -> str:
            self.sent.append(to)
            await self.go.wait()
            if to == "nobody":
                raise CallError("NO_SUCH_PERSON", "nobody is called so")
            return f"sent to {to}"

        self.operation = send


class Post:
    def __init__(self, stack: contextlib.AsyncExitStack, server: NatsServer) -> None:
        self.stack = stack
        self.server = server
        self.prefix = f"post{next(_numbers)}"

    async def end(self) -> NatsTransport:
        transport = connect(self.server.url, prefix=self.prefix, ack_wait=0.4, shortest_delay=0.02, trusted=True)
        return await self.stack.enter_async_context(transport)

    async def worker(self, mail: Mail, **options: Any) -> CallHandler:
        handler = CallHandler(OperationRegistry([mail.operation]), await self.end(), **options)
        self.stack.push_async_callback(handler.close)
        return handler

    async def dead(self) -> list[dict[str, Any]]:
        """The dead letters."""
        end = await self.end()
        found = []
        for sequence in range(1, 10):
            answer: list[bytes] = []
            subject = f"$JS.API.STREAM.MSG.GET.{self.prefix}_dead".encode()
            reply, _ = end.replies.request(subject, lambda message: answer.append(message.data), lambda reason: None)  # noqa: B023
            body = b'{"seq": %d}' % sequence
            end.publish(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body))
            await until(lambda: bool(answer))  # noqa: B023
            document = msgspec.json.decode(answer[0])
            if "error" in document:
                break
            found.append(document["message"])
        return found


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    async with contextlib.AsyncExitStack() as stack:
        yield Post(stack, shared_server())


async def test_a_durable_call_has_a_result_like_any_other(post: Post) -> None:
    mail = Mail()
    await post.worker(mail)
    pending = PendingRequestMap(await post.end())
    assert (await pending.call("mail.send", {"to": "ada"}, durable=True)).data == "sent to ada"
    error = await error_of(pending.call("mail.send", {"to": "nobody"}, durable=True))
    assert error.code == "NO_SUCH_PERSON"
    assert (await error_of(pending.call("mail.send", {"to": 1}, durable=True))).code is ErrorCode.VALIDATION_ERROR
    assert mail.sent == ["ada", "nobody"]


async def test_remote_operations_that_are_durable_are_stored(post: Post) -> None:
    mail = Mail()
    handler = await post.worker(mail)
    async with from_call(await post.end()) as remote, asyncio.timeout(30):
        await remote.ready("mail.send")
        assert remote.registry.get_spec("mail.send").durable  # type: ignore[union-attr]
        assert (await remote.registry.execute("mail.send", {"to": "ada"})).data == "sent to ada"
    assert handler._stored.finished


async def test_a_request_in_flight_to_the_store_at_the_deadline_may_still_run() -> None:
    mail = Mail()
    with nats_server() as server:
        async with connect(server.url) as far, connect(server.url) as near:
            handler = CallHandler(OperationRegistry([mail.operation]), far)
            await PendingRequestMap(near).call("mail.send", {"to": "ada"}, durable=True)
            server.freeze()
            try:
                impatient = PendingRequestMap(near, timeout=0.2)
                error = await error_of(impatient.call("mail.send", {"to": "bob"}, durable=True))
            finally:
                server.thaw()
            assert (error.code, error.details["executed"]) == (ErrorCode.TIMEOUT, "unknown")
            assert not error.details["stored"]
            await until(lambda: mail.sent == ["ada", "bob"])
            await handler.close()


async def test_work_waits_for_a_worker_and_outlives_its_caller(post: Post) -> None:
    mail = Mail()
    caller = await post.end()
    error = await error_of(PendingRequestMap(caller, timeout=0.2).call("mail.send", {"to": "ada"}, durable=True))
    assert (error.code, error.details["executed"], error.details["stored"]) == (ErrorCode.TIMEOUT, "unknown", True)
    task = asyncio.create_task(PendingRequestMap(caller).call("mail.send", {"to": "bob"}, durable=True))
    await until(lambda: bool(PendingRequestMap(caller).in_flight))
    await caller.flush()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await caller.close()
    await post.worker(mail)
    await until(lambda: sorted(mail.sent) == ["ada", "bob"])


async def test_one_request_is_stored_once(post: Post) -> None:
    mail = Mail()
    end = await post.end()
    stored: list[bool] = []
    await post.worker(mail)
    event = {
        "v": 1,
        "type": "call.requested",
        "id": f"{end.peer}-1",
        "to": "mail.send",
        "payload": {"requestId": f"{end.peer}-1", "operationId": "mail.send", "input": {"to": "ada"}},
    }
    stores = end.optional(Stores)
    assert stores is not None
    for _ in range(3):
        stores.store(
            "queue.mail",
            msgspec.json.encode(event),
            key=str(event["id"]),
            stored=lambda: stored.append(True),
            undelivered=lambda reason: stored.append(False),
        )
    await until(lambda: len(stored) == 3 and bool(mail.sent))
    assert (stored, mail.sent) == ([True] * 3, ["ada"])


async def test_the_work_of_a_lost_worker_goes_to_another_worker(post: Post) -> None:
    first, second = Mail(), Mail()
    first.go.clear()
    handler = await post.worker(first)
    pending = PendingRequestMap(await post.end())
    call = asyncio.create_task(pending.call("mail.send", {"to": "ada"}, durable=True))
    await until(lambda: first.sent == ["ada"])
    await handler.transport.close()
    await post.worker(second)
    assert (await call).data == "sent to ada"
    assert second.sent == ["ada"]


async def test_a_closing_worker_releases_its_work_to_another_immediately(post: Post) -> None:
    first, second = Mail(), Mail()
    first.go.clear()
    handler = await post.worker(first)
    pending = PendingRequestMap(await post.end())
    call = asyncio.create_task(pending.call("mail.send", {"to": "ada"}, durable=True))
    await until(lambda: first.sent == ["ada"])
    await post.worker(second)
    await handler.close()
    assert (await call).data == "sent to ada"


async def test_long_running_work_is_not_redelivered(post: Post) -> None:
    mail = Mail()
    mail.go.clear()
    handler = await post.worker(mail)
    await post.worker(mail)
    pending = PendingRequestMap(await post.end())
    call = asyncio.create_task(pending.call("mail.send", {"to": "ada"}, durable=True))
    await until(lambda: mail.sent == ["ada"])
    await stays(lambda: mail.sent == ["ada"], seconds=1.0)  # an acknowledgement may take 0.4 s
    mail.go.set()
    assert (await call).data == "sent to ada"
    assert mail.sent == ["ada"]
    assert handler.counters.duplicate == 0


async def test_work_that_is_delivered_again_to_the_same_worker_takes_its_place_only_once(post: Post) -> None:
    mail = Mail()
    mail.go.clear()
    handler = await post.worker(mail, concurrency=2)
    pending = PendingRequestMap(await post.end())
    call = asyncio.create_task(pending.call("mail.send", {"to": "ada"}, durable=True))
    await until(lambda: mail.sent == ["ada"])
    assert handler._stored is not None
    (held,) = handler._stored.held.values()
    assert isinstance(held.delivery, NatsDelivery)
    held.delivery.acknowledge(b"-NAK")  # as after a time in which this worker could not renew its hold
    await until(lambda: handler.counters.duplicate == 1)
    mail.go.set()
    await call
    mail.go.clear()
    calls = [asyncio.create_task(pending.call("mail.send", {"to": to}, durable=True)) for to in ("bob", "eve")]
    await until(lambda: len(mail.sent) == 3)
    mail.go.set()
    await asyncio.gather(*calls)
    assert sorted(mail.sent) == ["ada", "bob", "eve"]


async def test_no_more_messages_are_taken_than_may_run(post: Post) -> None:
    mail = Mail()
    mail.go.clear()
    handler = await post.worker(mail, concurrency=2)
    pending = PendingRequestMap(await post.end())
    calls = [asyncio.create_task(pending.call("mail.send", {"to": str(n)}, durable=True)) for n in range(7)]
    await until(lambda: len(mail.sent) == 2)
    other = Mail()
    await post.worker(other)
    await until(lambda: len(other.sent) == 5)
    assert handler.in_flight == 2
    mail.go.set()
    await asyncio.gather(*calls)


@pytest.mark.fault(37, on="nats")
async def test_a_request_that_kills_three_workers_is_dead_lettered_and_others_continue(post: Post) -> None:
    """Fault 37: a request that kills its worker."""
    pending = PendingRequestMap(await post.end())
    workers: list[asyncio.subprocess.Process] = []
    ended = asyncio.Event()
    deaths = 0

    async def keep_one_alive() -> None:
        nonlocal deaths
        while not ended.is_set():
            worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, post.server.url, post.prefix)
            workers.append(worker)
            deaths += (await worker.wait()) == 9

    keeper = asyncio.create_task(keep_one_alive())
    poison = asyncio.create_task(error_of(pending.call("work.die", {"poison": True}, durable=True)))
    healthy = asyncio.create_task(pending.call("work.die", {"poison": False}, durable=True))
    async with asyncio.timeout(60):
        error = await poison
        assert (await healthy).data == "alive"
        jobs = Jobs(await post.end())
        while not (dead := await jobs.dead()):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
    ended.set()
    workers[-1].terminate()
    await keeper
    assert (error.code, error.details["reason"]) == (ErrorCode.EXECUTION_ERROR, "DEAD_LETTERED")
    assert deaths == 3
    assert [(each.operation_id, each.code) for each in dead] == [("work.die", ErrorCode.EXECUTION_ERROR)]


async def test_an_invalid_request_is_dead_lettered(post: Post) -> None:
    mail = Mail()
    handler = await post.worker(mail)
    end = await post.end()
    stored = asyncio.Event()
    stores = end.optional(Stores)
    assert stores is not None
    stores.store("queue.mail", b"rubbish", key="k", stored=stored.set, undelivered=lambda reason: None)
    await until(lambda: handler.counters.malformed == 1)
    await until(stored.is_set)
    async with asyncio.timeout(30):
        while not await post.dead():  # noqa: ASYNC110  # another process's store has no event
            await asyncio.sleep(0.02)


async def test_stored_work_outlives_the_server() -> None:
    with nats_server() as server:
        async with contextlib.AsyncExitStack() as stack:
            post = Post(stack, server)
            mail = Mail()
            caller = await post.end()
            call = asyncio.create_task(PendingRequestMap(caller).call("mail.send", {"to": "ada"}, durable=True))
            await until(lambda: any(w._stored for w in _waiting(caller)))
            server.kill()
            await until(lambda: not caller.is_up)
            server.start()
            await until(lambda: caller.is_up)
            await post.worker(mail)
            async with asyncio.timeout(20):
                assert (await call).data == "sent to ada"


def _waiting(transport: NatsTransport) -> list[Any]:
    from operations.calls.endpoint import endpoint_of

    return list(endpoint_of(transport).pending.values())


async def test_durable_calls_are_refused_without_storage() -> None:
    with nats_server(jetstream=False) as server:
        async with connect(server.url) as transport:
            for each in (transport, MemoryTransport()):
                error = await error_of(PendingRequestMap(each).call("mail.send", {"to": "ada"}, durable=True))
                assert (error.code, error.details["executed"]) == (ErrorCode.VALIDATION_ERROR, "no")
                assert "does not store requests" in error.message


async def test_a_message_whose_dead_letter_is_lost_with_the_connection_is_delivered_again(post: Post) -> None:
    worker, caller = await post.end(), await post.end()
    deliveries: list[Delivery] = []
    takes, stores = worker.optional(Stores), caller.optional(Stores)
    assert takes is not None
    assert stores is not None
    stop = takes.take("queue.mail", lambda message, delivery, arrival: deliveries.append(delivery), limit=1)
    stores.store("queue.mail", b"a message", key="k", stored=lambda: None, undelivered=lambda reason: None)
    await until(lambda: len(deliveries) == 1)
    deliveries[0].dead_letter("invalid")
    worker.drop_connection()
    await until(lambda: len(deliveries) == 2)
    assert (deliveries[1].message, deliveries[1].is_redelivered) == (b"a message", True)
    deliveries[1].done()
    stop()


async def _add_records(records: NatsRecords, owners: str) -> list[str]:
    """Write a record for each owner; an owner is one letter. Return the keys of the records."""
    assert await records.jetstream.make("records") is None
    keys = [f"{owner * 16}{number:08}" for number, owner in enumerate(owners)]
    for key in keys:
        await records.create("queue.mail", Record(key=key, value=key.encode(), seconds=60))
    return keys


@pytest.mark.parametrize("together", [1, 4, 1_000])
async def test_the_newest_records_are_listed(post: Post, monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr("operations.pubsub.nats.records._LISTED_TOGETHER", together)
    records = (await post.end()).optional(NatsRecords)
    assert records is not None
    assert await records.list_records(None, 5) == []
    keys = await _add_records(records, "abab" * 10 + "a" * 20)
    await records.end_record("queue.mail", Record(key=keys[0], value=keys[0].encode(), seconds=60))
    written = [*keys[1:], keys[0]]
    for owner in (None, "a" * 16, "b" * 16):
        owned = [key for key in written if key.startswith(owner or "")]
        for most in (0, 1, 7, len(owned) - 1, len(owned), 100):
            listed = await records.list_records(owner, most)
            assert listed == [("queue.mail", key, key.encode()) for key in owned[max(0, len(owned) - most) :]]


async def test_an_error_of_the_storage_does_not_mean_that_a_record_is_missing(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = (await post.end()).optional(NatsRecords)
    assert records is not None
    (key,) = await _add_records(records, "a")
    assert await records.read_record("queue.mail", key) == (key.encode(), b"")
    assert await records.read_record("queue.mail", f"{'b' * 16}0") is None

    async def fetch(subject: bytes, data: bytes) -> NatsMessage:
        return NatsMessage(subject, None, 408, b"NATS/1.0 408 Bad Request\r\n", b"")

    monkeypatch.setattr(records.jetstream, "fetch", fetch)
    assert (await error_of(records.read_record("queue.mail", key))).code is ErrorCode.UNAVAILABLE
