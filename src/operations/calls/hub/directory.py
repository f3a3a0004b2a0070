"""HubDirectory: the operations that workers have registered at a hub. It notifies other sessions of changes."""

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
from operations.calls.announcements import OVERHEAD, split
from operations.calls.codec import JSON, Codec, part_reader
from operations.calls.events import (
    VERSION,
    EventHeader,
    RegistrationPayload,
    WorkerGone,
    WorkerPayload,
    WorkerRegistered,
)
from operations.calls.hub.session import HubSession
from operations.errors import CallError, ErrorCode
from operations.failures import unavailable
from operations.pubsub.link import TURN_SECONDS
from operations.spec import OPEN, AccessControl, OperationSpec
from operations.telemetry.counters import Counters
from operations.wire import encode_json

_MOST_OPERATIONS = 10_000
_MOST_BYTES = 8 << 20
"""Limits of all workers of one session together.

`_MOST_OPERATIONS` is the number of operations, including rejected ones. `_MOST_BYTES` is the total size of their specs.
"""
_MOST_WORKERS = 64
"""Largest number of workers of one session."""
_LONGEST_REASON = 1_000
"""Number of characters of the reason for a rejected operation that are kept and sent."""
_EVERYTHING = ("*",)


class _RawAnnouncement(msgspec.Struct, rename="camel", omit_defaults=True):
    """An announcement whose specs are not decoded."""

    worker_id: Annotated[str, msgspec.Meta(max_length=128)]
    generation: int
    operations: list[msgspec.Raw]
    pool: bool = False
    part: int = 0
    parts: int = 1
    slots: int = 0


class _WorkerName(msgspec.Struct, rename="camel"):
    """The field of `worker.gone` that the hub reads."""

    worker_id: Annotated[str, msgspec.Meta(max_length=128)]


class _SpecName(msgspec.Struct):
    """The fields of a spec that decide whether the rest is decoded."""

    namespace: Annotated[str, msgspec.Meta(max_length=256)] = ""
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""


_read_announcement = part_reader(_RawAnnouncement)
_read_worker_name = part_reader(_WorkerName)
_read_spec_name = part_reader(_SpecName)


class AnnouncedOperation(msgspec.Struct, eq=False, frozen=True):
    """One operation that a worker announced."""

    operation_id: str
    namespace: str
    access: AccessControl
    digest: bytes
    description: bytes
    """The spec in JSON."""
    is_guarded: bool
    """Whether callers need rights to call the operation."""


class Registration(msgspec.Struct, eq=False):
    """One worker of a session."""

    session: HubSession
    worker_id: str
    """The id that the worker gave itself."""
    alias: str
    """The id that other peers get instead of `worker_id`, which would reveal the name of the worker's peer."""
    generation: int = 0
    pool: bool = False
    operations: dict[str, AnnouncedOperation] = {}
    rejected: dict[str, str] = {}
    """Reasons for rejected operations, by operation id; for example, another session has registered the operation."""
    refused: dict[str, str] = {}
    """Reasons for refused namespaces, by namespace."""
    slots: int = 0
    """Number of calls that the worker runs at a time; 0 if unknown."""


class CallableOperation(msgspec.Struct, eq=False):
    """An operation that can be called: with `pool` at one or more sessions, otherwise at one session."""

    announced: AnnouncedOperation
    pool: bool
    sessions: list[HubSession]
    waiting: list[Registration] = []
    """Workers whose announcement of the same operation was rejected.

    When no session has the operation any more, it is registered for these workers.
    """


