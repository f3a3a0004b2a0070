"""Events of the call protocol: a header for routing, and a payload that a hub forwards without decoding it.

On the wire an event is `{"v": 1, "type", "id", "to", "payload"}`. `id` is the request id, and `to` is the operation id
or the receiving peer. An announcement also has the `namespaces` of its operations. Unknown fields are ignored.

A request may also have these fields:

- `identity`: the caller, as the hub has authenticated it
- `stream`: several responses are expected
- `parent`: the id of the request that this request is nested in, for traces only
- `grant`: the right to call as the caller of the request that this request is nested in
- `deadline`: a copy of the deadline in the payload, for the hub
- `asWorker`: the worker calls with its own rights
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from operations.calls.job_records import JobRequest
from operations.context import Identity
from operations.envelope import ResponseEnvelopeSchema
from operations.schema import Schema, from_schema

VERSION = 1
NULL = msgspec.Raw(b"null")
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of 64 bits, so that arithmetic with floats cannot overflow."""
_Id = Annotated[str, msgspec.Meta(max_length=160)]
"""The id of a request, a worker or a peer: a name of at most 64 characters and random parts."""
_Parent = Annotated[str, msgspec.Meta(max_length=512)]
"""The id of a parent request, which a caller may choose."""
_Token = Annotated[str, msgspec.Meta(max_length=64)]
"""A short string: a grant, or the type of an event at a hub."""
_Name = Annotated[str, msgspec.Meta(max_length=256)]
"""An operation id or a namespace."""
MOST_NAMESPACES = 64
_Namespaces = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MOST_NAMESPACES)]


