"""CallRecorder: an observer that records the calls of a registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.schema import Problem
from operations.telemetry.call_records import CallRecord, CallRecords, caller_name
from operations.telemetry.differences import Difference, differences_of
from operations.telemetry.observer import Call, CallQueued, CallRetried, CallSized, Event, Observation

_LONGEST_LABEL = 40
_MOST_QUEUED = 20_000


class CallRecorder:
    """Records every call that a registry runs, including nested calls.

    `worker` is the name of this worker in the records. With `clean`, a function that removes secrets from a value,
    inputs and outputs are recorded as well. `explain` returns the error message that the caller of an operation may
    read. `slots` is the largest number of concurrent served calls.
    """

    def __init__(
        self,
        records: CallRecords,
        *,
        worker: str | None = None,
        slots: int | None = None,
        clean: Callable[[Any], Any] | None = None,
        explain: Callable[[CallError, str], str] = lambda error, operation_id: error.message,
    ) -> None:
        self.records = records
        self.worker = worker
        self.slots = slots
        self.clean = clean
        self.explain = explain
        self._queued: dict[tuple[str, str | None], CallRecord] = {}

    def begin(self, call: Call) -> Observation | None:
        """Record that a call begins; the call may have been queued before.

        Return None if the call is not recorded, because too many calls are running.
        """
        record = self._queued.pop((call.request_id, caller_name(call.identity)), None) if self._queued else None
        if record is None:
            record = self._add(call)
        if record is None:
            return None
        record.streaming = call.streaming
        self.records.start(record)
        return _Recorded(self, record, call)

    def note(self, event: Event) -> None:
        """Record that a call was queued or retried, or the total size of its request and response."""
        if isinstance(event, CallQueued):
            record = self._add(event.call)
            if record is not None and len(self._queued) < _MOST_QUEUED:
                self._queued[event.call.request_id, record.caller] = record
                self.records.queue(record, self.slots)
        elif isinstance(event, CallRetried):
            retried = self.records.get(event.request_id)
            if retried is not None:
                self.records.retry(retried, str(event.error.code), status_of(event.error), event.delay)
        elif isinstance(event, CallSized):
            sized = self.records.get(event.request_id)
            if sized is not None:
                sized.bytes = event.request_bytes + event.response_bytes

    def _add(self, call: Call) -> CallRecord | None:
        return self.records.add(
            call.request_id,
            call.operation_id,
            call.kind,
            parent=call.parent_request_id,
            caller=caller_name(call.identity),
            protocol=call.protocol or "local",
            worker=self.worker,
            trace_parent=call.metadata.get("traceparent"),
            streaming=call.streaming,
            label=self._label(call),
        )

    def _label(self, call: Call) -> str | None:
        """Return the first short string in an input as a label of the call, for example a city; None without one."""
        if self.clean is None or call.spec is None or not isinstance(call.input, dict):
            return None
        shown = call.spec.input_schema.redact(call.input)
        for name, each in shown.items() if isinstance(shown, dict) else ():
            if isinstance(each, str) and 0 < len(each) <= _LONGEST_LABEL:
                return str(self.clean({name: each})[name])
        return None


class _Recorded(Observation):
    """One call that is recorded."""

    __slots__ = ("_call", "_differences", "_output", "_record", "_recorder", "_status")

    def __init__(self, recorder: CallRecorder, record: CallRecord, call: Call) -> None:
        self._recorder = recorder
        self._record = record
        self._call = call
        self._status: int | None = None
        self._output: Any = None
        self._differences: list[Difference] = []

    def item(self, envelope: ResponseEnvelope[Any]) -> None:
        """Count an item."""
        self._recorder.records.item(self._record, self._call.items)

    def normalised(self, given: Any, data: Any, problems: Sequence[Problem]) -> None:
        """Store the differences that normalising caused; for a stream, store none, because its items are too many."""
        if not self._record.streaming:
            self._differences = differences_of(given, data, problems)

    def result(self, envelope: ResponseEnvelope[Any]) -> None:
        """Record status and output."""
        if isinstance(envelope.meta, HTTPResponseMeta):
            self._status = envelope.meta.status_code
        if self._recorder.clean is not None:
            self._output = envelope.data

    def end(self, outcome: str, error: BaseException | None) -> None:
        """Record the end of the call."""
        recorder, record, call = self._recorder, self._record, self._call
        message = None
        if isinstance(error, CallError):
            self._status = status_of(error)
            message = recorder.explain(error, call.operation_id)
        record.items = call.items
        recorder.records.end(record, outcome, status=self._status, message=message, seconds=call.seconds)
        if recorder.clean is not None or self._differences:
            input, output = self._bodies()
            recorder.records.keep_bodies(record, input, output, self._differences, clean=recorder.clean)

    def _bodies(self) -> tuple[Any, Any]:
        """Return input and output without the parts that their schemas mark as secret; None for both if bodies are not
        recorded.
        """
        spec, input, output = self._call.spec, self._call.input, self._output
        if self._recorder.clean is None:
            return None, None
        if spec is None:
            return input, output
        return (
            None if input is None else spec.input_schema.redact(input),
            None if output is None else spec.output_schema.redact(output),
        )


def status_of(error: CallError) -> int | None:
    """Return the upstream's HTTP status from an error's details; None if there is none."""
    status = error.details.get("statusCode") if isinstance(error.details, dict) else None
    return status if isinstance(status, int) and 100 <= status <= 599 else None
