"""Lanes hand out clients, keep few of them, and close the connections of those that a request was given up in."""

from __future__ import annotations

import asyncio
import socket

import pytest

from operations.http import severing
from operations.http.lanes import Lane, Lanes

pytestmark = pytest.mark.skipif(not severing.CAN_SEVER, reason="sockets are marked on Linux only")


class _Pair:
    """A marked connection, seen from both ends."""

    def __init__(self, mark: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        self.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, mark)
        self.far.setblocking(False)

    async def ended(self) -> bool:
        """Whether the far end is told that the near end is shut, once it is."""
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(self.far, 1) == b""

    def is_open(self) -> bool:
        try:
            return self.far.recv(1) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.near.close()
        self.far.close()


def _lanes(share: int = 1, **limits: int | None) -> Lanes[_Pair]:
    return Lanes(lambda place, mark: _Pair(mark), lambda place: share, **limits)


def _taken(lanes: Lanes[_Pair], place: str = "a") -> Lane[_Pair]:
    lane = lanes.take(place)
    assert lane is not None
    return lane


async def test_a_lane_is_used_again_for_its_place() -> None:
    lanes = _lanes()
    first, other = _taken(lanes), _taken(lanes, "b")
    lanes.release(first)
    lanes.release(other)
    assert _taken(lanes) is first
    assert _taken(lanes, "b") is other
    second = _taken(lanes)
    assert second is not first
    for lane in lanes.clear():
        lane.client.close()


async def test_giving_up_closes_the_marked_connection_alone() -> None:
    lanes = _lanes()
    given_up, kept = _taken(lanes), _taken(lanes)
    lanes.release(given_up, patience=5)
    assert await given_up.client.ended()
    assert kept.client.is_open()
    lanes.release(kept)
    assert _taken(lanes) is kept
    assert _taken(lanes) is not given_up
    given_up.client.close()
    for lane in lanes.clear():
        lane.client.close()


async def test_a_shared_lane_is_closed_after_the_last_that_shares_it() -> None:
    lanes = _lanes(share=3)
    shared = [_taken(lanes) for _ in range(3)]
    assert shared[0] is shared[2]
    lanes.release(shared[0], patience=5)
    assert _taken(lanes) is not shared[0]
    lanes.release(shared[0])
    assert shared[0].client.is_open()
    lanes.release(shared[0])
    assert await shared[0].client.ended()
    shared[0].client.close()
    for lane in lanes.clear():
        lane.client.close()


async def test_a_connection_that_is_opened_after_the_request_was_given_up_is_closed_too() -> None:
    mark = severing.new_mark()
    severing.sever(mark, patience=10)
    await asyncio.sleep(0)
    late = _Pair(mark)
    assert await late.ended()
    late.close()


async def test_idle_lanes_are_few() -> None:
    lanes = _lanes(most_idle=2)
    taken = [_taken(lanes) for _ in range(5)]
    for lane in taken:
        lanes.release(lane)
    kept = lanes.clear()
    assert len(kept) == 2
    for lane in taken:
        lane.client.close()


async def test_places_are_few() -> None:
    lanes = _lanes()
    taken = [_taken(lanes, str(number)) for number in range(200)]
    for lane in taken:
        lanes.release(lane)
    assert len(lanes.clear()) <= 64
    for lane in taken:
        lane.client.close()


async def test_turns_are_taken_in_order_and_passed_on() -> None:
    lanes = _lanes(most=1)
    lane = _taken(lanes)
    assert lanes.take("a") is None
    waiting = [asyncio.create_task(lanes.wait("a")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    lanes.release(lane)
    assert await waiting[1] is lane
    assert not waiting[2].done()
    lanes.release(lane)
    waiting[2].cancel()  # it has its turn, and cannot take it
    await asyncio.wait(waiting)
    assert _taken(lanes) is lane
    lane.client.close()
