"""Directory: the operations that the workers of a hub offer, and the sessions that are told of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from time import perf_counter
from typing import Annotated

import msgspec

from operations.access import check_access
from operations.calls.codec import JSON, Codec
from operations.calls.events import VERSION, Header, Registered, Worker, WorkerGone, WorkerRegistered
from operations.calls.hub.session import Session
from operations.errors import CallError
from operations.pubsub.link import TURN_SECONDS
from operations.spec import OPEN, AccessControl, OperationSpec
from operations.telemetry.counters import Counters
from operations.wire import encode_json, read_extension

_MOST_CLAIMS = 10_000
_MOST_BYTES = 8 << 20
"""How many operations the workers of one session may claim, and how large their specs may be together."""
_EVERYTHING = ("*",)
_OVERHEAD = 1024
"""Bytes of an announcement that are not specs, at most."""


class _Announced(msgspec.Struct, rename="camel", omit_defaults=True):
    """An announcement whose specs are bytes."""

    worker_id: Annotated[str, msgspec.Meta(max_length=128)]
    generation: int
    operations: list[msgspec.Raw]
    pool: bool = False
    part: int = 0
    parts: int = 1


class _Gone(msgspec.Struct, rename="camel"):
    """The part of `worker.gone` that counts."""

    worker_id: Annotated[str, msgspec.Meta(max_length=128)]


class _Named(msgspec.Struct):
    """The part of a spec that decides whether the rest is read."""

    namespace: Annotated[str, msgspec.Meta(max_length=256)] = ""
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""


_READ_ANNOUNCED = {
    "json": msgspec.json.Decoder(_Announced).decode,
    "msgpack": msgspec.msgpack.Decoder(_Announced, ext_hook=read_extension).decode,
}
_READ_GONE = {
    "json": msgspec.json.Decoder(_Gone).decode,
    "msgpack": msgspec.msgpack.Decoder(_Gone, ext_hook=read_extension).decode,
}
_READ_NAMED = {
    "json": msgspec.json.Decoder(_Named).decode,
    "msgpack": msgspec.msgpack.Decoder(_Named, ext_hook=read_extension).decode,
}


class Claim(msgspec.Struct, eq=False, frozen=True):
    """One operation that a worker announced."""

    operation_id: str
    namespace: str
    access: AccessControl
    digest: bytes
    description: bytes
    """The spec in JSON."""
    is_guarded: bool
    """Whether callers need any right."""


class Registration(msgspec.Struct, eq=False):
    """One worker of a session."""

    session: Session
    worker_id: str
    """The id that the worker gave itself."""
    alias: str
    """The id that others are told: the worker's own contains the name of its peer."""
    generation: int = 0
    pool: bool = False
    claims: dict[str, Claim] = {}
    rejected: dict[str, str] = {}
    """The reasons by operation id, claims that another session holds included."""
    refused: dict[str, str] = {}
    """The reasons by namespace."""


class Offer(msgspec.Struct, eq=False):
    """One operation that can be called: at one session, or at several that pool it."""

    claim: Claim
    pool: bool
    sessions: list[Session]
    waiting: list[Registration] = []
    """Workers that claim the same operation and were rejected."""


