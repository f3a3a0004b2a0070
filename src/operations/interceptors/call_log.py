"""LogCalls: one log line for each call."""

from __future__ import annotations

import logging
import time
from typing import Any

from operations.errors import CallError
from operations.interceptors.base import Envelopes, Invocation, Proceed, open_stream
from operations.interceptors.redaction import FieldRedactor
from operations.wire import encode_json

_LONGEST_INPUT = 2_000
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class LogCalls:
    """Logs each call when it ends: operation, request id, caller, outcome, milliseconds.

    A failed call is logged as a warning, or at `level` if that is `ERROR`. With `slow`, successful calls that take
    fewer than `slow` seconds are not logged. `input=True` adds the input as JSON, truncated, with `[redacted]` for
    fields whose names suggest secrets. A stream is logged as one line, with its number of items.
    """

    def __init__(
        self,
        *,
        level: str = "INFO",
        logger: str = "operations.calls",
        slow: float | None = None,
        input: bool = False,
    ) -> None:
        if level not in _LEVELS:
            raise ValueError(f"invalid level {level!r}: expected one of {', '.join(_LEVELS)}")
        self._level = getattr(logging, level)
        self._log = logging.getLogger(logger)
        self._slow = slow
        self._redactor = FieldRedactor() if input else None

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call and log how it ended."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        began = time.perf_counter()
        try:
            envelope = await proceed(invocation)
        except BaseException as error:
            self._write(invocation, began, error)
            raise
        self._write(invocation, began, None)
        return envelope

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        began, items = time.perf_counter(), 0
        try:
            async with open_stream(invocation, proceed) as stream:
                async for envelope in stream:
                    items += 1
                    yield envelope
        except BaseException as error:
            # A consumer that has read enough closes the stream: this is not a failure.
            self._write(invocation, began, None if isinstance(error, GeneratorExit) else error, items)
            raise
        self._write(invocation, began, None, items)

    def _write(
        self, invocation: Invocation, began: float, error: BaseException | None, items: int | None = None
    ) -> None:
        seconds = time.perf_counter() - began
        level = self._level if error is None else max(self._level, logging.WARNING)
        if (error is None and self._slow is not None and seconds < self._slow) or not self._log.isEnabledFor(level):
            return
        context = invocation.context
        code = "ok" if error is None else str(error.code) if isinstance(error, CallError) else type(error).__name__
        fields: dict[str, Any] = {
            "operation": invocation.spec.id,
            "request_id": context.request_id,
            "caller": None if context.identity is None else context.identity.id,
            "outcome": code,
            "duration_ms": round(seconds * 1000, 3),
        }
        if items is not None:
            fields["items"] = items
        if self._redactor is not None:
            fields["input"] = _shorten(self._redactor.beginning(invocation.input, _LONGEST_INPUT))
        self._log.log(level, "%s", _Line(fields), extra=fields)


class _Line:
    """The fields as text, formatted only if a logging handler writes the record; values from callers are quoted."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        fields = self._fields
        more = "".join(f" {name}={fields[name]!r}" for name in ("items", "input") if name in fields)
        return (
            f"{fields['operation']} {fields['outcome']} in {fields['duration_ms']} ms "
            f"request={fields['request_id']!r} caller={fields['caller']!r}{more}"
        )


def _shorten(input: Any) -> str:
    try:
        text = encode_json(input).decode()
    except CallError:
        return "(not JSON)"
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}…"
