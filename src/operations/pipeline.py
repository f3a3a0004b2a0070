"""Result pipeline: wrap, normalise, validate; the same for every source."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from operations.envelope import (
    Event,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    SSEEvent,
    detect_envelope,
    local_envelope,
)
from operations.errors import CallError, ErrorCode
from operations.recent import Recent
from operations.schema import Policy, Problem, format_value_errors, jsonable
from operations.spec import Operation
from operations.wire import PLAIN

_log = logging.getLogger("operations")
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_MAX_PATHS = 20
_INDEX = re.compile(r"/\d+(?=/|$)")


class Mismatches:
    """Counter of schema violations; logs each path at most once a minute."""

    def __init__(self, *, every: float = 60.0, capacity: int = 10_000) -> None:
        self._every = every
        self._capacity = capacity
        self._path_counts: Recent[tuple[str, str], _PathCount] = Recent(max(1, capacity // 2))
        self._spread: dict[tuple[str, str], set[str]] = {}

    def report(self, operation_id: str, problems: Iterable[Problem]) -> None:
        """Count each problem, and log one line for each path that was not logged recently."""
        fresh: dict[tuple[str, str], tuple[Problem, int]] = {}
        for problem in problems:
            key = (operation_id, self._pattern(operation_id, problem))
            first, count = fresh.get(key, (problem, 0))
            fresh[key] = first, count + 1
        for key, (problem, count) in fresh.items():
            self._add(key, problem, count)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of mismatches by operation and path; array indexes are `*`."""
        return {key: path_count.count for key, path_count in self._path_counts.items()}

    def _pattern(self, operation_id: str, problem: Problem) -> str:
        """Return the path of a problem, the same for all items of a list and all keys of a map."""
        path = _INDEX.sub("/*", problem.path)
        paths = self._spread.setdefault((operation_id, problem.schema_path), set())
        if path in paths or len(paths) < _MAX_PATHS:
            paths.add(path)
            return path
        # A rule that fails at many paths belongs to a map: its keys are data, not structure.
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


def finish(operation: Operation[Any], policy: Policy, result: Any, mismatches: Mismatches) -> ResponseEnvelope[Any]:
    """Make what a handler returned (or yielded) the envelope that its caller gets."""
    if type(result) is Event:
        return _finish_event(operation, policy, result, mismatches)
    envelope = None if type(result) in _SCALARS else detect_envelope(result)
    data = result if envelope is None else envelope.data
    if operation.dump is not None and (operation.dump is not jsonable or type(data) not in PLAIN):
        data = _to_json(operation, data)
    schema = operation.spec.output_schema
    if not schema.is_unknown and (envelope is None or output_schema_applies(operation, envelope)):
        data, problems = schema.normalise(data, policy)
        if problems:
            _report(operation, policy, problems, mismatches)
    if envelope is None:
        return local_envelope(data, operation.spec.id)
    return envelope if data is envelope.data else ResponseEnvelope(data, envelope.meta)


def _finish_event(
    operation: Operation[Any], policy: Policy, event: Event[Any], mismatches: Mismatches
) -> ResponseEnvelope[Any]:
    """Make an item with an id or a type an envelope whose meta has both."""
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


def _to_json(operation: Operation[Any], data: Any) -> Any:
    assert operation.dump is not None
    try:
        return operation.dump(data)
    except CallError as error:
        message = f"{operation.id}: cannot convert the result to JSON: {error.message}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, error.details) from error


def _report(operation: Operation[Any], policy: Policy, problems: Sequence[Problem], mismatches: Mismatches) -> None:
    """Report a result that does not match its schema; raise under `strict`."""
    if policy == "strict":
        details = {"errors": [msgspec.to_builtins(problem) for problem in problems]}
        message = f"{operation.id}: the result does not match the output schema\n{format_value_errors(problems)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, details)
    mismatches.report(operation.id, problems)


def output_schema_applies(operation: Operation[Any], envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the output schema applies to this result: not to errors, nor to content blocks used as data."""
    if operation.schema_applies is not None:
        return operation.schema_applies(envelope)
    meta = envelope.meta
    if isinstance(meta, HTTPResponseMeta):
        return meta.status_code < 400
    if not isinstance(meta, MCPResponseMeta):
        return True
    if meta.is_error:
        return False
    return meta.structured_content is not None or envelope.data != [block.to_dict() for block in meta.content]