class _CallPayload(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    request_id: _Id


class RequestPayload(_CallPayload):
    """Payload of `call.requested`: an operation and its input."""

    operation_id: _Name
    input: msgspec.Raw = NULL
    """The encoded input, or the input itself if it is not encoded yet or was decoded together with the event."""
    parent_request_id: _Parent | None = None
    deadline: _Int64 | None = None
    idle_timeout: _Int64 | None = None
    identity: Identity | None = None
    metadata: Mapping[str, Any] | None = None
    sent_at: _Int64 | None = None
    attempt: _Int64 = 0
    not_after: _Int64 | None = None
    """Epoch milliseconds after which a stored request no longer runs."""
    progress: bool = False
    """Whether the caller accepts `call.progress`."""
    job: JobRequest | None = None
    """The job that the request starts; the outcome of a job is stored, not sent to the caller. None without a job."""


class ResponsePayload(_CallPayload):
    """Payload of `call.responded`: an envelope; the items of a stream are numbered from 0."""

    output: msgspec.Raw = NULL
    sequence: int | None = None
    worker_id: _Id | None = None


class CompletionPayload(_CallPayload):
    """Payload of `call.completed`: the stream ended after `sequence` items."""

    sequence: int | None = None


class ErrorPayload(_CallPayload):
    """Payload of `call.error`: the call failed."""

    code: str
    message: str = msgspec.field(default_factory=str)
    """The default is a factory, so that `omit_defaults` does not omit an empty message: receivers expect one."""
    details: msgspec.Raw = NULL


class AbortPayload(_CallPayload):
    """Payload of `call.aborted`: one side cancelled the call."""

    reason: str = ""
    proof: str = ""
    """Proof that the sender knows the request id (see `control_messages`).

    It is required on a transport where other peers also receive the message.
    """


class AcceptancePayload(_CallPayload):
    """Payload of `call.accepted`: the worker that runs the call."""

    worker_id: _Id


class ProgressPayload(_CallPayload):
    """Payload of `call.progress`: the progress of a running call."""

    progress: float
    total: float | None = None
    message: str | None = None


class CreditPayload(_CallPayload):
    """Payload of `call.credit`: the caller accepts more items; with 0 items and bytes it only renews the lease."""

    items: int = 0
    bytes: int = 0
    number: int = 0
    """A number that grows with each credit message, so that other peers that receive a message cannot repeat it."""
    proof: str = ""
    """Proof that the sender knows the request id, as in `AbortPayload`."""


class AnnouncementPayload(msgspec.Struct, rename="camel", omit_defaults=True):
    """Payload of `worker.announced`: the operations of a worker, or the part of them that fits in one message."""

    worker_id: _Id
    generation: int
    operations: msgspec.Raw
    """The specs, encoded; only peers that import operations decode them (see `announcements.read_specs`)."""
    pool: bool = False
    part: int = 0
    parts: int = 1
    """Number of messages of the announcement: more than one if the operations do not fit in one."""
    slots: int = 0
    """Number of calls that the worker runs at a time; 0 if unknown."""
    host: str = ""
    pid: _Int64 | None = None
    version: str = ""
    """The release of this library at the worker. The console shows it, as it shows `host` and `pid`."""


class RegistrationPayload(msgspec.Struct, rename="camel"):
    """Payload of `worker.registered`: the hub's response to an announcement."""

    accepted: list[str]
    rejected: dict[str, str] = {}
    """The reasons for rejected operations, by operation id."""
    refused: dict[str, str] = {}
    """The reasons for refused namespaces, by namespace: no operation in or below the namespace was registered."""


class WorkerPayload(msgspec.Struct, rename="camel", omit_defaults=True):
    """Payload of `worker.alive` and `worker.gone`; `generation` grows when the worker's operations change."""

    worker_id: _Id
    generation: int = 0
    leaving: bool = False
    """Whether the worker accepts no new requests."""
    behind: tuple[str, ...] = ()
    """The namespaces with a backlog: so many requests wait at the bus that the last ones will not run soon."""
    in_flight: int = 0
    """Number of calls that run or wait at the worker; the console shows it."""
    finished: int = 0
    """Calls that ended since the worker started."""
    failed: int = 0
    """Calls that ended with an error since the worker started."""


class AskPayload(msgspec.Struct, rename="camel", omit_defaults=True):
    """Payload of `worker.asked`: a peer asks for the announcements of all workers."""

    peer: _Id


class HelloPayload(msgspec.Struct, rename="camel", omit_defaults=True):
    """Payload of `hub.hello`, the first event of a spoke."""

    peer: str
    generation: int
    codecs: tuple[str, ...] = ("json",)
    max_payload: int | None = None
    batch: bool = False
    """Whether one frame may contain several messages."""
    host: str = ""
    pid: _Int64 | None = None
    version: str = ""
    """The release of this library at the spoke. The console shows it, as it shows `host` and `pid`."""


class WelcomePayload(msgspec.Struct, rename="camel", omit_defaults=True):
    """Payload of `hub.welcome`, the hub's response to a hello."""

    session: str
    codecs: tuple[str, ...]
    heartbeat: float
    max_payload: int
    batch: bool = False
    identity: Identity | None = None
    namespaces: list[str] = []


class _Event(msgspec.Struct, tag_field="type", omit_defaults=True, gc=False):
    v: int
    id: _Id
    to: _Name


class CallRequested(_Event, tag="call.requested"):
    """The event `call.requested`."""

    payload: RequestPayload
    identity: msgspec.Raw = NULL
    """The caller's identity, still encoded, because a worker receives the same identity often and decodes it once."""
    stream: bool = False
    parent: _Parent | None = None
    grant: _Token | None = None
    deadline: _Int64 | None = None
    as_worker: bool = msgspec.field(default=False, name="asWorker")


class CallResponded(_Event, tag="call.responded"):
    """The event `call.responded`."""

    payload: ResponsePayload


class CallCompleted(_Event, tag="call.completed"):
    """The event `call.completed`."""

    payload: CompletionPayload


class CallFailed(_Event, tag="call.error"):
    """The event `call.error`."""

    payload: ErrorPayload


class CallAborted(_Event, tag="call.aborted"):
    """The event `call.aborted`."""

    payload: AbortPayload


class CallAccepted(_Event, tag="call.accepted"):
    """The event `call.accepted`."""

    payload: AcceptancePayload


class CallProgress(_Event, tag="call.progress"):
    """The event `call.progress`."""

    payload: ProgressPayload


class CallCredit(_Event, tag="call.credit"):
    """The event `call.credit`."""

    payload: CreditPayload


class WorkerAnnounced(_Event, tag="worker.announced"):
    """The event `worker.announced`."""

    payload: AnnouncementPayload
    namespaces: tuple[str, ...] = ()


class WorkerRegistered(_Event, tag="worker.registered"):
    """The event `worker.registered`."""

    payload: RegistrationPayload


class WorkerAlive(_Event, tag="worker.alive"):
    """The event `worker.alive`."""

    payload: WorkerPayload


class WorkerGone(_Event, tag="worker.gone"):
    """The event `worker.gone`."""

    payload: WorkerPayload


class WorkerAsked(_Event, tag="worker.asked"):
    """The event `worker.asked`."""

    payload: AskPayload


class HubHello(_Event, tag="hub.hello"):
    """The event `hub.hello`."""

    payload: HelloPayload


class HubWelcome(_Event, tag="hub.welcome"):
    """The event `hub.welcome`."""

    payload: WelcomePayload


Event = (
    CallRequested
    | CallResponded
    | CallCompleted
    | CallFailed
    | CallAborted
    | CallAccepted
    | CallProgress
    | CallCredit
    | WorkerAnnounced
    | WorkerRegistered
    | WorkerAlive
    | WorkerGone
    | WorkerAsked
    | HubHello
    | HubWelcome
)


class EventHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """An event whose payload is not decoded, for routing."""

    v: int
    type: _Token
    id: _Id
    to: _Name
    payload: msgspec.Raw
    identity: msgspec.Raw = NULL
    """The identity that the sender claims, encoded. A hub ignores the claim of a spoke, but counts it as forged."""
    stream: bool = False
    parent: _Id | None = None
    grant: _Token | None = None
    deadline: _Int64 | None = None
    as_worker: bool = msgspec.field(default=False, name="asWorker")
    namespaces: _Namespaces = ()


class EventOutline(msgspec.Struct, gc=False):
    """Type and id of an event that cannot be decoded, for the error that its sender gets."""

    type: str
    id: _Id


_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}


