"""When a loop stays awake for an answer, and when it no longer does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from operations import Identity, OperationRegistry, operation
from operations.calls import PendingRequestMap, serve_registry
from operations.calls.authentication import Principal, StaticTokens
from operations.calls.hub import Hub
from operations.calls.spoke import Spoke
from operations.pubsub import vigil as module
from operations.pubsub.vigil import AWAKE_SECONDS, Vigil, vigil_of
from tests.waiting import until

QUICKLY = AWAKE_SECONDS / 4
LATE = AWAKE_SECONDS * 100


class Loop:
    """A loop that does what was asked of it when it is told to, by a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        self.ready: list[Callable[[], object]] = []
        self.given_up = 0
        """How often it was awake, and no longer when the answer came."""
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        self.vigil = Vigil(self)  # type: ignore[arg-type]

    def call_soon(self, call: Callable[[], object]) -> None:
        self.ready.append(call)

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for call in ready:
            call()

    def exchange(self, seconds: float) -> bool:
        """Send, and read what comes after so long; whether the loop was awake until then."""
        self.vigil.sent()
        until = self.now + seconds
        began = bool(self.ready)
        while self.ready and self.now < until:
            self.turn()
            self.now += min(QUICKLY / 4, until - self.now)
        self.now = max(self.now, until)
        awake = self.vigil.is_awake
        self.given_up += began and not awake
        self.vigil.came()
        self.turn()
        return awake

    def quick_ones_until_awake(self) -> int:
        """How many quick answers it takes until the loop is awake for one."""
        for number in range(10_000):
            if self.exchange(QUICKLY):
                return number
        raise AssertionError("the loop never stays awake")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_a_loop_stays_awake_once_an_answer_came_at_once(loop: Loop) -> None:
    assert [loop.exchange(QUICKLY) for _ in range(4)] == [False, True, True, True]


def test_the_vigil_ends_with_what_came(loop: Loop) -> None:
    loop.exchange(QUICKLY)
    loop.vigil.sent()
    loop.turn()
    assert loop.vigil.is_awake
    loop.vigil.came()
    loop.turn()
    assert not loop.vigil.is_awake
    assert loop.ready == []


def test_the_vigil_goes_on_where_the_next_thing_is_sent_at_once(loop: Loop) -> None:
    loop.exchange(QUICKLY)
    loop.vigil.sent()
    loop.vigil.came()
    loop.vigil.sent()
    loop.turn()
    assert loop.vigil.is_awake
    assert len(loop.ready) == 1


def test_the_vigil_ends_when_nothing_comes(loop: Loop) -> None:
    loop.exchange(QUICKLY)
    loop.vigil.sent()
    turns = 0
    while loop.ready:
        loop.turn()
        loop.now += QUICKLY
        turns += 1
    assert 1 < turns < 10
    assert not loop.vigil.is_awake


def test_the_fourth_late_answer_in_a_row_lets_a_loop_sleep_that_was_sure(loop: Loop) -> None:
    for late in range(1, 6):
        for _ in range(100):
            loop.exchange(QUICKLY)
        for _ in range(late):
            loop.exchange(LATE)
        assert loop.exchange(QUICKLY) == (late < 4)


def test_what_comes_in_time_but_is_waited_for_longer_than_it_is_worth_lets_it_sleep(loop: Loop) -> None:
    for _ in range(100):
        loop.exchange(AWAKE_SECONDS * 0.9)
    assert not loop.exchange(QUICKLY)


def test_answers_that_a_sleeping_loop_gets_fast_are_tried_for_and_given_up(loop: Loop) -> None:
    awake = [loop.exchange(AWAKE_SECONDS * 2) for _ in range(1000)]
    assert not any(awake)  # it is never awake when they come
    assert 0 < loop.given_up < 50


def test_who_only_sends_does_not_stay_awake(loop: Loop) -> None:
    for _ in range(100):
        loop.exchange(QUICKLY)
    looks = 0
    for _ in range(1000):
        loop.vigil.sent()
        while loop.ready:
            loop.turn()
            loop.now += QUICKLY
            looks += 1
        loop.now += LATE
    assert 0 < looks < 50


