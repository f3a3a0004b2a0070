"""Own documents: operations that another registry serves, imported from its document without loss.

The input is the whole body and answers are envelopes, so data, bytes and meta equal those of a local call. Problems
become the CallErrors that they were made of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import unavailable
from operations.http import HTTPResponse, read_body
from operations.schema import Schema, deferred_schema
from operations.schema.dialects.traversal import schemas_in
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPCallOptions
from operations.sources.openapi.documents import Documents
from operations.sources.openapi.endpoint import Entry, FoundEntry
from operations.sources.openapi.inputs import plan_input
from operations.sources.openapi.media import EVENT_STREAM
from operations.sources.openapi.requests import PreparedRequest, RequestBuilder, override_headers
from operations.sources.openapi.responses import make_error, read_data, read_meta
from operations.sources.openapi.service import HTTPService, call_options
from operations.sources.openapi.sse import ServerSentEvent, SSEParser
from operations.sources.openapi.template import Template
from operations.spec import OPEN, AccessControl, Operation, OperationSpec, OperationType
from operations.wire import decode_json, encode_json

OWN = "x-operations"
REQUEST_TYPE = "application/vnd.operations+json"
ENVELOPE_TYPE = "application/vnd.operations.envelope+json"
EVENTS_TYPE = "text/event-stream; profile=envelope"

_JSON = "application/json"
_LOST = frozenset({502, 503, 504})
"""Statuses of a proxy that got no answer."""


class _LostError(Exception):
    """A stream broke off."""


class _Extension(msgspec.Struct, rename="camel"):
    """What the document says of an operation beyond OpenAPI."""

    id: str = ""
    type: OperationType = OperationType.MUTATION
    version: str = "1.0.0"
    ways: Sequence[str] = ("call",)
    title: str | None = None
    tags: Sequence[str] = ()
    annotations: dict[str, Any] = {}
    access_control: AccessControl = OPEN
    output_policy: Any = None
    error_schemas: dict[str, Any] = {}
    durable: bool = False
    alias: str | None = None


class _Head(msgspec.Struct):
    own: _Extension | None = msgspec.field(name=OWN, default=None)
    description: str = ""


def is_own(documents: Documents) -> bool:
    """Whether a document was made by a registry of this kind."""
    marker = documents.root.get(OWN).value
    return isinstance(marker, Mapping) and marker.get("version") == 1


def read_own_entries(service: HTTPService, entries: Iterable[FoundEntry], problems: list[str]) -> list[OwnEndpoint]:
    """Return the operations of a document; aliases are left out, and so is what cannot be one, with the reason."""
    endpoints = []
    for entry, raw in entries:
        try:
            head = _read_head(entry, raw)
            if head.own is not None and head.own.alias is None:
                endpoints.append(OwnEndpoint(service, entry, head))
        except (msgspec.ValidationError, CallError) as error:
            problems.append(f"{entry.method.upper()} {entry.path} is left out: {error}")
    return endpoints


def _read_head(entry: Entry, raw: msgspec.Raw | None) -> _Head:
    return (
        msgspec.json.decode(raw, type=_Head) if raw is not None else msgspec.convert(entry.description().value, _Head)
    )


class OwnEndpoint:
    """One operation of another registry."""

    def __init__(self, service: HTTPService, entry: Entry, head: _Head) -> None:
        assert head.own is not None
        self._service = service
        self._entry = entry
        self._remote = head.own
        self._spec = self._read_spec(head)
        self.id = self._spec.id
        ways = self._remote.ways
        self.operation: Operation[Any] = Operation(
            spec=self._spec,
            handler=self.call if "call" in ways else None,
            stream=self.stream if "stream" in ways else None,
            threaded=False,
            dump=None,
            schema_applies=_is_normalised,
        )

    def notes(self) -> list[str]:
        """Return what in its description could not be used: nothing, or the operation is left out."""
        return []

    async def call(self, input: Any, context: OperationContext) -> Any:
        """The handler."""
        options = call_options(context)
        wants_progress = context.progress is not None and "stream" not in self._remote.ways
        prepared = self._prepare(input, options, EVENTS_TYPE if wants_progress else ENVELOPE_TYPE, context)
        if options.dry_run:
            return self._service.dry_run(prepared, self.id)
        if wants_progress:
            return await self._call_with_progress(prepared, options, context)
        sent, _, _ = await self._service.send(self._builder.template, prepared, options, context)
        try:
            meta = read_meta(sent.response.status, sent.response.headers)
            body = await read_body(sent.response, limit=self._service.config.limits.response_bytes)
        finally:
            await sent.close()
        if meta.status_code != 200 or not _is_type(meta.content_type, ENVELOPE_TYPE):
            raise self._error(meta, body)
        return _read_envelope(body, self.id)

    async def _call_with_progress(
        self, prepared: PreparedRequest, options: HTTPCallOptions, context: OperationContext
    ) -> Any:
        """Request the call as events: its progress, then its result."""
        result = None
        try:
            async for envelope in self._follow(prepared, options, context, self._service.parser()):
                result = envelope
        except _LostError as lost:
            raise unavailable(self.id, "the connection was lost before the result", "unknown") from lost
        if result is None:
            raise unavailable(self.id, "the server sent no result", "unknown")
        return result

    async def stream(self, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        """The stream. One that ends without its last event was lost: it is resumed where that is configured."""
        service, options = self._service, call_options(context)
        prepared = self._prepare(input, options, EVENTS_TYPE, context)
        if options.dry_run:
            yield service.dry_run(prepared, self.id)
            return
        parser = service.parser()
        resumed = context.metadata.get("lastEventId")
        if isinstance(resumed, str):
            parser.last_event_id = resumed
        for attempts_left in range(service.config.reconnect, -1, -1):
            try:
                async for envelope in self._follow(prepared, options, context, parser):
                    yield envelope
                return
            except _LostError as lost:
                if not attempts_left:
                    raise unavailable(self.id, "the stream broke off", "unknown") from lost
            parser = service.parser(parser)
            await asyncio.sleep(min((parser.reconnection_time or 0) / 1000, service.config.retry.longest_delay))

    async def _follow(
        self, prepared: PreparedRequest, options: HTTPCallOptions, context: OperationContext, parser: SSEParser
    ) -> AsyncIterator[Any]:
        """Yield the envelopes of one response; raise the error that it ends with, or _LostError without any end."""
        service = self._service
        resume = [("Last-Event-ID", parser.last_event_id)] if parser.last_event_id else ()
        sent, _, _ = await service.send(
            self._builder.template, prepared, options, context, streaming=True, extra=resume
        )
        try:
            meta = read_meta(sent.response.status, sent.response.headers)
            if meta.status_code != 200 or not _is_type(meta.content_type, EVENT_STREAM):
                raise self._error(meta, await read_body(sent.response, limit=service.config.limits.response_bytes))
            async for event in _events(sent.response, parser):
                if event.type == "operations.complete":
                    return
                if event.type == "operations.progress":
                    await _report_progress(event, context)
                elif event.type == "operations.problem":
                    raise self._problem(_read_json(event.data))
                else:
                    yield _read_envelope(event.data.encode(), self.id)
        finally:
            await sent.close()
        raise _LostError

    def _read_spec(self, head: _Head) -> OperationSpec:
        remote, prefix = self._remote, self._service.config.namespace
        namespace, _, name = remote.id.rpartition(".")
        return OperationSpec(
            namespace=namespace if prefix is None else f"{prefix}.{namespace}",
            name=name,
            version=remote.version,
            type=remote.type,
            description=head.description,
            title=remote.title,
            tags=remote.tags,
            annotations=remote.annotations,
            access_control=remote.access_control,
            output_policy=remote.output_policy,
            durable=remote.durable,
            input_schema=self._schema("requestBody", "content", _JSON, "schema"),
            output_schema=self._deferred(self._write_output),
            error_schemas={code: self._schema(OWN, "errorSchemas", code) for code in remote.error_schemas},
        )

    def _schema(self, *keys: str) -> Schema:
        return self._deferred(lambda: self._write(keys))

    def _deferred(self, write: Callable[[], Any]) -> Schema:
        return deferred_schema(write, dialect="2020-12", loader=self._service.load, revise=_revise)

    def _write(self, keys: Sequence[str]) -> Any:
        schema = self._entry.description().get(*keys).value
        return self._service.beside_document(schema) if isinstance(schema, Mapping) else schema is not False

    def _write_output(self) -> Any:
        if self._entry.description().get(OWN, "output").value is not None:
            return self._write((OWN, "output"))
        return self._write(("responses", "200", "content", _JSON, "schema"))

    @cached_property
    def _builder(self) -> RequestBuilder:
        service, root = self._service, self._entry.documents.root
        servers = [node.value for _, node in root.get("servers").items() if isinstance(node.value, Mapping)]
        security = self._entry.description().get("security").value
        template = Template(
            method="POST",
            path=self._entry.path,
            plan=plan_input(self._entry.documents, (), None, []),
            servers=servers or [{"url": "/"}],
            security=[each for each in security if isinstance(each, Mapping)] if isinstance(security, list) else [],
            response_description=None,
            accepts=[ENVELOPE_TYPE],
            notes=(),
        )
        return RequestBuilder(
            template,
            service.config,
            document_url=service.document_url,
            home=service.base_url,
            origins=service.origins,
        )

    def _prepare(self, input: Any, options: HTTPCallOptions, accept: str, context: OperationContext) -> PreparedRequest:
        prepared = self._builder.build({}, options, self._builder.accept)
        headers = [("Accept", accept), ("Content-Type", REQUEST_TYPE)]
        if context.deadline is not None:
            left = context.deadline / 1000 - time.time()
            headers.append(("Operations-Timeout", f"{max(left, 0.001):.3f}"))
        body = Body(REQUEST_TYPE, encode_json(input))
        return msgspec.structs.replace(prepared, headers=override_headers(prepared.headers, headers), body=body)

    def _error(self, meta: HTTPResponseMeta, body: bytes) -> CallError:
        """Return the error of a response that is not the result: our own problem, or what something between us says."""
        data = read_data(meta.content_type, body)
        if _is_type(meta.content_type, "application/problem+json") and isinstance(data, dict) and "code" in data:
            return self._problem(data)
        if meta.status_code in _LOST:
            return unavailable(self.id, f"a proxy answered {meta.status_code}", "unknown")
        if meta.status_code < 300:
            message = f"{self.id}: the server answered with {meta.content_type or 'nothing'}, not with an envelope"
            return CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "unknown"})
        return make_error("POST", self._entry.path, meta, data)

    def _problem(self, problem: Any) -> CallError:
        """Return the error that a problem was made of."""
        if not isinstance(problem, dict):
            return CallError(ErrorCode.UNKNOWN_ERROR, f"{self.id}: the server sent a problem that cannot be read")
        details = problem.get("details")
        if details is None or isinstance(details, dict):
            details = dict(details or {})
            if isinstance(problem.get("errors"), list):
                details["errors"] = [_input_problem(each) for each in problem["errors"]]
            if problem.get("executed") in ("no", "unknown", "yes"):
                details["executed"] = problem["executed"]
                details["operationId"] = self.id
        return CallError.from_dict({**problem, "message": problem.get("detail"), "details": details or None})


def _revise(schema: dict[str, Any] | bool) -> None:
    """Remove what documents say twice, for tools that read the older form."""
    for node in schemas_in(schema) if isinstance(schema, dict) else ():
        if node.get("contentEncoding") == "base64" and node.get("format") == "byte":
            del node["format"]


async def _events(response: HTTPResponse, parser: SSEParser) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a response; raise _LostError where its connection breaks."""
    chunks = response.chunks()
    while True:
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except CallError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                raise _LostError from error
            raise
        for event in parser.feed(chunk):
            yield event


def _is_normalised(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether the output schema applies here: it has been applied where the operation ran."""
    return False


def _read_envelope(data: bytes, operation_id: str) -> ResponseEnvelope[Any]:
    try:
        return ResponseEnvelope.from_json(data)
    except CallError as error:
        message = f"{operation_id}: the server's envelope cannot be read: {error.message}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "unknown"}) from error


def _read_json(text: str) -> Any:
    try:
        return decode_json(text)
    except CallError:
        return None


async def _report_progress(event: ServerSentEvent, context: OperationContext) -> None:
    told = _read_json(event.data)
    if context.progress is None or not isinstance(told, dict) or not isinstance(told.get("progress"), (int, float)):
        return
    reported = context.progress(told["progress"], told.get("total"), told.get("message"))
    if reported is not None:
        await reported


def _input_problem(found: Any) -> dict[str, Any]:
    return {"path": found.get("pointer", ""), "message": found.get("detail", "")} if isinstance(found, dict) else {}


def _is_type(content_type: str, wanted: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == wanted
