"""The in-process bus: groups, peers, messages without a listener."""

from __future__ import annotations

from collections import Counter

from operations.pubsub.memory import MemoryTransport
from tests.receiving import into
from tests.waiting import until


async def test_a_message_goes_to_all_ungrouped_listeners_and_one_of_each_group() -> None:
    bus = MemoryTransport()
    got: Counter[str] = Counter()
    for name, group in (("a", None), ("b", None), ("c", "g"), ("d", "g"), ("e", "h")):
        bus.join().listen("x", lambda message, arrival, name=name: got.update([name]), group=group)  # type: ignore[misc]
    for _ in range(10):
        bus.send("x", b"m")
    await until(lambda: got.total() == 40)
    assert got == {"a": 10, "b": 10, "c": 5, "d": 5, "e": 10}


async def test_messages_arrive_in_order_in_the_next_loop_iteration() -> None:
    bus = MemoryTransport()
    got: list[bytes] = []
    bus.listen("x", into(got.append))
    for number in range(100):
        bus.send("x", str(number).encode())
    assert got == []
    await until(lambda: len(got) == 100)
    assert got == [str(number).encode() for number in range(100)]


async def test_a_message_without_a_listener_is_reported() -> None:
    bus = MemoryTransport()
    told: list[str] = []
    bus.send("x", b"m", told.append)
    bus.send("x", b"m")
    await until(lambda: bool(told))
    assert told == ["no listener at x"]


async def test_a_listener_can_be_stopped_twice_and_closing_stops_all() -> None:
    bus = MemoryTransport()
    got: list[bytes] = []
    receive = into(got.append)
    stop = bus.listen("x", receive)
    bus.listen("x", receive)
    stop()
    stop()
    bus.send("x", b"m")
    await bus.close()
    assert got == [b"m"]
    bus.send("x", b"m")
    told: list[str] = []
    bus.send("x", b"m", told.append)
    await until(lambda: bool(told))
    assert got == [b"m"]


def test_targets_are_offered_in_turn() -> None:
    bus = MemoryTransport()
    assert bus.reach("x") is None
    stops = [bus.join().offer("x", name) for name in "ab"]
    assert sorted({bus.reach("x") for _ in range(4)}) == ["a", "b"]
    stops[0]()
    assert bus.reach("x") == "b"
    stops[1]()
    assert bus.reach("x") is None
