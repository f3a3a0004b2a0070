"""DurableJobStore: jobs that a bus (Redis, or NATS with JetStream) stores and workers run."""

from __future__ import annotations

import asyncio
import re

import msgspec

from operations.calls.addresses import control_address, queue_address
from operations.calls.caller import PendingRequestMap
from operations.calls.codec import codec_of
from operations.calls.endpoint import endpoint_of
from operations.calls.events import CallRequested
from operations.calls.job_records import (
    JobRecord,
    JobRequest,
    JobState,
    fail_job,
    new_job_key,
    owner_key,
    read_record,
    requeued,
    transport_record,
)
from operations.calls.replay_protection import STORED_SECONDS
from operations.calls.requests import SignsNestedCalls
from operations.calls.signature_format import is_signed, split
from operations.calls.signed_transport import replay_key, stored_name
from operations.context import Identity, current_grant
from operations.deadlines import now_ms
from operations.errors import CallError, ErrorCode
from operations.failures import aborted
from operations.jobs.store import JobLimits, MaySee, Submission
from operations.pubsub import KeepsRecords, StoresKeys, Transport

_ID = re.compile(r"([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.([0-9a-f]{48})")
_RECHECK_SECONDS = 5.0
"""Interval at which `wait` reads a job's record again: the notification of a change may be lost."""


