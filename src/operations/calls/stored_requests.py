"""Stored requests at a worker: decoding, deduplication, dead-lettering and acknowledgement."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from operations.calls.addresses import queue_address
from operations.calls.codec import UNREADABLE, Codec, codec_of
from operations.calls.endpoint import RECONNECTED_WITHIN, Endpoint
from operations.calls.events import CallRequested
from operations.calls.job_records import (
    KEEP_SECONDS,
    MAX_KEEP_SECONDS,
    MOST_DEAD_LETTERS,
    JobRecord,
    JobRequest,
    JobState,
    fail_job,
    largest_body,
    new_dead_letter_key,
    transport_record,
)
from operations.calls.signature_format import is_signed, split
from operations.deadlines import now_ms
from operations.errors import CallError, ErrorCode
from operations.pubsub import Arrival, Delivery, KeepsRecords, Record, Stop
from operations.recent import Recent

MOST_DELIVERIES = 3
"""Number of deliveries without a response after which a stored request is dead-lettered."""
_MAX_FINISHED = 65_536
"""Number of finished requests whose duplicates are recognised."""
_MOST_COPIES = 4
"""Largest number of further deliveries of a job that a worker holds; others are acknowledged as duplicates."""
_IN_FLIGHT_SECONDS = 1.0
"""Seconds after which a response counts as received, unless the connection is lost."""
_MOST_KEPT = 4 << 20
"""Largest total size of the responses that are kept."""


class RecentResponses:
    """Keeps the last responses to stored requests, and sends these responses again after a lost connection.

    If a worker reconnects before a caller does, the responses that the worker sends meanwhile are lost. A caller that
    already has a response drops the second one.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._kept: deque[tuple[float, str, bytes]] = deque()
        self._size = 0
        self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Stop | None = None

    def watch(self) -> None:
        """Watch the connection from now on."""
        if self._unwatch is None:
            self._unwatch = self._endpoint.transport.watch(self._up, self._down)

    def keep(self, request_id: str, message: bytes) -> None:
        """Keep a response that was just sent."""
        self._prune()
        self._kept.append((asyncio.get_running_loop().time(), request_id, message))
        self._size += len(message)
        while self._size > _MOST_KEPT:
            self._drop()

    def close(self) -> None:
        """Send no more responses a second time."""
        if self._unwatch is not None:
            self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self) -> None:
        self._size -= len(self._kept.popleft()[2])

    def _prune(self) -> None:
        """Drop the responses that are older than `_IN_FLIGHT_SECONDS`, unless the connection is lost."""
        oldest = asyncio.get_running_loop().time() - _IN_FLIGHT_SECONDS
        while not self._is_lost and self._kept and self._kept[0][0] < oldest:
            self._drop()

    def _down(self, reason: str) -> None:
        self._prune()
        self._is_lost = True

    def _up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(RECONNECTED_WITHIN, self._repeat)

    def _repeat(self) -> None:
        for _, request_id, message in self._kept:
            self._endpoint.send(request_id, message)
        self._kept.clear()
        self._size, self._is_lost = 0, False


class StoredRequest:
    """A stored request that this worker runs, and the delivery that it acknowledges at the end."""

    def __init__(self, requests: StoredRequests, request_id: str, delivery: Delivery) -> None:
        self.delivery = delivery
        self._requests = requests
        self.request_id = request_id
        self._first = delivery
        self.copies: list[Delivery] = []
        """Other deliveries of the same job. If `delivery` is a copy, one of the others may be the original."""
        self.is_recorded = False
        """Whether `delivery` is in the shared record of signed requests; if so, the other deliveries are copies."""

    def sent(self, message: bytes) -> None:
        """Keep the response that was sent, in case the connection is lost."""
        self._requests.responses.keep(self.request_id, message)

    def done(self) -> None:
        """Acknowledge the request: its response was sent."""
        if self.is_held:
            self._drop()
            self._requests.finished[self.request_id] = None
            self.delivery.done()

    def keep_outcome(self, record: Record) -> None:
        """Acknowledge the request of a job together with its outcome.

        The request is not added to `finished`: if the connection is lost before the outcome is stored, the job runs
        again.
        """
        if self.is_held:
            self._drop()
            self.delivery.done(record)
            for copy in self.copies:
                copy.done()

    def discard(self) -> None:
        """Acknowledge the first delivery, because it is a copy; release the others: one may be a retry of the job."""
        if self.is_held:
            self._drop()
            self._first.done()
            for other in self.copies if self.delivery is self._first else (self.delivery, *self.copies):
                other.release()

    def release(self) -> None:
        """Release the request for another worker."""
        if self.is_held:
            self._drop()
            self.give_back()

    def give_back(self) -> None:
        """Release the deliveries for another worker; acknowledge (and so delete) those that are known to be copies."""
        self.delivery.release()
        for copy in self.copies:
            if self.is_recorded:
                copy.done()
            else:
                copy.release()

    @property
    def is_held(self) -> bool:
        """Whether this worker still has the request."""
        return self._requests.held.get(self.request_id) is self

    def _drop(self) -> None:
        del self._requests.held[self.request_id]


Start = Callable[[CallRequested, Codec, StoredRequest], None]
"""Starts a stored request."""


