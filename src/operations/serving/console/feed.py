"""Feeds: server-sent events with changes. Each feed has one caller. A feed reads the event log and has no queue.

`EventLog` has the latest changes of recorded calls, numbered. `Sampler` limits how many calls a feed reports per
second, so that a busy server does not flood a page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from operations.errors import ErrorCode
from operations.failures import unavailable
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.asgi import Headers, Receive, Send, wait_for_disconnect
from operations.serving.console.catalogues import Catalogues
from operations.serving.console.jobs import ConsoleJobs
from operations.serving.console.rights import Viewer
from operations.serving.console.spans import span_json
from operations.serving.console.workers import Workers, worker_json
from operations.serving.refusals import RefusedError
from operations.telemetry.call_records import CallRecord, Change
from operations.telemetry.time_series import TimeSeries

TOPICS = ("calls", "workers", "sources", "jobs", "metrics", "catalogue")
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
_RETRY = b"retry: 2000\n\n"
_HEARTBEAT = b":\n\n"
_HEARTBEAT_SECONDS = 10.0
_INTERVAL = 0.1
_SLOW_SECONDS = 30.0
"""How long the server tries to send a chunk to a client that does not read, before the feed ends."""
_FEEDS_EACH = 16
_MOST_FEEDS = 1_000
_MOST_PER_CHUNK = 1_000
_MOST_EVENTS = 8_192
_PER_SECOND = 200
_MOST_FOLLOWED = 10_000
_encode = msgspec.json.Encoder().encode
Entry = tuple[int, Change, CallRecord]
"""A change of a call: its number in the event log, its kind and the record of the call."""


class EventLog:
    """A ring buffer of changes. Each reader has its own position: a slow reader misses changes, but delays no other."""

    def __init__(self, size: int = _MOST_EVENTS) -> None:
        self.epoch = os.urandom(6).hex()
        """Random id of this log. It is a part of event ids, so that an id from before a restart is refused."""
        self.last = 0
        """Number of the last change."""
        self._size = size
        self._ring: list[tuple[Change, CallRecord] | None] = [None] * size

    def append(self, change: Change, record: CallRecord) -> None:
        """Add a change; if the ring is full, the change replaces the oldest one."""
        self.last += 1
        self._ring[self.last % self._size] = change, record

    def after(self, position: int) -> tuple[list[tuple[int, Change, CallRecord]], int]:
        """Return the stored changes after a position, each with its number.

        The second result is the number of changes after the position that are no longer stored.
        """
        first = max(position + 1, self.last - self._size + 1, 1)
        found = []
        for number in range(first, self.last + 1):
            entry = self._ring[number % self._size]
            if entry is not None:
                found.append((number, *entry))
        return found, max(0, first - position - 1)

    def name_of(self, position: int) -> str:
        """Return the event id of a position."""
        return f"{self.epoch}-{position}"

    def position_of(self, name: str) -> int | None:
        """Return the position of an event id; None if the id is invalid or belongs to another log."""
        epoch, _, digits = name.partition("-")
        if epoch != self.epoch or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            return None
        position = int(digits)
        return position if position <= self.last else None


class Sampler:
    """Chooses the calls that one feed reports: at most `per_second` new ones, failed calls first.

    Every later change of a chosen call is reported.
    """

    def __init__(self, per_second: float = _PER_SECOND) -> None:
        self.skipped = 0
        """Number of changes that were left out."""
        self._per_second = per_second
        self._budget = per_second
        self._followed: dict[int, None] = {}
        """The numbers of the calls that were chosen and still run."""

    def choose(self, entries: Sequence[Entry], seconds: float) -> list[Entry]:
        """Return the changes in `entries` that the feed sends. `seconds` is the time since the last choice."""
        self._budget = min(self._per_second, self._budget + seconds * self._per_second)
        chosen = {record.number for _, _, record in entries if record.number in self._followed}
        new = {record.number: record for _, _, record in entries if record.number not in chosen}
        for record in sorted(new.values(), key=lambda record: record.outcome != "failed"):
            if self._budget < 1:
                break
            self._budget -= 1
            chosen.add(record.number)
        kept = [entry for entry in entries if entry[2].number in chosen]
        self.skipped += len(entries) - len(kept)
        self._follow(kept)
        return kept

    def _follow(self, kept: Sequence[Entry]) -> None:
        for _, change, record in kept:
            if change == "ended":
                self._followed.pop(record.number, None)
            elif record.ended_at is None:
                self._followed[record.number] = None
        while len(self._followed) > _MOST_FOLLOWED:
            del self._followed[next(iter(self._followed))]


class FeedRequest(msgspec.Struct, kw_only=True):
    """The topics and filters of a feed."""

    viewer: Callable[[], Viewer]
    """Returns the caller's current rights."""
    topics: frozenset[str]
    trace: str = ""
    last_event_id: str | None = None


