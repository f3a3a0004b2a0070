"""Concurrent calls for the lines of a pipe, in bounded memory; independent of operations and output."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from operations.cli.failures import CommandError
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.sources.scanner.isolation import in_background
from operations.wire import decode_json

_AHEAD = 4
"""Number of lines, for each of the `jobs` concurrent calls, that may be read before an earlier result is written.

While one call is slow, the other calls continue until this number is reached.
"""
_CHUNK = 65_536
_MAX_LINE = 256 * 1024 * 1024
_MAX_COUNTED = 1024 * 1024 * 1024

Call = Callable[[Any], Awaitable[ResponseEnvelope[Any]]]


class Lines:
    """The lines of a file or pipe, numbered from 1, read on demand by any number of tasks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = asyncio.Lock()
        self._ready: list[bytes] = []
        self._rest = bytearray()
        self._ended = False
        self._number = 0

    async def next(self) -> tuple[int, bytes] | None:
        """Return the number and content of the next line; None after the last."""
        if not self._ready:
            async with self._lock:
                while not self._ready and not self._ended:
                    await self._fill()
                return self._take()
        return self._take()

    def _take(self) -> tuple[int, bytes] | None:
        if not self._ready:
            return None
        self._number += 1
        return self._number, self._ready.pop()

    async def _fill(self) -> None:
        chunk = await in_background(os.read, self._descriptor, _CHUNK)
        if not chunk:
            self._ended = True
            if self._rest:
                self._ready = [bytes(self._rest)]
            return
        self._rest += chunk
        if len(self._rest) > _MAX_LINE:
            raise CommandError(f"line {self._number + 1} exceeds {_MAX_LINE >> 20} MiB")
        if b"\n" in chunk:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self._ready = lines[::-1]


def count_lines(descriptor: int) -> int | None:
    """Return the number of lines with content from a file's current position on; None for a pipe or a huge file."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        return None
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    if state.st_size - position > _MAX_COUNTED:
        return None
    count, rest = 0, b""
    while chunk := os.pread(descriptor, _CHUNK * 16, position):
        position += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        count += sum(1 for line in lines if not line.isspace() and line)
    return count + bool(rest.strip())


class LineOutcome(NamedTuple):
    """The result of one line."""

    number: int
    result: ResponseEnvelope[Any] | CallError
    is_last_for_now: bool
    """Whether no other outcome is ready, so that the output should be flushed."""


async def map_lines(
    call: Call, lines: Lines, fixed: Mapping[str, Any], *, jobs: int, ordered: bool
) -> AsyncGenerator[LineOutcome, None]:
    """Make one call for each line, `jobs` at a time, with the fields of `fixed` added to the line's input.

    Yield outcomes in the order of the lines if `ordered`, else in the order of completion.
    """
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
        """Start one more task that processes lines."""
        self._working += 1
        self._idle += 1
        self.workers.append(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        """Process lines until the end. Start another task if this task takes a line and no other task is idle."""
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

    async def as_they_come(self) -> AsyncGenerator[LineOutcome, None]:
        """Yield outcomes in the order of completion."""
        while (item := await self._done.get()) is not None:
            self._permits.release()
            number, result = item
            if result is not None:
                yield LineOutcome(number, result, self._done.empty())

    async def in_order(self) -> AsyncGenerator[LineOutcome, None]:
        """Yield outcomes in the order of the lines."""
        waiting: dict[int, ResponseEnvelope[Any] | CallError | None] = {}
        expected = 1
        while (item := await self._done.get()) is not None:
            waiting[item[0]] = item[1]
            while expected in waiting:
                result = waiting.pop(expected)
                self._permits.release()
                if result is not None:
                    yield LineOutcome(expected, result, self._done.empty() and not waiting)
                expected += 1

    async def _run_one(self, line: bytes) -> ResponseEnvelope[Any] | CallError | None:
        """Return the envelope or error of a line; None for an empty line."""
        if not line.strip():
            return None
        try:
            value = decode_json(line)
            if self._fixed:
                if not isinstance(value, dict):
                    raise CallError(ErrorCode.VALIDATION_ERROR, "cannot add fields: the line is not a JSON object")
                value = {**self._fixed, **value}
            return await self._call(value)
        except CallError as error:
            return error