class HubDirectory:
    """The operations of all sessions.

    A spec is decoded only if the session may register the operation. Specs are stored encoded.
    """

    def __init__(self, sessions: Mapping[str, HubSession], counters: Counters) -> None:
        self.operations: dict[str, CallableOperation] = {}
        self.namespaces: dict[str, int] = {}
        """The number of operations in each namespace."""
        self._sessions = sessions
        self._counters = counters
        self._workers: dict[HubSession, dict[str, Registration]] = {}
        self._notices = _ChangeNotices()

    def announce(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Refuse an announcement, or update the operations of its worker.

        Operations that the worker no longer announces are withdrawn.
        """
        listed = header.namespaces or _EVERYTHING
        principal = session.principal
        refused = {name: _forbidden(session, name) for name in listed if not principal.may_register_within(name)}
        if len(refused) == len(listed):
            self._refuse(session, header.id, refused)
            return
        announcement = _read_announcement(header.payload, codec)
        worker_id = announcement.worker_id
        if not worker_id.startswith(f"{session.peer}."):
            self._counters.foreign += 1
            return
        workers = self._workers.setdefault(session, {})
        registration = workers.get(worker_id) or Registration(session, worker_id, os.urandom(16).hex())
        if announcement.generation < registration.generation:
            self._counters.dropped += 1
            return
        others = [each for each in workers.values() if each is not registration]
        if len(others) >= _MOST_WORKERS:
            self._refuse(session, worker_id, dict.fromkeys(listed, _TOO_MANY_WORKERS))
            return
        if _exceeds_limits(announcement.operations, others):
            self._refuse(session, worker_id, dict.fromkeys(listed, _TOO_MANY))
            return
        operations, rejected = _read_operations(session, announcement.operations, codec, listed, refused)
        workers[worker_id] = registration
        session.is_worker = session.is_worker or bool(operations)
        registration.generation, registration.pool = announcement.generation, announcement.pool
        registration.refused, registration.slots = refused, announcement.slots
        self._update(registration, operations, rejected)

    def retire(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Remove a worker; the calls that it runs continue."""
        workers = self._workers.get(session)
        gone = _read_worker_name(header.payload, codec) if workers else None
        registration = workers.pop(gone.worker_id, None) if workers and gone is not None else None
        if registration is None:
            self._counters.dropped += 1
            return
        registration.refused = {}
        self._update(registration, {}, {})

    def leave(self, session: HubSession) -> None:
        """Remove a session with all its workers."""
        self._notices.unwatch(session)
        workers = self._workers.get(session, {})
        while workers:
            self._update(workers.popitem()[1], {}, {}, is_gone=True)
        self._workers.pop(session, None)

    def watch(self, session: HubSession) -> None:
        """Send a session the announcements of all workers now, and of changed workers from now on."""
        others = (workers for owner, workers in self._workers.items() if owner is not session)
        self._notices.watch(session, (each for workers in others for each in workers.values()))

    def slots_of(self, session: HubSession) -> int:
        """Return the number of calls that the workers of a session run at a time; 0 if unknown."""
        return sum(each.slots for each in self._workers.get(session, {}).values())

    def explain_missing(self, operation_id: str) -> CallError:
        """Return the error for a call of an operation that no worker has registered."""
        if operation_id.rpartition(".")[0] in self.namespaces:
            details = {"operationId": operation_id, "executed": "no"}
            return CallError(ErrorCode.OPERATION_NOT_FOUND, f"no operation {operation_id!r} is registered", details)
        return unavailable(operation_id, "no worker serves it", "no")

    def _refuse(self, session: HubSession, worker_id: str, refused: dict[str, str]) -> None:
        """Refuse a whole announcement; the operations that its worker registered before stay registered."""
        self._counters.rejected += len(refused)
        session.send(JSON.encode(WorkerRegistered(VERSION, "", worker_id, RegistrationPayload([], {}, refused))))

    def _update(
        self,
        registration: Registration,
        operations: dict[str, AnnouncedOperation],
        rejected: dict[str, str],
        *,
        is_gone: bool = False,
    ) -> None:
        """Replace the operations of a worker.

        An operation that no session has any more is registered for the workers that wait for it. Report the result to
        these workers, and to this worker unless it is gone.
        """
        before, registration.operations = registration.operations, operations
        held = before.keys() - registration.rejected.keys()
        registration.rejected = rejected
        changed = {} if is_gone else {registration: None}
        for operation_id in before.keys() - operations.keys():
            self._withdraw(registration, operation_id, changed, is_held=operation_id in held)
        for announced in operations.values():
            self._register(registration, announced)
        self._counters.rejected += len(registration.rejected) + len(registration.refused)
        for each in changed:
            self._report(each)
        if is_gone:
            self._notices.announce(registration)

    def _register(self, registration: Registration, announced: AnnouncedOperation) -> None:
        """Register an operation for a worker, or store why it is rejected."""
        operation_id, session, reason = announced.operation_id, registration.session, None
        operation = self.operations.get(operation_id)
        if operation is None:
            self.operations[operation_id] = CallableOperation(announced, registration.pool, [session])
            self.namespaces[announced.namespace] = self.namespaces.get(announced.namespace, 0) + 1
        elif operation.sessions == [session]:
            operation.announced, operation.pool = announced, registration.pool
        elif not (registration.pool and operation.pool):
            reason = "another spoke has registered it; to share it, use `ops worker` or pool=True at both"
        elif announced.digest != operation.announced.digest:
            reason = "another spoke has registered it with a different spec"
        elif session not in operation.sessions:
            operation.sessions.append(session)
        if reason is None:
            registration.rejected.pop(operation_id, None)
            if operation is not None and registration in operation.waiting:
                operation.waiting.remove(registration)
            return
        assert operation is not None
        registration.rejected[operation_id] = reason
        # The session may still be listed because it registered the operation earlier.
        if session in operation.sessions and not self._has_registered(session, operation_id):
            operation.sessions.remove(session)
        if registration not in operation.waiting:
            operation.waiting.append(registration)

    def _has_registered(self, session: HubSession, operation_id: str) -> bool:
        """Return whether a worker of a session has registered an operation."""
        workers = self._workers.get(session, {}).values()
        return any(operation_id in each.operations and operation_id not in each.rejected for each in workers)

    def _withdraw(
        self, registration: Registration, operation_id: str, changed: dict[Registration, None], *, is_held: bool
    ) -> None:
        """Remove an operation of a worker; `is_held` is False if its registration only waited for the id.

        If no session has the operation any more, register it for the waiting workers, and add them to `changed`.
        """
        operation = self.operations[operation_id]
        if not is_held:
            operation.waiting.remove(registration)
            return
        if self._has_registered(registration.session, operation_id):
            return
        operation.sessions.remove(registration.session)
        if operation.sessions:
            return
        del self.operations[operation_id]
        namespace = operation.announced.namespace
        self.namespaces[namespace] -= 1
        if not self.namespaces[namespace]:
            del self.namespaces[namespace]
        for each in operation.waiting:
            self._register(each, each.operations[operation_id])
            changed[each] = None

    def _report(self, registration: Registration) -> None:
        """Send a worker the result of its announcement; send the other sessions the operations of the worker."""
        accepted = [
            operation_id for operation_id in registration.operations if operation_id not in registration.rejected
        ]
        session, worker_id = registration.session, registration.worker_id
        for listed in (accepted, []):  # if the message is too large, send only the rejections
            registered = RegistrationPayload(listed, registration.rejected, registration.refused)
            if session.send(JSON.encode(WorkerRegistered(VERSION, "", worker_id, registered))):
                break
        self._notices.announce(registration)


_TOO_MANY_WORKERS = f"too many workers: a connection may have {_MOST_WORKERS}"
_TOO_MANY = f"too many operations: expected at most {_MOST_OPERATIONS:,}, and at most {_MOST_BYTES >> 20} MiB of specs"


def _forbidden(session: HubSession, namespace: str) -> str:
    return f"{session.principal.identity.id!r} may not register in the namespace {namespace!r}"


def _is_within(namespace: str, names: Iterable[str]) -> bool:
    """Return whether a namespace is in `names`, or below one of them."""
    return any(name == "*" or f"{namespace}.".startswith(f"{name}.") for name in names)


def _exceeds_limits(specs: Sequence[msgspec.Raw], others: Iterable[Registration]) -> bool:
    if len(specs) > _MOST_OPERATIONS:
        return True
    number, size = len(specs), sum(map(_size_of, specs))
    for each in others:
        number += len(each.operations.keys() | each.rejected.keys())
        size += sum(len(announced.description) for announced in each.operations.values())
    return number > _MOST_OPERATIONS or size > _MOST_BYTES


def _read_operations(
    session: HubSession, specs: Iterable[msgspec.Raw], codec: Codec, listed: Sequence[str], refused: Iterable[str]
) -> tuple[dict[str, AnnouncedOperation], dict[str, str]]:
    """Decode the specs that a session may register.

    Return the operations, and the reasons for rejected ones, both by operation id. An operation in a namespace of
    `refused` is in neither of them, because `refused` has the reason for the whole namespace.
    """
    operations: dict[str, AnnouncedOperation] = {}
    rejected: dict[str, str] = {}
    for raw in specs:
        named = _read_spec_name(raw, codec)
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
        description = encode_json(data)  # other sessions get the spec as JSON
        try:
            spec = OperationSpec.from_dict(data)
        except CallError as error:
            rejected[operation_id] = error.message[:_LONGEST_REASON]
            continue
        digest = blake2b(msgspec.json.encode(data, order="deterministic"), digest_size=16).digest()
        access = spec.access_control
        operations[spec.id] = AnnouncedOperation(spec.id, spec.namespace, access, digest, description, access != OPEN)
    return operations, rejected


class _ChangeNotices:
    """Sends announcements to watching sessions in small groups, so that other work is not delayed."""

    def __init__(self) -> None:
        self._watching: dict[HubSession, set[str]] = {}
        """The watching sessions, each with the aliases of the workers that it knows."""
        self._queue: OrderedDict[tuple[HubSession, str], Registration] = OrderedDict()

    def watch(self, session: HubSession, registrations: Iterable[Registration]) -> None:
        """Send a session the announcements of these workers now, and later those of each new or changed worker."""
        self._watching.setdefault(session, set())
        for registration in registrations:
            self._add(session, registration)

    def unwatch(self, session: HubSession) -> None:
        """Stop sending announcements to a session."""
        self._watching.pop(session, None)

    def announce(self, registration: Registration) -> None:
        """Send the new announcement of a worker to every watching session."""
        for session in self._watching:
            if session is not registration.session:
                self._add(session, registration)

    def _add(self, session: HubSession, registration: Registration) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._send)
        self._queue[session, registration.alias] = registration

    def _send(self) -> None:
        end = perf_counter() + TURN_SECONDS
        while self._queue:
            (session, alias), registration = self._queue.popitem(last=False)
            known = self._watching.get(session)
            if known is not None:
                with contextlib.suppress(CallError):  # the peer's only codec may be unable to express the announcement
                    self._send_one(session, known, alias, registration)
            if self._queue and perf_counter() > end:
                asyncio.get_running_loop().call_soon(self._send)
                return

    def _send_one(self, session: HubSession, known: set[str], alias: str, registration: Registration) -> None:
        visible = _visible_to(session, registration)
        if visible:
            if session.max_payload is not None:  # leave out specs that are too large for the session
                visible = [spec for spec in visible if _size_of(spec) < session.max_payload - OVERHEAD]
            known.add(alias)
            parts = split(visible, _size_of, session.max_payload)
            for number, part in enumerate(parts):
                announcement = _RawAnnouncement(
                    alias, registration.generation, part, registration.pool, number, len(parts)
                )
                payload = msgspec.Raw(msgspec.json.encode(announcement))
                session.send(JSON.encode(EventHeader(VERSION, "worker.announced", "", "", payload)))
        elif alias in known:
            known.remove(alias)
            session.send(JSON.encode(WorkerGone(VERSION, "", "", WorkerPayload(alias))))


def _size_of(spec: msgspec.Raw) -> int:
    return memoryview(spec).nbytes


def _visible_to(session: HubSession, registration: Registration) -> list[msgspec.Raw]:
    """Return the specs of a worker's operations that a session may call."""
    identity, rejected = session.principal.identity, registration.rejected
    return [
        msgspec.Raw(announced.description)
        for announced in registration.operations.values()
        if announced.operation_id not in rejected
        and (session.trusted or not announced.is_guarded or check_access(announced.access, identity).allowed)
    ]
