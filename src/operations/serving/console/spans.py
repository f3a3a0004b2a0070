"""Spans: recorded calls in the console's format, for one caller.

`declared_at` describes the type that an output schema declares at a path of a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from operations.errors import ErrorCode
from operations.schema.parts import SchemaParts, kinds_of
from operations.serving.console.rights import Viewer
from operations.serving.refusals import RefusedError
from operations.telemetry.call_records import CallRecord, CallRecords
from operations.telemetry.differences import Difference
from operations.wire import pointer_parts

_MOST_SPANS = 5_000
_SLICE = 500
_LONGEST_PATTERN = 256
_MOST_CHOICES = 4
_LONGEST_TYPE = 60
_OUTCOMES = ("running", "ok", "failed", "cancelled")
_KINDS = ("local", "served", "routed")
Parameters = dict[str, str]
Keep = Callable[[CallRecord], bool]


def span_json(record: CallRecord) -> dict[str, Any]:
    """Return a call as a span."""
    optional = {
        "parentRequestId": record.parent_request_id,
        "caller": record.caller,
        "worker": record.worker,
        "startedAt": record.started_at,
        "endedAt": record.ended_at,
        "busySlots": record.busy_slots,
        "outcome": record.outcome,
        "code": record.code,
        "status": record.status,
        "bytes": record.bytes,
        "label": record.label,
        "streaming": record.streaming or None,
        "items": record.items if record.streaming else None,
    }
    return {
        "requestId": record.request_id,
        "traceId": record.trace_id,
        "operationId": record.operation_id,
        "protocol": record.protocol,
        "kind": record.kind,
        "queuedAt": record.began_at,
        "attempts": msgspec.to_builtins(record.attempts),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _hidden_json(record: CallRecord) -> dict[str, Any]:
    """Return only the ids and times of a call that the caller may not see, but that is nested in a visible call."""
    optional = {
        "parentRequestId": record.parent_request_id,
        "startedAt": record.started_at,
        "endedAt": record.ended_at,
    }
    return {
        "requestId": record.request_id,
        "traceId": record.trace_id,
        "hidden": True,
        "queuedAt": record.began_at,
        "attempts": [],
        **{name: value for name, value in optional.items() if value is not None},
    }


class SpanReader:
    """Reads the recorded calls that one caller may see."""

    def __init__(self, records: CallRecords, viewer: Viewer, *, has_bodies: bool) -> None:
        self._records = records
        self._viewer = viewer
        self._has_bodies = has_bodies

    async def page(self, parameters: Parameters) -> dict[str, Any]:
        """Return calls, newest first."""
        keep = _filters(parameters)
        found, next_cursor = await self._select(parameters, keep, default=50, most=200)
        answer: dict[str, Any] = {"calls": [span_json(record) for record in found]}
        return answer if next_cursor is None else {**answer, "next": next_cursor}

    async def audit(self, parameters: Parameters) -> dict[str, Any]:
        """Return caller, operation and outcome of the external calls that have ended, newest first."""
        keep = [*_filters(parameters), _is_audited]
        found, next_cursor = await self._select(parameters, keep, default=100, most=500)
        answer: dict[str, Any] = {"entries": [_audit_json(record) for record in found]}
        return answer if next_cursor is None else {**answer, "next": next_cursor}

    def find(self, request_id: str) -> CallRecord:
        """Return a call; refuse with 404 if the call does not exist or the caller may not see it."""
        record = self._records.get(request_id)
        if record is None or not self._viewer.sees(record):
            raise not_visible("the call is unknown, or not allowed")
        return record

    def one(self, request_id: str) -> dict[str, Any]:
        """Return a call with its input and output, if they are stored."""
        record = self.find(request_id)
        answer = {**span_json(record), "cancellable": record.outcome is None and self._viewer.may_cancel(record)}
        if record.message is not None and self._may_read(record):
            answer["message"] = record.message
        bodies = self._records.bodies_of(record)
        if bodies is not None:
            retained = {
                "input": None if bodies.input is None else msgspec.Raw(bodies.input),
                "output": None if bodies.output is None else msgspec.Raw(bodies.output),
                "inputBytes": bodies.input_bytes or None,
                "outputBytes": bodies.output_bytes or None,
            }
            answer |= {name: value for name, value in retained.items() if value is not None}
            if bodies.differences is not None and self._may_read(record):
                answer["differences"] = self._differences(record, bodies.differences)
        return answer

    def trace(self, trace_id: str) -> dict[str, Any]:
        """Return the spans of a trace: the calls that the caller may see, and the calls nested in them."""
        records = self._records.trace(trace_id)
        visible = {record.request_id for record in records if self._viewer.sees(record)}
        if not visible:
            raise not_visible("the trace is unknown, or not allowed")
        ordered = _in_tree_order(records)
        shown: set[str] = set()
        spans: list[dict[str, Any]] = []
        for record in ordered:
            is_visible = record.request_id in visible
            if not is_visible and record.parent_request_id not in shown:
                continue
            shown.add(record.request_id)
            spans.append(self._span(record) if is_visible else _hidden_json(record))
        for span in spans:
            if span.get("parentRequestId") not in shown:
                span.pop("parentRequestId", None)
        answer: dict[str, Any] = {"traceId": trace_id, "spans": _clamp(spans[:_MOST_SPANS])}
        return {**answer, "truncated": True} if len(spans) > _MOST_SPANS else answer

    def _span(self, record: CallRecord) -> dict[str, Any]:
        span = span_json(record)
        if record.message is not None and self._may_read(record):
            span["message"] = record.message
        return span

    def _may_read(self, record: CallRecord) -> bool:
        """Whether the caller may read the error message and the differences of a call.

        Both may repeat parts of an input or an output.
        """
        return self._has_bodies or self._viewer.is_own(record)

    def _differences(self, record: CallRecord, encoded: bytes) -> list[dict[str, Any]]:
        """Return the differences between an output and its schema, with values only if the viewer made the call."""
        operation = self._viewer.operations.get(record.operation_id)
        document = None if operation is None else operation.spec.output_schema.document
        found: list[dict[str, Any]] = []
        for each in msgspec.json.decode(encoded, type=list[Difference]):
            declared = declared_at(document, each.pointer)
            described = {"declared": declared, **msgspec.to_builtins(each)}
            if not self._viewer.is_own(record):
                described = {name: described.get(name) for name in ("pointer", "action", "declared")}
            found.append({name: value for name, value in described.items() if value is not None})
        return found

    async def _select(
        self, parameters: Parameters, keep: Sequence[Keep], *, default: int, most: int
    ) -> tuple[list[CallRecord], str | None]:
        limit = read_number(parameters, "limit", default, least=1, most=most)
        cursor = read_number(parameters, "cursor", 0, least=0, most=1 << 60)
        found: list[CallRecord] = []
        for number, record in enumerate(self._records.newest(cursor or None), 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            if self._viewer.sees(record) and all(condition(record) for condition in keep):
                if len(found) == limit:
                    return found, str(found[-1].number)
                found.append(record)
        return found, None


def _is_audited(record: CallRecord) -> bool:
    """Whether a call is external and has ended."""
    is_outer = record.kind == "served" or (record.kind == "routed" and record.parent_request_id is None)
    return is_outer and record.outcome is not None


def _audit_json(record: CallRecord) -> dict[str, Any]:
    optional = {"caller": record.caller, "code": record.code}
    return {
        "at": record.began_at,
        "operationId": record.operation_id,
        "protocol": record.protocol,
        "outcome": record.outcome,
        "durationMs": round((record.ended_at or record.began_at) - record.began_at, 3),
        "requestId": record.request_id,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _filters(parameters: Parameters) -> list[Keep]:
    """Return the filters in the query parameters."""
    keep: list[Keep] = []
    pattern = parameters.get("operation")
    if pattern:
        _check_length("operation", pattern)
        keep.append(lambda record: fnmatchcase(record.operation_id, pattern))
    for name, field in (("caller", "caller"), ("protocol", "protocol"), ("worker", "worker"), ("code", "code")):
        wanted = parameters.get(name)
        if wanted:
            keep.append(lambda record, field=field, wanted=wanted: getattr(record, field) == wanted)  # type: ignore[misc]
    if trace := parameters.get("trace"):
        keep.append(lambda record: record.trace_id == trace)
    if kind := read_choice(parameters, "kind", _KINDS):
        keep.append(lambda record: record.kind == kind)
    if outcome := read_choice(parameters, "outcome", _OUTCOMES):
        state = None if outcome == "running" else outcome
        keep.append(lambda record: record.outcome == state)
    if parameters.get("roots") == "1":
        keep.append(lambda record: record.parent_request_id is None)
    since = read_number(parameters, "since", 0, least=0, most=1 << 60)
    until = read_number(parameters, "until", 1 << 60, least=0, most=1 << 60)
    if since or until < 1 << 60:
        keep.append(lambda record: since <= record.began_at <= until)
    return keep


def read_choice(parameters: Parameters, name: str, choices: Sequence[str], default: str = "") -> str:
    """Return a parameter; without the parameter, return `default`.

    Refuse with 400 a value that is neither empty nor one of `choices`.
    """
    value = parameters.get(name, default)
    if value and value not in choices:
        raise _invalid(f"invalid {name}: expected one of {', '.join(choices)}")
    return value


def read_number(parameters: Parameters, name: str, default: int, *, least: int, most: int) -> int:
    """Return a parameter as a whole number, without its decimals; without the parameter, return `default`.

    Refuse a value that is not a number from `least` to `most` with 400.
    """
    text = parameters.get(name)
    if not text:
        return default
    digits = text.partition(".")[0]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or not least <= int(digits) <= most:
        raise _invalid(f"invalid {name}: expected a number from {least} to {most}")
    return int(digits)


def not_visible(message: str) -> RefusedError:
    """Return the error for a resource that does not exist or that the caller may not see, without revealing which."""
    return RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, message, "NOT_VISIBLE")


def _check_length(name: str, value: str) -> None:
    if len(value) > _LONGEST_PATTERN or value.count("*") > 8:
        raise _invalid(f"invalid {name}: expected at most {_LONGEST_PATTERN} characters and 8 asterisks")


def _invalid(message: str) -> RefusedError:
    return RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "PARAMETER")


def _in_tree_order(records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return calls in the order of a tree: each call is followed by its nested calls, in the order of their start."""
    known = {record.request_id for record in records}
    children: dict[str | None, list[CallRecord]] = {}
    for record in sorted(records, key=lambda record: (record.began_at, record.number)):
        parent = record.parent_request_id
        is_below = parent in known and parent != record.request_id
        children.setdefault(parent if is_below else None, []).append(record)
    ordered: list[CallRecord] = []
    pending = list(reversed(children.pop(None, [])))
    while pending:
        record = pending.pop()
        ordered.append(record)
        pending.extend(reversed(children.pop(record.request_id, [])))
    return ordered  # calls that name each other as parents are left out


