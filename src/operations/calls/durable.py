"""Durable calls at the worker: stored requests, run at least once, forgotten only after their result was sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from operations.calls.addresses import inbox_of
from operations.calls.codec import UNREADABLE, Codec, codec_of
from operations.calls.endpoint import EVERYBODY_IS_BACK, Endpoint
from operations.calls.events import CallRequested
from operations.calls.running import RunningCall
from operations.calls.sealing import is_sealed
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Delivery, Stop
from operations.recent import Recent

MOST_DELIVERIES = 3
"""How many workers may die over a request before it is set aside."""
_REMEMBERED = 65_536
_ON_THEIR_WAY = 1.0
_MOST_KEPT = 4 << 20

Start = Callable[[CallRequested, Codec, Delivery], None]


class RecentAnswers:
    """The last answers to stored requests: after a lost connection they are sent once more.

    A worker may be back before a caller listens again, and what it says then, nobody hears. A caller that did hear it
    drops the second one.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._kept: deque[tuple[float, str, bytes]] = deque()
        self._size = 0
        self._lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Stop | None = None

    def watch(self) -> None:
        """Look at the connection from now on."""
        if self._unwatch is None:
            self._unwatch = self._endpoint.transport.watch(self._up, self._down)

    def keep(self, request_id: str, message: bytes) -> None:
        """An answer was sent just now."""
        self._prune()
        self._kept.append((asyncio.get_running_loop().time(), request_id, message))
        self._size += len(message)
        while self._size > _MOST_KEPT:
            self._drop()

    def close(self) -> None:
        """Repeat nothing any more."""
        if self._unwatch is not None:
            self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self) -> None:
        self._size -= len(self._kept.popleft()[2])

    def _prune(self) -> None:
        """Without a lost connection, only what may still be on its way is worth keeping."""
        oldest = asyncio.get_running_loop().time() - _ON_THEIR_WAY
        while not self._lost and self._kept and self._kept[0][0] < oldest:
            self._drop()

    def _down(self, reason: str) -> None:
        self._prune()
        self._lost = True

    def _up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(EVERYBODY_IS_BACK, self._repeat)

    def _repeat(self) -> None:
        for _, request_id, message in self._kept:
            self._endpoint.transport.send(inbox_of(request_id), message)
        self._kept.clear()
        self._size, self._lost = 0, False


class Intake:
    """What one CallHandler does with stored requests before it runs them: reads them, and knows those it had."""

    def __init__(self, endpoint: Endpoint, start: Start) -> None:
        self._endpoint = endpoint
        self._start = start
        self.answers = RecentAnswers(endpoint)
        self._held: dict[str, RunningDurable] = {}
        self._finished: Recent[str, None] = Recent(_REMEMBERED)

    def take(self, message: bytes, delivery: Delivery) -> None:
        """Run a stored request, unless it was run here, cannot be read, or was too much for too many workers."""
        if is_sealed(message):
            self._endpoint.refuse_sealed(message)
            delivery.bury("it is signed, and no worker that took it could check that")
            return
        codec = codec_of(message)
        try:
            event = codec.decode(message)
        except UNREADABLE as error:
            self._endpoint.note_unreadable(codec, message, error)
            delivery.bury("it cannot be read")
            return
        if not isinstance(event, CallRequested) or event.stream or event.payload.request_id != event.id:
            self._endpoint.counters.malformed += 1
            delivery.bury("it is not a request")
        elif event.id in self._held:
            # It came again because it was held for too long: the later delivery is the one to settle.
            self._endpoint.counters.duplicate += 1
            self._held[event.id].delivery = delivery
        elif event.id in self._finished:
            self._endpoint.counters.duplicate += 1
            delivery.done()
        elif delivery.number > MOST_DELIVERIES:
            self._give_up(event, codec, delivery)
        else:
            self._start(event, codec, delivery)

    def hold(self, request_id: str, running: RunningDurable) -> None:
        """A request is being run."""
        self.answers.watch()
        self._held[request_id] = running

    def forget(self, request_id: str, *, finished: bool) -> bool:
        """A request is over, or was given to somebody else; whether it was held until now."""
        held = self._held.pop(request_id, None) is not None
        if held and finished:
            self._finished[request_id] = None
        return held

    def _give_up(self, event: CallRequested, codec: Codec, delivery: Delivery) -> None:
        message = f"{event.to}: set aside after {MOST_DELIVERIES} deliveries, none of which was answered"
        details = {"reason": "DEAD_LETTERED", "deliveries": MOST_DELIVERIES, "executed": "unknown"}
        self._endpoint.send_error(event.id, CallError(ErrorCode.EXECUTION_ERROR, message, details), codec)
        delivery.bury(message)


class RunningDurable(RunningCall, kw_only=True):
    """A stored request that runs: it is settled after its answer was sent, and given on where this worker leaves."""

    delivery: Delivery
    intake: Intake

    def abort(self, reason: str) -> None:
        """A caller that leaves does not undo what was stored."""

    def end(self, error: CallError) -> None:
        """This worker leaves: another one runs it, and answers."""
        if not self.ended:
            self._close()
            self.intake.forget(self._event.id, finished=False)
            self.delivery.release()
            self._stop()

    def _write(self, envelope: ResponseEnvelope[Any], sequence: int | None) -> bytes:
        message = super()._write(envelope, sequence)
        self.intake.answers.keep(self._event.id, message)
        return message

    def _write_error(self, error: CallError) -> bytes:
        message = super()._write_error(error)
        self.intake.answers.keep(self._event.id, message)
        return message

    async def _run(self) -> None:
        # Whatever came of it was sent by now, an answer or an error.
        await super()._run()
        if self.intake.forget(self._event.id, finished=True):
            self.delivery.done()
