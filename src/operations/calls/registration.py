"""Registration at a hub: who answers which operation, settled as workers announce themselves and go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from operations.access import check_access
from operations.calls.codec import JSON
from operations.calls.counters import Counters
from operations.calls.events import (
    VERSION,
    Announced,
    Registered,
    Worker,
    WorkerAnnounced,
    WorkerGone,
    WorkerRegistered,
)
from operations.calls.sessions import Session
from operations.errors import CallError
from operations.spec import OperationSpec
from operations.wire import encode_json


class Offer(msgspec.Struct, eq=False):
    """Who answers one operation: one session, or several that asked to share it and describe it alike."""

    spec: OperationSpec
    digest: bytes
    pool: bool
    sessions: list[Session]
    description: dict[str, Any]


class Registration:
    """What the sessions of a hub offer, and who is told of it."""

    def __init__(self, sessions: Mapping[str, Session], counters: Counters) -> None:
        self.offers: dict[str, Offer] = {}
        self.namespaces: dict[str, int] = {}
        """How many operations each namespace has."""
        self._sessions = sessions
        self._counters = counters

    def announce(self, session: Session, announced: Announced) -> None:
        """A worker of this session offers operations, or other ones than before."""
        encode_json(announced.operations)  # or the error: they go on to others as JSON
        if not announced.worker_id.startswith(f"{session.peer}."):
            self._counters.foreign += 1
            return
        known = session.claims.get(announced.worker_id)
        if known is not None and announced.generation < known.generation:
            self._counters.dropped += 1
            return
        session.claims[announced.worker_id] = announced
        self._settle(session, announced)

    def retire(self, session: Session, worker_id: str) -> None:
        """A worker takes no more calls; those it has go on."""
        if session.claims.pop(worker_id, None) is None:
            self._counters.dropped += 1
            return
        self._withdraw_unclaimed(session)
        self._notify_watchers(WorkerGone(VERSION, "", "", Worker(worker_id)), session)
        session.send(JSON.encode(WorkerRegistered(VERSION, "", worker_id, Registered([], {}))))

    def leave(self, session: Session) -> None:
        """A session is gone, and all its workers are."""
        claims, session.claims = session.claims, {}
        for worker_id in claims:
            self._notify_watchers(WorkerGone(VERSION, "", "", Worker(worker_id)), session)
        self._withdraw_unclaimed(session)

    def watch(self, session: Session) -> None:
        """From now on, tell a session of the workers that come and go; of those that are here at once."""
        session.watches = True
        for other in list(self._sessions.values()):
            if other is not session:
                for announced in other.claims.values():
                    self._tell(session, self._visible(announced, other))

    def _settle(self, session: Session, announced: Announced) -> None:
        """Grant what can be granted of an announcement, take back what is no longer in it, and answer."""
        accepted: list[str] = []
        rejected: dict[str, str] = {}
        for data in announced.operations:
            spec, reason = self._claim(session, data, pool=announced.pool)
            if reason is None:
                accepted.append(spec)
            else:
                rejected[spec] = reason
        self._withdraw_unclaimed(session)
        if rejected:
            self._counters.rejected += len(rejected)
        event = WorkerRegistered(VERSION, "", announced.worker_id, Registered(accepted, rejected))
        session.send(JSON.encode(event))
        self._notify_watchers(self._visible(announced, session), session)

    def _claim(self, session: Session, data: dict[str, Any], *, pool: bool) -> tuple[str, str | None]:
        """The id, and why it cannot be had by this session; None where it now is."""
        try:
            spec = OperationSpec.from_dict(data)
        except CallError as error:
            return _id_of(data), error.message
        if not session.principal.may_register(spec.namespace):
            who = session.principal.identity.id
            return spec.id, f"{who!r} may not register in the namespace {spec.namespace!r}"
        digest = _digest(data)
        offer = self.offers.get(spec.id)
        if offer is None or offer.sessions == [session]:
            if offer is None:
                self.namespaces[spec.namespace] = self.namespaces.get(spec.namespace, 0) + 1
            self.offers[spec.id] = Offer(spec, digest, pool, [session], data)
            return spec.id, None
        if session in offer.sessions:
            return spec.id, None
        if not (pool and offer.pool):
            return spec.id, "another spoke offers it already, and both would have to ask for pooling to share it"
        if digest != offer.digest:
            return spec.id, "another spoke offers it with a different spec"
        offer.sessions.append(session)
        return spec.id, None

    def _withdraw_unclaimed(self, session: Session) -> None:
        """Take away what no worker of a session claims any more; whoever was refused one of them gets it now."""
        claimed = {_id_of(data) for claim in session.claims.values() for data in claim.operations}
        held = {operation_id for operation_id, offer in self.offers.items() if session in offer.sessions}
        freed: set[str] = set()
        for operation_id in held - claimed:
            offer = self.offers[operation_id]
            offer.sessions.remove(session)
            if not offer.sessions:
                del self.offers[operation_id]
                freed.add(operation_id)
                left = self.namespaces[offer.spec.namespace] - 1
                if left:
                    self.namespaces[offer.spec.namespace] = left
                else:
                    del self.namespaces[offer.spec.namespace]
        for other in self._sessions.values() if freed else ():
            for announced in list(other.claims.values()):
                if other is not session and any(_id_of(data) in freed for data in announced.operations):
                    self._settle(other, announced)

    def _visible(self, announced: Announced, owner: Session) -> WorkerAnnounced:
        """An announcement with only what its worker was granted."""
        granted = [
            data
            for data in announced.operations
            if (offer := self.offers.get(_id_of(data))) is not None and owner in offer.sessions
        ]
        return WorkerAnnounced(VERSION, "", "", msgspec.structs.replace(announced, operations=granted))

    def _notify_watchers(self, event: WorkerAnnounced | WorkerGone, origin: Session) -> None:
        for session in list(self._sessions.values()):
            if session.watches and session is not origin:
                self._tell(session, event)

    def _tell(self, session: Session, event: WorkerAnnounced | WorkerGone) -> None:
        """Tell a session of a worker: of its operations, those that the session may call."""
        if isinstance(event, WorkerAnnounced) and not session.trusted:
            identity = session.principal.identity
            callable_ones = [
                data
                for data in event.payload.operations
                if (offer := self.offers.get(_id_of(data))) is not None
                and check_access(offer.spec.access_control, identity).allowed
            ]
            event = msgspec.structs.replace(
                event, payload=msgspec.structs.replace(event.payload, operations=callable_ones)
            )
        session.send(JSON.encode(event))


def _id_of(data: dict[str, Any]) -> str:
    return f"{data.get('namespace', '')}.{data.get('name', '')}"


def _digest(data: dict[str, Any]) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(data, order="deterministic"), digest_size=16).digest()
