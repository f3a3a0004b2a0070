"""Supervisor: runs several processes of one command, restarts failed processes, and replaces all on a reload."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from operations.cli.arguments import Command, ParsedArguments
from operations.cli.failures import DENIED, OK, USAGE
from operations.cli.processes import print_event
from operations.cli.runner import REPLACES, SUPERVISOR

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_STEADY_SECONDS = 60.0
"""A process that ran for this time is restarted without a delay when it fails."""
_READY_WITHIN = 120.0
_KILL_AFTER = 10.0
_LOOK_EVERY = 1.0
_MOST_FILES = 20_000
_FINAL = (USAGE, DENIED)
"""Exit codes after which a new process would fail in the same way: the supervisor stops."""
_SKIPPED = frozenset({"__pycache__", "node_modules"})
Report = Callable[[str, str], None]


class Child:
    """One process, from its start to its end."""

    def __init__(self, number: int, words: Sequence[str], folder: str) -> None:
        self.number = number
        self._words = words
        self._path = os.path.join(folder, f"{number}-{time.monotonic_ns()}")
        self._began = 0.0
        self.is_ready = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def was_steady(self) -> bool:
        """Whether the process has run for at least `_STEADY_SECONDS`."""
        return time.monotonic() - self._began >= _STEADY_SECONDS

    @property
    def pid(self) -> int | None:
        """The process id; None if the process is not running."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return -1 if self._process is None else await self._process.wait()

    async def start(self, *, replaces: bool = False) -> bool:
        """Start the process and wait until it is ready; return False if it ends or takes too long.

        With `replaces`, an old process still runs, and the new process waits until the old one frees the health port.
        """
        self._began = time.monotonic()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.setblocking(False)
            ready.bind(self._path)
            environment = {**os.environ, "NOTIFY_SOCKET": self._path, SUPERVISOR: str(os.getpid())}
            if replaces:
                environment[REPLACES] = "1"
            # -P: without it, `-m` imports modules of the current directory, whose owner the user may not trust.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "operations", *self._words, env=environment
            )
            notified = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(ready, 256))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait((notified, ended), timeout=_READY_WITHIN, return_when=asyncio.FIRST_COMPLETED)
                self.is_ready = notified.done() and process.returncode is None
            finally:
                notified.cancel()
                ended.cancel()
                await asyncio.wait((notified, ended))
                os.unlink(self._path)
        return self.is_ready

    async def stop(self, grace: float) -> None:
        """Let the process finish its calls; kill it if that takes longer than `grace` + `_KILL_AFTER` seconds."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace + _KILL_AFTER):
                await process.wait()
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.kill()


class Supervisor:
    """Keeps `count` processes of a command running until `stopping` is set.

    A process that ends is started again, after a delay that doubles while it fails quickly. If a process ends before it
    is ready, with an exit code in `_FINAL`, the supervisor stops all processes. `reload` replaces the processes one by
    one. An old process is stopped only when the new one is ready; otherwise the old process stays.
    """

    def __init__(self, words: Callable[[int], Sequence[str]], count: int, *, grace: float, report: Report) -> None:
        self._words = words
        self._count = count
        self._grace = grace
        self._report = report
        self._children: dict[int, Child] = {}
        self._folder = ""
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()
        self._reload_requested = False
        """Whether a requested reload has not begun."""
        self.stopping = asyncio.Event()
        """An event; setting it stops all processes."""
        self.exit_code = OK

    async def run(self) -> int:
        """Run until `stopping` is set; return the exit code."""
        with tempfile.TemporaryDirectory(prefix="ops-") as folder:
            self._folder = folder
            keepers = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
            stopped = asyncio.create_task(self.stopping.wait())
            await asyncio.wait([stopped, *keepers], return_when=asyncio.FIRST_COMPLETED)
            self.stopping.set()
            for task in (*keepers, *self._reloads):
                task.cancel()
            ended = await asyncio.gather(*keepers, *self._reloads, return_exceptions=True)
            await asyncio.gather(*(child.stop(self._grace) for child in self._children.values()))
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure
        return self.exit_code

    def reload(self) -> None:
        """Replace every process by a new one; if a reload is running, start another one after it."""
        self._reload_requested = True
        if not self._reloads:
            task = asyncio.ensure_future(self._reload())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        while self._reload_requested:
            self._reload_requested = False
            async with self._reloading:
                self._report("reloading", "reloading")
                replaced = [await self._replace(number) for number in list(self._children)]
                if all(replaced):
                    self._report("reloaded", "reloaded")

    async def _replace(self, number: int) -> bool:
        """Replace one process; return False if the new process does not become ready, so that the old one stays."""
        old, new = self._children[number], Child(number, self._words(number), self._folder)
        try:
            is_ready = await new.start(replaces=True)
        except asyncio.CancelledError:
            new.kill()
            raise
        if not is_ready:
            new.kill()
            text = f"process {number}: the new process is not ready; the old process continues"
            self._report("reload failed", text)
            return False
        self._children[number] = new
        await old.stop(self._grace)
        return True

    async def _keep(self, number: int) -> None:
        """Start process `number`, and start it again whenever it ends, also after a reload has replaced it.

        If it ends with a code in `_FINAL` before it is ready, stop all processes instead.
        """
        delay = 0.0
        while True:
            await asyncio.sleep(delay)
            child = self._children[number] = Child(number, self._words(number), self._folder)
            if await child.start():
                self._report("started", f"process {number} is ready (pid {child.pid})")
            while True:
                child = self._children[number]
                code = await child.wait()
                async with self._reloading:
                    if self._children[number] is child:
                        break  # not replaced by a reload: the process ended by itself
            if code in _FINAL and not child.is_ready:
                self.exit_code = code
                self.stopping.set()
                return
            self._report("ended", f"process {number} ended with {code}; starting another one")
            delay = 0.0 if child.was_steady else min(_LONGEST_DELAY, max(_FIRST_DELAY, delay * 2))


async def supervise(args: ParsedArguments, command: Command, watched: Iterable[Path]) -> int:
    """Run a command in several processes until SIGTERM or Ctrl-C.

    SIGHUP replaces the processes; with `--reload`, a changed file does so too.
    """

    def report(event: str, text: str) -> None:
        print_event(args, event, text)

    supervisor = Supervisor(
        lambda number: words_of(args, command, number), args.processes or 1, grace=args.grace, report=report
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stopping.set)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    watching = asyncio.create_task(_watch(list(watched), supervisor.reload)) if args.reload else None
    try:
        return await supervisor.run()
    finally:
        if watching is not None:
            watching.cancel()


def words_of(args: ParsedArguments, command: Command, number: int) -> list[str]:
    """Return the command line of process `number`: the supervisor's without `--processes` and `--reload`.

    Each process gets a separate health port.
    """
    words = [command.name]
    for option in command.all_options():
        value = getattr(args, option.key, None)
        if option.key in ("processes", "reload") or value is None or value is False or value == option.default:
            continue
        if option.key == "health":
            host, port = value
            value = f"{f'[{host}]' if ':' in host else host}:{port + number if port else 0}"
        words += [option.name] if value is True else [option.name, str(value)]
    return words


async def _watch(paths: Sequence[Path], changed: Callable[[], None]) -> None:
    """Call `changed` when a file was changed, added or removed."""
    before = await asyncio.to_thread(_stamps, paths)
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        now = await asyncio.to_thread(_stamps, paths)
        if now != before:
            before = now
            changed()


def _stamps(paths: Sequence[Path]) -> Mapping[str, int]:
    """Return the modification time of each file, and of the Python files in each directory."""
    found: dict[str, int] = {}
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
                _stamp(found, (os.path.join(folder, name) for name in names if name.endswith(".py")))
                if len(found) > _MOST_FILES:
                    break
        else:
            _stamp(found, [str(path)])
    return found


def _stamp(found: dict[str, int], names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = os.stat(name).st_mtime_ns
