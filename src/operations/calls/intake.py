"""Intake of stored requests: what a worker does with them before it runs them, and how they are settled."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from operations.calls.addresses import queue_address
from operations.calls.codec import UNREADABLE, Codec, codec_of
from operations.calls.endpoint import RECONNECTED_WITHIN, Endpoint
from operations.calls.events import CallRequested
from operations.calls.signature_format import is_signed
from operations.errors import CallError, ErrorCode
from operations.pubsub import Arrival, Delivery, Stop
from operations.recent import Recent

MOST_DELIVERIES = 3
"""How many workers may fail over a stored request before it is dead-lettered."""
_REMEMBERED_STORED = 65_536
_IN_FLIGHT_SECONDS = 1.0
_MOST_KEPT = 4 << 20


class RecentAnswers:
    """The last answers to stored requests, sent once more after a lost connection.

    A worker may be connected again before a caller is; what it sends then is lost. A caller that did receive an answer
    drops the second one.
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
        """Keep an answer that was just sent."""
        self._prune()
        self._kept.append((asyncio.get_running_loop().time(), request_id, message))
        self._size += len(message)
        while self._size > _MOST_KEPT:
            self._drop()

    def close(self) -> None:
        """Send nothing any more."""
        if self._unwatch is not None:
            self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self) -> None:
        self._size -= len(self._kept.popleft()[2])

    def _prune(self) -> None:
        """While the connection is up, drop what has surely arrived."""
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
    """A stored request that this worker runs, and the delivery to settle when it ends."""

    def __init__(self, intake: StoredIntake, request_id: str, delivery: Delivery) -> None:
        self.delivery = delivery
        self._intake = intake
        self.request_id = request_id

    def sent(self, message: bytes) -> None:
        """Keep the answer that was sent, in case its connection is lost."""
        self._intake.keep(self.request_id, message)

    def done(self) -> None:
        """Settle the request: its answer was sent."""
        if self.is_held:
            self._intake.finish(self.request_id)
            self.delivery.done()

    @property
    def is_held(self) -> bool:
        """Whether this worker still has the request."""
        return self._intake.holds(self)


Start = Callable[[CallRequested, Codec, Arrival, StoredRequest], None]


class StoredIntake:
    """What one worker does with stored requests before it runs them: it decodes them and drops those it has had."""

    def __init__(self, endpoint: Endpoint, start: Start) -> None:
        self._endpoint = endpoint
        self._start = start
        self._answers = RecentAnswers(endpoint)
        self._held: dict[str, StoredRequest] = {}
        self._finished: Recent[str, None] = Recent(_REMEMBERED_STORED)

    def take(self, message: bytes, delivery: Delivery, arrival: Arrival) -> None:
        """Run a stored request, unless it was run here, cannot be read, or failed too many workers."""
        if is_signed(message):
            self._endpoint.refuse_signed(message, arrival)
            delivery.bury("it is signed, and no worker that took it could check that")
            return
        codec = codec_of(message)
        try:
            event = codec.decode(message)
        except UNREADABLE as error:
            self._endpoint.note_unreadable(codec, message, error, arrival)
            delivery.bury("it cannot be read")
            return
        if not isinstance(event, CallRequested) or event.stream or event.payload.request_id != event.id:
            self._endpoint.counters.malformed += 1
            delivery.bury("it is not a request")
        elif not self._endpoint.is_answerable(event.id, arrival):
            delivery.bury("its id is another caller's")
        elif arrival.address != queue_address(event.to):
            self._endpoint.refuse_address(event, codec)
            delivery.bury("it was stored at the address of another namespace")
        elif event.id in self._held or event.id in self._finished:
            self._drop_duplicate(event.id, delivery)
        else:
            self._take_new(event, codec, arrival, delivery)

    def _drop_duplicate(self, request_id: str, delivery: Delivery) -> None:
        self._endpoint.counters.duplicate += 1
        held = self._held.get(request_id)
        if held is not None and delivery.is_redelivered:
            # It was delivered again because it was held for too long: the later delivery is the one to settle.
            held.delivery = delivery
        else:
            delivery.done()

    def _take_new(self, event: CallRequested, codec: Codec, arrival: Arrival, delivery: Delivery) -> None:
        """Run a request, unless it failed too many workers or waited for too long."""
        not_after = event.payload.not_after
        if delivery.number > MOST_DELIVERIES:
            text = f"dead-lettered after {MOST_DELIVERIES} unanswered deliveries"
            details = {"reason": "DEAD_LETTERED", "deliveries": MOST_DELIVERIES, "executed": "unknown"}
            self._bury(event, codec, delivery, CallError(ErrorCode.EXECUTION_ERROR, f"{event.to}: {text}", details))
        elif not_after is not None and not_after < time.time() * 1000:
            text = "it was stored for too long and is not run any more"
            details = {"reason": "DEAD_LETTERED", "executed": "unknown" if delivery.number > 1 else "no"}
            self._bury(event, codec, delivery, CallError(ErrorCode.TIMEOUT, f"{event.to}: {text}", details))
        else:
            self._hold(event, codec, arrival, delivery)

    def holds(self, stored: StoredRequest) -> bool:
        """Return whether a request is still held."""
        return self._held.get(stored.request_id) is stored

    def finish(self, request_id: str) -> None:
        """Remember that a request was answered."""
        if self._held.pop(request_id, None) is not None:
            self._finished[request_id] = None

    def release_all(self) -> None:
        """Give every request to another worker: this one leaves."""
        held, self._held = self._held, {}
        for stored in held.values():
            stored.delivery.release()

    def close(self) -> None:
        """Stop repeating answers."""
        self._answers.close()

    def keep(self, request_id: str, message: bytes) -> None:
        """Keep an answer, to send it again after a lost connection."""
        self._answers.keep(request_id, message)

    def _hold(self, event: CallRequested, codec: Codec, arrival: Arrival, delivery: Delivery) -> None:
        self._answers.watch()
        stored = self._held[event.id] = StoredRequest(self, event.id, delivery)
        self._start(event, codec, arrival, stored)

    def _bury(self, event: CallRequested, codec: Codec, delivery: Delivery, error: CallError) -> None:
        self._endpoint.send_error(event.id, error, codec)
        delivery.bury(error.message)
