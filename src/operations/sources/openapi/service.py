"""HTTPService: the operations of one API document, called over HTTP; every response becomes an envelope."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urljoin

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope, SSEEvent, http_meta, local_envelope
from operations.errors import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPResponse, default_client, read_body
from operations.sources.openapi import swagger2
from operations.sources.openapi.auth import NO_CREDENTIALS, CredentialSource, RequestCredentials
from operations.sources.openapi.config import NO_OPTIONS, HTTPCallOptions, HTTPServiceConfig
from operations.sources.openapi.documents import Documents
from operations.sources.openapi.exchange import (
    CONDITIONS,
    CachedResponse,
    Exchange,
    OpenResponse,
    OutgoingRequest,
    ValidatorCache,
)
from operations.sources.openapi.media import EVENT_STREAM, is_stream
from operations.sources.openapi.origins import CredentialOrigins, is_same_origin, origin
from operations.sources.openapi.requests import PreparedRequest, RequestBuilder, base_url, untrusted_server_error
from operations.sources.openapi.responses import download, header, make_error, may_have_body, read_data
from operations.sources.openapi.schemas import DocumentSchemas
from operations.sources.openapi.sse import ServerSentEvent, SSEParser
from operations.sources.openapi.template import Template, security_schemes

_log = logging.getLogger("operations")
_ATTEMPTS = 3
"""Maximum number of times that a request is sent while the server refuses its token."""
TURN_BYTES = 16 * 1024
"""Bytes of an event stream after which other tasks run: a server may send faster than the stream is parsed."""


def call_options(context: OperationContext) -> HTTPCallOptions:
    """Return the options in a context's metadata; `NO_OPTIONS` if there are none."""
    options = context.metadata.get("http")
    return options if isinstance(options, HTTPCallOptions) else NO_OPTIONS


Received = tuple[OpenResponse, RequestCredentials, CachedResponse | None]
"""A response, the credentials of its request, and the cached response that a 304 confirms."""


