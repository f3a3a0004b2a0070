"""TimeSeries: calls, failures and latencies over time, by operation and worker, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_BASE = 1.1
"""Ratio of two successive bounds of the buckets for latencies: a percentile is at most 5 % off."""
_LOG_BASE = math.log(_BASE)
_FASTEST = 1e-5
_MOST_SERIES = 5_000
_MOST_CELLS = 60_000
RANGES: Mapping[str, tuple[int, int]] = {"15m": (1, 900), "1h": (10, 360), "6h": (60, 360)}
"""Time ranges by name: the seconds of a step, and the number of steps."""
PERCENTILES = (0.5, 0.95, 0.99)


class Row(NamedTuple):
    """One step of a series; latencies are in milliseconds, None without calls."""

    t: int
    """Start of the step, in epoch milliseconds."""
    ok: int
    failed: int
    p50: float | None
    p95: float | None
    p99: float | None
    in_flight: int
    queued: int


class _Cell:
    """The calls that ended in one step, and the largest sampled numbers of running and of queued calls."""

    __slots__ = ("buckets", "failed", "in_flight", "ok", "queued")

    def __init__(self) -> None:
        self.ok = 0
        self.failed = 0
        self.in_flight = 0
        self.queued = 0
        self.buckets: dict[int, int] = {}

    def merge(self, other: _Cell) -> None:
        """Add the calls of another step."""
        self.ok += other.ok
        self.failed += other.failed
        self.in_flight = max(self.in_flight, other.in_flight)
        self.queued = max(self.queued, other.queued)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count


class _Series:
    """One series. For each length of a step in seconds, `cells` has the cells by step number, the oldest first."""

    __slots__ = ("cells", "current", "second")

    def __init__(self, second: int, current: _Cell) -> None:
        self.second = second
        """The last second with a call. When this second is over, its calls are added to the steps."""
        self.current = current
        self.cells: dict[int, OrderedDict[int, _Cell]] = {step: OrderedDict() for step, _ in RANGES.values()}


Key = tuple[str, str]
"""The key of a series: `("operation", id)`, `("worker", name)`, or `("", "")` for the series of all calls."""
ALL: Key = ("", "")


class TimeSeries:
    """Series of all calls, of each operation and of each worker.

    A series divides time into steps of 1, 10 and 60 seconds. All series together keep at most 60,000 steps with calls;
    the oldest are dropped. `levels` returns the current numbers of running and of waiting calls.
    """

    def __init__(
        self, levels: Callable[[], tuple[int, int]] = lambda: (0, 0), *, clock: Callable[[], float] = time.time
    ) -> None:
        self.levels = levels
        self._clock = clock
        self._began = int(clock())
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._order: deque[tuple[_Series, int, int]] = deque()
        """The steps of all series in the order in which they were added."""

    def add(self, operation_id: str, worker: str | None, seconds: float, *, failed: bool) -> None:
        """Count a call that ended now."""
        second, bucket = int(self._clock()), _bucket_of(seconds)
        self._count(ALL, second, bucket, failed)
        self._count(("operation", operation_id), second, bucket, failed)
        if worker is not None:
            self._count(("worker", worker), second, bucket, failed)

    def rows(self, name: str, key: Key = ALL) -> list[Row]:
        """Return the finished steps of a range (`15m`, `1h`, `6h`), from the first step with a call."""
        step, count = RANGES[name]
        series = self._get(key)
        cells = {} if series is None else series.cells[step]
        last = int(self._clock()) // step  # the current step
        first = max(last - count, min(cells, default=last))
        return [_row(number * step, cells.get(number)) for number in range(first, last)]

    def latest(self) -> Row:
        """Return the row of the last finished second, with the current numbers of running and waiting calls."""
        second = int(self._clock()) - 1
        series = self._get(ALL)
        cell = None if series is None else series.cells[1].get(second)
        in_flight, queued = self.levels()
        return _row(second, cell)._replace(in_flight=in_flight, queued=queued)

    def summary(self, key: Key) -> tuple[float, float | None, float]:
        """Return the calls per second, 95th percentile (ms) and share of failures of the last minute."""
        now, total = int(self._clock()), _Cell()
        series = self._get(key)
        if series is not None:
            for second in range(now - 60, now):
                cell = series.cells[1].get(second)
                if cell is not None:
                    total.merge(cell)
        calls = total.ok + total.failed
        elapsed = max(1, min(60, now - self._began))
        return calls / elapsed, _percentile(total, 0.95), total.failed / calls if calls else 0.0

    def counts(self, key: Key) -> list[int]:
        """Return the number of calls in each of the last 30 steps of 10 seconds, the oldest first."""
        last = int(self._clock()) // 10
        series = self._get(key)
        cells = {} if series is None else series.cells[10]
        found = (cells.get(number) for number in range(last - 30, last))
        return [0 if cell is None else cell.ok + cell.failed for cell in found]

    def _count(self, key: Key, second: int, bucket: int, failed: bool) -> None:
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(second, self._new_cell(key))
            if len(self._series) > _MOST_SERIES:
                self._drop_series()
        elif series.second != second:
            self._finish_second(series)
            series.second, series.current = second, self._new_cell(key)
            self._series.move_to_end(key)
        cell = series.current
        if failed:
            cell.failed += 1
        else:
            cell.ok += 1
        cell.buckets[bucket] = cell.buckets.get(bucket, 0) + 1

    def _new_cell(self, key: Key) -> _Cell:
        cell = _Cell()
        if key is ALL:
            cell.in_flight, cell.queued = self.levels()
        return cell

    def _finish_second(self, series: _Series) -> None:
        """Add the calls of the series' last second, which is over, to the steps of each resolution."""
        second, finished = series.second, series.current
        if not finished.buckets:
            return
        for step, count in RANGES.values():
            cells, number = series.cells[step], second // step
            cell = cells.get(number)
            if cell is None:
                cell = cells[number] = _Cell()
                self._order.append((series, step, number))
                while next(iter(cells)) < number - count:
                    cells.popitem(last=False)
            cell.merge(finished)
        series.current = _Cell()
        while len(self._order) > _MOST_CELLS:
            oldest, step, number = self._order.popleft()
            oldest.cells[step].pop(number, None)

    def _get(self, key: Key) -> _Series | None:
        """Return a series, or None; if its last second is over, first add the calls of that second to its steps."""
        series = self._series.get(key)
        if series is not None and series.second < int(self._clock()):
            self._finish_second(series)
        return series

    def _drop_series(self) -> None:
        for key in self._series:  # drop the least recently used series, but never the series of all calls
            if key != ALL:
                del self._series[key]
                return


def columns(rows: Sequence[Row], step: int) -> dict[str, Any]:
    """Return rows as one list for each column."""
    names = ("t", "ok", "failed", "p50", "p95", "p99", "inFlight", "queued")
    return {"step": step, **{name: [row[index] for row in rows] for index, name in enumerate(names)}}


def _row(second: int, cell: _Cell | None) -> Row:
    if cell is None:
        return Row(second * 1000, 0, 0, None, None, None, 0, 0)
    p50, p95, p99 = (_percentile(cell, share) for share in PERCENTILES)
    return Row(second * 1000, cell.ok, cell.failed, p50, p95, p99, cell.in_flight, cell.queued)


def _bucket_of(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, _FASTEST)) / _LOG_BASE)


def _percentile(cell: _Cell, share: float) -> float | None:
    """Return the milliseconds within which a share of the calls ended; None without calls."""
    wanted = math.ceil(share * (cell.ok + cell.failed))
    for bucket in sorted(cell.buckets):
        wanted -= cell.buckets[bucket]
        if wanted <= 0:
            return round(math.pow(_BASE, bucket - 0.5) * 1000, 3)
    return None
