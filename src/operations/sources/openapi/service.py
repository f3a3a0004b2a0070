"""A service: the operations of one API document, each called over HTTP and answered with an envelope."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urljoin

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope, SSEEvent, local_envelope
from operations.errors import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPResponse, Whole, default_client, read_body
from operations.sources.openapi import swagger2
from operations.sources.openapi.auth import NOBODY, Authenticator, Credentials
from operations.sources.openapi.caching import CONDITIONS, ValidatorCache
from operations.sources.openapi.config import NO_OPTIONS, HTTPCallOptions, HTTPServiceConfig
from operations.sources.openapi.documents import Documents
from operations.sources.openapi.download import download
from operations.sources.openapi.exchange import Exchange, First, Outgoing, Sent
from operations.sources.openapi.media import is_stream
from operations.sources.openapi.requests import PreparedRequest, RequestBuilder, base_url, origin
from operations.sources.openapi.responses import header, make_error, read_data, read_meta
from operations.sources.openapi.sse import ServerSentEvent, SSEParser
from operations.sources.openapi.template import Template, security_schemes

_log = logging.getLogger("operations")
_EVENTS = "text/event-stream"
_SECTIONS = ("components", "definitions", "paths", "parameters", "responses", "webhooks")


class HTTPService:
    """What the operations of one document share: the client, the credentials, the cache."""

    def __init__(
        self,
        documents: Documents,
        config: HTTPServiceConfig,
        *,
        document_url: str | None = None,
        may_stream: bool = True,
    ) -> None:
        self.config = config
        self.document_url = document_url
        self._documents = documents
        self._client = config.client
        self._owned: HTTPClient | None = None
        self._exchange: Exchange | None = None
        self._authenticator: Authenticator | None = None
        self._cache = ValidatorCache() if config.cache else None
        self._plain = not (config.cache or config.auth or config.on_request or config.on_response)
        """Whether nothing is to be done about a call but to make it."""
        document = documents.root.value
        root: Any = swagger2.servers(document) if "swagger" in document else document.get("servers")
        servers = [server for server in root if isinstance(server, Mapping)] if isinstance(root, list) else []
        self.base_url = base_url(servers, config, document_url)
        """Where paths are appended, but for operations with servers of their own; None where nothing says so."""
        self.home = None if self.base_url is None else origin(self.base_url)
        swagger = "swagger" in document
        self.dialect = "openapi-3.0" if swagger or str(document.get("openapi")).startswith("3.0") else "2020-12"
        version = documents.root.get("info").value
        self.version = str(version.get("version", "")) if isinstance(version, Mapping) else ""
        self.may_stream = may_stream
        self.load = documents.load
        """What schemas get other documents by; one for all of them, thousands as they may be."""

    def beside_document(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema with the parts of the document that it may refer to beside it."""
        if len(self._documents) > 1 and "$ref" in schema:
            schema = {"allOf": [schema]}
        return {**schema, **self._sections}

    @cached_property
    def _sections(self) -> dict[str, Any]:
        document = self._documents.root.value
        sections = {key: document[key] for key in _SECTIONS if isinstance(document.get(key), Mapping)}
        # References to other files are relative to the document's own address.
        return {**sections, "$id": self._documents.root.address} if len(self._documents) > 1 else sections

    async def close(self) -> None:
        """Close the connections this service opened; a client that was passed in is its owner's to close."""
        client, self._owned = self._owned, None
        self._exchange = self._authenticator = None
        if client is not None:
            await client.close()

    def call(self, builder: RequestBuilder, input: Any, context: OperationContext) -> Awaitable[Any]:
        """Make one call: its envelope, or a `CallError` with all that the answer said."""
        options = HTTPCallOptions.of(context.metadata)
        if options is NO_OPTIONS and self._plain:
            return self._call_plainly(builder, input, context)
        return self._call(builder, input, context, options)

    async def _call_plainly(self, builder: RequestBuilder, input: Any, context: OperationContext) -> Any:
        """The short way, for a call of no particular wishes that is answered at once; else the long way takes over."""
        timeout = self.config.timeout
        if context.deadline is not None:
            timeout = min(timeout, context.deadline / 1000 - time.time())
        request = builder.plain_request(input, timeout) if timeout > 0 else None
        if request is None:
            return await self._call(builder, input, context, NO_OPTIONS)
        held = (self._exchange or self._sender()).client.send(request)
        try:
            response = await held.__aenter__()
        except CallError as error:
            return await self._call(builder, input, context, NO_OPTIONS, error)
        envelope = self._ready(response)
        return envelope or await self._call(builder, input, context, NO_OPTIONS, Sent(response, held))

    def _ready(self, response: HTTPResponse) -> ResponseEnvelope[Any] | None:
        """The envelope of a plain success that is here as a whole, so that its connection is free already."""
        status = response.status
        ready: Callable[[], Whole | None] | None = getattr(response, "whole", None)
        whole = ready() if ready is not None and 200 <= status < 300 else None
        if whole is None:
            return None
        headers, body = whole
        content_type = headers.get("content-type", "")
        if (
            len(body) > self.config.limits.response_bytes
            or is_stream(content_type)
            or status in self.config.retry.statuses
        ):
            return None
        return ResponseEnvelope(read_data(content_type, body), HTTPResponseMeta(status, headers, content_type))

    async def _call(
        self,
        builder: RequestBuilder,
        input: Any,
        context: OperationContext,
        options: HTTPCallOptions,
        first: First | None = None,
    ) -> Any:
        template = builder.template
        prepared = builder.build(input, options, builder.accept)
        if options.url is not None:
            prepared = _sent_to(options.url, prepared)
        if options.dry_run:
            return self._dry_run(prepared, template)
        # Who asks conditionally by itself is told what the server says.
        cache = self._cache if options.download_to is None and not prepared.own & CONDITIONS else None
        credentials = NOBODY
        for attempt in range(3):
            if self.config.auth is not None or options.auth is not None:
                credentials = await self._credentials(template, prepared, options, context)
            kept = None if cache is None else cache.find(prepared, credentials)
            extra = () if kept is None else kept.conditions()
            outgoing = self._outgoing(prepared, credentials, options, context, extra=extra)
            sent = await (self._exchange or self._sender()).send(outgoing, first)
            first = None
            response = sent.response
            try:
                if response.status == 401 and attempt < 2 and self._may_renew(credentials, prepared):
                    continue
                if response.status == 304 and kept is not None:
                    return kept.renewed(response.headers)
                meta = self._read_head(response, template)
                if options.download_to is not None and meta.status_code < 300:
                    return ResponseEnvelope(await download(response, options.download_to), meta)
                body = await read_body(response, limit=self.config.limits.response_bytes)
            finally:
                await sent.close()
            envelope = _envelope(meta, body, template)
            if cache is not None:
                cache.keep(prepared, credentials, envelope)
            return envelope
        raise AssertionError("the last attempt returns or raises")

    async def stream(self, builder: RequestBuilder, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        """Follow an endpoint's events, each as an envelope; taken up again where it broke off, if so configured."""
        options = HTTPCallOptions.of(context.metadata)
        template = builder.template
        prepared = builder.build(input, options, _EVENTS)
        if options.url is not None:
            prepared = _sent_to(options.url, prepared)
        if options.dry_run:
            yield self._dry_run(prepared, template)
            return
        parser = self._parser()
        for attempt in range(self.config.reconnect + 1):
            last = attempt == self.config.reconnect
            try:
                sent = await self._open_stream(template, prepared, context, parser.last_event_id)
                try:
                    if attempt and sent.response.status == 204:
                        return  # how a server says that a stream it gave before has ended
                    if not _is_event_stream(sent.response):
                        meta = self._read_head(sent.response, template)
                        body = await read_body(sent.response, limit=self.config.limits.response_bytes)
                        yield _envelope(meta, body, template)
                        return
                    async for envelope in self._events(sent.response, parser):
                        yield envelope
                finally:
                    await sent.close()
                if last:
                    return
            except CallError as error:
                if last or not _may_resume(error, context):
                    raise
                _log.warning("%s %s: the stream broke off (%s)", prepared.method, template.path, error.message)
            parser = self._parser(parser)
            await asyncio.sleep(min((parser.reconnection_time or 0) / 1000, self.config.retry.longest_delay))

    async def _open_stream(
        self, template: Template, prepared: PreparedRequest, context: OperationContext, last_event_id: str
    ) -> Sent:
        """Ask for a stream, from where it broke off; a token that is refused is fetched again once."""
        options = HTTPCallOptions.of(context.metadata)
        for attempt in range(2):
            credentials = NOBODY
            if self.config.auth is not None or options.auth is not None:
                credentials = await self._credentials(template, prepared, options, context)
            extra = [("Last-Event-ID", last_event_id)] if last_event_id else ()
            outgoing = self._outgoing(prepared, credentials, options, context, streaming=True, extra=extra)
            sent = await self._sender().send(outgoing)
            if attempt or sent.response.status != 401 or not self._may_renew(credentials, prepared):
                return sent
            await sent.close()
        raise AssertionError("the last attempt returns or raises")

    async def _events(self, response: HTTPResponse, parser: SSEParser) -> AsyncIterator[ResponseEnvelope[Any]]:
        meta = read_meta(response.status, response.headers)
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                yield _event_envelope(event, meta)
        parser.close()
        if parser.skipped:
            _log.warning("%d malformed fields of a stream of events were skipped", parser.skipped)

    def _read_head(self, response: HTTPResponse, template: Template) -> HTTPResponseMeta:
        """What the head says, where it is no stream of events."""
        meta = read_meta(response.status, response.headers)
        if is_stream(meta.content_type) and meta.status_code < 400:
            message = f"{template.method} {template.path} answered with a stream of events: use subscribe"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return meta

    async def _credentials(
        self, template: Template, prepared: PreparedRequest, options: HTTPCallOptions, context: OperationContext
    ) -> Credentials:
        """Credentials for a request; none for a server other than the API's own."""
        if origin(prepared.url) != self.home:
            _log.warning(
                "%s %s has a server of its own: credentials go to the API's own origin only, see base_url",
                template.method,
                template.path,
            )
            return NOBODY
        self._sender()
        assert self._authenticator is not None
        timeout = self.config.timeout if options.timeout is None else options.timeout
        if context.deadline is not None:
            timeout = min(timeout, context.deadline / 1000 - time.time())
        return await self._authenticator.credentials(template.security, options.auth, timeout)

    def _may_renew(self, refused: Credentials, prepared: PreparedRequest) -> bool:
        if self._authenticator is None or not self._authenticator.renew(refused):
            return False
        return prepared.body is None or not prepared.body.spent

    def _outgoing(
        self,
        prepared: PreparedRequest,
        credentials: Credentials,
        options: HTTPCallOptions,
        context: OperationContext,
        *,
        streaming: bool = False,
        extra: Sequence[tuple[str, str]] = (),
    ) -> Outgoing:
        deadline = context.deadline
        return Outgoing(
            prepared=prepared,
            credentials=credentials,
            deadline=None if deadline is None else time.monotonic() + deadline / 1000 - time.time(),
            timeout=self.config.timeout if options.timeout is None else options.timeout,
            streaming=streaming or options.download_to is not None,
            extra=extra,
        )

    def _sender(self) -> Exchange:
        if self._exchange is None:
            client = self._client
            if client is None:
                limits = self.config.limits
                client = self._owned = default_client(
                    ClientOptions(
                        timeout=self.config.timeout,
                        read_timeout=self.config.idle_timeout,
                        max_connections=limits.connections,
                        proxy=self.config.proxy,
                    )
                )
            self._exchange = Exchange(client, self.config)
            schemes = security_schemes(self._documents)
            self._authenticator = Authenticator(self.config.auth, schemes, client, self.base_url or "")
        return self._exchange

    def _parser(self, before: SSEParser | None = None) -> SSEParser:
        most = self.config.limits.event_bytes
        parser = SSEParser(max_line=most, max_event=most)
        if before is not None:
            parser.last_event_id, parser.reconnection_time = before.last_event_id, before.reconnection_time
        return parser

    def _dry_run(self, prepared: PreparedRequest, template: Template) -> ResponseEnvelope[Any]:
        body = prepared.body
        request = {
            "method": prepared.method,
            "url": prepared.url_with(),
            "headers": [list(pair) for pair in prepared.headers_with()],
            "body": None if body is None else body.shown(),
        }
        return local_envelope(request, f"{self.config.namespace}.dry_run")


def _envelope(meta: HTTPResponseMeta, body: bytes, template: Template) -> ResponseEnvelope[Any]:
    """The envelope of an answer; raises the error that an answer which is no success stands for."""
    data = read_data(meta.content_type, body)
    if meta.status_code >= 300 and meta.status_code != 304:
        raise make_error(template.method, template.path, meta, data)
    return ResponseEnvelope(data, meta)


def _is_event_stream(response: HTTPResponse) -> bool:
    return response.status < 400 and is_stream(header(response.headers, "content-type"))


def _may_resume(error: CallError, context: OperationContext) -> bool:
    """Whether a stream that failed is taken up again: it broke off, or went silent with time left."""
    silent = error.code is ErrorCode.TIMEOUT and context.deadline is None
    return silent or error.code is ErrorCode.UNAVAILABLE


def _sent_to(address: str, prepared: PreparedRequest) -> PreparedRequest:
    """The request to another address, which must be of the same origin."""
    try:
        target = urljoin(prepared.url, address).partition("#")[0]
        at_home = origin(target) == origin(prepared.url)
    except ValueError:
        at_home = False
    if not at_home:
        raise CallError(ErrorCode.VALIDATION_ERROR, "the address of a call must be of the API's own origin")
    url, _, query = target.partition("?")
    return msgspec.structs.replace(prepared, url=url, query=query)


def _event_envelope(event: ServerSentEvent, meta: HTTPResponseMeta) -> ResponseEnvelope[Any]:
    try:
        data: Any = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, RecursionError):
        data = event.data
    own = msgspec.structs.replace(meta, content_type=_EVENTS, event=SSEEvent(event.type, event.id or None))
    return ResponseEnvelope(data, own)
