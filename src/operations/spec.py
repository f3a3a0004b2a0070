"""OperationSpec and Operation: an operation's declaration, and its handler."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope, has_described_data
from operations.errors import CallError, ErrorCode
from operations.schema import (
    UNKNOWN,
    Found,
    Policy,
    Schema,
    from_schema,
    from_type,
    jsonable,
    record_schema,
    validate_or_throw,
)

R_co = TypeVar("R_co", covariant=True)

Handler = Callable[[Any, OperationContext], Awaitable[Any] | Any]
Stream = Callable[[Any, OperationContext], AsyncIterator[Any]]
SchemaLike = Schema | Mapping[str, Any] | bool | type

NAMESPACE_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
NAME_PATTERN = r"^[A-Za-z0-9_/-]+$"
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_NAME = re.compile(NAME_PATTERN)
_INVALID_CHARACTERS = r"[^A-Za-z0-9_/-]+"


class OperationType(StrEnum):
    """Kind of an operation: it reads (query), may change something (mutation), or streams (subscription)."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


class AccessControl(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Scopes and resource action required of callers; none by default."""

    required_scopes: Sequence[str] = ()
    """Scopes that are all required."""
    required_scopes_any: Sequence[str] = ()
    """Scopes of which at least one is required."""
    resource_type: str | None = None
    """Required type of resource: a caller must have at least one resource of this type, with any id.

    Without `resource_action`, the actions allowed on this resource do not matter: the list may be empty. The error for
    a missing resource then names the action `use`.
    """
    resource_action: str | None = None
    """Required action: a caller must be allowed to perform it on at least one resource.

    If `resource_type` is not None, the resource must have this type.

    """

    def __post_init__(self) -> None:
        for field in ("required_scopes", "required_scopes_any"):
            scopes = getattr(self, field)
            # A string is a sequence of strings, too.
            if isinstance(scopes, str) or not all(isinstance(scope, str) for scope in scopes):
                message = f"invalid {field} {scopes!r}: expected a list of scopes, such as ['admin']"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)

    @classmethod
    def of(cls, value: AccessControl | Mapping[str, Any]) -> AccessControl:
        """Return an AccessControl unchanged, or read it from a mapping with Python or JSON names."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            names = {_camel(field): field for field in cls.__struct_fields__}
            given = {names.get(name, name): member for name, member in value.items()}
            unknown = sorted(set(map(str, given)) - set(cls.__struct_fields__))
            if not unknown:
                return cls(**given)
            message = f"unknown access rule {', '.join(unknown)}: expected one of {', '.join(cls.__struct_fields__)}"
        else:
            message = f"invalid access_control {value!r:.80}: expected AccessControl(…) or a mapping of its fields"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


OPEN = AccessControl()
"""Access control without requirements."""


class OperationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an operation; schemas may be Schema objects, JSON Schema documents or Python types."""

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
    """Schemas of the details of the operation's own errors, by error code."""
    output_policy: Policy | None = None
    """Policy for results that do not match `output_schema`; by default, the policy of the registry."""
    durable: bool = False
    """Whether a transport stores requests before they run; a stored request may run more than once."""
    id: str = ""
    """`namespace.name`; stored, because every call uses it."""

    def __post_init__(self) -> None:
        _require(
            self.namespace,
            _NAMESPACE,
            "namespace",
            "segments of letters, digits, _ and - joined by dots",
        )
        _require(self.name, _NAME, "name", "letters, digits, _, / and -")
        # The struct is frozen: only this method may still set its fields.
        force = msgspec.structs.force_setattr
        force(self, "id", f"{self.namespace}.{self.name}")
        if type(self.type) is not OperationType:
            force(self, "type", _operation_type(self.type, self.id))
        if self.output_policy is not None:
            require_policy(self.output_policy)
        if type(self.access_control) is not AccessControl:
            force(self, "access_control", AccessControl.of(self.access_control))
        if isinstance(self.tags, str):
            raise CallError(
                ErrorCode.VALIDATION_ERROR, f"invalid tags {self.tags!r}: expected a list; pass [{self.tags!r}]"
            )
        force(self, "input_schema", as_schema(self.input_schema))
        force(self, "output_schema", as_schema(self.output_schema))
        if self.error_schemas:
            force(self, "error_schemas", {code: as_schema(schema) for code, schema in self.error_schemas.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain data with its JSON names, without its id and without most of its empty fields."""
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
        """Read a spec from plain data; raise `VALIDATION_ERROR` with every problem."""
        validate_or_throw(OperationSpecSchema, data, "not an operation spec")
        known = {field: data[name] for name, field in _JSON_NAMES.items() if name in data}
        return cls(**known)


class InputParts(Protocol):
    """Input whose files are replaced by placeholders during validation."""

    @property
    def without_files(self) -> Any:
        """The input with placeholders instead of files."""

    def restore(self, value: Any) -> Any:
        """Return the validated input with its files."""


class Operation(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A spec with a handler for `execute` and a stream for `subscribe`; either may be missing."""

    spec: OperationSpec
    handler: Handler | None = None
    stream: Stream | None = None
    threaded: bool | None = None
    """Whether the handler runs in a worker thread; by default, true for plain functions and false for `async def`."""
    dump: Callable[[Any], Any] | None = jsonable
    """Converts the handler's result to JSON-like data; None if results are JSON-like already."""
    load: Callable[[Any], Any] | None = None
    """Converts a JSON-like result to the declared Python type, for callers that pass the operation, not its id."""
    extra_problems: Callable[[Any], Sequence[Found]] | None = None
    """Returns further problems of an input that the schema rejects, such as those that JSON Schema cannot express."""
    schema_applies: Callable[[ResponseEnvelope[Any]], bool] | None = None
    """Returns whether the output schema applies to a result; None for the default rule."""
    split_files: Callable[[Any], InputParts | None] | None = None
    """Splits files from an input; None if inputs are plain data, the usual case."""
    origin: object = None
    """The transport that the operation was imported from: the operation is not served there again."""
    result_class: type | None = None
    """The declared class of results; None if its instances may be envelopes. The pipeline does not check instances of
    this class for envelopes.
    """
    wants_context: bool = True
    """Whether the handler uses the request id or the env of its context; if not, they are not created."""

    def __post_init__(self) -> None:
        if self.stream is None and streams(self.handler):
            msgspec.structs.force_setattr(self, "stream", self.handler)
            msgspec.structs.force_setattr(self, "handler", None)
        if self.threaded is None:
            threaded = self.handler is not None and not _is_async(self.handler)
            msgspec.structs.force_setattr(self, "threaded", threaded)

    @property
    def id(self) -> str:
        """The id: `namespace.name`."""
        return self.spec.id

    def rebuild(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[R_co]:
        """Return an envelope with its data as the declared Python type.

        The envelope is unchanged if there is no `load`, or if the output schema does not apply to it.
        """
        if self.load is None or not (self.schema_applies or has_described_data)(envelope):
            return envelope
        return ResponseEnvelope(self.load(envelope.data), envelope.meta)


def as_schema(schema: SchemaLike) -> Schema:
    """Return a Schema unchanged, or make one from a JSON Schema document or a Python type."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, (Mapping, bool)):
        return from_schema(schema)
    return from_type(schema)


def streams(handler: Any) -> bool:
    """Whether a handler is an async generator function, or an object whose `__call__` is one."""
    return inspect.isasyncgenfunction(handler) or (
        callable(handler) and inspect.isasyncgenfunction(type(handler).__call__)
    )


def require_policy(policy: Policy) -> Policy:
    """Return `policy`; raise `VALIDATION_ERROR` if it is unknown."""
    if policy not in get_args(Policy):
        message = f"invalid output policy {policy!r}: expected one of {', '.join(get_args(Policy))}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return policy


def map_source_name(original: str) -> tuple[str, dict[str, Any]]:
    """Return the operation name for a name in a source; if they differ, the annotations have the original name.

    The same original always has the same result. Two originals may have the same result: the source must resolve such
    conflicts.
    """
    name = re.sub(_INVALID_CHARACTERS, "_", original) or "_"
    return name, {} if name == original else {"sourceName": original}


def _require(value: object, pattern: re.Pattern[str], field: str, allowed: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        message = f"invalid {field} {value!r}: expected {allowed}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _operation_type(value: str, operation_id: str) -> OperationType:
    try:
        return OperationType(value)
    except ValueError:
        message = f"{operation_id}: invalid type {value!r}: expected one of {', '.join(OperationType)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


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


def _to_json(value: Any) -> Any:
    return value.to_dict() if isinstance(value, OperationSpec) else value


OperationSpecSchema: Schema = record_schema(
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
    },
    _to_json,
)
"""Schema of an `OperationSpec`: accepts instances and their JSON form."""
