"""HubRecorder: the calls that a hub routes, and the spokes that run them, for the console."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from operations.calls.codec import Codec
from operations.calls.events import EventHeader
from operations.calls.hub import Hub
from operations.calls.hub.route_observer import RouteObserver, read_trace
from operations.calls.hub.session import HubSession, RoutedCall
from operations.context import Identity
from operations.serving.console.workers import MOST_SLOTS, State, WorkerState
from operations.telemetry.call_records import CallRecord, CallRecords, caller_name

_LOST_SECONDS = 300.0
_MOST_KNOWN = 1_000
_LONGEST_TEXT = 100


class _KnownSpoke(msgspec.Struct, eq=False):
    """A spoke that has registered operations."""

    name: str
    since: float
    operations: frozenset[str] = frozenset()
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    lost_at: float | None = None
    reason: str | None = None


class HubRecorder(RouteObserver):
    """Records the calls that a hub routes: caller, operation, worker, times and outcome; never inputs or results."""

    def __init__(self, hub: Hub, records: CallRecords) -> None:
        self._hub = hub
        self._records = records
        self._running: dict[RoutedCall, tuple[CallRecord, float]] = {}
        self._own_calls: dict[str, CallRecord] = {}
        """Calls of this process that a worker runs, by the id of the request that was sent to the worker."""
        self._routes: dict[int, RoutedCall] = {}
        """The running calls, by the number of their record."""
        self._waiting: dict[HubSession, dict[RoutedCall, CallRecord]] = {}
        """The calls that wait because all slots of their worker are busy, by worker, in the order of their requests."""
        self._spokes: dict[str, _KnownSpoke] = {}
        """The spokes, by peer name."""
        self._names: dict[str, int] = {}
        hub.router.observers += (self,)

    def close(self) -> None:
        """Stop recording."""
        router = self._hub.router
        router.observers = tuple(observer for observer in router.observers if observer is not self)

    def began(
        self, call: RoutedCall, identity: Identity | None, parent: str | None, header: EventHeader, codec: Codec
    ) -> None:
        """Record a call that is about to be sent to a worker.

        A call of this process already has a record, which gets the worker's name.
        """
        trace_parent = read_trace(header, codec) if parent is None else None
        above = None if parent is None else self._own_calls.get(parent) or self._records.get(parent)
        if above is not None:
            if call.caller.trusted and above.outcome is None and above.operation_id == call.operation_id:
                above.worker = self._spoke(call.worker).name
                self._own_calls[call.caller_id] = above
                self._routes[above.number] = call
                self._queue(call, above)
                return
            parent = above.request_id
        record = self._records.add(
            call.caller_id,
            call.operation_id,
            "routed",
            parent=parent,
            caller=caller_name(identity),
            protocol="ws",
            worker=self._spoke(call.worker).name,
            trace_parent=trace_parent,
            streaming=call.stream,
        )
        if record is not None:
            self._records.start(record)
            self._running[call] = record, time.perf_counter()
            self._routes[record.number] = call
            self._queue(call, record)

    def _queue(self, call: RoutedCall, record: CallRecord) -> None:
        """Record that a call waits, if its worker has more calls than slots."""
        slots = self._hub.router.directory.slots_of(call.worker)
        if 0 < slots <= MOST_SLOTS and len(call.worker.running) > slots:
            self._waiting.setdefault(call.worker, {})[call] = record
            self._records.queue(record, slots)

    def _free_slot(self, call: RoutedCall) -> None:
        """Handle the end of `call`: if it was not waiting, record that the longest-waiting call of its worker starts.

        Workers do not report when a call starts.
        """
        waiting = self._waiting.get(call.worker)
        if waiting is None:
            return
        if waiting.pop(call, None) is None:
            self._records.start(waiting.pop(next(iter(waiting))))
        if not waiting:
            del self._waiting[call.worker]

    def item(self, call: RoutedCall) -> None:
        """Count an item of a stream."""
        known = self._running.get(call)
        if known is not None:
            self._records.item(known[0], known[0].items + 1)

    def ended(self, call: RoutedCall, code: str) -> None:
        """Record how a call ended. Calls of this process are left out: the observer of the registry records them."""
        above = self._own_calls.pop(call.caller_id, None)
        if above is not None and self._routes.get(above.number) is call:
            del self._routes[above.number]
        known = self._running.pop(call, None)
        if known is not None:
            record, began = known
            self._routes.pop(record.number, None)
            self._records.end(record, code, seconds=time.perf_counter() - began)
        self._free_slot(call)

    def refused(self, session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        """Record a refused request of a spoke; requests of this process are already recorded."""
        if session.trusted:
            return
        caller = caller_name(session.principal.identity)
        record = self._records.add(request_id, operation_id, "routed", caller=caller, protocol="ws")
        if record is not None:
            self._records.start(record)
            # A peer can request any id: metrics for unknown operations would displace those of real operations.
            is_offered = operation_id in self._hub.router.operations
            self._records.end(record, code, seconds=0.0, is_measured=is_offered)

    def left(self, session: HubSession, reason: str) -> None:
        """Record that a spoke was lost."""
        known = self._spokes.get(session.peer)
        if known is not None:
            known.lost_at, known.reason = time.time() * 1000, reason[:200]

    def cancel(self, record: CallRecord, reason: str) -> bool:
        """Cancel a call that a worker runs; return False if no worker runs the call."""
        call = self._routes.get(record.number)
        return call is not None and self._hub.router.cancel(call, reason)

    def states(self) -> Iterable[WorkerState]:
        """Return the spokes that offer operations, and those that were lost a short time ago."""
        offered = self._offered()
        oldest = (time.time() - _LOST_SECONDS) * 1000
        sessions = [each for each in self._hub.router.sessions.values() if not each.trusted]
        for session in sessions:
            if session.is_worker:
                known = self._spoke(session)
                known.lost_at = known.reason = None
                known.operations = frozenset(offered.get(session, ()))
                yield _describe(known, session, self._hub.router.directory.slots_of(session))
        connected = {session.peer for session in sessions}
        for peer, known in list(self._spokes.items()):
            if known.lost_at is not None and known.lost_at < oldest:
                del self._spokes[peer]
            elif peer not in connected and known.lost_at is not None:
                yield _describe(known, None)

    def _offered(self) -> dict[HubSession, list[str]]:
        offered: dict[HubSession, list[str]] = {}
        for operation_id, offer in self._hub.router.operations.items():
            for session in offer.sessions:
                offered.setdefault(session, []).append(operation_id)
        return offered

    def _spoke(self, session: HubSession) -> _KnownSpoke:
        known = self._spokes.get(session.peer)
        if known is None:
            identity = caller_name(session.principal.identity) or ""
            number = self._names[identity] = self._names.get(identity, 0) + 1
            name = "hub" if session.trusted else f"{identity}-{number}"
            known = self._spokes[session.peer] = _KnownSpoke(name, time.time() * 1000)
            if session.hello is not None:
                known.host, known.pid = session.hello.host[:_LONGEST_TEXT] or None, session.hello.pid
                known.version = session.hello.version[:_LONGEST_TEXT] or None
            if len(self._spokes) > _MOST_KNOWN:
                self._forget_one()
        return known

    def _forget_one(self) -> None:
        """Forget the oldest spoke that is not connected, or else the oldest one.

        A spoke that reconnects under new peer names therefore does not displace connected spokes.
        """
        connected = {session.peer for session in self._hub.router.sessions.values()}
        lost = next((peer for peer in self._spokes if peer not in connected), None)
        del self._spokes[lost if lost is not None else next(iter(self._spokes))]
        if len(self._names) > _MOST_KNOWN:
            kept = {known.name.rpartition("-")[0] for known in self._spokes.values()}
            self._names = {name: number for name, number in self._names.items() if name in kept}


def _describe(known: _KnownSpoke, session: HubSession | None, slots: int = 0) -> WorkerState:
    state: State = "lost"
    if session is not None:
        is_full = 0 < slots <= len(session.running) or (session.link is not None and session.link.is_slow)
        state = "draining" if not known.operations else "saturated" if is_full else "ready"
    return WorkerState(
        name=known.name,
        kind="spoke",
        transport="websocket",
        state=state,
        in_flight=0 if session is None else len(session.running),
        slots=slots if 0 < slots <= MOST_SLOTS else None,
        operations=known.operations if session is not None else frozenset(),
        since=known.since,
        host=known.host,
        pid=known.pid,
        version=known.version,
        lost_at=known.lost_at,
        reason=known.reason,
    )