class Directory:
    """The offers of all sessions. Rights are checked before a spec is read, and specs are kept as bytes."""

    def __init__(self, sessions: Mapping[str, Session], counters: Counters) -> None:
        self.offers: dict[str, Offer] = {}
        self.namespaces: dict[str, int] = {}
        """The number of operations in each namespace."""
        self._sessions = sessions
        self._counters = counters
        self._workers: dict[Session, dict[str, Registration]] = {}
        self._notices = _Notices()

    def announce(self, session: Session, header: Header, codec: Codec) -> None:
        """Register the operations of a worker, and withdraw those that it no longer announces."""
        listed = header.namespaces or _EVERYTHING
        principal = session.principal
        refused = {name: _forbidden(session, name) for name in listed if not principal.may_register_within(name)}
        if len(refused) == len(listed):
            self._refuse(session, header.id, refused)
            return
        announced = _READ_ANNOUNCED[codec.name](bytes(header.payload))
        worker_id = announced.worker_id
        if not worker_id.startswith(f"{session.peer}."):
            self._counters.foreign += 1
            return
        workers = self._workers.setdefault(session, {})
        registration = workers.get(worker_id) or Registration(session, worker_id, os.urandom(16).hex())
        if announced.generation < registration.generation:
            self._counters.dropped += 1
            return
        others = [each for each in workers.values() if each is not registration]
        if _exceeds_limits(announced.operations, others):
            self._refuse(session, worker_id, dict.fromkeys(listed, _TOO_MANY))
            return
        claims, rejected = _read_claims(session, announced.operations, codec, listed, refused)
        workers[worker_id] = registration
        session.registers = session.registers or bool(claims)
        registration.generation, registration.pool = announced.generation, announced.pool
        registration.refused = refused
        self._update(registration, claims, rejected)

    def retire(self, session: Session, header: Header, codec: Codec) -> None:
        """Remove a worker; the calls that it runs go on."""
        workers = self._workers.get(session)
        gone = _READ_GONE[codec.name](bytes(header.payload)) if workers else None
        registration = workers.pop(gone.worker_id, None) if workers and gone is not None else None
        if registration is None:
            self._counters.dropped += 1
            return
        registration.refused = {}
        self._update(registration, {}, {})

    def leave(self, session: Session) -> None:
        """Remove a session with all its workers."""
        self._notices.unwatch(session)
        for registration in self._workers.pop(session, {}).values():
            self._update(registration, {}, {}, is_gone=True)

    def watch(self, session: Session) -> None:
        """Tell a session of all workers, and from now on of changes."""
        others = (workers for owner, workers in self._workers.items() if owner is not session)
        self._notices.watch(session, (each for workers in others for each in workers.values()))

    def _refuse(self, session: Session, worker_id: str, refused: dict[str, str]) -> None:
        """Refuse a whole announcement; what its worker registered before stays."""
        self._counters.rejected += len(refused)
        session.send(JSON.encode(WorkerRegistered(VERSION, "", worker_id, Registered([], {}, refused))))

    def _update(
        self, registration: Registration, claims: dict[str, Claim], rejected: dict[str, str], *, is_gone: bool = False
    ) -> None:
        """Replace the claims of a worker; workers that get what it gives up are told as well."""
        before, registration.claims = registration.claims, claims
        held = before.keys() - registration.rejected.keys()
        registration.rejected = rejected
        changed = {} if is_gone else {registration: None}
        for operation_id in before.keys() - claims.keys():
            self._withdraw(registration, operation_id, changed, is_held=operation_id in held)
        for claim in claims.values():
            self._take(registration, claim)
        self._counters.rejected += len(registration.rejected) + len(registration.refused)
        for each in changed:
            self._report(each)
        if is_gone:
            self._notices.tell(registration)

    def _take(self, registration: Registration, claim: Claim) -> None:
        """Offer an operation for a worker, or note why it cannot be offered."""
        operation_id, session, reason = claim.operation_id, registration.session, None
        offer = self.offers.get(operation_id)
        if offer is None:
            self.offers[operation_id] = Offer(claim, registration.pool, [session])
            self.namespaces[claim.namespace] = self.namespaces.get(claim.namespace, 0) + 1
        elif offer.sessions == [session]:
            offer.claim, offer.pool = claim, registration.pool
        elif not (registration.pool and offer.pool):
            reason = "another spoke offers it already, and both would have to ask for pooling to share it"
        elif claim.digest != offer.claim.digest:
            reason = "another spoke offers it with a different spec"
        elif session not in offer.sessions:
            offer.sessions.append(session)
        if reason is None:
            registration.rejected.pop(operation_id, None)
            return
        assert offer is not None
        registration.rejected[operation_id] = reason
        if session in offer.sessions:  # it had described the operation like the others
            offer.sessions.remove(session)
        if registration not in offer.waiting:
            offer.waiting.append(registration)

    def _withdraw(
        self, registration: Registration, operation_id: str, changed: dict[Registration, None], *, is_held: bool
    ) -> None:
        """Take back a claim; workers that wait for the operation get it and are added to `changed`."""
        offer = self.offers[operation_id]
        if not is_held:
            offer.waiting.remove(registration)
            return
        siblings = self._workers.get(registration.session, {}).values()
        if any(operation_id in each.claims and operation_id not in each.rejected for each in siblings):
            return
        offer.sessions.remove(registration.session)
        if offer.sessions:
            return
        del self.offers[operation_id]
        namespace = offer.claim.namespace
        self.namespaces[namespace] -= 1
        if not self.namespaces[namespace]:
            del self.namespaces[namespace]
        for each in offer.waiting:
            self._take(each, each.claims[operation_id])
            changed[each] = None

    def _report(self, registration: Registration) -> None:
        """Tell a worker what became of its announcement, and others of its operations."""
        accepted = [operation_id for operation_id in registration.claims if operation_id not in registration.rejected]
        session, worker_id = registration.session, registration.worker_id
        for listed in (accepted, []):  # what was rejected matters more
            registered = Registered(listed, registration.rejected, registration.refused)
            if session.send(JSON.encode(WorkerRegistered(VERSION, "", worker_id, registered))):
                break
        self._notices.tell(registration)


_TOO_MANY = f"a session may register {_MOST_CLAIMS:,} operations whose specs have {_MOST_BYTES >> 20} MiB"


def _forbidden(session: Session, namespace: str) -> str:
    return f"{session.principal.identity.id!r} may not register in the namespace {namespace!r}"


