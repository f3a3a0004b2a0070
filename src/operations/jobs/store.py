"""JobStore, the interface of stores that keep and run jobs; and JobLimits, the limits that these stores enforce.

`Jobs` checks who may see and change a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from operations.calls.job_records import MAX_KEEP_SECONDS, JobRecord
from operations.context import Client, Exposed, Identity
from operations.errors import CallError, ErrorCode
from operations.pubsub.limits import check_counts, check_seconds

TOO_MANY_JOBS = "TOO_MANY_JOBS"
"""The `reason` in the details of the error if an identity has too many jobs."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be stored."""

    operation_id: str
    input: Any
    owner: str | None
    identity: Identity | None
    keep: float
    """Seconds for which the outcome is kept."""
    metadata: Mapping[str, Any] | None = None
    client: Client | None = None
    """Answers the handler's questions if the job runs in this process; a job on a transport cannot ask questions."""
    exposure: Exposed | None = None
    """The operations that the submitter's server exposes.

    The handler of a job in this process can submit only these operations as further jobs.
    """


MaySee = Callable[[JobRecord], bool]
"""Function that returns whether a caller may see a job."""


class JobStore(Protocol):
    """Stores jobs by id and runs them."""

    async def submit(self, submission: Submission) -> str:
        """Store a job and return its id."""

    async def read(self, job_id: str) -> JobRecord | None:
        """Return the record of a job; None if the job does not exist."""

    async def list(self, owner: str | None, *, everyone: bool, limit: int) -> list[tuple[str, JobRecord]]:
        """Return at most `limit` jobs, the newest first: those of `owner`, or with `everyone` those of all owners."""

    async def wait(self, job_id: str, may_see: MaySee) -> JobRecord | None:
        """Wait for the end of a job and return its record; None if the job does not exist or may not be seen."""

    async def cancel(self, job_id: str, record: JobRecord) -> None:
        """End a job that has not ended."""

    async def retry(self, job_id: str, record: JobRecord, identity: Identity | None) -> None:
        """Run a failed or dead job again, as `identity` if it is given, otherwise as the job's submitter."""

    async def close(self) -> None:
        """Release resources."""


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