class HTTPService:
    """State shared by the operations of one document: client, credentials, cache."""

    def __init__(
        self,
        documents: Documents,
        config: HTTPServiceConfig,
        *,
        document_url: str | None = None,
        requested_url: str | None = None,
        may_stream: bool = True,
    ) -> None:
        self.config = config
        self.document_url = document_url
        self._documents = documents
        self._client = config.client
        self._owned: HTTPClient | None = None
        self._exchange: Exchange | None = None
        self._authenticator: CredentialSource | None = None
        self._cache = ValidatorCache() if config.cache else None
        document = documents.root.value
        root: Any = swagger2.servers(document) if "swagger" in document else document.get("servers")
        servers = [server for server in root if isinstance(server, Mapping)] if isinstance(root, list) else []
        self.base_url = base_url(servers, config, document_url)
        """Base URL of all paths, except for operations that declare their own servers; None if unknown."""
        self.origins = CredentialOrigins(config.base_url, requested_url, config.credential_origins)
        version = documents.root.get("info").value
        self.version = str(version.get("version", "")) if isinstance(version, Mapping) else ""
        self.may_stream = may_stream
        self.schemas = DocumentSchemas(documents)

    @cached_property
    def schemes(self) -> dict[str, Mapping[str, Any]]:
        """The document's security schemes by name, in OpenAPI 3 form."""
        return security_schemes(self._documents)

    async def close(self) -> None:
        """Close the connections that this service opened; a client that was passed in stays open."""
        client, self._owned = self._owned, None
        self._exchange = self._authenticator = None
        if client is not None:
            await client.close()

    async def call(self, builder: RequestBuilder, input: Any, context: OperationContext, operation_id: str) -> Any:
        """Make one call; return its envelope, or raise a `CallError` with the whole response."""
        template, options = builder.template, call_options(context)
        prepared = _prepare(builder, input, options, builder.accept)
        if options.dry_run:
            return self.dry_run(prepared, operation_id)
        # A call with its own conditions gets the server's response to them, and a download is not cached.
        cached = self._cache is not None and options.download_to is None and not prepared.own & CONDITIONS
        sent, credentials, cached_response = await self.send(template, prepared, options, context, cache=cached)
        try:
            if cached_response is not None and sent.response.status == 304:
                return cached_response.renewed(sent.response.headers)
            meta = _read_head(sent.response, template)
            if options.download_to is not None and meta.status_code < 300:
                return ResponseEnvelope(await download(sent.response, options.download_to), meta)
            body = await read_body(sent.response, limit=self.config.limits.response_bytes)
        finally:
            await sent.close()
        envelope = _envelope(meta, body, template)
        if self._cache is not None and cached:
            self._cache.store(prepared, credentials, envelope, len(body))
        return envelope

    async def stream(
        self, builder: RequestBuilder, input: Any, context: OperationContext, operation_id: str
    ) -> AsyncIterator[Any]:
        """Yield an endpoint's events as envelopes. If configured, reconnect when the stream ends or fails.

        A response that is not an event stream is one envelope.
        """
        template, options = builder.template, call_options(context)
        prepared = _prepare(builder, input, options, builder.accept_stream)
        if options.dry_run:
            yield self.dry_run(prepared, operation_id)
            return
        parser = self.parser(context)
        for attempt in range(self.config.reconnect + 1):
            last = attempt == self.config.reconnect
            resume = [("Last-Event-ID", parser.last_event_id)] if parser.last_event_id else ()
            try:
                sent, _, _ = await self.send(template, prepared, options, context, streaming=True, extra=resume)
                try:
                    if attempt and sent.response.status == 204:
                        return  # a server ends a resumed stream this way
                    if not _is_event_stream(sent.response):
                        meta = _read_head(sent.response, template)
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
                _log.warning("%s %s: the stream was interrupted (%s)", prepared.method, template.path, error.message)
            parser = await self.next_parser(parser)

    async def send(
        self,
        template: Template,
        prepared: PreparedRequest,
        options: HTTPCallOptions,
        context: OperationContext,
        *,
        cache: bool = False,
        streaming: bool = False,
        extra: Sequence[tuple[str, str]] = (),
    ) -> Received:
        """Send a request with its credentials; if the server refuses the token, send it again with a new token."""
        exchange, deadline = self._exchange or self._open(), context.deadline
        credentials, cached_response = NO_CREDENTIALS, None
        for attempt in range(1, _ATTEMPTS + 1):
            if self.config.auth is not None or options.auth is not None:
                credentials = await self._credentials(template, prepared, options, context)
            if cache and self._cache is not None:
                cached_response = self._cache.find(prepared, credentials)
                extra = () if cached_response is None else cached_response.conditions()
            sent = await exchange.send(
                OutgoingRequest(
                    prepared=prepared,
                    credentials=credentials,
                    deadline=None if deadline is None else time.monotonic() + deadline / 1000 - time.time(),
                    timeout=self.config.timeout if options.timeout is None else options.timeout,
                    streaming=streaming or options.download_to is not None,
                    extra=extra,
                )
            )
            if sent.response.status != 401 or attempt == _ATTEMPTS or not self._may_renew(credentials, prepared):
                break
            await sent.close()
        return sent, credentials, cached_response

    async def _events(self, response: HTTPResponse, parser: SSEParser) -> AsyncIterator[ResponseEnvelope[Any]]:
        meta = http_meta(response.status, response.headers)
        warned = False
        async for chunk in paced(response.chunks()):
            events = parser.feed(chunk)
            if parser.skipped and not warned:
                warned = True
                _log.warning("skipped a malformed field of an event stream; further ones in this stream are not logged")
            for event in events:
                yield _event_envelope(event, meta)
        parser.close()

    async def _credentials(
        self, template: Template, prepared: PreparedRequest, options: HTTPCallOptions, context: OperationContext
    ) -> RequestCredentials:
        """Return the credentials for a request; none if its server must not receive them.

        Raise `VALIDATION_ERROR` if that server is the server of the whole API.
        """
        assert self._authenticator is not None
        chosen = self._authenticator.choose(template.security, options.auth)
        if not chosen:
            return NO_CREDENTIALS
        if prepared.url not in self.origins:
            error = untrusted_server_error(template, prepared.url)
            if is_same_origin(prepared.url, self.base_url):
                raise error
            _log.warning("%s; the request is sent without credentials", error.message)
            return NO_CREDENTIALS
        timeout = self.config.timeout if options.timeout is None else options.timeout
        if context.deadline is not None:
            timeout = min(timeout, context.deadline / 1000 - time.time())
        return await self._authenticator.resolve(chosen, timeout)

    def _may_renew(self, refused: RequestCredentials, prepared: PreparedRequest) -> bool:
        if self._authenticator is None or not self._authenticator.renew(refused):
            return False
        return prepared.body is None or not prepared.body.consumed

    def _open(self) -> Exchange:
        client = self._client
        if client is None:
            client = self._owned = default_client(
                ClientOptions(
                    timeout=self.config.timeout,
                    read_timeout=self.config.idle_timeout,
                    max_connections=self.config.limits.connections,
                    proxy=self.config.proxy,
                )
            )
        self._authenticator = CredentialSource(
            self.config.auth, self.schemes, client, self.base_url or "", self.origins
        )
        self._exchange = Exchange(client, self.config, self.origins)
        return self._exchange

    def parser(self, context: OperationContext) -> SSEParser:
        """Return a parser of events; `context` may have the id of the event after which the stream continues."""
        parser = self._new_parser()
        resumed = context.metadata.get("lastEventId")
        if isinstance(resumed, str):
            parser.last_event_id = resumed
        return parser

    async def next_parser(self, before: SSEParser) -> SSEParser:
        """Wait for the reconnection time that the server requested; return the parser of the next response."""
        parser = self._new_parser()
        parser.last_event_id, parser.reconnection_time = before.last_event_id, before.reconnection_time
        await asyncio.sleep(min((parser.reconnection_time or 0) / 1000, self.config.retry.longest_delay))
        return parser

    def _new_parser(self) -> SSEParser:
        """Return a parser with the configured limits."""
        most = self.config.limits.event_bytes
        return SSEParser(max_line=most, max_event=most)

    def dry_run(self, prepared: PreparedRequest, operation_id: str) -> ResponseEnvelope[Any]:
        """Return the request that would be sent, without credentials."""
        body = prepared.body
        request = {
            "method": prepared.method,
            "url": prepared.url_with(),
            "headers": [list(pair) for pair in prepared.headers_with()],
            "body": None if body is None else body.preview(),
        }
        return local_envelope(request, operation_id)


