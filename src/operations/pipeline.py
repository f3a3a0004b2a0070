"""The shared result pipeline: whatever a handler gave → envelope → normalised → checked, the same for every source."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope, detect_envelope, local_envelope
from operations.errors import CallError, ErrorCode
from operations.recent import Recent
from operations.schema import Policy, Problem, format_value_errors, jsonable
from operations.spec import Operation
from operations.wire import PLAIN

_log = logging.getLogger("operations")
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_MOST_PLACES = 20
_INDEX = re.compile(r"/\d+(?=/|$)")


class Mismatches:
    """Results that do not fit their schema: each operation and place is logged once a while and counted always."""

    def __init__(self, *, every: float = 60.0, capacity: int = 10_000) -> None:
        self._every = every
        self._capacity = capacity
        self._seen: Recent[tuple[str, str], _Place] = Recent(max(1, capacity // 2))
        self._spread: dict[tuple[str, str], set[str]] = {}

    def report(self, operation_id: str, problems: Iterable[Problem]) -> None:
        """Count each problem, and log one line for each place that was not logged lately."""
        fresh: dict[tuple[str, str], tuple[Problem, int]] = {}
        for problem in problems:
            key = (operation_id, self._pattern(operation_id, problem))
            first, count = fresh.get(key, (problem, 0))
            fresh[key] = first, count + 1
        for key, (problem, count) in fresh.items():
            self._add(key, problem, count)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many mismatches each operation had at each place; an array index is written `*`."""
        return {key: place.count for key, place in self._seen.items()}

    def _pattern(self, operation_id: str, problem: Problem) -> str:
        """The place of a problem, the same for every item of a list and for the members of a map."""
        path = _INDEX.sub("/*", problem.path)
        places = self._spread.setdefault((operation_id, problem.schema_path), set())
        if path in places or len(places) < _MOST_PLACES:
            places.add(path)
            return path
        # One rule broken in many places is a map's: its keys are data, not structure.
        return f"{path.rpartition('/')[0]}/*"

    def _add(self, key: tuple[str, str], problem: Problem, count: int) -> None:
        now = time.monotonic()
        place = self._seen.get(key) or _Place()
        place.count += count
        place.unsaid += count
        self._seen[key] = place
        if len(self._spread) > self._capacity:
            self._spread.clear()
        if place.said is None or now - place.said >= self._every:
            more = f" (and {place.unsaid - 1:,} more at {key[1]})" if place.unsaid > 1 else ""
            _log.warning("%s: result mismatch at %s: %s%s", key[0], problem.path or "(value)", problem.message, more)
            place.said, place.unsaid = now, 0


class _Place(msgspec.Struct):
    """What was counted at one place of one operation's results."""

    count: int = 0
    unsaid: int = 0
    said: float | None = None


def finish(operation: Operation[Any], policy: Policy, result: Any, mismatches: Mismatches) -> ResponseEnvelope[Any]:
    """Make what a handler returned (or yielded) the envelope that its caller gets."""
    envelope = None if type(result) in _SCALARS else detect_envelope(result)
    data = result if envelope is None else envelope.data
    if operation.dump is not None and (operation.dump is not jsonable or type(data) not in PLAIN):
        data = _shape(operation, data)
    schema = operation.spec.output_schema
    if not schema.is_unknown and (envelope is None or is_described(operation, envelope)):
        data, problems = schema.normalise(data, policy)
        if problems:
            _report(operation, policy, problems, mismatches)
    if envelope is None:
        return local_envelope(data, operation.spec.id)
    return envelope if data is envelope.data else ResponseEnvelope(data, envelope.meta)


def check_declared_error(operation: Operation[Any], error: CallError, mismatches: Mismatches) -> None:
    """Warn when the details of a domain error do not fit what the operation declared for its code."""
    schema = operation.spec.error_schemas.get(str(error.code))
    if schema is not None:
        mismatches.report(f"{operation.id} ({error.code} details)", schema.errors(error.details))


def _shape(operation: Operation[Any], data: Any) -> Any:
    assert operation.dump is not None
    try:
        return operation.dump(data)
    except CallError as error:
        message = f"{operation.id}: the result cannot be made JSON: {error.message}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, error.details) from error


def _report(operation: Operation[Any], policy: Policy, problems: Sequence[Problem], mismatches: Mismatches) -> None:
    """Say that a result does not fit its schema; under `strict` that is an error."""
    if policy == "strict":
        details = {"errors": [msgspec.to_builtins(problem) for problem in problems]}
        message = f"{operation.id}: the result does not fit the output schema\n{format_value_errors(problems)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, details)
    mismatches.report(operation.id, problems)


def is_described(operation: Operation[Any], envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the output schema speaks of this result: not of errors, nor of content blocks that stand in for data."""
    if operation.describes is not None:
        return operation.describes(envelope)
    meta = envelope.meta
    if isinstance(meta, HTTPResponseMeta):
        return meta.status_code < 400
    if not isinstance(meta, MCPResponseMeta):
        return True
    if meta.is_error:
        return False
    return meta.structured_content is not None or envelope.data != [block.to_dict() for block in meta.content]
