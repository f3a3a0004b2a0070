"""Result pipeline: wrap, normalise, validate; the same for every source."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from operations.envelope import (
    Event,
    LocalResponseMeta,
    ResponseEnvelope,
    SSEEvent,
    detect_envelope,
    has_described_data,
    may_be_envelope,
)
from operations.errors import CallError, ErrorCode
from operations.recent import Recent
from operations.schema import Policy, Problem, format_value_errors, jsonable
from operations.schema.dialects.literals import escaped
from operations.spec import Operation, OperationSpec
from operations.wire import PLAIN

_log = logging.getLogger("operations")
_MAX_PATHS = 20
Normalised = Callable[[OperationSpec, Any, Any, Sequence[Problem]], None]
_NO_ENVELOPE = PLAIN | {float, list}
"""Common types of results that are not envelopes: for these, the slower check for mappings is skipped."""
_INDEX = r"/\d+(?=/|$)"


class Mismatches:
    """Counter of schema violations; logs each path at most once a minute."""

    def __init__(self, *, every: float = 60.0, capacity: int = 10_000) -> None:
        self.normalised: Normalised | None = None
        """Called for each result that was changed or does not match its schema.

        The arguments are the spec, the result before and after normalising, and the problems.
        """
        self._every = every
        self._capacity = capacity
        self._spread: dict[tuple[str, str], set[str]] = {}

    @cached_property
    def _path_counts(self) -> Recent[tuple[str, str], _PathCount]:
        return Recent(max(1, self._capacity // 2))

    @cached_property
    def _removed(self) -> Recent[tuple[str, str], int]:
        return Recent(max(1, self._capacity // 2))

    def report(self, operation_id: str, problems: Iterable[Problem]) -> None:
        """Count each problem, and log one line for each path that was not logged recently."""
        fresh: dict[tuple[str, str], tuple[Problem, int]] = {}
        for problem in problems:
            key = (operation_id, self._pattern(operation_id, problem.path, problem.schema_path))
            first, count = fresh.get(key, (problem, 0))
            fresh[key] = first, count + 1
        for key, (problem, count) in fresh.items():
            self._add(key, problem, count)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of mismatches by operation and path; array indexes are `*`."""
        return {key: path_count.count for key, path_count in self._path_counts.items()}

    def note_removed(self, operation_id: str, before: Any, after: Any) -> None:
        """Count parts that normalising removed from a result, such as undeclared properties; log each path once."""
        for path, times in Counter(removed_paths(before, after)).items():
            rule = f"removed {path.rpartition('/')[0]}"
            key = (operation_id, self._pattern(operation_id, path, rule))
            count = self._removed.get(key)
            self._removed[key] = (count or 0) + times
            if count is None:
                message = "%s: removed %s from the result: the output schema does not declare it"
                _log.info(message, operation_id, escaped(key[1]))

    def removed(self) -> dict[tuple[str, str], int]:
        """Return the number of parts that normalising removed, by operation and path; array indexes are `*`."""
        return dict(self._removed.items())

    def removed_by_operation(self) -> Counter[str]:
        """Return the number of parts that normalising removed, by operation."""
        total: Counter[str] = Counter()
        for (operation_id, _), count in self._removed.items():
            total[operation_id] += count
        return total

    def _pattern(self, operation_id: str, path: str, rule: str) -> str:
        """Return a path with `*` in place of array indexes.

        If problems of one rule already have many paths, `*` also replaces the last key of a new path.
        """
        path = re.sub(_INDEX, "/*", path)
        paths = self._spread.setdefault((operation_id, rule), set())
        if path in paths or len(paths) < _MAX_PATHS:
            paths.add(path)
            return path
        # Many paths of one rule differ in the keys of a map, which are data: `*` replaces the last key.
        return f"{path.rpartition('/')[0]}/*"

    def _add(self, key: tuple[str, str], problem: Problem, count: int) -> None:
        now = time.monotonic()
        path_count = self._path_counts.get(key) or _PathCount()
        path_count.count += count
        path_count.unreported += count
        self._path_counts[key] = path_count
        if len(self._spread) > self._capacity:
            self._spread.clear()
        if path_count.reported_at is None or now - path_count.reported_at >= self._every:
            more = f" (and {path_count.unreported - 1:,} more at {key[1]})" if path_count.unreported > 1 else ""
            _log.warning("%s: result mismatch at %s: %s%s", key[0], problem.path or "(value)", problem.message, more)
            path_count.reported_at, path_count.unreported = now, 0