class DurableJobStore:
    """The jobs of one bus, the same for every process that is connected to the bus."""

    def __init__(self, transport: Transport, limits: JobLimits) -> None:
        records = transport.optional(KeepsRecords)
        if records is None or not transport.capabilities.durable:
            message = (
                "this transport stores nothing: jobs need Redis, NATS with JetStream, or a registry in this process"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        self._records = records
        self.transport = transport
        self._pending = PendingRequestMap(transport)
        self._is_signed = transport.optional(SignsNestedCalls) is not None
        self._limits = limits
        self._waiting: set[asyncio.Event] = set()
        """The events of the tasks that wait for the end of a job; a task whose event is set reads the record again."""
        self._recheck: asyncio.TimerHandle | None = None

    async def submit(self, submission: Submission) -> str:
        """Store a job and return its id; a worker checks later whether the submitter may call the operation."""
        operation_id, owner = submission.operation_id, submission.owner
        job = JobRequest(new_job_key(owner), int(submission.keep * 1000), owner)
        claims = self.transport.capabilities.claims_identity
        if submission.identity is not None and not (claims or self._is_signed):
            message = "identity= is not possible on this transport: use a trusted transport, or SignedTransport"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        await self._pending.submit(
            operation_id,
            submission.input,
            job,
            most=self._limits.jobs,
            most_bytes=self._limits.input_bytes,
            identity=submission.identity if claims else None,
            metadata=submission.metadata,
        )
        return f"{operation_id.rpartition('.')[0]}.{job.key}"

    async def read(self, job_id: str) -> JobRecord | None:
        """Return the record of a job; None if the job does not exist."""
        place = _locate(job_id)
        if place is None:
            return None
        return _decode(await self._records.read_record(*place))

    async def list(self, owner: str | None, *, everyone: bool, limit: int) -> list[tuple[str, JobRecord]]:
        """Return at most `limit` jobs, the newest first: those of `owner`, or with `everyone` those of all owners.

        If there are more than `limit` jobs, the transport decides which of them are returned.
        """
        found = []
        for address, key, value in await self._records.list_records(None if everyone else owner_key(owner), limit):
            record = _decode((value, b""))
            if record is not None:
                found.append((f"{address.partition('.')[2]}.{key}", record))
        found.sort(key=lambda job: job[1].created_at, reverse=True)
        return found

    async def wait(self, job_id: str, may_see: MaySee) -> JobRecord | None:
        """Wait for the end of a job and return its record; None if the job does not exist or may not be seen."""
        place = _locate(job_id)
        if place is None:
            return None
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        stop = self._records.watch_record(*place, changed.set)
        self._waiting.add(changed)
        if self._recheck is None:
            self._recheck = loop.call_later(_RECHECK_SECONDS, self._wake_all, loop)
        try:
            while True:
                changed.clear()
                try:
                    record = _decode(await self._records.read_record(*place))
                    if record is None or record.state.is_final or not may_see(record):
                        return record if record is not None and may_see(record) else None
                except CallError as error:  # an unreachable server may be reachable again later
                    if error.code is ErrorCode.ACCESS_DENIED:
                        raise
                await changed.wait()
        finally:
            self._waiting.discard(changed)
            stop()

    def _wake_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all waiting tasks read their records: the notification of a change may have been lost."""
        self._recheck = loop.call_later(_RECHECK_SECONDS, self._wake_all, loop) if self._waiting else None
        for changed in self._waiting:
            changed.set()

    async def cancel(self, job_id: str, record: JobRecord) -> None:
        """Delete the request of a job and record the end of the job; if a worker runs the job, cancel the handler."""
        place = _locate(job_id)
        assert place is not None
        address, key = place
        error = aborted(record.operation_id, "the job was cancelled")
        cancelled = fail_job(record, error, b"", state=JobState.CANCELLED)
        if await self._records.end_record(address, transport_record(key, cancelled)):
            endpoint = endpoint_of(self.transport)
            codec = codec_of(b"{")
            endpoint.abort_worker(record.request_id, control_address(record.operation_id), codec, "cancelled")

    async def retry(self, job_id: str, record: JobRecord, identity: Identity | None) -> None:
        """Store the request of a job again."""
        place = _locate(job_id)
        assert place is not None
        address, key = place
        assert record.body is not None
        message, again = record.body.request, requeued(record)
        if is_signed(message):
            message = self._sign_again(address, message, identity)
            self._forget_signed(message)
        else:
            message = _renew(message, identity if self.transport.capabilities.claims_identity else None)
        sender = again.request_id.partition(".")[0]
        await self._records.store_again(
            address, message, transport_record(key, again, waiting=STORED_SECONDS), sender=sender
        )

    def _sign_again(self, address: str, message: bytes, identity: Identity | None) -> bytes:
        """Sign a stored request for the caller that retries it, whose rights may have changed.

        Return the request unchanged if `identity` is None, or if the request or the retry is not signed.
        """
        signs, grant, signed = self.transport.optional(SignsNestedCalls), current_grant.get(), split(message)
        if identity is None or signs is None or grant is None or signed is None:
            return message
        return signs.sign_for(grant, address, _renew(signed.request, None))

    def _forget_signed(self, message: bytes) -> None:
        """Let workers accept a signed request again: delete its key from the shared record of signed requests."""
        signed, keys = split(message), self.transport.optional(StoresKeys)
        if signed is not None and keys is not None:
            outline = codec_of(signed.request).decode_outline(signed.request)
            keys.delete_key(replay_key(stored_name(outline.id), signed.token))

    async def close(self) -> None:
        """Stop the regular reads of records; the transport stays open."""
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None


def _locate(job_id: str) -> tuple[str, str] | None:
    """Return the address and key of a job's record; None for an invalid job id."""
    found = _ID.fullmatch(job_id) if len(job_id) <= 512 else None
    return None if found is None else (queue_address(f"{found[1]}.job"), found[2])


def _decode(kept: tuple[bytes, bytes] | None) -> JobRecord | None:
    if kept is None:
        return None
    try:
        record = read_record(*kept)
    except (msgspec.DecodeError, ValueError):
        return None
    now = now_ms()
    if record.ended_at is not None and record.ended_at + record.seconds_kept * 1000 < now:
        return None
    if record.state is JobState.QUEUED and record.queued_at + STORED_SECONDS * 1000 < now:
        # The job's request was deleted or refused, and no worker has recorded that.
        error = CallError(ErrorCode.TIMEOUT, f"{record.operation_id}: no worker took the job within a day")
        return fail_job(record, error, b"", state=JobState.DEAD)
    return record


def _renew(message: bytes, identity: Identity | None) -> bytes:
    """Return a request with a new lifetime and, if `identity` is given, with that identity."""
    codec = codec_of(message)
    event = codec.decode_any(message)
    assert isinstance(event, CallRequested)
    event.payload.not_after = now_ms() + int(STORED_SECONDS * 1000)
    if identity is not None:
        event.payload.identity = identity
    return codec.encode_wide(event)