class StoredRequests:
    """The stored requests of one worker. Each is decoded and then started, dead-lettered, or dropped as a duplicate."""

    def __init__(self, endpoint: Endpoint, start: Start) -> None:
        self._endpoint = endpoint
        self._start = start
        self.responses = RecentResponses(endpoint)
        self.held: dict[str, StoredRequest] = {}
        """The requests that this worker has, by their id."""
        self.finished: Recent[str, None] = Recent(_MAX_FINISHED)
        """The ids of the last requests that got their response."""

    def take(self, message: bytes, delivery: Delivery, arrival: Arrival) -> None:
        """Start a stored request, unless it is a duplicate; dead-letter it if it is invalid or must not run."""
        if is_signed(message):
            self._endpoint.refuse_signed(message, arrival)
            self._dead_letter_signed(message, delivery)
            return
        codec = codec_of(message)
        try:
            event = codec.decode_request(message)
        except UNREADABLE as error:
            self._endpoint.note_unreadable(codec, message, error, arrival)
            self._move_to_dead_letters(delivery, "the message cannot be decoded")
            return
        if not isinstance(event, CallRequested) or event.stream or event.payload.request_id != event.id:
            self._endpoint.counters.malformed += 1
            self._move_to_dead_letters(delivery, "the message is not a request")
        elif not self._endpoint.is_answerable(event.id, arrival):
            self._move_to_dead_letters(delivery, "the id of the request belongs to another caller")
        elif arrival.address != queue_address(event.to):
            self._endpoint.refuse_address(event, codec)
            self._move_to_dead_letters(delivery, "the request was stored at the address of another namespace")
        elif event.id in self.held or event.id in self.finished:
            self._drop_duplicate(event, delivery)
        else:
            self._take_new(event, codec, delivery)

    def _drop_duplicate(self, event: CallRequested, delivery: Delivery) -> None:
        self._endpoint.counters.duplicate += 1
        held = self.held.get(event.id)
        if held is not None and delivery.is_redelivered and delivery.entry == held.delivery.entry:
            # The server delivered the request again because it runs for long: acknowledge the later delivery.
            held.delivery = delivery
        elif held is not None and event.payload.job is not None and len(held.copies) < _MOST_COPIES:
            held.copies.append(delivery)
        else:
            delivery.done()

    def _take_new(self, event: CallRequested, codec: Codec, delivery: Delivery) -> None:
        """Start a request, or dead-letter it if it was delivered too often or stored for too long."""
        not_after = event.payload.not_after
        if delivery.number > MOST_DELIVERIES:
            text = f"dead-lettered after {MOST_DELIVERIES} unanswered deliveries"
            details = {"reason": "DEAD_LETTERED", "deliveries": MOST_DELIVERIES, "executed": "unknown"}
            self._dead_letter(
                event, codec, delivery, CallError(ErrorCode.EXECUTION_ERROR, f"{event.to}: {text}", details)
            )
        elif not_after is not None and not_after < time.time() * 1000:
            text = "the request was stored for too long and does not run"
            details = {"reason": "DEAD_LETTERED", "executed": "unknown" if delivery.number > 1 else "no"}
            self._dead_letter(event, codec, delivery, CallError(ErrorCode.TIMEOUT, f"{event.to}: {text}", details))
        else:
            self.responses.watch()
            stored = self.held[event.id] = StoredRequest(self, event.id, delivery)
            self._start(event, codec, stored)

    def release_all(self) -> None:
        """Release all requests for other workers."""
        held, self.held = self.held, {}
        for stored in held.values():
            stored.give_back()

    def close(self) -> None:
        """Send no more responses a second time."""
        self.responses.close()

    def _dead_letter_signed(self, message: bytes, delivery: Delivery) -> None:
        """Dead-letter a request whose signature this worker cannot verify."""
        reason = "the request is signed, and the worker could not verify the signature"
        signed, event = split(message), None
        with contextlib.suppress(*UNREADABLE):
            event = None if signed is None else codec_of(signed.request).decode_request(signed.request)
        if isinstance(event, CallRequested) and job_of(event, delivery) is not None:
            self._dead_letter(event, codec_of(message), delivery, CallError(ErrorCode.ACCESS_DENIED, reason))
        else:
            self._move_to_dead_letters(delivery, reason)

    def _move_to_dead_letters(self, delivery: Delivery, reason: str, record: Record | None = None) -> None:
        self._endpoint.counters.dead_lettered += 1
        delivery.dead_letter(reason, record)

    def _dead_letter(self, event: CallRequested, codec: Codec, delivery: Delivery, error: CallError) -> None:
        """Dead-letter a request; a durable call gets a record, so that it is listed and retried like a job."""
        job, transport = job_of(event, delivery), self._endpoint.transport
        if job is None or not delivery.record_key:  # the record of a job is stored with its request
            self._endpoint.send_error(event.id, error, codec)
            if transport.optional(KeepsRecords) is None:
                self._move_to_dead_letters(delivery, error.message)
                return
            job = JobRequest(new_dead_letter_key(), int(KEEP_SECONDS * 1000))
        most = largest_body(transport.capabilities.max_payload)
        record = fail_job(first_record(event, job, delivery), error, delivery.message, state=JobState.DEAD, most=most)
        self._move_to_dead_letters(delivery, error.message, transport_record(job.key, record, most=MOST_DEAD_LETTERS))


def job_of(event: CallRequested, delivery: Delivery) -> JobRequest | None:
    """Return the job of a stored request; None for a durable call.

    A dead letter that is retried is a job, because it has a record.
    """
    job, key = event.payload.job, delivery.record_key
    if not key or (job is not None and job.key == key):
        return job
    return JobRequest(key, int(KEEP_SECONDS * 1000))


def first_record(event: CallRequested, job: JobRequest, delivery: Delivery) -> JobRecord:
    """Return the record of a job that this worker received and has not started."""
    now = now_ms()
    return JobRecord(
        operation_id=event.to,
        owner=job.owner,
        attempts=delivery.number,
        keep=max(1, min(job.keep, int(MAX_KEEP_SECONDS * 1000))),
        created_at=max(0, min(event.payload.sent_at or now, now)),
        request_id=event.id,
    )
