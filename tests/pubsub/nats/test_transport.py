"""The NATS transport on a real server: groups, order, messages without a listener, lost messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import OperationRegistry
from operations.calls import CallHandler, from_call
from operations.pubsub import DeliveryRefused
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.protocols import MOST_UNSENT, TOO_SLOW
from operations.testing import stub_operation
from tests.nats_server import nats_server, shared_server
from tests.receiving import into
from tests.waiting import until

_numbers = itertools.count(1)


class Ends:
    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._prefix = f"ends{next(_numbers)}"

    async def __call__(self, **options: Any) -> NatsTransport:
        options = {"prefix": self._prefix, "shortest_delay": 0.02, **options}
        return await self._stack.enter_async_context(connect(shared_server().url, **options))


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with contextlib.AsyncExitStack() as stack:
        yield Ends(stack)


async def test_a_message_goes_to_all_ungrouped_listeners_and_one_of_each_group(ends: Ends) -> None:
    got: Counter[str] = Counter()
    for name, group in (("a", None), ("b", None), ("c", "g"), ("d", "g"), ("e", "h")):
        end = await ends()
        end.listen("control.x", lambda message, arrival, name=name: got.update([name]), group=group)  # type: ignore[misc]
        await end.flush()
    sender = await ends()
    for _ in range(200):
        sender.send("control.x", b"m")
    await until(lambda: got.total() == 800)
    assert (got["a"], got["b"], got["e"], got["c"] + got["d"]) == (200, 200, 200, 200)
    assert min(got["c"], got["d"]) > 50


async def test_messages_of_one_sender_arrive_in_order(ends: Ends) -> None:
    got: list[bytes] = []
    listener, sender = await ends(), await ends()
    listener.listen("control.x", into(got.append))
    await listener.flush()
    sent = [b"%d" % number for number in range(5_000)] + [b"x" * (3 << 20), b"last"]
    for message in sent:
        sender.send("control.x", message)
    await until(lambda: len(got) == len(sent))
    assert got == sent


async def test_only_messages_without_a_listener_are_reported(ends: Ends) -> None:
    told: list[str] = []
    got: list[bytes] = []
    one, two = await ends(name="ada"), await ends()
    two.listen("work.math", into(got.append), group="g")
    await two.flush()
    for _ in range(100):
        one.send("work.math/add", b"m", told.append)
        one.send("work.nobody/add", b"m", told.append)
        one.send("work.nobody/add", b"m")
    await until(lambda: len(got) == len(told) == 100)
    assert set(told) == {f"no listener at {one._subjects.prefix}.work.ada.nobody.add"}
    await one.flush()
    await one.flush()
    assert (one.replies.sent, one.replies.pinged) == ({}, {})


async def test_a_stopped_listener_receives_earlier_messages_only(ends: Ends) -> None:
    got: list[bytes] = []
    told: list[str] = []
    listener, sender = await ends(), await ends()
    stop = listener.listen("work.x", into(got.append), group="g")
    await listener.flush()
    for _ in range(100):
        sender.send("work.x/y", b"m", told.append)
    await sender.flush()
    stop()
    stop()
    await listener.flush()
    assert len(got) == 100
    sender.send("work.x/y", b"m", told.append)
    await until(lambda: len(told) == 1)
    assert len(got) == 100


@pytest.mark.parametrize("address", ["work.a b/c", "inbox.x.1\r\nPUB a 0", "work.*/x"])
async def test_an_address_that_is_not_a_subject_is_refused_and_the_connection_stays_open(
    ends: Ends, address: str
) -> None:
    told: list[str] = []
    end = await ends()
    end.send(address, b"m", told.append)
    end.send(address, b"m")
    assert isinstance(told[0], DeliveryRefused)
    assert end.unsent == 1
    await end.flush()
    assert (end.is_up, end.reconnects) == (True, 0)


async def test_a_message_over_the_maximum_is_refused_and_the_connection_stays_open(ends: Ends) -> None:
    told: list[str] = []
    end = await ends()
    end.send("work.x/y", b"m" * ((16 << 20) + 1), told.append)
    assert "larger than the server accepts" in told[0]
    await end.flush()
    assert (end.is_up, end.reconnects) == (True, 0)


async def test_more_operations_than_fit_in_a_message_are_announced_in_parts() -> None:
    operations = [stub_operation(f"many.op{number}", returns=number) for number in range(3_000)]
    with nats_server(max_payload=64 << 10) as server:
        async with connect(server.url) as worker, connect(server.url) as caller:
            async with from_call(caller) as remote, asyncio.timeout(20):
                handler = CallHandler(OperationRegistry(operations), worker)
                await remote.until(lambda: len(remote.ids) == 3_000)
                assert (await remote.registry.execute("many.op2999")).data == 2999
                handler.registry.unregister("many.op0")
                handler.refresh()
                await remote.until(lambda: len(remote.ids) == 2_999)
                await handler.close()
                await remote.until(lambda: not remote.ids)
            assert (worker.unsent, worker.reconnects) == (0, 0)


async def test_a_lost_connection_comes_back_with_its_listeners(ends: Ends) -> None:
    got: list[bytes] = []
    seen: list[str] = []
    told: list[str] = []
    end, other = await ends(), await ends()
    end.listen("control.x", into(got.append))

    def down(reason: str) -> None:
        seen.append(reason)
        end.send("work.x/y", b"m", told.append)
        end.send("workers", b"lost")
        end.send("control.x", b"kept")

    stop = end.watch(lambda: seen.append("up"), down)
    end.drop_connection("cut by a test")
    await until(lambda: len(seen) == 2)
    await until(lambda: bool(got))
    assert seen == ["cut by a test", "up"]
    assert told == ["there is no connection to the NATS server: cut by a test"]
    assert (end.reconnects, end.unsent) == (1, 1)
    assert got == [b"kept"]
    got.clear()
    other.send("control.x", b"m")
    await until(lambda: got == [b"m"])
    stop()
    stop()


async def test_replies_without_a_connection_are_sent_after_reconnecting(ends: Ends) -> None:
    got: list[bytes] = []
    end, caller = await ends(), await ends()
    caller.listen(f"inbox.{caller.peer}", into(got.append))
    await caller.flush()

    def down(reason: str) -> None:
        end.send(f"inbox.{caller.peer}", b"answer")
        for _ in range(18):
            end.send(f"inbox.{caller.peer}", b"x" * (1 << 20))

    end.watch(lambda: None, down)
    end.drop_connection()
    await until(lambda: got == [b"answer", *[b"x" * (1 << 20)] * 15])
    assert end.unsent == 3


async def test_only_unwritten_messages_are_reported_as_undelivered(ends: Ends) -> None:
    told: list[str] = []
    end = await ends()
    end.send("work.x/y", b"m", lambda reason: told.append("written"))
    await asyncio.sleep(0)
    end.send("work.x/y", b"m", lambda reason: told.append("not written"))
    end._connection._transport.abort()  # type: ignore[union-attr]
    end._connection.buffer.commands.clear()  # type: ignore[union-attr]
    end._connection.connection_lost(None)  # type: ignore[union-attr]
    assert told == ["not written"]


async def test_a_frozen_server_is_noticed() -> None:
    with nats_server() as server:
        async with connect(server.url, heartbeat=0.05, timeout=0.3, shortest_delay=0.02) as end:
            server.freeze()
            await until(lambda: not end.is_up)
            assert "does not respond" in end._why_down
            server.thaw()
            await until(lambda: end.is_up)


async def test_a_process_that_was_busy_keeps_its_connection() -> None:
    with nats_server() as server:
        async with connect(server.url, heartbeat=0.05) as end:
            for _ in range(3):
                time.sleep(0.5)  # noqa: ASYNC251  # the loop is blocked for ten heartbeats
                await end.flush()
            assert (end.is_up, end.reconnects) == (True, 0)


async def test_no_requests_are_sent_to_a_server_that_reads_nothing() -> None:
    reasons: list[str] = []
    changes: list[bool] = []
    with nats_server() as server:
        async with connect(server.url) as end:
            stop = end.watch_congestion(changes.append)
            server.freeze()
            for _ in range(MOST_UNSENT // 1_000_000 + 20):
                end.send("work.x", b"x" * 1_000_000, reasons.append)
            assert changes == [True]
            assert TOO_SLOW in reasons
            server.thaw()
            await until(lambda: changes == [True, False])
            stop()
            await end.flush()
            assert (end.is_up, end.reconnects) == (True, 0)
