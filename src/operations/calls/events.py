"""The events of the call protocol: what routing needs is outside, the payload inside, and a hub never opens it.

On the wire an event is `{"v": 1, "type", "id", "to", "payload"}`. `id` is the request id and `to` the operation id or
peer. A request may also carry `identity` (set by the hub that authenticated the caller), `stream` (several answers are
expected), `parent` (the request it is nested in, for traces only), `grant` (the right to call for that request's
caller), `deadline` (a copy of the payload's, for the hub) and `asWorker` (the worker calls with its own rights). An
announcement carries the `namespaces` of its operations. Unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from operations.context import Identity
from operations.envelope import ResponseEnvelopeSchema
from operations.schema import Schema, from_schema

VERSION = 1
NULL = msgspec.Raw(b"null")
_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that can be reckoned with as a float."""
_Id = Annotated[str, msgspec.Meta(max_length=128)]
"""A request id, as a hub accepts it: the name of a peer, which has at most 64 characters, and a random part."""
_Token = Annotated[str, msgspec.Meta(max_length=64)]
"""A grant or the type of an event, as a hub accepts it."""
_Name = Annotated[str, msgspec.Meta(max_length=256)]
"""An operation id or a namespace, as a hub accepts it."""
MOST_NAMESPACES = 64
_Namespaces = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MOST_NAMESPACES)]


