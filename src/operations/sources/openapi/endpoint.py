"""Endpoint: one path and method as an operation, its description read when it is first needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import Schema, deferred_schema, lift_required
from operations.schema.dialects.mending import mend
from operations.sources.openapi.documents import DanglingReferenceError, Documents, LazyObject, Node
from operations.sources.openapi.impossible import why_nothing_fits
from operations.sources.openapi.media import is_stream
from operations.sources.openapi.names import Names
from operations.sources.openapi.requests import RequestBuilder
from operations.sources.openapi.service import HTTPService
from operations.sources.openapi.template import BrokenOperationError, Template, TemplateReader
from operations.sources.openapi.uploads import SetAside
from operations.spec import Operation, OperationSpec, OperationType

_STREAM_MARK = b"event-stream"
_BODILESS = frozenset({"get", "head", "options", "trace"})


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A path and a method, and where they are described."""

    path: str
    method: str
    item: Node
    keys: tuple[str, ...]

    def description(self) -> Node:
        """The description of the operation, all of it."""
        return self.item.get(*self.keys)

    def raw(self) -> msgspec.Raw | None:
        """Its JSON text, where it was not decoded yet."""
        value = self.item.value
        return value.raw(self.keys[0]) if len(self.keys) == 1 and isinstance(value, LazyObject) else None


class Head(msgspec.Struct, rename="camel", gc=False):
    """The few things of a description that are wanted before the operation is used."""

    ref: Any = msgspec.field(name="$ref", default=None)
    operation_id: Any = None
    summary: Any = None
    description: Any = None
    tags: Any = None
    deprecated: Any = None


_decode_head = msgspec.json.Decoder(Head).decode


