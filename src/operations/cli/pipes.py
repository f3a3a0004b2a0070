"""Reading and writing pipes beside the loop, in threads that never hold up the end of the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from operations.cli.failures import CommandError

T = TypeVar("T")

CHUNK = 65_536
_LONGEST_LINE = 256 * 1024 * 1024


class Lines:
    """The lines of a file or pipe, numbered from 1, read as they are asked for; several tasks may ask."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = asyncio.Lock()
        self._ready: list[bytes] = []
        self._rest = bytearray()
        self._ended = False
        self._number = 0
        self.bytes_read = 0

    async def next(self) -> tuple[int, bytes] | None:
        """The number and text of the next line; None after the last."""
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
        chunk = await beside_loop(lambda: os.read(self._descriptor, CHUNK))
        self.bytes_read += len(chunk)
        if not chunk:
            self._ended = True
            if self._rest:
                self._ready = [bytes(self._rest)]
            return
        self._rest += chunk
        if len(self._rest) > _LONGEST_LINE:
            raise CommandError(f"line {self._number + 1} is longer than {_LONGEST_LINE >> 20} MiB")
        if b"\n" in chunk:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self._ready = lines[::-1]


async def write_all(descriptor: int, content: bytes) -> None:
    """Write everything; a reader that is slow holds up nobody but the caller."""
    await beside_loop(lambda: _write(descriptor, content))


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


async def beside_loop(work: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread: a pool's threads would be waited for when Ctrl-C ends the program."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            outcome: Any = work()
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            _settle(loop, done.set_exception, done, error)
        else:
            _settle(loop, done.set_result, done, outcome)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _settle(
    loop: asyncio.AbstractEventLoop, settle: Callable[[Any], None], done: asyncio.Future[Any], outcome: Any
) -> None:
    def deliver() -> None:
        if not done.done():
            settle(outcome)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(deliver)
