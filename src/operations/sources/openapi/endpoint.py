"""OpenAPIEndpoint: one path and method of a document as an operation; its operation object is read on first use."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.sources.openapi.auth import choose_credentials, credential_places
from operations.sources.openapi.documents import DanglingReferenceError, DocNode, Documents
from operations.sources.openapi.inputs import explain_impossible
from operations.sources.openapi.media import is_stream
from operations.sources.openapi.parameters import Parameter
from operations.sources.openapi.requests import RequestBuilder
from operations.sources.openapi.responses import Download
from operations.sources.openapi.service import HTTPService
from operations.sources.openapi.template import BrokenOperationError, Template, TemplateReader, security_schemes
from operations.sources.openapi.uploads import SplitInput
from operations.spec import Operation, OperationSpec, OperationType, map_source_name

_STREAM_MARK = b"event-stream"
_BODILESS = frozenset({"get", "head", "options", "trace"})


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A path and method, and the location of their operation object, which is not read yet."""

    documents: Documents
    path: str
    method: str
    keys: tuple[str, ...]
    followed: bool
    """Whether the operation object is in the target of the path's `$ref`."""

    @property
    def item(self) -> DocNode:
        """The path item: the object in the document with the methods of the path."""
        own = self.documents.root.get("paths", self.path)
        return self.documents.follow(own) if self.followed else own

    def description(self) -> DocNode:
        """Return the operation object of the document: its parameters, responses and other fields."""
        return self.item.get(*self.keys)


FoundEntry = tuple[Entry, msgspec.Raw | None]
"""An entry with the JSON text of its operation object, or with None if the document is already decoded."""


