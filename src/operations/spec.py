"""OperationSpec and Operation: what an operation is called, takes and gives, and what runs it."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import UNKNOWN, Found, Policy, Schema, from_schema, jsonable, validate_or_throw

R_co = TypeVar("R_co", covariant=True)

Handler = Callable[[Any, OperationContext], Awaitable[Any] | Any]
Stream = Callable[[Any, OperationContext], AsyncIterator[Any]]
SchemaLike = Schema | Mapping[str, Any] | bool

NAMESPACE_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
NAME_PATTERN = r"^[A-Za-z0-9_/-]+$"
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_NAME = re.compile(NAME_PATTERN)
_UNUSABLE = re.compile(r"[^A-Za-z0-9_/-]+")


class OperationType(StrEnum):
    """Whether an operation reads, changes, or streams."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


class AccessControl(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a caller must hold; nothing by default."""

    required_scopes: Sequence[str] = ()
    """All of these."""
    required_scopes_any: Sequence[str] = ()
    """At least one of these."""
    resource_type: str | None = None
    resource_action: str | None = None


OPEN = AccessControl()
"""What everybody holds: nothing."""


class OperationSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The declaration of an operation; schemas may be given as Schema or as JSON Schema documents."""

    name: str
    namespace: str
    version: str = "1.0.0"
    type: OperationType
    description: str = ""
    input_schema: Schema = UNKNOWN
    output_schema: Schema = UNKNOWN
    access_control: AccessControl = OPEN
    title: str | None = None
    tags: Sequence[str] = ()
    annotations: Mapping[str, Any] = {}
    error_schemas: Mapping[str, Schema] = {}
    output_policy: Policy | None = None
    durable: bool = False

    def __post_init__(self) -> None:
        _require(
            self.namespace,
            _NAMESPACE,
            "namespace",
            "segments of letters, digits, _ and - joined by dots",
        )
        _require(self.name, _NAME, "name", "letters, digits, _, / and -")
        self.__dict__["id"] = f"{self.namespace}.{self.name}"  # every registry asks for it
        # Frozen for everybody but its own construction.
        force = msgspec.structs.force_setattr
        if type(self.type) is not OperationType:
            force(self, "type", _member(self.type, self.id))
        if self.output_policy is not None:
            require_policy(self.output_policy)
        force(self, "input_schema", as_schema(self.input_schema))
        force(self, "output_schema", as_schema(self.output_schema))
        if self.error_schemas:
            force(self, "error_schemas", {code: as_schema(schema) for code, schema in self.error_schemas.items()})

    @cached_property
    def id(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data with its JSON names; what is not set is left out."""
        data: dict[str, Any] = {
            "name": self.name,
            "namespace": self.namespace,
            "version": self.version,
            "type": self.type.value,
            "description": self.description,
            "inputSchema": self.input_schema.document,
            "outputSchema": self.output_schema.document,
            "accessControl": msgspec.to_builtins(self.access_control),
        }
        optional: dict[str, Any] = {
            "title": self.title,
            "tags": list(self.tags),
            "annotations": dict(self.annotations),
            "errorSchemas": {code: schema.document for code, schema in self.error_schemas.items()},
            "outputPolicy": self.output_policy,
            "durable": self.durable,
        }
        return data | {name: value for name, value in optional.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperationSpec:
        """Read a spec from plain data; raises `VALIDATION_ERROR` that lists every problem."""
        validate_or_throw(OperationSpecSchema, data, "not an operation spec")
        known = {field: data[name] for name, field in _JSON_NAMES.items() if name in data}
        if "access_control" in known:
            known["access_control"] = msgspec.convert(known["access_control"], AccessControl)
        return cls(**known)


class InputParts(Protocol):
    """An input in which something stands in for what is no data, and the way back once it was validated."""

    @property
    def shown(self) -> Any:
        """The input as its schema sees it."""

    def put_back(self, value: Any) -> Any:
        """The validated input with everything in its place."""


class Operation(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A spec with what runs it: a handler for `execute`, a stream for `subscribe`, or both."""

    spec: OperationSpec
    handler: Handler | None = None
    stream: Stream | None = None
    threaded: bool | None = None
    """Whether the handler runs in a worker thread; when not said, a plain function does and a coroutine does not."""
    dump: Callable[[Any], Any] | None = jsonable
    """Makes what the handler returns JSON-shaped; None for a source whose results are so by construction."""
    load: Callable[[Any], Any] | None = None
    """Rebuilds the declared Python type from JSON-shaped data, for a caller who passes the operation itself."""
    misfits: Callable[[Any], Sequence[Found]] | None = None
    """What is wrong with an input beyond what its schema can say, where the handler's own types know."""
    describes: Callable[[ResponseEnvelope[Any]], bool] | None = None
    """Whether the output schema speaks of this result at all; a source that knows better says so."""
    set_aside: Callable[[Any], InputParts | None] | None = None
    """Takes out of an input what is no data, such as a file to send; None where inputs are data, as they mostly are."""
    origin: object = None
    """The end of a transport that the operation was imported from: it is not served there again."""
    wants_context: bool = True
    """False where the handler asks its context for neither request id nor env, which then need not be made."""

    def __post_init__(self) -> None:
        if self.threaded is None:
            threaded = self.handler is not None and not _is_async(self.handler)
            msgspec.structs.force_setattr(self, "threaded", threaded)

    @property
    def id(self) -> str:
        """`namespace.name`."""
        return self.spec.id


def as_schema(schema: SchemaLike) -> Schema:
    """A Schema as it is, or one made of a JSON Schema document."""
    return schema if isinstance(schema, Schema) else from_schema(schema)


def require_policy(policy: Policy) -> Policy:
    """The policy, if it is one."""
    if policy not in get_args(Policy):
        message = f"{policy!r} is not an output policy; use one of {', '.join(get_args(Policy))}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return policy


def map_source_name(original: str) -> tuple[str, dict[str, Any]]:
    """The operation name for a name some source uses, with the annotations that keep the original where it differs.

    The same original always gives the same name; two originals may give one, which the source then keeps apart.
    """
    name = _UNUSABLE.sub("_", original) or "_"
    return name, {} if name == original else {"sourceName": original}


def _require(value: object, pattern: re.Pattern[str], field: str, allowed: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        message = f"{value!r} cannot be the {field} of an operation: it is made of {allowed}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _member(value: str, operation_id: str) -> OperationType:
    try:
        return OperationType(value)
    except ValueError:
        message = f"{operation_id}: {value!r} is not an operation type; use one of {', '.join(OperationType)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_DOCUMENT = {"type": ["object", "boolean"]}
_JSON_NAMES = {
    name: field
    for field, name in (
        *((field, field) for field in ("name", "namespace", "version", "type", "description")),
        ("input_schema", "inputSchema"),
        ("output_schema", "outputSchema"),
        ("access_control", "accessControl"),
        *((field, field) for field in ("title", "tags", "annotations")),
        ("error_schemas", "errorSchemas"),
        ("output_policy", "outputPolicy"),
        ("durable", "durable"),
    )
}

OperationSpecSchema: Schema = from_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": NAME_PATTERN},
            "namespace": {"type": "string", "pattern": NAMESPACE_PATTERN},
            "version": _TEXT,
            "type": {"enum": [member.value for member in OperationType]},
            "description": _TEXT,
            "inputSchema": _DOCUMENT,
            "outputSchema": _DOCUMENT,
            "accessControl": {
                "type": "object",
                "properties": {
                    "requiredScopes": _TEXTS,
                    "requiredScopesAny": _TEXTS,
                    "resourceType": _TEXT,
                    "resourceAction": _TEXT,
                },
                "additionalProperties": False,
            },
            "title": _TEXT,
            "tags": _TEXTS,
            "annotations": {"type": "object"},
            "errorSchemas": {"type": "object", "additionalProperties": _DOCUMENT},
            "outputPolicy": {"enum": ["cast", "total", "strict", "off"]},
            "durable": {"type": "boolean"},
        },
        "required": ["name", "namespace", "version", "type", "inputSchema", "outputSchema"],
    }
)
