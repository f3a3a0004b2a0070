"""MemoryJobStore: jobs in one process. They run through a dispatcher and are lost when the process ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

from operations.calls.job_records import (
    JobProgress,
    JobRecord,
    JobState,
    end_job,
    fail_job,
    new_job_key,
    requeued,
)
from operations.context import Client, Exposed, Grant, Identity
from operations.deadlines import now_ms
from operations.dispatch import Dispatcher, Request
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.failures import aborted
from operations.jobs.store import JobLimits, MaySee, Submission, too_large_input, too_many_jobs
from operations.registry import OperationRegistry
from operations.spec import OPEN
from operations.wire import decode_msgpack, encode_msgpack


class _JobCall(Request, kw_only=True):
    """The call of a job. When the call starts, the job's record gets the state `running`."""

    job: _MemoryJob

    async def serve(self) -> None:
        """Run the call."""
        record = self.job.record
        record.state, record.attempts, record.started_at = JobState.RUNNING, record.attempts + 1, now_ms()
        await Request.serve(self)


class _MemoryJob(msgspec.Struct, eq=False):
    """One job of this process."""

    id: str
    record: JobRecord
    identity: Identity | None
    input: bytes
    metadata: dict[str, Any]
    client: Client | None
    exposure: Exposed | None
    ended: asyncio.Event
    call: _JobCall | None = None
    expiry: asyncio.TimerHandle | None = None
    """The timer that deletes the job when its outcome expires."""

    @property
    def size(self) -> int:
        """Approximate size in bytes of the stored input and outcome."""
        body = self.record.body
        return 1_000 + len(self.input) + (0 if body is None else len(body.envelope or b"") + len(body.details or b""))

    def report(self, value: float, total: float | None, message: str | None) -> None:
        """Store the progress of the handler."""
        self.record.progress = JobProgress(value, total, message)


