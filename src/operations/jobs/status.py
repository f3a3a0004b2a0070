"""JobStatus, the limits of jobs, and their errors."""

from __future__ import annotations

import msgspec

from operations.calls.job_records import MAX_KEEP_SECONDS, JobProgress, JobRecord, JobState
from operations.errors import CallError, ErrorCode
from operations.pubsub.limits import check_counts, check_seconds

JOB_NOT_FOUND = "JOB_NOT_FOUND"
"""The error code for a job id that is unknown or belongs to another caller."""
JOB_NOT_ENDED = "JOB_NOT_ENDED"
"""The error code if a result is requested before its job has ended."""
TOO_MANY_JOBS = "TOO_MANY_JOBS"
"""The `reason` in the details of the error if an identity has too many jobs."""


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


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per submitter."""

    jobs: int = 10_000
    """Largest number of stored jobs of one identity, in any state."""
    unfinished: int = 256
    """Largest number of running and waiting jobs of one identity in this process."""
    kept_bytes: int = 64 << 20
    """Largest total size of inputs and outcomes of one identity in this process."""
    input_bytes: int = 1 << 20
    """Largest size of the input of one job."""
    keep_seconds: float = MAX_KEEP_SECONDS
    """The longest time for which an outcome may be kept."""

    def __post_init__(self) -> None:
        check_counts(
            jobs=self.jobs, unfinished=self.unfinished, kept_bytes=self.kept_bytes, input_bytes=self.input_bytes
        )
        check_seconds(keep_seconds=self.keep_seconds)
        if self.keep_seconds > MAX_KEEP_SECONDS:
            raise ValueError(f"invalid keep_seconds {self.keep_seconds:g}: expected at most {MAX_KEEP_SECONDS:g}")


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


def too_many_jobs(limit: int, what: str) -> CallError:
    """Return the error for a submission beyond a limit of `JobLimits`; `what` says what is limited."""
    message = f"too many jobs: this identity has {limit:,} {what} already"
    return CallError(ErrorCode.UNAVAILABLE, message, {"reason": TOO_MANY_JOBS, "limit": limit, "executed": "no"})


def too_large_input(operation_id: str, size: int, limit: int) -> CallError:
    """Return the error for an input that is too large for a job."""
    message = f"{operation_id}: the input has {size:,} bytes; at most {limit:,} are allowed in a job"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
