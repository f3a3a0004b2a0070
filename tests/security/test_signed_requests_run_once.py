"""A signed request is accepted once, in any queue and by any worker, and never after its deadline."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.signed_transport import SignedTransport
from operations.jobs import Jobs
from operations.pubsub import Record, Stores, StoresKeys, Transport, TransportWrapper, Undelivered, nats
from operations.pubsub.nats.jetstream import HOUR
from operations.pubsub.nats.wire import publish
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests import nats_server, redis_servers
from tests.calls.test_redis_permissions import rules
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session, untrusted_bus
from tests.waiting import until

SESSION = session("ada")


@pytest.fixture(params=["redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus on which no peer is trusted."""
    async with untrusted_bus(request.param) as bus:
        yield bus


class Wiretap(TransportWrapper):
    """Records requests in flight."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.heard: list[bytes] = []

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        if address.startswith("work."):
            self.heard.append(message)
        super().send(address, message, undelivered)

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        self.heard.append(message)
        super().store(address, message, key=key, stored=stored, undelivered=undelivered, record=record)


class Bank:
    """A worker with a plain and a durable mutation; what ran is kept across its restarts."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.ran: list[str] = []
        self.hold: asyncio.Event | None = None
        """If it is set, requests wait for it."""

    async def start(self) -> None:
        """Start a new worker that knows nothing of an earlier one."""

        @operation(id="bank.pay")
        async def pay() -> str:
            self.ran.append("pay")
            return "paid"

        @operation(id="bank.book", durable=True)
        async def book() -> str:
            self.ran.append("book")
            if self.hold is not None:
                await self.hold.wait()
            return "booked"

        self.transport = SignedTransport(await self._bus(), secret=SECRET, tokens=TOKENS)
        self.handler = CallHandler(OperationRegistry([pay, book]), self.transport, identify=self.transport.identify)

    async def restart(self) -> None:
        await self.handler.close()
        await self.transport.close()
        await self.start()


@pytest.fixture
async def bank(bus: Bus) -> AsyncIterator[Bank]:
    bank = Bank(bus)
    await bank.start()
    yield bank
    await bank.handler.close()


async def captured(bus: Bus, name: str) -> bytes:
    """A request of ada that was recorded."""
    tap = Wiretap(await bus())
    ada = PendingRequestMap(SignedTransport(tap, session=SESSION))
    await ada.call(f"bank.{name}", wait=True, durable=name == "book")
    return tap.heard[-1]


async def put(bus: Bus, message: bytes, name: str, *, stored: bool) -> None:
    """Put a message into a queue, as a user who may write there."""
    end = await bus()
    if not stored:
        undelivered: list[str] = []
        suffix = f"/{name}" if end.capabilities.addresses_operations else ""
        end.send(f"work.bank{suffix}", message, undelivered.append)
        return
    done = asyncio.Event()
    store = end.optional(Stores)
    assert store is not None
    store.store("queue.bank", message, key=os.urandom(8).hex(), stored=done.set, undelivered=pytest.fail)
    await done.wait()