class NameAllocator:
    """Assigns a unique name to each operation of a document, made from its `operationId` or from method and path."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        """The assigned names, each with the number of the latest suffix."""

    def assign(self, operation_id: object, method: str, path: str) -> tuple[str, dict[str, Any]]:
        """Return a name and annotations; the annotations have the `operationId` if the name differs from it."""
        if isinstance(operation_id, str) and operation_id.strip():
            name, annotations = map_source_name(operation_id)
        else:
            name, annotations = "_".join([method.lower(), *re.findall(r"[A-Za-z0-9_-]+", path)]), {}
        unique, number = name, self._taken.get(name, 1)
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken[name], self._taken[unique] = number, 1
        if unique != name and isinstance(operation_id, str):
            annotations = {"sourceName": operation_id}
        return unique, annotations


class EndpointSummary(msgspec.Struct, rename="camel", gc=False):
    """The fields of an operation object that are needed before the operation is first called."""

    ref: Any = msgspec.field(name="$ref", default=None)
    operation_id: Any = None
    summary: Any = None
    description: Any = None
    tags: Any = None
    deprecated: Any = None
    security: Any = msgspec.UNSET


_decode_head = msgspec.json.Decoder(EndpointSummary).decode


class OpenAPIEndpoint:
    """One operation of a document."""

    _last_described: tuple[int, str] | None = None
    """Status and content type of the last response to which the output schema applied. The next response usually has
    the same ones, and then needs no further check.
    """

    def __init__(self, service: HTTPService, reader: TemplateReader, names: NameAllocator, found: FoundEntry) -> None:
        self._entry, raw = found
        self._service = service
        self._reader = reader
        summary = _summary(self._entry, raw)
        name, annotations = names.assign(summary.operation_id, self._entry.method, self._entry.path)
        streams, plain = self._response_kinds(raw)
        self.operation: Operation[Any] = Operation(
            spec=self._spec(summary, name, annotations, streams),
            handler=self.call if plain else None,
            stream=self.stream,  # a server may answer with an event stream that its document does not declare
            threaded=False,
            dump=None,
            schema_applies=self.schema_applies,
            split_files=None if self._entry.method in _BODILESS else self.split_files,
            wants_context=False,
        )

    @property
    def id(self) -> str:
        """The operation's id."""
        return self.operation.spec.id

    def notes(self) -> list[str]:
        """Return a line for each unusable part of the operation object."""
        try:
            template = self._template
        except BrokenOperationError as error:
            return [f"cannot be called: {error}"]
        impossible = explain_impossible(self._entry.documents, template.plan.document)
        return [*template.notes, f"no input is valid: {impossible}"] if impossible else list(template.notes)

    def call(self, input: Any, context: OperationContext) -> Awaitable[Any]:
        """Call the endpoint and return its envelope."""
        return self._service.call(self._builder, input, context, self.id)

    def stream(self, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        """Yield the endpoint's events."""
        return self._service.stream(self._builder, input, context, self.id)

    def split_files(self, input: Any) -> SplitInput | None:
        """Split the files from an input; return None if the input has none, or the body cannot contain any."""
        try:
            plan = self._template.plan.body
        except BrokenOperationError:
            return None
        return SplitInput.split(input) if plan is not None and plan.takes_files else None

    def schema_applies(self, envelope: ResponseEnvelope[Any]) -> bool:
        """Whether the output schema applies to a response."""
        meta = envelope.meta
        if not isinstance(meta, HTTPResponseMeta) or isinstance(envelope.data, Download):
            return False
        got = (meta.status_code, meta.content_type)
        if got == self._last_described:
            return True
        response_description = self._template.response_description
        if response_description is None or not response_description.applies_to(*got):
            return False
        self._last_described = got
        return True

    @cached_property
    def _template(self) -> Template:
        entry = self._entry
        try:
            description = entry.documents.follow(entry.description())
            if description.value is None:
                description = description._replace(value={})  # YAML allows an empty description
        except DanglingReferenceError as error:
            raise BrokenOperationError(str(error)) from error
        return self._reader.read(entry.path, entry.method, entry.item, description)

    @cached_property
    def _builder(self) -> RequestBuilder:
        service = self._service
        try:
            return RequestBuilder(
                self._template,
                service.config,
                document_url=service.document_url,
                home=service.base_url,
                origins=service.origins,
            )
        except BrokenOperationError as error:
            message = f"{self.id} ({self._entry.method.upper()} {self._entry.path}) cannot be called: {error}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error

    def _spec(self, head: EndpointSummary, name: str, annotations: Mapping[str, Any], streams: bool) -> OperationSpec:
        config, entry = self._service.config, self._entry
        method = sys.intern(entry.method.upper())
        annotations = {"method": method, "path": entry.path, **annotations}
        if head.deprecated is True:
            annotations["deprecated"] = True
        security = entry.documents.root.value.get("security") if head.security is msgspec.UNSET else head.security
        if isinstance(security, list) and security:
            annotations["security"] = [list(each) for each in security if isinstance(each, Mapping)]
        summary = head.summary if isinstance(head.summary, str) else ""
        reads = method in ("GET", "HEAD", "QUERY")
        assert config.namespace is not None  # only the config of another registry's document may have no namespace
        return OperationSpec(
            namespace=config.namespace,
            name=name,
            version=self._service.version,
            type=OperationType.SUBSCRIPTION if streams else OperationType.QUERY if reads else OperationType.MUTATION,
            description=head.description if isinstance(head.description, str) and head.description else summary,
            title=summary or None,
            tags=[tag for tag in head.tags if isinstance(tag, str)] if isinstance(head.tags, list) else (),
            annotations=annotations,
            input_schema=self._service.schemas.input(self._input_document),
            output_schema=self._service.schemas.output(self._output_document),
            output_policy=config.output_policy,
        )

    def _input_document(self) -> Any:
        try:
            return self._without_credentials(self._template)
        except BrokenOperationError:
            return True

    def _without_credentials(self, template: Template) -> Mapping[str, Any]:
        """Return the input schema; parameters that configured credentials fill in are not required."""
        document, auth = template.plan.document, self._service.config.auth
        if auth is None or "required" not in document:
            return document
        places = credential_places(choose_credentials(auth, security_schemes(self._entry.documents), template.security))
        given = {
            key
            for key, parameter in template.plan.parameters.items()
            if (parameter.location, _place_name(parameter)) in places
        }
        return {**document, "required": [key for key in document["required"] if key not in given]}

    def _output_document(self) -> Any:
        try:
            response_description = self._template.response_description
        except BrokenOperationError:
            return True
        return True if response_description is None else response_description.schema

    def _response_kinds(self, raw: msgspec.Raw | None) -> tuple[bool, bool]:
        """Return whether the operation may respond with an event stream, and whether it may respond otherwise."""
        if not self._service.may_stream:
            return False, True
        if raw is not None and _STREAM_MARK not in bytes(raw) and b'"$ref"' not in bytes(raw):
            return False, True
        try:
            accepts = self._template.accepts
        except BrokenOperationError:
            return False, True
        streams = any(is_stream(kind) for kind in accepts)
        return streams, not streams or any(not is_stream(kind) for kind in accepts)


def _place_name(parameter: Parameter) -> str:
    return parameter.name.lower() if parameter.location == "header" else parameter.name


def _summary(entry: Entry, raw: msgspec.Raw | None) -> EndpointSummary:
    try:
        if raw is not None and (head := _decoded_summary(raw)) is not None and head.ref is None:
            return head
        value = entry.documents.follow(entry.description()).value
        return msgspec.convert(value, EndpointSummary) if isinstance(value, Mapping) else EndpointSummary()
    except (msgspec.ValidationError, DanglingReferenceError):
        return EndpointSummary()


def _decoded_summary(raw: msgspec.Raw) -> EndpointSummary | None:
    try:
        return _decode_head(raw)
    except UnicodeDecodeError:
        return None  # not UTF-8: the caller reads the operation object through the document