def _is_within(namespace: str, names: Iterable[str]) -> bool:
    """Whether a namespace is one of these, or below one."""
    return any(name == "*" or f"{namespace}.".startswith(f"{name}.") for name in names)


def _exceeds_limits(specs: Sequence[msgspec.Raw], others: Iterable[Registration]) -> bool:
    claims = [claim for each in others for claim in each.claims.values()]
    if len(specs) + len(claims) > _MOST_CLAIMS:
        return True
    size = sum(memoryview(spec).nbytes for spec in specs) + sum(len(claim.description) for claim in claims)
    return size > _MOST_BYTES


def _read_claims(
    session: Session, specs: Iterable[msgspec.Raw], codec: Codec, listed: Sequence[str], refused: Iterable[str]
) -> tuple[dict[str, Claim], dict[str, str]]:
    """Read the specs that a session may register; the reasons against others are by operation id.

    What is in a namespace that was refused as a whole is left out without one.
    """
    claims: dict[str, Claim] = {}
    rejected: dict[str, str] = {}
    for raw in specs:
        named = _READ_NAMED[codec.name](bytes(raw))
        operation_id = f"{named.namespace}.{named.name}"
        if _is_within(named.namespace, refused):
            continue
        if not session.principal.may_register(named.namespace):
            rejected[operation_id] = _forbidden(session, named.namespace)
            continue
        if not _is_within(named.namespace, listed):
            rejected[operation_id] = f"the announcement does not list the namespace {named.namespace!r}"
            continue
        data = codec.read(raw)
        description = encode_json(data)  # or the error: others are told in JSON
        try:
            spec = OperationSpec.from_dict(data)
        except CallError as error:
            rejected[operation_id] = error.message
            continue
        digest = blake2b(msgspec.json.encode(data, order="deterministic"), digest_size=16).digest()
        access = spec.access_control
        claims[spec.id] = Claim(spec.id, spec.namespace, access, digest, description, access != OPEN)
    return claims, rejected


class _Notices:
    """Tells watching sessions of workers, in turns: one that asks again and again delays nobody."""

    def __init__(self) -> None:
        self._told: dict[Session, set[str]] = {}
        """The sessions that watch, each with the aliases of the workers that it knows."""
        self._queue: OrderedDict[tuple[Session, str], Registration] = OrderedDict()

    def watch(self, session: Session, registrations: Iterable[Registration]) -> None:
        """Tell a session of these workers, and of others as they change."""
        self._told.setdefault(session, set())
        for registration in registrations:
            self._add(session, registration)

    def unwatch(self, session: Session) -> None:
        """Tell a session nothing more."""
        self._told.pop(session, None)

    def tell(self, registration: Registration) -> None:
        """Tell every session that watches of a worker that changed."""
        for session in self._told:
            if session is not registration.session:
                self._add(session, registration)

    def _add(self, session: Session, registration: Registration) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._send)
        self._queue[session, registration.alias] = registration

    def _send(self) -> None:
        end = perf_counter() + TURN_SECONDS
        while self._queue:
            (session, alias), registration = self._queue.popitem(last=False)
            told = self._told.get(session)
            if told is not None:
                with contextlib.suppress(CallError):  # a peer that reads one format only
                    self._send_one(session, told, alias, registration)
            if self._queue and perf_counter() > end:
                asyncio.get_running_loop().call_soon(self._send)
                return

    def _send_one(self, session: Session, told: set[str], alias: str, registration: Registration) -> None:
        visible = _visible_to(session, registration)
        if visible:
            told.add(alias)
            parts = _split(visible, session.max_payload)
            for number, part in enumerate(parts):
                announced = _Announced(alias, registration.generation, part, registration.pool, number, len(parts))
                payload = msgspec.Raw(msgspec.json.encode(announced))
                session.send(JSON.encode(Header(VERSION, "worker.announced", "", "", payload)))
        elif alias in told:
            told.remove(alias)
            session.send(JSON.encode(WorkerGone(VERSION, "", "", Worker(alias))))


def _split(specs: list[msgspec.Raw], limit: int | None) -> list[list[msgspec.Raw]]:
    """Return specs in as few parts as a peer accepts; one that is too large by itself is left out."""
    if limit is None:
        return [specs]
    parts: list[list[msgspec.Raw]] = [[]]
    room = most = limit - _OVERHEAD
    for spec in specs:
        size = memoryview(spec).nbytes + 1
        if size > most:
            continue
        if size > room:
            parts.append([])
            room = most
        parts[-1].append(spec)
        room -= size
    return parts


def _visible_to(session: Session, registration: Registration) -> list[msgspec.Raw]:
    """Return the specs of a worker's operations that a session may call."""
    identity, rejected = session.principal.identity, registration.rejected
    return [
        msgspec.Raw(claim.description)
        for claim in registration.claims.values()
        if claim.operation_id not in rejected
        and (session.trusted or not claim.is_guarded or check_access(claim.access, identity).allowed)
    ]