async def paced(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of an event stream; at intervals, let other tasks run."""
    left = TURN_BYTES
    async for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            left = TURN_BYTES
            await asyncio.sleep(0)
        yield chunk


def _prepare(builder: RequestBuilder, input: Any, options: HTTPCallOptions, accept: str) -> PreparedRequest:
    prepared = builder.build(input, options, accept)
    return prepared if options.url is None else _sent_to(options.url, prepared)


def _read_head(response: HTTPResponse, template: Template) -> HTTPResponseMeta:
    """Return the meta of a response; raise `VALIDATION_ERROR` if it is an event stream."""
    meta = http_meta(response.status, response.headers)
    if is_stream(meta.content_type) and meta.status_code < 400:
        message = f"{template.method} {template.path} returned an event stream: use subscribe()"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return meta


def _envelope(meta: HTTPResponseMeta, body: bytes, template: Template) -> ResponseEnvelope[Any]:
    """Return the envelope of a successful response; raise the error of any other response."""
    data = read_data(meta.content_type, body) if body or may_have_body(template.method, meta.status_code) else None
    if meta.status_code >= 300 and meta.status_code != 304:
        raise make_error(template.method, template.path, meta, data)
    return ResponseEnvelope(data, meta)


def _is_event_stream(response: HTTPResponse) -> bool:
    return response.status < 400 and is_stream(header(response.headers, "content-type"))


def _may_resume(error: CallError, context: OperationContext) -> bool:
    """Whether to reconnect a failed stream: it was interrupted, or idle for too long without a deadline."""
    silent = error.code is ErrorCode.TIMEOUT and context.deadline is None
    return silent or error.code is ErrorCode.UNAVAILABLE


def _sent_to(address: str, prepared: PreparedRequest) -> PreparedRequest:
    """Return the request with another URL, which must have the same origin."""
    try:
        target = urljoin(prepared.url, address).partition("#")[0]
        at_home = origin(target) == origin(prepared.url)
    except ValueError:
        at_home = False
    if not at_home:
        raise CallError(ErrorCode.VALIDATION_ERROR, "the URL of a call must have the API's origin")
    url, _, query = target.partition("?")
    return msgspec.structs.replace(prepared, url=url, query=query)


def _event_envelope(event: ServerSentEvent, meta: HTTPResponseMeta) -> ResponseEnvelope[Any]:
    try:
        data: Any = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, RecursionError):
        data = event.data
    own = msgspec.structs.replace(meta, content_type=EVENT_STREAM, event=SSEEvent(event.type, event.id or None))
    return ResponseEnvelope(data, own)