def test_what_was_sent_for_no_answer_is_not_held_against_the_next_answer(loop: Loop) -> None:
    for _ in range(10):
        loop.vigil.sent()
        loop.now += LATE
        loop.exchange(QUICKLY)
    assert loop.quick_ones_until_awake() < 10


def test_what_was_there_already_is_no_answer(loop: Loop) -> None:
    for _ in range(1000):
        loop.exchange(0.000001)
    assert not loop.exchange(QUICKLY)


def test_now_and_then_a_late_answer_is_no_reason_to_sleep(loop: Loop) -> None:
    for number in range(200):
        loop.exchange(LATE if number % 10 == 9 else QUICKLY)
    assert loop.exchange(QUICKLY)


def test_more_proof_is_asked_for_each_time_it_was_wrong_up_to_a_bound(loop: Loop) -> None:
    needed = []
    for _ in range(12):
        needed.append(loop.quick_ones_until_awake())
        loop.exchange(LATE)
    assert needed[:4] == [1, 17, 33, 65]
    assert needed[-1] == needed[-2] == 4097


def test_what_it_was_right_about_for_long_makes_good_for_what_it_was_wrong_about(loop: Loop) -> None:
    for _ in range(6):
        loop.quick_ones_until_awake()
        for _ in range(4):
            loop.exchange(LATE)
    assert loop.quick_ones_until_awake() > 400
    for _ in range(100):
        loop.exchange(QUICKLY)
    for _ in range(4):
        loop.exchange(LATE)
    assert loop.quick_ones_until_awake() < 40


def test_a_look_that_is_interrupted_is_not_the_last(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    for _ in range(100):
        loop.exchange(QUICKLY)
    loop.vigil.sent()
    with monkeypatch.context() as patch:
        patch.setattr(module, "give_way", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.turn()
    loop.vigil.came()
    assert loop.exchange(QUICKLY)


async def test_a_loop_has_one_vigil_which_goes_when_nobody_uses_it() -> None:
    running = asyncio.get_running_loop()
    vigil = vigil_of(running)
    assert vigil_of(running) is vigil
    gone = weakref.ref(vigil)
    del vigil
    gc.collect()
    assert gone() is None


@operation(id="quick.echo", type="query")
async def echo(text: str) -> str:
    return text


TOKENS = StaticTokens({"t": Principal(Identity("ada"), namespaces=["quick"])})


def served(hub: Hub) -> Any:
    return serve_registry(OperationRegistry([echo]), hub.transport())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """How often a loop looked whether something came, where whatever comes comes at once."""
    looked: list[None] = []
    monkeypatch.setattr(module, "AWAKE_SECONDS", 5.0)
    monkeypatch.setattr(module, "_SOON", 5.0)
    monkeypatch.setattr(module, "give_way", lambda: looked.append(None))
    return looked


async def test_calls_one_after_the_other_keep_a_loop_awake_and_their_end_lets_it_sleep(looks: list[None]) -> None:
    vigil = vigil_of(asyncio.get_running_loop())  # of the hub and of the spoke
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="t") as spoke, served(hub):
        for number in range(20):
            assert (await PendingRequestMap(spoke).call("quick.echo", {"text": str(number)})).data == str(number)
        assert len(looks) > 10
        await until(lambda: not vigil.is_awake, seconds=1.0)
        looks.clear()
        await asyncio.sleep(0.02)
        assert looks == []


async def test_who_does_not_want_it_sleeps(looks: list[None]) -> None:
    sleepy: Any = {"stay_awake": False}
    async with Hub(TOKENS, **sleepy) as hub, Spoke(hub.url, token="t", **sleepy) as spoke, served(hub):
        for _ in range(20):
            await PendingRequestMap(spoke).call("quick.echo", {"text": "x"})
    assert looks == []
