"""JobStatus, and the errors that depend on the state of a job."""

from __future__ import annotations

import msgspec

from operations.calls.job_records import JobProgress, JobRecord, JobState
from operations.errors import CallError

JOB_NOT_FOUND = "JOB_NOT_FOUND"
"""The error code for a job id that is unknown or belongs to another caller."""
JOB_NOT_ENDED = "JOB_NOT_ENDED"
"""The error code if a result is requested before its job has ended."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of one job; times are epoch milliseconds."""

    id: str
    operation_id: str
    state: JobState
    attempts: int = 0
    """How many times the job was started, or delivered to a worker."""
    owner: str | None = None
    """The id of the submitter's identity; None for the program itself, empty for an anonymous caller."""
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    expires_at: int | None = None
    """When the outcome of a job that ended is deleted."""
    progress: JobProgress | None = None
    code: str | None = None
    """The code of the error of a job that did not succeed."""
    message: str = ""
    """The message of the error of a job that did not succeed."""

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state.is_final


def status_of(job_id: str, record: JobRecord) -> JobStatus:
    """Return the status that a record describes."""
    expires_at = None
    if record.ended_at is not None:
        expires_at = record.ended_at + int(record.seconds_kept * 1000)
    return JobStatus(
        id=job_id,
        operation_id=record.operation_id,
        state=record.state,
        attempts=record.attempts,
        owner=record.owner,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        expires_at=expires_at,
        progress=record.progress,
        code=record.code,
        message=record.message,
    )


def not_found(job_id: str) -> CallError:
    """Return the error for the id of a job that does not exist or that the caller may not see."""
    return CallError(JOB_NOT_FOUND, f"there is no job {job_id[:200]!r}", {"jobId": job_id[:200], "executed": "no"})


def not_ended(job_id: str, state: JobState) -> CallError:
    """Return the error for the result of a job that has not ended."""
    details = {"jobId": job_id, "state": state.value}
    return CallError(JOB_NOT_ENDED, f"the job {job_id} is {state.value}: it has no result yet", details)
