"""Structured logs: each record as one JSON object, with its request id and operation."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

from operations.telemetry.observer import Call, current_observed_call
from operations.telemetry.tracing import SDK, modules
from operations.wire import valid_text

_STANDARD = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "request_id", "operation", "color_message"}
)
_LONGEST = 100_000


class LogContext:
    """An observer that makes the current call available to `JSONFormatter`, also in worker threads.

    `begin` does nothing. The observer is needed because a registry makes the current call available only if it has an
    observer.
    """

    def begin(self, call: Call) -> None:
        """Ignore the call."""


class JSONFormatter(logging.Formatter):
    """Writes a record as JSON on one line: `time`, `level`, `logger`, `message`, and further fields.

    `request_id` and `operation` come from the record, or from the current call. `trace_id` and `span_id` are of the
    current OpenTelemetry span. `traceback` is that of the record's exception. Further attributes of the record are
    added. The fields of a very long record are truncated.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        observed = current_observed_call()
        call = None if observed is None else observed.call
        for name, value in (
            ("request_id", getattr(record, "request_id", None) or (call.request_id if call else None)),
            ("operation", getattr(record, "operation", None) or (call.operation_id if call else None)),
        ):
            if value is not None:
                fields[name] = value
        fields |= _trace_ids()
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in fields}
        if record.exc_info and isinstance(record.exc_info[1], BaseException):  # asyncio may log a class instead
            fields["traceback"] = self.formatException(record.exc_info)
        return _encode(fields)


def _encode(fields: dict[str, Any]) -> str:
    try:
        text = msgspec.json.encode(fields, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError):
        text = msgspec.json.encode({name: valid_text(str(value)) for name, value in fields.items()}).decode()
    return text if len(text) <= _LONGEST else _encode({name: str(value)[:1_000] for name, value in fields.items()})


def _timestamp(seconds: float) -> str:
    milliseconds = int(seconds * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d}Z"


def _trace_ids() -> dict[str, str]:
    if SDK not in modules:
        return {}
    trace = sys.modules["opentelemetry.trace"]
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format(context.trace_id, "032x"), "span_id": format(context.span_id, "016x")}