class MemoryJobStore:
    """The jobs of one registry in this process."""

    def __init__(self, registry: OperationRegistry, limits: JobLimits) -> None:
        self._registry = registry
        self._dispatcher = Dispatcher(registry)
        self._limits = limits
        self._jobs: dict[str, _MemoryJob] = {}
        self._counts: Counter[str | None] = Counter()
        """Number of stored jobs of each owner."""
        self._sizes: Counter[str | None] = Counter()
        """Number of stored bytes of each owner."""
        self._unfinished: Counter[str | None] = Counter()
        """Number of waiting and running jobs of each owner."""

    async def submit(self, submission: Submission) -> str:
        """Start or queue a job and return its id; raise a CallError if the call is refused or a limit is exceeded."""
        operation_id, owner = submission.operation_id, submission.owner
        self._check_limits(owner)
        # The encoded input is a copy: the submitter may change its input while the job waits.
        input = encode_msgpack({} if submission.input is None else submission.input)
        if len(input) > self._limits.input_bytes:
            raise too_large_input(operation_id, len(input), self._limits.input_bytes)
        record = JobRecord(
            operation_id=operation_id, owner=owner, keep=int(submission.keep * 1000), created_at=now_ms()
        )
        spec = self._registry.get_spec(operation_id)
        if spec is not None and spec.access_control != OPEN:
            record.access = spec.access_control
        job_id = f"{operation_id.rpartition('.')[0]}.{new_job_key(owner)}"
        metadata = dict(submission.metadata or {})
        job = _MemoryJob(
            id=job_id,
            record=record,
            identity=submission.identity,
            input=input,
            metadata=metadata,
            client=submission.client,
            exposure=submission.exposure,
            ended=asyncio.Event(),
        )
        self._start(job)
        self._jobs[job_id] = job
        self._counts[owner] += 1
        self._sizes[owner] += job.size
        return job_id

    def _check_limits(self, owner: str | None) -> None:
        """Raise an error if the owner has too many jobs or stored bytes.

        Only the limit `jobs` applies to jobs of the program itself.
        """
        limits = self._limits
        if self._counts[owner] >= limits.jobs:
            raise too_many_jobs(limits.jobs, "stored jobs")
        self._check_unfinished(owner)
        if owner is not None and self._sizes[owner] >= limits.kept_bytes:
            raise too_many_jobs(limits.kept_bytes, "bytes of inputs and outcomes of jobs")

    def _check_unfinished(self, owner: str | None) -> None:
        """Raise an error if the owner, unless it is the program, has too many waiting and running jobs."""
        if owner is not None and self._unfinished[owner] >= self._limits.unfinished:
            raise too_many_jobs(self._limits.unfinished, "waiting and running jobs")

    def _start(self, job: _MemoryJob) -> None:
        record = job.record

        def ended(envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
            if job.call is call and not job.record.state.is_final:
                self._end(job, end_job(job.record, envelope, error, request=job.input))

        job.call = call = _JobCall(
            operation_id=record.operation_id,
            input=decode_msgpack(job.input),
            grant=Grant(identity=job.identity, exposure=job.exposure),
            caller=record.owner or "",
            metadata=job.metadata,
            progress=job.report,
            client=job.client,
            job=job,
        )
        self._unfinished[record.owner] += 1
        try:
            self._dispatcher.start(call, ended)
        except BaseException:
            self._unfinished[record.owner] -= 1
            raise

    async def read(self, job_id: str) -> JobRecord | None:
        """Return the record of a job; None if the job does not exist."""
        job = self._jobs.get(job_id)
        return None if job is None else job.record

    async def list(self, owner: str | None, *, everyone: bool, limit: int) -> list[tuple[str, JobRecord]]:
        """Return at most `limit` jobs, the newest first: those of `owner`, or with `everyone` those of all owners."""
        found = []
        for job in reversed(self._jobs.values()):
            if everyone or job.record.owner == owner:
                found.append((job.id, job.record))
                if len(found) >= limit:
                    break
        return found

    async def wait(self, job_id: str, may_see: MaySee) -> JobRecord | None:
        """Wait for the end of a job and return its record; None if the job does not exist or may not be seen."""
        job = self._jobs.get(job_id)
        if job is None or not may_see(job.record):
            return None
        await job.ended.wait()
        return job.record

    async def cancel(self, job_id: str, record: JobRecord) -> None:
        """Cancel the handler of a job, or remove the job from the queue."""
        job = self._jobs.get(job_id)
        if job is None or job.record.state.is_final:
            return
        # A job that was retried has run before, even if it is queued now.
        error = aborted(record.operation_id, "the job was cancelled", "unknown" if job.record.attempts else "no")
        call = job.call
        self._end(job, fail_job(job.record, error, b"", state=JobState.CANCELLED))
        if call is not None:
            call.stop(error)

    async def retry(self, job_id: str, record: JobRecord, identity: Identity | None) -> None:
        """Start a job again."""
        self._check_unfinished(record.owner)
        job = self._jobs[job_id]
        expiry = job.expiry
        if identity is not None:
            job.identity = identity
        job.record = requeued(record)
        job.ended = asyncio.Event()
        try:
            self._start(job)
        except CallError:
            job.record = record
            job.ended.set()
            raise
        if expiry is not None:
            expiry.cancel()

    async def close(self) -> None:
        """Cancel the jobs that run or wait; the outcomes of ended jobs no longer expire."""
        await self._dispatcher.close()
        for job in self._jobs.values():
            if job.expiry is not None:
                job.expiry.cancel()

    def _end(self, job: _MemoryJob, record: JobRecord) -> None:
        is_kept = job.id in self._jobs
        self._sizes[record.owner] -= job.size if is_kept else 0
        self._unfinished[record.owner] -= 1
        job.record, job.call, job.client = record, None, None
        job.input = b"" if record.body is None else record.body.request  # kept for a retry
        self._sizes[record.owner] += job.size if is_kept else 0
        job.ended.set()
        job.expiry = asyncio.get_running_loop().call_later(record.seconds_kept, self._delete, job)

    def _delete(self, job: _MemoryJob) -> None:
        """Delete a job whose outcome has expired."""
        del self._jobs[job.id]
        self._counts[job.record.owner] -= 1
        self._sizes[job.record.owner] -= job.size