@pytest.mark.parametrize("name", ["pay", "book"])
@pytest.mark.parametrize("stored", [False, True], ids=["sent", "stored"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same worker", "another worker"])
async def test_a_copy_does_not_run_in_any_queue(
    bus: Bus, bank: Bank, name: str, *, stored: bool, restarted: bool
) -> None:
    async with asyncio.timeout(20):
        copy = await captured(bus, name)
        assert bank.ran == [name]
        if restarted:
            await bank.restart()
            await captured(bus, name)
        bank.ran.clear()
        await put(bus, copy, name, stored=stored)
        counters = bank.handler.counters
        await until(lambda: sum(bank.transport.refusals.values()) + counters.duplicate > 0)
        # The next request is handled after the copy.
        await captured(bus, "pay")
    assert bank.ran == ["pay"]


@pytest.mark.parametrize("name", ["pay", "book"])
@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_copy_does_not_run_on_another_bus(bus: Bus, bank: Bank, name: str, kind: str) -> None:
    async with asyncio.timeout(30), untrusted_bus(kind) as elsewhere:  # with another prefix
        other = Bank(elsewhere)
        await other.start()
        await captured(elsewhere, name)
        await put(elsewhere, await captured(bus, name), name, stored=name == "book")
        await until(lambda: other.transport.refusals == {"forged": 1})
        assert other.ran == [name]
        await other.handler.close()


async def test_two_workers_run_a_request_once(bus: Bus, bank: Bank) -> None:
    other = Bank(bus)
    await other.start()
    async with asyncio.timeout(20):
        copies = [await captured(bus, "pay") for _ in range(4)]
        assert len(bank.ran) + len(other.ran) == 4
        for copy in copies * 3:
            await put(bus, copy, "pay", stored=False)
        workers = (bank, other)
        await until(lambda: sum(w.transport.refusals["replayed"] + w.handler.counters.duplicate for w in workers) >= 12)
    assert len(bank.ran) + len(other.ran) == 4
    await other.handler.close()


async def test_a_copy_is_not_answered_in_the_name_of_the_original(bus: Bus, bank: Bank) -> None:
    bank.hold = asyncio.Event()
    tap = Wiretap(await bus())
    ada = PendingRequestMap(SignedTransport(tap, session=SESSION))
    other = Bank(bus)
    async with asyncio.timeout(20):
        call = asyncio.create_task(ada.call("bank.book", wait=True, durable=True))
        await until(lambda: bank.ran == ["book"])
        await other.start()
        for _ in range(4):
            await put(bus, tap.heard[-1], "book", stored=True)
        both = (bank, other)
        await until(lambda: sum(w.transport.refusals["replayed"] + w.handler.counters.duplicate for w in both) >= 4)
        bank.hold.set()
        assert (await call).data == "booked"
    assert (bank.ran, other.ran) == (["book"], [])
    await other.handler.close()


async def test_a_copy_does_not_replace_the_original(bus: Bus, bank: Bank) -> None:
    bank.hold = asyncio.Event()
    tap = Wiretap(await bus())
    ada = PendingRequestMap(SignedTransport(tap, session=SESSION))
    async with asyncio.timeout(30):
        call = asyncio.create_task(ada.call("bank.book", wait=True, durable=True))
        await until(lambda: bank.ran == ["book"])
        await put(bus, tap.heard[-1], "book", stored=True)
        await until(lambda: bank.handler.counters.duplicate == 1)
        bank.hold.set()
        assert (await call).data == "booked"
        # No part of it is left for the next worker.
        await bank.restart()
        await captured(bus, "book")
    assert bank.ran == ["book", "book"]
    assert bank.handler.counters.duplicate == 0


async def test_a_copy_does_not_run_shortly_before_its_request_expires(
    bus: Bus, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("operations.calls.caller.STORED_SECONDS", HOUR + 1.0)
    async with asyncio.timeout(20):
        copy = await captured(bus, "book")
        await bank.restart()
        await asyncio.sleep(1.1)
        await put(bus, copy, "book", stored=True)
        await until(lambda: bank.transport.refusals["replayed"] == 1)
    assert bank.ran == ["book"]


@pytest.mark.parametrize("lost", [False, True], ids=["worker restarts", "worker is lost"])
async def test_copies_of_a_running_job_do_not_run_after_it(*, lost: bool, bus: Bus, bank: Bank) -> None:
    bank.hold = asyncio.Event()
    tap = Wiretap(await bus())
    async with asyncio.timeout(30):
        jobs = Jobs(SignedTransport(tap, session=SESSION))
        job_id = await jobs.submit("bank.book")
        await until(lambda: bank.ran == ["book"])
        for _ in range(3):
            await put(bus, tap.heard[-1], "book", stored=True)
        await until(lambda: bank.handler.counters.duplicate == 3)
        bank.hold = None
        if lost:
            await bank.transport.close()  # nothing is acknowledged or released
            await bank.start()
        else:
            await bank.restart()
        assert (await jobs.wait(job_id)).data == "booked"
        if lost:
            counters = bank.handler.counters
            await until(lambda: bank.transport.refusals["replayed"] + counters.duplicate == 3)
        await captured(bus, "book")  # after the copies
    assert bank.ran == ["book"] * 3


async def test_a_request_whose_worker_leaves_is_run_by_the_next_one(bus: Bus, bank: Bank) -> None:
    bank.hold = asyncio.Event()
    ada = PendingRequestMap(SignedTransport(await bus(), session=SESSION))
    async with asyncio.timeout(30):
        call = asyncio.create_task(ada.call("bank.book", wait=True, durable=True))
        await until(lambda: bank.ran == ["book"])
        bank.hold = None
        await bank.restart()
        assert (await call).data == "booked"
    assert bank.ran == ["book", "book"]
    assert bank.transport.refusals == {}


async def test_a_request_that_was_stored_for_too_long_is_dead(
    bus: Bus, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("operations.calls.caller.STORED_SECONDS", -1.0)
    ada = PendingRequestMap(SignedTransport(await bus(), session=SESSION))
    error = await error_of(ada.call("bank.book", wait=True, durable=True))
    assert (error.code, error.details) == (ErrorCode.TIMEOUT, {"reason": "DEAD_LETTERED", "executed": "no"})
    assert bank.ran == []


async def test_a_stored_request_needs_an_expiry_time(bus: Bus, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.calls.caller.STORED_SECONDS", 7 * 86_400.0)
    ada = PendingRequestMap(SignedTransport(await bus(), session=SESSION))
    error = await error_of(ada.call("bank.book", wait=True, durable=True))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "REPLAYED")
    assert bank.ran == []


@pytest.mark.parametrize("signed", [False, True])
async def test_only_durable_operations_run_from_a_store(bus: Bus, bank: Bank, *, signed: bool) -> None:
    end = await bus()
    ada = PendingRequestMap(SignedTransport(end, session=SESSION) if signed else end)
    error = await error_of(ada.call("bank.pay", wait=True, durable=True))
    assert (error.code, error.details["reason"]) == (ErrorCode.VALIDATION_ERROR, "NOT_DURABLE")
    assert error.details["executed"] == "no"
    assert bank.ran == []


@pytest.mark.parametrize("bus", ["redis"], indirect=True)
async def test_a_sender_cannot_pass_a_copy_off_as_a_redelivery(bus: Bus, bank: Bank) -> None:
    """On Redis a caller writes the entries of the stream itself, and can set the number of deliveries."""
    server, end = redis_servers.shared_server("redis"), await bus()
    assert isinstance(end, RedisTransport)
    stream = end.keys.of_namespace("queue.bank").stored.decode()
    async with asyncio.timeout(20):
        copy = await captured(bus, "book")
        await bank.restart()
        await asyncio.to_thread(server.command, "XADD", stream, "*", "message", cast(str, copy), "before", "1")
        await until(lambda: bank.transport.refusals == {"replayed": 1})
    assert bank.ran == ["book"]


async def test_each_delivery_of_a_stored_request_gets_the_result_of_the_first_one(bus: Bus) -> None:
    """A copy stays refused when its refusal was lost, and the request itself may be delivered again."""
    end = await bus()
    keys = end.optional(StoresKeys)
    assert keys is not None
    assert [await keys.store_key("request", 60, entry) for entry in ("1", "2", "1", "2", "2", "1", "3")] == [
        *(True, False, True, False, False, True, False)
    ]
    assert not await keys.store_key("request", 60)


async def test_without_the_shared_record_a_mutation_does_not_run(
    bus: Bus, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(key: str, seconds: float, entry: str) -> bool:
        raise CallError(ErrorCode.UNAVAILABLE, "out of reach", {"executed": "no"})

    monkeypatch.setattr(bank.transport.inner.optional(StoresKeys), "store_key", fail)
    ada = PendingRequestMap(SignedTransport(await bus(), session=SESSION))
    error = await error_of(ada.call("bank.pay"))
    assert (error.code, error.details["executed"], bank.ran) == (ErrorCode.UNAVAILABLE, "no", [])


GUIDE = Path(__file__).parents[2] / "docs" / "guide"


@operation(id="stock.pay")
async def pay_for_stock() -> str:
    return "paid"


async def paid(worker: Transport, caller: Transport) -> Any:
    """Return the result of a signed mutation, for which the worker needs the shared record."""
    signed = SignedTransport(worker, secret=SECRET, tokens=TOKENS)
    handler = CallHandler(OperationRegistry([pay_for_stock]), signed, identify=signed.identify)
    ada = PendingRequestMap(SignedTransport(caller, session=SESSION))
    data = (await ada.call("stock.pay", wait=True)).data
    await handler.close()
    return data


async def test_only_workers_write_the_record_with_the_nats_permissions_of_the_guide(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = re.search(r"^```conf\n(.*?)^```$", (GUIDE / "nats.md").read_text(), re.M | re.S)
    assert config is not None
    with nats_server.nats_server(config[1]) as server:
        async with (
            nats.connect(server.url, user="stock", password="s-secret") as worker,
            nats.connect(server.url, user="ada", password="a-secret") as ada,
        ):
            assert await paid(worker, ada) == "paid"
            assert ada.publish(publish(b"calls.v1.once.hour", b""))
            await ada.flush()
            await until(lambda: 'Permissions Violation for Publish to "calls.v1.once.hour"' in caplog.text)


async def test_only_workers_write_the_record_with_the_redis_permissions_of_the_guide() -> None:
    async with redis_servers.own_server() as server:
        for name, given in rules().items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        address = f"127.0.0.1:{server.port}"
        async with (
            RedisTransport(f"redis://worker:w0rker@{address}") as worker,
            RedisTransport(f"redis://ada:s3cret@{address}") as ada,
        ):
            assert await paid(worker, ada) == "paid"
            assert "once:" in str(server.command("KEYS", "operations:once:*"))
            keys = ada.optional(StoresKeys)
            assert keys is not None
            error = await error_of(keys.store_key("x", 10))
            assert (error.code, "NOPERM" in error.message or "ermission" in error.message) == ("UNAVAILABLE", True)