class _Payload(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    request_id: str


class Requested(_Payload):
    """Somebody wants an operation called."""

    operation_id: str
    input: msgspec.Raw = NULL
    """The bytes that travel; a value before it was written, and where it was read with the event around it."""
    parent_request_id: str | None = None
    deadline: _Whole | None = None
    idle_timeout: _Whole | None = None
    identity: Identity | None = None
    metadata: Mapping[str, Any] | None = None
    sent_at: _Whole | None = None
    attempt: _Whole = 0
    not_after: _Whole | None = None
    """Epoch milliseconds after which a stored request is not run any more."""


class Responded(_Payload):
    """An answer, always an envelope; the answers of a stream are numbered from 0."""

    output: msgspec.Raw = NULL
    sequence: int | None = None
    worker_id: str | None = None


class Completed(_Payload):
    """A stream ended after `sequence` answers."""

    sequence: int | None = None


class Failed(_Payload):
    """A call ended without a value."""

    code: str
    message: str = ""
    details: msgspec.Raw = NULL


class Aborted(_Payload):
    """One side gave up."""

    reason: str = ""
    proof: str = ""
    """Where others hear it, what only the caller and the worker of the call can make: see `calls.control`."""


class Accepted(_Payload):
    """A call is still running; this worker has it."""

    worker_id: str


class Credit(_Payload):
    """The caller of a stream has room for more; nothing more is a sign of life."""

    items: int = 0
    bytes: int = 0
    number: int = 0
    """Where others hear it: higher than that of the credit before."""
    proof: str = ""
    """As in `Aborted`."""


class Announced(msgspec.Struct, rename="camel", omit_defaults=True):
    """A worker's operations, all of them."""

    worker_id: str
    generation: int
    operations: list[dict[str, Any]]
    pool: bool = False
    part: int = 0
    parts: int = 1
    """More than one where they do not fit in one message of the transport."""


class Registered(msgspec.Struct, rename="camel"):
    """What a hub made of an announcement."""

    accepted: list[str]
    rejected: dict[str, str] = {}
    """The reasons by operation id."""
    refused: dict[str, str] = {}
    """The reasons by namespace, for all operations in it and below."""


class Worker(msgspec.Struct, rename="camel", omit_defaults=True):
    """A worker by name: it is alive, or gone; its generation tells whether its operations changed."""

    worker_id: str
    generation: int = 0
    leaving: bool = False
    """It only finishes what it has."""
    behind: tuple[str, ...] = ()
    """The namespaces of which so many requests wait at the bus that it will not get to the last ones soon."""


class Asked(msgspec.Struct, rename="camel", omit_defaults=True):
    """A peer wants to be told which workers there are, and of changes."""

    peer: str


class Hello(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a spoke says first."""

    peer: str
    generation: int
    codecs: tuple[str, ...] = ("json",)
    max_payload: int | None = None
    batch: bool = False
    """Whether several messages may come in one frame."""


class Welcome(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a hub answers."""

    session: str
    codecs: tuple[str, ...]
    heartbeat: float
    max_payload: int
    batch: bool = False
    identity: Identity | None = None
    namespaces: list[str] = []


class _Event(msgspec.Struct, tag_field="type", omit_defaults=True, gc=False):
    v: int
    id: str
    to: str


class CallRequested(_Event, tag="call.requested"):
    """`call.requested`."""

    payload: Requested
    identity: msgspec.Raw = NULL
    """As bytes: a worker reads the same identity many times."""
    stream: bool = False
    parent: str | None = None
    grant: str | None = None
    deadline: _Whole | None = None
    as_worker: bool = msgspec.field(default=False, name="asWorker")


class CallResponded(_Event, tag="call.responded"):
    """`call.responded`."""

    payload: Responded


class CallCompleted(_Event, tag="call.completed"):
    """`call.completed`."""

    payload: Completed


class CallFailed(_Event, tag="call.error"):
    """`call.error`."""

    payload: Failed


class CallAborted(_Event, tag="call.aborted"):
    """`call.aborted`."""

    payload: Aborted


class CallAccepted(_Event, tag="call.accepted"):
    """`call.accepted`."""

    payload: Accepted


class CallCredit(_Event, tag="call.credit"):
    """`call.credit`."""

    payload: Credit


class WorkerAnnounced(_Event, tag="worker.announced"):
    """`worker.announced`."""

    payload: Announced
    namespaces: tuple[str, ...] = ()


class WorkerRegistered(_Event, tag="worker.registered"):
    """`worker.registered`."""

    payload: Registered


class WorkerAlive(_Event, tag="worker.alive"):
    """`worker.alive`."""

    payload: Worker


class WorkerGone(_Event, tag="worker.gone"):
    """`worker.gone`."""

    payload: Worker


class WorkerAsked(_Event, tag="worker.asked"):
    """`worker.asked`."""

    payload: Asked


class HubHello(_Event, tag="hub.hello"):
    """`hub.hello`."""

    payload: Hello


class HubWelcome(_Event, tag="hub.welcome"):
    """`hub.welcome`."""

    payload: Welcome


Event = (
    CallRequested
    | CallResponded
    | CallCompleted
    | CallFailed
    | CallAborted
    | CallAccepted
    | CallCredit
    | WorkerAnnounced
    | WorkerRegistered
    | WorkerAlive
    | WorkerGone
    | WorkerAsked
    | HubHello
    | HubWelcome
)


class Header(msgspec.Struct, omit_defaults=True, gc=False):
    """The outside of an event, for routing: the payload stays as the bytes it came as."""

    v: int
    type: _Token
    id: _Id
    to: _Name
    payload: msgspec.Raw
    identity: msgspec.Raw = NULL
    """Also as bytes: a hub does not read what a spoke claims."""
    stream: bool = False
    parent: _Id | None = None
    grant: _Token | None = None
    deadline: _Whole | None = None
    as_worker: bool = msgspec.field(default=False, name="asWorker")
    namespaces: _Namespaces = ()


class Outline(msgspec.Struct, gc=False):
    """As much of an event as can be read of one that is none: enough to tell its sender."""

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
    "idleTimeout": {"type": "integer", "description": "milliseconds a stream may be silent"},
    "identity": _IDENTITY,
    "metadata": {"type": "object"},
    "sentAt": _INTEGER,
    "attempt": _INTEGER,
    "notAfter": {"type": "integer", "description": "epoch milliseconds after which a stored request is not run"},
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
    "call.credit": _event_schema(
        "call.credit", [], {"items": _SEQUENCE, "bytes": _SEQUENCE, "number": _SEQUENCE, "proof": _TEXT}
    ),
}
"""Schema of each event of the call protocol, by its type."""
CallEventSchema: Schema = from_schema({"anyOf": [schema.document for schema in CALL_EVENT_SCHEMAS.values()]})
"""Schema of every event of the call protocol."""
