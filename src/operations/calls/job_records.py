"""Records of jobs: the state and outcome of stored calls, which any process can fetch later.

The submitter writes a record when it stores the request, and the worker that runs the request replaces the record. The
transport stores records as bytes and does not decode them.
"""

from __future__ import annotations

import functools
import os
from enum import StrEnum
from hashlib import blake2b

import msgspec

from operations.context import Identity
from operations.deadlines import now_ms
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Record
from operations.spec import AccessControl
from operations.wire import decode_json, encode_json

MAX_RESULT_BYTES = 1 << 20
"""The largest result that is kept; a job with a larger one fails with reason `RESULT_TOO_LARGE`."""
KEEP_SECONDS = 86_400.0
"""How long an outcome is kept by default."""
MAX_KEEP_SECONDS = 7 * 86_400.0
"""How long an outcome is kept at most."""
DEAD_SECONDS = 30 * 86_400.0
"""How long a dead letter is kept."""
MOST_DEAD_LETTERS = 10_000
"""Largest number of records of dead letters of durable calls; further dead letters have no record and cannot be
retried.
"""
_OWNER_BYTES = 8
_LONGEST_TEXT = 1_000
"""Number of characters of an error's code and message that a record keeps."""
_VALUE_BYTES = 1 << 14
"""The largest size of a record without its body."""


class JobState(StrEnum):
    """The state of a job; the last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    """The operation returned a result."""
    FAILED = "failed"
    """The operation raised an error, or the request was refused."""
    DEAD = "dead"
    """A dead letter: several workers were lost while they ran the job, or no worker took it in time."""
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class JobProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress that a running job last reported."""

    value: float
    total: float | None = None
    message: str | None = None


class JobRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The part of a stored request that makes it a job."""

    key: str
    """The name of the job's record: a hash of the owner, and 128 random bits."""
    keep: int
    """Milliseconds for which the outcome is kept."""
    owner: str | None = None
    """The id of the submitter's identity; None for the program itself, empty for an anonymous caller."""


class JobBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a job."""

    envelope: bytes | None = None
    """The result of a job that is done, as MessagePack."""
    details: bytes | None = None
    """The details of the error, as JSON."""
    request: bytes = b""
    """The stored request of a job that did not succeed, so that it can be retried."""


class JobRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The state of one job."""

    operation_id: str
    state: JobState = JobState.QUEUED
    owner: str | None = None
    attempts: int = 0
    """Number of deliveries of the request to workers; for a job without a transport, number of starts."""
    keep: int = 0
    """Milliseconds for which the outcome is kept."""
    created_at: int = 0
    queued_at: int = 0
    """When the job was submitted, or last retried."""
    started_at: int | None = None
    ended_at: int | None = None
    progress: JobProgress | None = None
    code: str | None = None
    message: str = ""
    request_id: str = ""
    access: AccessControl | None = None
    """Access control of the job's operation, which also applies to the job.

    None if every caller may call the operation, and until a worker accepts the job.
    """
    body: JobBody | None = None
    """The outcome, stored separately because it may be large; None before the job ends, and in lists."""

    def encode(self) -> bytes:
        """Return the record without its body as bytes."""
        return _encode(self if self.body is None else msgspec.structs.replace(self, body=None))

    @property
    def seconds_kept(self) -> float:
        """Seconds for which the record is kept after its last change."""
        return DEAD_SECONDS if self.state is JobState.DEAD else self.keep / 1000

    def outcome(self) -> ResponseEnvelope[object]:
        """Return the result of a job that is done; raise the error of a job that ended without a result."""
        body = self.body or JobBody()
        if body.envelope is not None:
            return ResponseEnvelope.from_msgpack(body.envelope)
        details = None if body.details is None else decode_json(body.details)
        raise CallError(self.code or ErrorCode.UNKNOWN_ERROR, self.message, details)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobRecord).decode
_decode_body = msgspec.msgpack.Decoder(JobBody).decode


def read_record(value: bytes, body: bytes = b"") -> JobRecord:
    """Decode a stored record; raise a DecodeError for bytes that are not a record."""
    record = _decode(value)
    if body:
        record.body = _decode_body(body)
    return record


