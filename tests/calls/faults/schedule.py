"""A state machine of faults: servers, workers and connections are killed, frozen, closed and restarted under load.

Each step is a rule that hypothesis chooses. The history is checked at the end of every schedule: each call ended once
and in time, no mutation ran twice, no stream has a gap, and once everything is whole again calls are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from operations.calls import PendingRequestMap
from tests.calls.faults.stages import Program, Stage, open_stage
from tests.calls.history import SCALE
from tests.calls.proxy import Proxy

MOST_WORKERS = 3
CALL_SECONDS = 3.0
LINKS = st.integers(0, MOST_WORKERS)
PLACES = st.integers(0, MOST_WORKERS - 1)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("work.query", {"retry": True}),
    ("work.mutate", {}),
    ("work.mutate", {"wait": True}),
    ("work.query", {}),
]
DURABLE: tuple[str, dict[str, Any]] = ("kept.store", {"durable": True})
WORKER_STEPS = {
    "kill": ("runs", "gone"),
    "freeze": ("runs", "frozen"),
    "terminate": ("runs", "gone"),
    "thaw": ("frozen", "runs"),
    "start": ("gone", "runs"),
}
"""The faults that are possible in each state of a worker, and the state after each."""
MOMENTS = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.5])


class Schedule(RuleBasedStateMachine):
    """One bus, up to three workers in separate processes, one caller; every link goes through a proxy.

    The possible choices depend only on earlier choices, never on their outcomes, as hypothesis requires.
    """

    transport = "redis"
    ends_at = float("inf")
    """The time after which no further step is made."""
    done: ClassVar[Counter[str]] = Counter()
    """The number of steps of each kind, over all schedules."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stack = contextlib.AsyncExitStack()
        self.states = ["runs", "runs", "gone"]
        self.workers: dict[int, Program] = {}
        self.others: list[Program] = []
        """Workers that got SIGTERM and may still be running."""
        self.links: list[Proxy] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.server = "up"

    @initialize()
    def set_up(self) -> None:
        if time.monotonic() < self.ends_at:
            random.seed(0)  # the proxies' jitter
            self.folder = Path(tempfile.mkdtemp(prefix="faults-"))
            self.loop = asyncio.new_event_loop()
            self.loop.run_until_complete(self._set_up())

    async def _set_up(self) -> None:
        self.stage: Stage = await self.stack.enter_async_context(open_stage(self.transport, self.folder))
        self.links = [await self.stage.proxy() for _ in range(MOST_WORKERS + 1)]
        self.pending = PendingRequestMap(await self.stage.end("caller", self.links[0]))
        self.watching = PendingRequestMap(await self.stage.end("caller"))
        for place in range(2):
            self.workers[place] = await self.stage.work(self.links[place + 1])

    def do(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Make one step while calls are in flight, unless the time is over."""
        if self.loop is not None and time.monotonic() < self.ends_at:
            self.done[what] += 1
            self.loop.run_until_complete(self._do(work))

    async def _do(self, work: Callable[[], Awaitable[object]]) -> None:
        await self._call(len(KINDS) + 1, 0.02, 0)
        await asyncio.sleep(0.01)
        await work()

    @rule(count=st.integers(1, 40), seconds=MOMENTS, streams=st.integers(0, 2))
    def call(self, count: int, seconds: float, streams: int) -> None:
        self.do("load", lambda: self._call(count, seconds, streams))

    async def _call(self, count: int, seconds: float, streams: int) -> None:
        history, pending = self.stage.history, self.pending
        kinds = KINDS if self.transport == "websocket" else [*KINDS, DURABLE]
        for number in range(count):
            operation_id, options = kinds[number % len(kinds)]
            self._add(history.call(pending, operation_id, seconds=seconds, timeout=CALL_SECONDS, **options))
        for _ in range(streams):
            self._add(history.follow(pending, "work.count", 500))
        await asyncio.sleep(0)

    def _add(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    @rule(seconds=MOMENTS)
    def go_on(self, seconds: float) -> None:
        self.do("moments", lambda: asyncio.sleep(seconds))

    @precondition(lambda self: self.server == "up")
    @rule()
    def kill_server(self) -> None:
        self.server = "down"
        self.do("server: kill", lambda: asyncio.to_thread(self.stage.middle.kill))

    @precondition(lambda self: self.server == "down")
    @rule()
    def start_server(self) -> None:
        self.server = "up"
        self.do("server: start", lambda: asyncio.to_thread(self.stage.middle.start))

    @precondition(lambda self: self.server == "up")
    @rule()
    def freeze_server(self) -> None:
        self.server = "frozen"
        self.do("server: freeze", lambda: asyncio.to_thread(self.stage.middle.freeze))

    @precondition(lambda self: self.server == "frozen")
    @rule()
    def thaw_server(self) -> None:
        self.server = "up"
        self.do("server: thaw", lambda: asyncio.to_thread(self.stage.middle.thaw))

    @rule(place=PLACES, how=st.sampled_from(["kill", "freeze", "terminate", "thaw", "start"]))
    def strike_worker(self, place: int, how: str) -> None:
        before, after = WORKER_STEPS[how]
        if self.states[place] == before:
            self.states[place] = after
            self.do(f"worker: {how}", lambda: self._strike_worker(place, how))

    async def _strike_worker(self, place: int, how: str) -> None:
        if how == "start":
            self.workers[place] = await self.stage.work(self.links[place + 1], wait=False)
        else:
            getattr(self.workers[place], how)()
        if how == "terminate":
            self.others.append(self.workers.pop(place))

    @rule(link=LINKS, how=st.sampled_from(["cut", "reset", "swallow", "delay", "heal"]))
    def strike_link(self, link: int, how: str) -> None:
        self.do(f"link: {how}", lambda: self._strike_link(self.links[link], how))

    async def _strike_link(self, link: Proxy, how: str) -> None:
        if how == "delay":
            link.delay = 0.05
        elif how == "heal":
            link.passing.set()
            link.delay = 0.0
        else:
            getattr(link, how)()
        await asyncio.sleep(0)

    def teardown(self) -> None:
        if self.loop is None:
            return
        try:
            self.loop.run_until_complete(self._finish())
        finally:
            self.loop.run_until_complete(self.stack.aclose())
            left = asyncio.all_tasks(self.loop)
            self.loop.close()
            shutil.rmtree(self.folder)
        assert not left

    async def _finish(self) -> None:
        """Undo all faults; wait until pending calls have ended and new calls succeed."""
        middle, history = self.stage.middle, self.stage.history
        middle.thaw()
        if not middle.is_alive:
            await asyncio.to_thread(middle.start)
        for link in self.links:
            link.passing.set()
            link.delay = 0.0
        for worker in self.workers.values():
            if worker.is_alive:
                worker.thaw()
        if not any(worker.is_alive for worker in self.workers.values()):
            self.workers[0] = await self.stage.work(self.links[1], wait=False)
        async with asyncio.timeout(CALL_SECONDS + 20 * SCALE):
            await asyncio.gather(*self.tasks)
        for pending in (self.watching, self.pending):
            await self._until_answered(pending)
        await self.stage.assert_nothing_waits()
        for worker in (*self.workers.values(), *self.others):
            worker.kill()
        history.read()
        history.check(timing=True)
        self.done["calls"] += len(history.outcomes)
        self.done["streams"] += len(history.streams)
        self.done.update({f"ended {code}": count for code, count in history.errors().items()})

    async def _until_answered(self, pending: PendingRequestMap) -> None:
        end = time.monotonic() + 20 * SCALE
        options: dict[str, Any] = {"retry": True, "wait": True, "timeout": 5 * SCALE}
        while isinstance(outcome := await self.stage.history.call(pending, "work.query", **options), Exception):
            assert time.monotonic() < end, f"calls are not answered again: {outcome}"
