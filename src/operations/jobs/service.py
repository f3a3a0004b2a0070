"""Jobs: submits calls that run later, and returns their status and results to permitted callers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Self

from operations.access import check_access
from operations.calls.job_records import KEEP_SECONDS, JobRecord, JobState, not_durable, owner_of
from operations.context import Client, Exposed, Identity, check_identity
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.jobs.durable import DurableJobStore
from operations.jobs.memory import MemoryJobStore
from operations.jobs.status import JobStatus, not_ended, not_found, status_of
from operations.jobs.store import JobLimits, JobStore, Submission
from operations.pubsub import Transport
from operations.pubsub.limits import check_seconds
from operations.registry import OperationRegistry
from operations.settings import read_settings
from operations.spec import Operation
from operations.telemetry.tracing import with_trace

ADMIN_SCOPE = "jobs.admin"
"""The scope of identities that may see, cancel and retry the jobs of others."""
_MOST_LISTED = 10_000
_LONGEST_ID = 256
_OPERATION_ID = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.[A-Za-z0-9_/-]+")
Statuses = list[JobStatus]


class Jobs:
    """Jobs of one registry or of one bus: `async with Jobs(registry_or_transport) as jobs:`.

    With a registry, jobs run in this process and are lost when the process ends. With a transport that stores messages
    (Redis, NATS with JetStream), workers run the jobs, and every process on that bus can fetch their results.

    The methods trust their caller, as `registry.execute` does. Code that serves external callers uses
    `jobs.of(identity)`, which has only the jobs that this identity may use. For any other job, the methods raise
    `JOB_NOT_FOUND`, as for a job that does not exist.
    """

    def __init__(
        self, place: OperationRegistry | Transport, *, limits: JobLimits | Mapping[str, Any] | None = None
    ) -> None:
        limits = read_settings({} if limits is None else limits, JobLimits, "limits")
        self._limits = limits
        self._store: JobStore = (
            MemoryJobStore(place, limits) if isinstance(place, OperationRegistry) else DurableJobStore(place, limits)
        )
        self._owner: str | None = None
        self._identity: Identity | None = None
        self._exposure: Exposed | None = None
        self._sees_all = True

    @property
    def transport(self) -> Transport | None:
        """The transport that stores the jobs; None for jobs of this process."""
        return self._store.transport if isinstance(self._store, DurableJobStore) else None

    @property
    def keep_seconds(self) -> float:
        """Seconds for which an outcome is kept by default."""
        return min(KEEP_SECONDS, self._limits.keep_seconds)

    def runs(self, operation: Operation[Any]) -> bool:
        """Whether an operation can be a job: in this process any operation, on a transport only durable ones."""
        return operation.spec.durable or isinstance(self._store, MemoryJobStore)

    def of(self, identity: Identity | None, *, exposure: Exposed | None = None) -> Jobs:
        """Return the jobs that one caller may use: its own, or with the scope `jobs.admin` all jobs.

        An anonymous caller (None) can use any job of an anonymous caller by the job's id, and cannot list jobs. Without
        `jobs.admin`, a caller may use only jobs of operations that it may call: the caller needs the rights that the
        operation requires, and `exposure` must serve the operation.
        """
        view = object.__new__(Jobs)
        view._limits, view._store = self._limits, self._store
        view._owner, view._identity = owner_of(identity), identity
        view._exposure = exposure
        view._sees_all = identity is not None and ADMIN_SCOPE in identity.scopes
        return view

    async def submit(
        self,
        operation: str | Operation[Any],
        input: Any = None,
        *,
        keep: float | None = None,
        identity: Identity | None = None,
        metadata: Mapping[str, Any] | None = None,
        client: Client | None = None,
    ) -> str:
        """Submit a call and return the id of the job.

        The outcome is kept for `keep` seconds, by default `keep_seconds`; a dead letter is kept for 30 days.
        The job runs with the rights of the submitter: the identity that was passed to `of`, or else `identity`. The
        handler of a job in this process can ask `client` questions.
        """
        if keep is None:
            keep = self.keep_seconds
        check_seconds(keep=keep)
        if keep > self._limits.keep_seconds:
            message = f"keep is {keep:g}: outcomes are kept for at most {self._limits.keep_seconds:g} seconds"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        if identity is not None:
            check_identity(identity)
        owner = self._owner
        if owner is None and identity is not None:
            owner = identity.id
        operation_id = operation if isinstance(operation, str) else operation.id
        if not isinstance(operation, str) and not self.runs(operation):
            raise not_durable(operation_id)
        if len(operation_id) > _LONGEST_ID or _OPERATION_ID.fullmatch(operation_id) is None:
            message = f"invalid operation id {operation_id[:_LONGEST_ID]!r}: expected namespace.name"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        if self._exposure is not None:
            self._exposure.authorize(operation_id, self._identity)
        submission = Submission(
            operation_id=operation_id,
            input=input,
            owner=owner,
            identity=self._identity if self._owner is not None else identity,
            keep=keep,
            metadata=with_trace(metadata),
            client=client,
            exposure=self._exposure,
        )
        return await self._store.submit(submission)

    async def status(self, job_id: str) -> JobStatus:
        """Return the state of a job."""
        return status_of(job_id, await self._read(job_id))

    async def result(self, job_id: str) -> ResponseEnvelope[Any]:
        """Return the result of a job; raise the job's error if it failed, or `JOB_NOT_ENDED` if it has not ended."""
        return _outcome(job_id, await self._read(job_id))

    async def wait(self, job_id: str, timeout: float | None = None) -> ResponseEnvelope[Any]:
        """Wait for the end of a job and return its result; raise its error, or `TIMEOUT` after `timeout` seconds."""
        if timeout is not None:
            check_seconds(timeout=timeout)
        try:
            async with asyncio.timeout(timeout):
                record = await self._store.wait(job_id, self._may_see)
        except TimeoutError:
            details = {"jobId": job_id, "executed": "unknown"}
            message = f"the job {job_id} did not end within {timeout:g} s"
            raise CallError(ErrorCode.TIMEOUT, message, details) from None
        if record is None:
            raise not_found(job_id)
        return _outcome(job_id, record)

    async def cancel(self, job_id: str) -> JobStatus:
        """End a job that has not ended; a running handler is cancelled. Return the status afterwards."""
        record = await self._read(job_id)
        if not record.state.is_final:
            await self._store.cancel(job_id, record)
        return await self.status(job_id)

    async def retry(self, job_id: str) -> JobStatus:
        """Retry a job that failed or is a dead letter, with the same id and input.

        Raise `VALIDATION_ERROR` for a job in another state, or if its request is no longer stored.

        If the job's owner retries it through `of`, the job runs with the owner's current rights, otherwise with the
        rights that it was submitted with.
        """
        record = await self._read(job_id)
        is_kept = record.body is not None and bool(record.body.request)
        if record.state not in (JobState.FAILED, JobState.DEAD) or not is_kept:
            problem = "only failed and dead jobs can be retried"
            if record.state is JobState.DEAD:
                problem = "its request is deleted; submit the call again"
            message = f"the job {job_id} is {record.state.value}: {problem}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"jobId": job_id, "state": record.state.value})
        is_owner = self._identity is not None and record.owner == self._owner
        await self._store.retry(job_id, record, self._identity if is_owner else None)
        return await self.status(job_id)

    async def list(
        self,
        *,
        states: Iterable[JobState | str] | None = None,
        operation_id: str | None = None,
        limit: int = 100,
    ) -> Statuses:
        """Return at most `limit` of the jobs that the caller may see, the newest first.

        `states` and `operation_id` select among at most 10,000 jobs.
        """
        if self._owner == "" and not self._sees_all:
            return []
        chosen = None if states is None else {JobState(state) for state in states}
        kept = await self._store.list(self._owner, everyone=self._sees_all, limit=_MOST_LISTED)
        found = (
            status_of(job_id, record)
            for job_id, record in kept
            if (chosen is None or record.state in chosen)
            and (operation_id is None or record.operation_id == operation_id)
            and self._may_see(record)
        )
        return list(islice(found, max(0, limit)))

    async def dead(self, *, limit: int = 100) -> Statuses:
        """Return the dead letters that the caller may see, the newest first."""
        return await self.list(states=(JobState.DEAD,), limit=limit)

    async def close(self) -> None:
        """Release resources; jobs of this process are cancelled."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _read(self, job_id: str) -> JobRecord:
        record = await self._store.read(job_id)
        if record is None or not self._may_see(record):
            # The same error for an unknown and a forbidden job: a caller that guesses ids learns nothing.
            raise not_found(job_id)
        return record

    def _may_see(self, record: JobRecord) -> bool:
        """Whether the caller may use a job: it is an administrator, or it owns the job and may call its operation."""
        if self._sees_all:
            return True
        if record.owner != self._owner:
            return False
        if record.access is not None and not check_access(record.access, self._identity).allowed:
            return False
        if self._exposure is not None:
            try:
                self._exposure.authorize(record.operation_id, self._identity)
            except CallError:
                return False
        return True


def _outcome(job_id: str, record: JobRecord) -> ResponseEnvelope[Any]:
    if not record.state.is_final:
        raise not_ended(job_id, record.state)
    return record.outcome()