class Endpoint:
    """One operation of a document."""

    _described: tuple[int, str] | None = None
    """Status and content type of the last answer that the output schema spoke of; most answers are alike."""

    def __init__(
        self, service: HTTPService, reader: TemplateReader, documents: Documents, names: Names, entry: Entry
    ) -> None:
        self._service = service
        self._reader = reader
        self._documents = documents
        self._entry = entry
        self._head = _head(entry, documents)
        self.name, self._annotations = names.give(self._head.operation_id, entry.method, entry.path)

    @property
    def id(self) -> str:
        """The operation's id."""
        return f"{self._service.config.namespace}.{self.name}"

    def operation(self) -> Operation[Any]:
        """The operation: cheap, whatever is behind it."""
        streams, plain = self._ways()
        return Operation(
            spec=self._spec(streams),
            handler=self.call if plain else None,
            stream=self.stream if streams else None,
            threaded=False,
            dump=None,
            describes=self.describes,
            set_aside=None if self._entry.method in _BODILESS else self.set_aside,
            wants_context=False,
        )

    def notes(self) -> list[str]:
        """What in its description could not be used."""
        try:
            template = self._template
        except BrokenOperationError as error:
            return [f"cannot be called: {error}"]
        impossible = why_nothing_fits(self._documents, template.plan.document)
        return [*template.notes, f"no input fits: {impossible}"] if impossible else list(template.notes)

    def call(self, input: Any, context: OperationContext) -> Awaitable[Any]:
        """The handler."""
        return self._service.call(self._require_builder(), input, context)

    def stream(self, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        """The stream."""
        return self._service.stream(self._require_builder(), input, context)

    def set_aside(self, input: Any) -> SetAside | None:
        """The files of an input, where the body can hold any."""
        try:
            plan = self._template.plan.body
        except BrokenOperationError:
            return None
        return SetAside.of(input) if plan is not None and plan.takes_files else None

    def describes(self, envelope: ResponseEnvelope[Any]) -> bool:
        """Whether an answer is the one that the output schema speaks of."""
        meta = envelope.meta
        if not isinstance(meta, HTTPResponseMeta):
            return False
        got = (meta.status_code, meta.content_type)
        if got == self._described:
            return True
        answer = self._template.answer
        if answer is None or not answer.describes(*got):
            return False
        self._described = got
        return True

    @cached_property
    def _template(self) -> Template:
        entry = self._entry
        try:
            description = self._documents.follow(entry.description())
            if description.value is None:
                description = description._replace(value={})  # nothing is said of it, as YAML lets one write
        except DanglingReferenceError as error:
            raise BrokenOperationError(str(error)) from error
        return self._reader.read(entry.path, entry.method, entry.item, description)

    @cached_property
    def _builder(self) -> RequestBuilder:
        return RequestBuilder(self._template, self._service.config, self._service.document_url, self._service.home)

    def _require_builder(self) -> RequestBuilder:
        try:
            return self._builder
        except BrokenOperationError as error:
            message = f"{self.id} ({self._entry.method.upper()} {self._entry.path}) cannot be called: {error}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error

    def _spec(self, streams: bool) -> OperationSpec:
        head, config, entry = self._head, self._service.config, self._entry
        method = entry.method.upper()
        annotations = {"method": method, "path": entry.path, **self._annotations}
        if head.deprecated is True:
            annotations["deprecated"] = True
        summary = head.summary if isinstance(head.summary, str) else ""
        reads = method in ("GET", "HEAD", "QUERY")
        return OperationSpec(
            namespace=config.namespace,
            name=self.name,
            version=self._service.version,
            type=OperationType.SUBSCRIPTION if streams else OperationType.QUERY if reads else OperationType.MUTATION,
            description=head.description if isinstance(head.description, str) and head.description else summary,
            title=summary or None,
            tags=[tag for tag in head.tags if isinstance(tag, str)] if isinstance(head.tags, list) else (),
            annotations=annotations,
            input_schema=self._schema(self._input_document, _ask_of_requests),
            output_schema=self._schema(self._output_document, _ask_of_responses),
            output_policy=config.output_policy,
        )

    def _schema(self, write: Any, revise: Callable[[dict[str, Any] | bool], None]) -> Schema:
        service = self._service
        return deferred_schema(write, dialect=service.dialect, loader=service.load, revise=revise)

    def _input_document(self) -> Any:
        try:
            return self._service.beside_document(self._template.plan.document)
        except BrokenOperationError:
            return True

    def _output_document(self) -> Any:
        try:
            answer = self._template.answer
        except BrokenOperationError:
            return True
        schema = True if answer is None else answer.schema
        return self._service.beside_document(schema) if isinstance(schema, Mapping) else schema

    def _ways(self) -> tuple[bool, bool]:
        """Whether the endpoint answers with a stream of events, and whether with anything else."""
        if not self._service.may_stream:
            return False, True
        raw = self._entry.raw()
        if raw is not None and _STREAM_MARK not in bytes(raw) and b'"$ref"' not in bytes(raw):
            return False, True
        try:
            accepts = self._template.accepts
        except BrokenOperationError:
            return False, True
        streams = any(is_stream(kind) for kind in accepts)
        return streams, not streams or any(not is_stream(kind) for kind in accepts)


def _ask_of_requests(schema: dict[str, Any] | bool) -> None:
    """Ask for no member that only the server sets, nor for what nobody can give; the input itself is what is sent."""
    lift_required(schema, "readOnly", root=False)
    mend(schema)


def _ask_of_responses(schema: dict[str, Any] | bool) -> None:
    """Ask for no member that the server only takes, nor for what no answer can hold."""
    lift_required(schema, "writeOnly")
    mend(schema)


def _head(entry: Entry, documents: Documents) -> Head:
    raw = entry.raw()
    try:
        if raw is not None and (head := _decoded_head(raw)) is not None and head.ref is None:
            return head
        value = documents.follow(entry.description()).value
        return msgspec.convert(value, Head) if isinstance(value, Mapping) else Head()
    except (msgspec.ValidationError, DanglingReferenceError):
        return Head()


def _decoded_head(raw: msgspec.Raw) -> Head | None:
    try:
        return _decode_head(raw)
    except UnicodeDecodeError:
        return None  # the document reads text in other encodings as well as it can