def transport_record(key: str, record: JobRecord, *, most: int = 0, waiting: float = 0.0) -> Record:
    """Return a record in the transport's format.

    `most` is the largest number of records of the owner (0: no limit). `waiting` is how many seconds the job may wait
    for a worker; they are added to the time for which the record is stored.
    """
    body = b"" if record.body is None else _encode(record.body)
    return Record(key=key, value=record.encode(), seconds=record.seconds_kept + waiting, body=body, most=most)


def owner_of(identity: Identity | None) -> str:
    """Return the owner of a caller's jobs: the id of its identity, or an empty string for an anonymous caller."""
    return "" if identity is None else identity.id


@functools.lru_cache(maxsize=1024)
def owner_key(owner: str | None) -> str:
    """Return the hash under which the jobs of an owner are listed."""
    text = "program" if owner is None else f"id:{owner}"
    return blake2b(text.encode(errors="replace"), digest_size=_OWNER_BYTES).hexdigest()


def new_job_key(owner: str | None) -> str:
    """Return an unguessable name for a new record."""
    return owner_key(owner) + os.urandom(16).hex()


def new_dead_letter_key() -> str:
    """Return a name for the record of a dead letter of a durable call; such a record has no proven owner."""
    return blake2b(b"dead letters", digest_size=_OWNER_BYTES).hexdigest() + os.urandom(16).hex()


def largest_body(max_payload: int | None) -> int:
    """Return the largest size of a result or request that a record can hold on a transport with this `max_payload`."""
    return MAX_RESULT_BYTES if max_payload is None else min(MAX_RESULT_BYTES, max_payload - _VALUE_BYTES)


def end_job(
    record: JobRecord,
    envelope: ResponseEnvelope[object] | None,
    error: CallError | None,
    *,
    request: bytes = b"",
    most: int = MAX_RESULT_BYTES,
) -> JobRecord:
    """Return the record of a job that ended with a result or an error.

    A result of more than `most` bytes is replaced by an error with the reason `RESULT_TOO_LARGE`.
    """
    record = msgspec.structs.replace(record, ended_at=now_ms(), progress=None)
    if error is None and envelope is not None:
        try:
            written = envelope.to_msgpack()
        except (CallError, TypeError, ValueError, OverflowError, RecursionError):
            error = CallError(ErrorCode.EXECUTION_ERROR, f"{record.operation_id}: the result cannot be encoded")
        else:
            if len(written) <= most:
                record.state, record.body = JobState.DONE, JobBody(written)
                return record
            text = f"the result has {len(written):,} bytes; at most {most:,} are kept"
            details = {"reason": "RESULT_TOO_LARGE", "executed": "yes"}
            error = CallError(ErrorCode.EXECUTION_ERROR, f"{record.operation_id}: {text}", details)
    error = error or CallError(ErrorCode.EXECUTION_ERROR, "the job ended without a result")
    return fail_job(record, error, request, most=most)


def fail_job(
    record: JobRecord,
    error: CallError,
    request: bytes,
    *,
    state: JobState = JobState.FAILED,
    most: int = MAX_RESULT_BYTES,
) -> JobRecord:
    """Return the record of a job that ended without a result, with the request, so that the job can be retried.

    The details of the error are left out if they cannot be encoded, or if details and request exceed `most` bytes.
    """
    details = None
    if error.details is not None:
        try:
            details = encode_json(error.details)
        except (CallError, TypeError, ValueError, OverflowError, RecursionError):
            details = None
        if details is not None and len(details) + len(request) > most:
            details = None
    return msgspec.structs.replace(
        record,
        state=state,
        ended_at=now_ms(),
        progress=None,
        code=str(error.code)[:_LONGEST_TEXT],
        message=error.message[:_LONGEST_TEXT],
        body=JobBody(None, details, request),
    )


def not_durable(operation_id: str) -> CallError:
    """Return the error for a stored request of an operation that is not durable."""
    text = "a stored call may run more than once, and the operation is not declared durable"
    details = {"operationId": operation_id, "reason": "NOT_DURABLE", "executed": "no"}
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: {text}; declare it with durable=True", details)


def requeued(record: JobRecord) -> JobRecord:
    """Return the record of a job that did not succeed and is to run again."""
    return JobRecord(
        operation_id=record.operation_id,
        owner=record.owner,
        attempts=record.attempts,
        keep=record.keep,
        created_at=record.created_at,
        queued_at=now_ms(),
        request_id=record.request_id,
        access=record.access,
    )