def _event_schema(kind: str, required: list[str], payload: Mapping[str, Any], **outside: Any) -> Schema:
    inner = {
        "type": "object",
        "properties": {"requestId": _TEXT, **payload},
        "required": ["requestId", *required],
    }
    properties = {"v": _INTEGER, "type": {"const": kind}, "id": _TEXT, "to": _TEXT, "payload": inner, **outside}
    return from_schema({"type": "object", "properties": properties, "required": ["v", "type", "id", "to", "payload"]})


_IDENTITY = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "scopes": {"type": "array", "items": _TEXT},
        "resources": {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
        "claims": {"type": "object"},
    },
    "required": ["id"],
}
_REQUESTED = {
    "operationId": _TEXT,
    "input": {},
    "parentRequestId": _TEXT,
    "deadline": {"type": "integer", "description": "epoch milliseconds"},
    "idleTimeout": {"type": "integer", "description": "longest time between two items, in milliseconds"},
    "identity": _IDENTITY,
    "metadata": {"type": "object"},
    "sentAt": _INTEGER,
    "attempt": _INTEGER,
    "progress": {"type": "boolean", "description": "whether the caller accepts call.progress"},
    "notAfter": {"type": "integer", "description": "epoch milliseconds after which a stored request is not run"},
    "job": {
        "type": "object",
        "description": "the outcome is stored and not sent to the caller",
        "properties": {"key": _TEXT, "keep": {"type": "integer", "description": "milliseconds"}, "owner": _TEXT},
        "required": ["key", "keep"],
    },
}
_SEQUENCE = {"type": "integer", "minimum": 0}

CALL_EVENT_SCHEMAS: Mapping[str, Schema] = {
    "call.requested": _event_schema(
        "call.requested",
        ["operationId"],
        _REQUESTED,
        identity=_IDENTITY,
        stream={"type": "boolean"},
        parent=_TEXT,
        grant=_TEXT,
        deadline=_INTEGER,
        asWorker={"type": "boolean"},
    ),
    "call.responded": _event_schema(
        "call.responded",
        ["output"],
        {"output": ResponseEnvelopeSchema.document, "sequence": _SEQUENCE, "workerId": _TEXT},
    ),
    "call.completed": _event_schema("call.completed", [], {"sequence": _SEQUENCE}),
    "call.error": _event_schema("call.error", ["code"], {"code": _TEXT, "message": _TEXT, "details": {}}),
    "call.aborted": _event_schema("call.aborted", [], {"reason": _TEXT, "proof": _TEXT}),
    "call.accepted": _event_schema("call.accepted", ["workerId"], {"workerId": _TEXT}),
    "call.progress": _event_schema(
        "call.progress", ["progress"], {"progress": {"type": "number"}, "total": {"type": "number"}, "message": _TEXT}
    ),
    "call.credit": _event_schema(
        "call.credit", [], {"items": _SEQUENCE, "bytes": _SEQUENCE, "number": _SEQUENCE, "proof": _TEXT}
    ),
}
"""The schemas of the events of calls (`call.…`), by event type."""
CallEventSchema: Schema = from_schema({"anyOf": [schema.document for schema in CALL_EVENT_SCHEMAS.values()]})
"""The schema that every event of a call (`call.…`) matches."""
