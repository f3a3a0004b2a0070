"""Responses to stored requests: a durable call is acknowledged after its response; the outcome of a job is stored."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from operations.calls.codec import Codec
from operations.calls.events import CallRequested
from operations.calls.held_requests import memory_of
from operations.calls.job_records import (
    JobProgress,
    JobRecord,
    JobRequest,
    JobState,
    end_job,
    fail_job,
    largest_body,
    not_durable,
    owner_key,
    owner_of,
    transport_record,
)
from operations.calls.replay_protection import STORED_SECONDS, ReplayError
from operations.calls.request_handler import Reply, RequestHandler
from operations.calls.stored_requests import StoredRequest, first_record, job_of
from operations.deadlines import now_ms
from operations.dispatch import Request
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import aborted, executed_of
from operations.spec import OPEN

_NOTE_SECONDS = 0.5
"""Shortest time between two updates of a job's progress."""
_LONGEST_PROGRESS = 200


def start_stored(handler: RequestHandler, event: CallRequested, codec: Codec, stored: StoredRequest) -> None:
    """Run a stored request, or refuse it."""
    job = job_of(event, stored.delivery)
    ids = event.id, event.payload.request_id, event.to
    if job is None:
        reply = StoredReply(handler, *ids, codec, stored=stored)
    else:
        # A dead letter that is retried is a job whose submitter did not state its key.
        states_key = job is event.payload.job
        record = first_record(event, job, stored.delivery)
        reply = JobReply(handler, *ids, codec, stored=stored, job=job, record=record, states_key=states_key)
    spec = handler.registry.get_spec(event.to)
    if spec is not None and not spec.durable:
        reply.refuse(not_durable(event.to))
    else:
        handler.start(event, reply)


class StoredReply(Reply, kw_only=True):
    """The response to a stored call: the request is acknowledged after the response was sent."""

    is_stored: ClassVar[bool] = True
    stored: StoredRequest

    def prepare(self, request: Request) -> None:
        """Count the memory of the request; the transport takes no more requests while stored ones take too much."""
        self.stored.delivery.weigh(memory_of(request.input) + memory_of(request.metadata))

    def note_recorded(self) -> None:
        """Note that the delivery that this worker holds is in the shared record: other deliveries are copies."""
        self.stored.is_recorded = True

    def abort(self, reason: str) -> None:
        """Do nothing: a stored request runs even if its caller has left."""

    def refuse(self, error: CallError) -> None:
        """Send the error of a refused request, unless it is a replay, and acknowledge the request."""
        if self.stored.is_held:
            super().refuse(error)
            self.stored.done()

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Send the response, then acknowledge the request; do neither if another worker has the request now."""
        self.is_aborted = not self.stored.is_held
        super().ended(envelope, error)
        self.stored.done()

    def _send(self, message: bytes) -> None:
        self.stored.sent(message)
        super()._send(message)


class JobReply(StoredReply, kw_only=True):
    """The response to the request of a job: the outcome is stored in the job's record and not sent to the caller."""

    job: JobRequest
    record: JobRecord
    states_key: bool
    """Whether the request states the key of the job."""
    _noted_at: float = 0.0

    def prepare(self, request: Request) -> None:
        """Refuse a job whose owner or key is not that of the authenticated submitter; complete the job's record.

        The record also gets the progress that the handler will report.
        """
        super().prepare(request)
        job, identity = self.job, request.grant.identity
        if job.owner is not None or identity is not None:
            # The owner that a submitter states proves nothing, and a submitter that signs may not know its own id.
            self.record.owner = owner_of(identity)
        if job.owner is not None and job.owner != self.record.owner:
            details = {"operationId": self.operation_id, "reason": "NOT_THE_OWNER", "executed": "no"}
            raise CallError("ACCESS_DENIED", f"{self.operation_id}: the owner of the job is not its submitter", details)
        if self.states_key and not job.key.startswith(owner_key(job.owner)):
            raise CallError("VALIDATION_ERROR", f"{self.operation_id}: invalid key of a job", {"executed": "no"})
        spec = self.handler.registry.get_spec(self.operation_id)
        if spec is not None and spec.access_control != OPEN:
            self.record.access = spec.access_control
        request.progress = self.report
        self.record.started_at = now_ms()

    def accept(self) -> None:
        """Store in the record that the job is running."""
        self._note()

    def report(self, value: float, total: float | None, message: str | None) -> None:
        """Store the progress that the handler reports, at most every `_NOTE_SECONDS`."""
        text = None if message is None else message[:_LONGEST_PROGRESS]
        self.record.progress = JobProgress(value, total, text)
        if time.monotonic() - self._noted_at >= _NOTE_SECONDS:
            self._note()

    def abort(self, reason: str) -> None:
        """Cancel the job; only a caller that may use the job can request this."""
        Reply.abort(self, reason)

    def refuse(self, error: CallError) -> None:
        """Store the error of a refused job.

        If this worker cannot run the job now, for example because the worker's queue is full, release the request for
        another worker. If the delivery is a copy, acknowledge that delivery.
        """
        self.record.access = None  # so that its owner can read why it was refused
        if isinstance(error, ReplayError):
            self.stored.discard()
        elif error.code is ErrorCode.UNAVAILABLE and executed_of(error) == "no":
            self.stored.release()
        else:
            self.ended(None, error)

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Store the outcome and acknowledge the request, in one step."""
        if self.since:
            self.unregister()
        if not self.stored.is_held:
            return
        if self.is_aborted:
            error = aborted(self.operation_id, "the job was cancelled")
            record = fail_job(self.record, error, b"", state=JobState.CANCELLED)
        else:
            most = largest_body(self.handler.transport.capabilities.max_payload)
            record = end_job(self.record, envelope, error, request=self.stored.delivery.message, most=most)
        self.stored.keep_outcome(transport_record(self.job.key, record))

    def _note(self) -> None:
        if self.stored.is_held and not self.is_aborted:
            self._noted_at = time.monotonic()
            self.record.state = JobState.RUNNING
            self.stored.delivery.note(transport_record(self.job.key, self.record, waiting=STORED_SECONDS))