class Feeds:
    """The open feeds of one application."""

    def __init__(
        self,
        log: EventLog,
        series: TimeSeries,
        catalogues: Catalogues,
        workers: Sequence[Workers],
        jobs: ConsoleJobs | None,
    ) -> None:
        self.log = log
        self.series = series
        self.catalogues = catalogues
        self.workers = workers
        self.jobs = jobs
        self.interval = _INTERVAL
        self.heartbeat = _HEARTBEAT_SECONDS
        self._open = ConcurrencyLimits(_FEEDS_EACH, "open feeds")
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, wanted: FeedRequest, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or reads too slowly, its credentials expire, or `close` runs."""
        caller = wanted.viewer().caller
        if len(self._tasks) >= _MOST_FEEDS:
            raise unavailable("console.feed", "too many feeds are open", "no")
        self._open.acquire(caller.key)
        feed = Feed(self, wanted, send)
        task = asyncio.get_running_loop().create_task(feed.run())
        self._tasks.add(task)
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            expires = None if caller.principal is None else caller.principal.expires_at
            left = None if expires is None else max(0.0, expires - time.time())
            await asyncio.wait((task, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            await self._stop(task)
            self._tasks.discard(task)
            self._open.release(caller.key)
        await feed.finish()

    def close(self) -> None:
        """End every feed; clients with valid credentials reconnect."""
        for task in list(self._tasks):
            task.cancel()

    async def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, OSError):
            raise error


class Feed:
    """One feed. It reads the log from its own position, filters and samples the changes, and sends them in batches."""

    def __init__(self, feeds: Feeds, wanted: FeedRequest, send: Send) -> None:
        self._feeds = feeds
        self._wanted = wanted
        self._send = send
        self._is_open = False
        self._sampler = None if wanted.trace else Sampler()
        self._position = feeds.log.last
        self._version = ""
        self._generation: object = None
        self._sent_workers: dict[str, tuple[Any, ...]] = {}
        self._sent_sources: dict[str, dict[str, Any]] = {}
        self._sent_jobs: dict[str, dict[str, Any]] | None = None
        self._second = 0
        self._sent_at = time.monotonic()

    async def run(self) -> None:
        """Send events until the task is cancelled."""
        await self._open()
        before = time.monotonic()
        while True:
            await asyncio.sleep(self._feeds.interval)
            viewer, now = self._wanted.viewer(), time.monotonic()
            chunk = self._calls(viewer, now - before)
            before = now
            if int(now) != self._second:
                self._second = int(now)
                chunk += await self._state(viewer)
            if chunk:
                await self._write(b"".join(chunk))
            elif now - self._sent_at >= self._feeds.heartbeat:
                await self._write(_HEARTBEAT)

    async def finish(self) -> None:
        """End the response."""
        if self._is_open:
            with contextlib.suppress(OSError):  # the client may have gone
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _open(self) -> None:
        viewer, log = self._wanted.viewer(), self._feeds.log
        self._version = (await self._feeds.catalogues.get(viewer)).version
        chunk = [_RETRY, _event("hello", {"version": self._version, "time": round(time.time() * 1000, 3)})]
        resumed = self._wanted.last_event_id
        if resumed is not None:
            position = log.position_of(resumed)
            if position is None:
                chunk.append(_event("overflow", {"dropped": 0}))
            else:
                self._position = position
        self._note_state(viewer)
        await self._job_changes(viewer)
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self._is_open = True
        await self._write(b"".join(chunk))

    def _calls(self, viewer: Viewer, seconds: float) -> list[bytes]:
        """Return the events of the topic `calls`, for new changes that the caller may see."""
        log = self._feeds.log
        if self._position == log.last:
            return []
        entries, lost = log.after(self._position)
        self._position = log.last
        if "calls" not in self._wanted.topics:
            return []
        trace = self._wanted.trace
        seen: list[Entry] = [
            entry for entry in entries if (not trace or entry[2].trace_id == trace) and viewer.sees(entry[2])
        ]
        if self._sampler is not None:
            seen = self._sampler.choose(seen, seconds)
        kept = seen[-_MOST_PER_CHUNK:]
        lost += len(seen) - len(kept)
        chunk = [_event("overflow", {"dropped": lost})] if lost else []
        for number, change, record in kept:
            chunk.append(_event(f"call.{change}", span_json(record), log.name_of(number)))
        return chunk

    async def _state(self, viewer: Viewer) -> list[bytes]:
        """Return the events of every topic except `calls`, for the changes since this method last ran."""
        chunk: list[bytes] = []
        topics = self._wanted.topics
        if "catalogue" in topics:
            version = (await self._feeds.catalogues.get(viewer)).version
            if version != self._version:
                self._version = version
                chunk.append(_event("catalogue.changed", {"version": version}))
        sent_workers, sent_sources = self._sent_workers, self._sent_sources
        workers, sources = self._note_state(viewer)
        if "sources" in topics:
            chunk += [_event("source.changed", each) for each in sources if sent_sources.get(each["name"]) != each]
        if "workers" in topics:
            chunk += [
                _event("worker.changed", each)
                for each in workers
                if sent_workers.get(each["name"]) != _reported_fields(each)
            ]
        chunk += await self._job_changes(viewer)
        if "metrics" in topics and viewer.may_watch:
            names = ("t", "ok", "failed", "p50", "p95", "p99", "inFlight", "queued")
            chunk.append(_event("metrics", dict(zip(names, self._feeds.series.latest(), strict=True))))
        return chunk

    async def _job_changes(self, viewer: Viewer) -> list[bytes]:
        """Return events for the jobs that have changed since the last check."""
        jobs = self._feeds.jobs
        if jobs is None or "jobs" not in self._wanted.topics:
            return []
        sent, now = self._sent_jobs, await jobs.snapshot(viewer)
        self._sent_jobs = now
        return (
            [] if sent is None else [_event("job.changed", job) for name, job in now.items() if sent.get(name) != job]
        )

    def _note_state(self, viewer: Viewer) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the workers and sources, and store them for comparison with the next state."""
        workers: list[dict[str, Any]] = []
        if viewer.may_watch and "workers" in self._wanted.topics:
            states = (state for each in self._feeds.workers for state in each.states())
            workers = [worker_json(state, viewer, self._feeds.series) for state in states]
        sources = self._feeds.catalogues.states(viewer) if "sources" in self._wanted.topics else []
        self._sent_workers = {each["name"]: _reported_fields(each) for each in workers}
        self._sent_sources = {each["name"]: each for each in sources}
        return workers, sources

    async def _write(self, chunk: bytes) -> None:
        self._sent_at = time.monotonic()
        async with asyncio.timeout(_SLOW_SECONDS):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


def _reported_fields(worker: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of a worker that cause an event when they change. Its load is not one of them."""
    return tuple(worker.get(name) for name in ("state", "slots", "operations", "lostAt"))


def read_topics(text: str | None) -> frozenset[str]:
    """Return the topics in a parameter's value; without a value, all topics. Refuse unknown topics with 400."""
    if not text:
        return frozenset(TOPICS)
    wanted = frozenset(text.split(","))
    unknown = sorted(wanted - frozenset(TOPICS))
    if unknown:
        message = f"invalid topics: expected some of {', '.join(TOPICS)}"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "PARAMETER")
    return wanted


def _event(name: str, data: dict[str, Any], identifier: str = "") -> bytes:
    head = f"id: {identifier}\nevent: {name}\n" if identifier else f"event: {name}\n"
    return b"%sdata: %s\n\n" % (head.encode(), _encode(data))