class _PathCount(msgspec.Struct):
    """Counts of one path of one operation's results."""

    count: int = 0
    unreported: int = 0
    reported_at: float | None = None


def removed_paths(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each property and item of `before` that `after` lacks; identical objects are skipped."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{path}/{name}"
            elif value is not after[name]:
                yield from removed_paths(value, after[name], f"{path}/{name}")
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for value, kept in zip(before, after, strict=False):
            if value is not kept:
                yield from removed_paths(value, kept, f"{path}/*")
        for _ in range(len(before) - len(after)):
            yield f"{path}/*"


def finish(operation: Operation[Any], policy: Policy, result: Any, mismatches: Mismatches) -> ResponseEnvelope[Any]:
    """Convert a handler's result, or one item of its stream, to the caller's envelope."""
    kind = type(result)
    if kind is Event:
        return _finish_event(operation, policy, result, mismatches)
    if kind is dict:
        may_be = "meta" in result
    else:
        may_be = kind not in _NO_ENVELOPE and kind is not operation.result_class and may_be_envelope(result.__class__)
    envelope = detect_envelope(result) if may_be else None
    data = result if envelope is None else envelope.data
    dump = operation.dump
    if dump is not None and (dump is not jsonable or type(data) not in PLAIN):
        try:
            data = dump(data)
        except CallError as error:
            message = f"{operation.id}: cannot convert the result to JSON: {error.message}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, error.details) from error
    schema = operation.spec.output_schema
    if not schema.is_unknown and (envelope is None or (operation.schema_applies or has_described_data)(envelope)):
        given = data
        data, problems = schema.normalise(data, policy)
        if problems or data is not given:
            _report(operation, policy, given, data, problems, mismatches)
    if envelope is None:
        # `local_envelope`, inlined for speed: most calls end here.
        return ResponseEnvelope(data, LocalResponseMeta(operation.spec.id, time.time_ns() // 1_000_000))
    return envelope if data is envelope.data else ResponseEnvelope(data, envelope.meta)


def _finish_event(
    operation: Operation[Any], policy: Policy, event: Event[Any], mismatches: Mismatches
) -> ResponseEnvelope[Any]:
    """Convert an `Event` to an envelope; a local meta gets the id and type of the event, other metas stay unchanged."""
    envelope = finish(operation, policy, event.data, mismatches)
    meta = envelope.meta
    if not isinstance(meta, LocalResponseMeta):
        return envelope
    return ResponseEnvelope(envelope.data, msgspec.structs.replace(meta, event=SSEEvent(event.type, event.id)))


def check_declared_error(operation: Operation[Any], error: CallError, mismatches: Mismatches) -> None:
    """Warn if the details of a custom error do not match the schema declared for its code."""
    schema = operation.spec.error_schemas.get(str(error.code))
    if schema is not None:
        mismatches.report(f"{operation.id} ({error.code} details)", schema.errors(error.details))


def _report(
    operation: Operation[Any],
    policy: Policy,
    given: Any,
    data: Any,
    problems: Sequence[Problem],
    mismatches: Mismatches,
) -> None:
    """Report a result that was changed or does not match its schema; raise under `strict` if it does not match."""
    if mismatches.normalised is not None:
        mismatches.normalised(operation.spec, given, data, problems)
    if data is not given:
        mismatches.note_removed(operation.id, given, data)
    if not problems:
        return
    if policy == "strict":
        details = {"errors": [msgspec.to_builtins(problem) for problem in problems]}
        message = f"{operation.id}: the result does not match the output schema\n{format_value_errors(problems)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, details)
    mismatches.report(operation.id, problems)
