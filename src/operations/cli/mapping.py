"""Calls for lines of input, several at a time, in bounded memory; knows neither operations nor output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from operations.cli.pipes import Lines
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.wire import decode_json

_AHEAD = 4
"""How many results for each job may wait for an earlier one, so that a slow call does not leave the others idle."""

Call = Callable[[Any], Awaitable[ResponseEnvelope[Any]]]


class Outcome(NamedTuple):
    """What became of one line."""

    number: int
    result: ResponseEnvelope[Any] | CallError
    is_last_for_now: bool
    """Whether nothing else is waiting to be written, so that what was written should be seen."""


async def map_lines(
    call: Call, lines: Lines, fixed: Mapping[str, Any], *, jobs: int, ordered: bool
) -> AsyncGenerator[Outcome, None]:
    """Call for each line, `jobs` at a time; the outcomes in the order of the lines, or as they come."""
    run = _Run(call, lines, fixed, jobs)
    run.start_worker()
    try:
        async for outcome in run.in_order() if ordered else run.as_they_come():
            yield outcome
        for worker in run.workers:
            worker.result()
    finally:
        for worker in run.workers:
            worker.cancel()
        await asyncio.gather(*run.workers, return_exceptions=True)


class _Run:
    def __init__(self, call: Call, lines: Lines, fixed: Mapping[str, Any], jobs: int) -> None:
        self._call = call
        self._lines = lines
        self._fixed = fixed
        self._jobs = jobs
        self._permits = asyncio.Semaphore(jobs * _AHEAD)
        self._done: asyncio.Queue[tuple[int, ResponseEnvelope[Any] | CallError | None] | None] = asyncio.Queue()
        self.workers: list[asyncio.Task[None]] = []
        self._working = 0
        self._idle = 0

    def start_worker(self) -> None:
        """Have one more worker, which waits for a line."""
        self._working += 1
        self._idle += 1
        self.workers.append(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        """Take lines until there are none; the one who takes a line sees to it that somebody waits for the next."""
        try:
            while True:
                await self._permits.acquire()
                taken = await self._lines.next()
                if taken is None:
                    return
                self._idle -= 1
                if not self._idle and len(self.workers) < self._jobs:
                    self.start_worker()
                number, line = taken
                self._done.put_nowait((number, await self._run_one(line)))
                self._idle += 1
        finally:
            self._working -= 1
            if not self._working:
                self._done.put_nowait(None)

    async def as_they_come(self) -> AsyncGenerator[Outcome, None]:
        """Outcomes in the order in which calls end."""
        while (item := await self._done.get()) is not None:
            self._permits.release()
            number, result = item
            if result is not None:
                yield Outcome(number, result, self._done.empty())

    async def in_order(self) -> AsyncGenerator[Outcome, None]:
        """Outcomes in the order of the lines."""
        waiting: dict[int, ResponseEnvelope[Any] | CallError | None] = {}
        expected = 1
        while (item := await self._done.get()) is not None:
            waiting[item[0]] = item[1]
            while expected in waiting:
                result = waiting.pop(expected)
                self._permits.release()
                if result is not None:
                    yield Outcome(expected, result, self._done.empty() and not waiting)
                expected += 1

    async def _run_one(self, line: bytes) -> ResponseEnvelope[Any] | CallError | None:
        """The envelope or error of a line; None for an empty one."""
        if not line.strip():
            return None
        try:
            value = decode_json(line)
            if self._fixed:
                if not isinstance(value, dict):
                    raise CallError(ErrorCode.VALIDATION_ERROR, "the line is no object, so that no fields can be added")
                value = {**self._fixed, **value}
            return await self._call(value)
        except CallError as error:
            return error