def _clamp(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Limit the times of each span to the duration of its parent. In `spans`, parents must come first."""
    by_id = {span["requestId"]: span for span in spans}
    for span in spans:
        parent = by_id.get(span.get("parentRequestId", ""))
        if parent is None:
            continue
        first, last = parent["queuedAt"], parent.get("endedAt")
        for name in ("queuedAt", "startedAt", "endedAt"):
            if name in span:
                span[name] = max(first, span[name] if last is None else min(last, span[name]))
    return spans


def declared_at(document: Any, pointer: str) -> str | None:
    """Return the type that a schema declares at a JSON pointer (`integer`, `open | closed`); None if undeclared."""
    if not isinstance(document, Mapping):
        return None
    parts = SchemaParts(document)
    found: list[Any] = [document]
    for name in pointer_parts(pointer):
        found = [below for schema in found[:_MOST_CHOICES] for below in _members(parts, schema, name)]
    words = dict.fromkeys(word for schema in found[:_MOST_CHOICES] for word in _words(parts, schema))
    if not words:
        return None
    text = " | ".join(words)
    return text if len(text) <= _LONGEST_TYPE else f"{text[:_LONGEST_TYPE]}…"


def _members(parts: SchemaParts, schema: Any, name: str) -> list[Any]:
    """Return the schemas that declare a property or item of a value."""
    found: list[Any] = []
    for node in parts.variants(schema):
        properties, items = node.get("properties"), node.get("items")
        listed = node.get("prefixItems")
        if isinstance(properties, Mapping) and name in properties:
            found.append(properties[name])
        elif isinstance(listed, list) and name.isdecimal() and int(name) < len(listed):
            found.append(listed[int(name)])
        elif items is not None and name.isdecimal():
            found.append(items)
        elif isinstance(node.get("additionalProperties"), Mapping):
            found.append(node["additionalProperties"])
    return found


def _words(parts: SchemaParts, schema: Any) -> list[str]:
    words: list[str] = []
    for node in parts.variants(schema):
        choices = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(choices, list | tuple) and 0 < len(choices) <= _MOST_CHOICES:
            words += [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in choices]
        else:
            words += kinds_of(node)
    return words
