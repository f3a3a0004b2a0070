"""JobLimits: the limits of jobs for each submitter, and the errors beyond them."""

from __future__ import annotations

import msgspec

from operations.calls.job_records import MAX_KEEP_SECONDS
from operations.errors import CallError, ErrorCode
from operations.pubsub.limits import check_counts, check_seconds

TOO_MANY_JOBS = "TOO_MANY_JOBS"
"""The `reason` in the details of the error if an identity has too many jobs."""


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


def too_many_jobs(limit: int, what: str) -> CallError:
    """Return the error for a submission beyond a limit of `JobLimits`; `what` says what is limited."""
    message = f"too many jobs: this identity has {limit:,} {what} already"
    return CallError(ErrorCode.UNAVAILABLE, message, {"reason": TOO_MANY_JOBS, "limit": limit, "executed": "no"})


def too_large_input(operation_id: str, size: int, limit: int) -> CallError:
    """Return the error for an input that is too large for a job."""
    message = f"{operation_id}: the input has {size:,} bytes; at most {limit:,} are allowed in a job"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
