"""AuditLog: caller, operation, time and outcome of each call, one JSON object per line."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from operations.telemetry.metrics import Measure
from operations.telemetry.observer import Call, Observation

_log = logging.getLogger("operations")


class AuditLog:
    """An observer that appends a line to a file for each call: caller, operation, outcome, duration.

    Refused calls have a line as well. Nested calls of this process are left out unless `nested=True`. Inputs are
    written only with `inputs`, a function that returns the part of an input that may be written. Each line is one
    write. A line that cannot be written is logged as an error and counted in `failures`; the call continues.
    """

    def __init__(self, path: Path | str, *, inputs: Callable[[Any], Any] | None = None, nested: bool = False) -> None:
        self._file = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115  # closed by `close`
        self._inputs = inputs
        self._nested = nested
        self._lock = threading.Lock()
        self.failures = 0
        """Number of lines that were not written, or written without their input because `inputs` failed."""

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def measures(self) -> Iterator[Measure]:
        """Return the metric of `failures`."""
        yield Measure("operations_audit_failures_total", self.failures)

    def begin(self, call: Call) -> Observation | None:
        """Observe a call, whose line is written when it ends; return None for a nested call that is left out."""
        if call.parent_request_id is not None and call.kind == "local" and not self._nested:
            return None
        return _Audited(self, call)

    def write(self, call: Call, outcome: str) -> None:
        """Append the line of a call."""
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "operation": call.operation_id[:256],
            "caller": None if call.identity is None else call.identity.id,
            "outcome": outcome,
            "duration_ms": round(call.seconds * 1000, 3),
            "kind": call.kind,
            "request_id": call.request_id,
        }
        if call.parent_request_id is not None:
            line["parent_request_id"] = call.parent_request_id
        if call.streaming:
            line["items"] = call.items
        if self._inputs is not None:
            try:
                line["input"] = self._inputs(call.input)
            except Exception:  # noqa: BLE001  # the program's function may raise anything; the call is still recorded
                self.failures += 1
                _log.exception("the function for inputs of the audit log failed: the line is written without the input")
        try:
            with self._lock:
                self._file.write(msgspec.json.encode(line, enc_hook=repr) + b"\n")
        except (OSError, ValueError, TypeError, RecursionError):
            self.failures += 1
            _log.exception("cannot write a line of the audit log")


def _private(path: str, flags: int) -> int:
    """Open a file; a new file is readable and writable only by its owner."""
    return os.open(path, flags, 0o600)


class _Audited(Observation):
    """The observation of one call."""

    __slots__ = ("_call", "_log")

    def __init__(self, log: AuditLog, call: Call) -> None:
        self._log = log
        self._call = call

    def end(self, outcome: str, error: BaseException | None) -> None:
        """Write the line of the call."""
        self._log.write(self._call, outcome)
