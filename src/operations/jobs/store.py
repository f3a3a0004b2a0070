"""JobStore: the interface of the stores that keep jobs and run them. `Jobs` checks who may see and change a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from operations.calls.job_records import JobRecord
from operations.context import Client, Exposed, Identity


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
    """The operations that the submitter's server exposes; a job in this process can submit only jobs of these."""


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
        """Wait for the end of a job and return its record; return None immediately if the caller may not see it."""

    async def cancel(self, job_id: str, record: JobRecord) -> None:
        """End a job that has not ended."""

    async def retry(self, job_id: str, record: JobRecord, identity: Identity | None) -> None:
        """Run a failed or dead job again, as `identity` if it is given, otherwise as the job's submitter."""

    async def close(self) -> None:
        """Release resources."""
