"""SandboxPool: the processes in which scripts run, and the threads that drive them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.exports.sandbox_script import SandboxScript, monty


class _Owner(msgspec.Struct, eq=False):
    """The running and waiting scripts of one owner."""

    turns: asyncio.Semaphore
    scripts: int = 0


class SandboxPool:
    """Runs at most `processes` scripts at the same time, at most `per_owner` of them for one owner; the rest wait."""

    def __init__(self, processes: int = 4, *, per_owner: int | None = None) -> None:
        self._processes = processes
        self._per_owner = processes if per_owner is None else per_owner
        self._owners: dict[str, _Owner] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._pool: monty.Monty | None = None
        self._opening = asyncio.Lock()
        self._scripts: set[SandboxScript] = set()

    async def __aenter__(self) -> SandboxPool:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the first process, unless the pool is open."""
        async with self._opening:
            if self._pool is not None:
                return
            executor = ThreadPoolExecutor(self._processes, thread_name_prefix="operations-code")
            pool = monty.Monty(min_processes=1, max_processes=self._processes)
            try:
                self._pool = await asyncio.get_running_loop().run_in_executor(executor, pool.__enter__)
            except BaseException:
                executor.shutdown(wait=False)
                raise
            self._executor = executor

    async def close(self) -> None:
        """Stop the running scripts and end the processes. A computing script ends at its CPU limit at the latest."""
        executor, pool = self._executor, self._pool
        self._executor = self._pool = None
        for script in list(self._scripts):
            script.stop()
        if executor is not None and pool is not None:
            await asyncio.to_thread(executor.shutdown)
            await asyncio.to_thread(pool.__exit__, None, None, None)

    async def run(self, script: SandboxScript, owner: str = "") -> Any:
        """Run a script and return its last value.

        The script starts when a process is free and fewer than `per_owner` scripts of the same owner are running.
        """
        of = self._owners.setdefault(owner, _Owner(asyncio.Semaphore(self._per_owner)))
        of.scripts += 1
        try:
            await of.turns.acquire()
        except BaseException:
            self._leave(owner)
            raise
        if self._executor is None or self._pool is None:
            of.turns.release()
            self._leave(owner)
            raise CallError(ErrorCode.UNAVAILABLE, "the sandbox is not open: use `async with`")
        running = asyncio.get_running_loop().run_in_executor(self._executor, script.run, self._pool)
        self._scripts.add(script)

        def end(_: asyncio.Future[Any]) -> None:
            self._scripts.discard(script)
            of.turns.release()
            self._leave(owner)

        running.add_done_callback(end)
        try:
            return await asyncio.shield(running)  # the script occupies its process until the thread ends
        finally:
            script.stop()
            if not running.done():
                running.add_done_callback(_forget)

    def _leave(self, owner: str) -> None:
        of = self._owners[owner]
        of.scripts -= 1
        if not of.scripts:
            del self._owners[owner]


def _forget(running: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned script, so that asyncio does not log it."""
    if not running.cancelled():
        running.exception()
