"""Conditional requests: cache responses with a validator, and revalidate them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta, ResponseEnvelope, http_meta
from operations.sources.openapi.auth import RequestCredentials
from operations.sources.openapi.requests import PreparedRequest

_VALIDATORS = {"if-none-match": "etag", "if-modified-since": "last-modified"}
CONDITIONS = frozenset({*_VALIDATORS, "if-match", "if-unmodified-since", "if-range"})
"""Headers that make a request conditional."""


class CachedResponse(msgspec.Struct, frozen=True):
    """A cached response with a validator."""

    envelope: ResponseEnvelope[Any]
    meta: HTTPResponseMeta

    def conditions(self) -> list[tuple[str, str]]:
        """Return the headers that make a request conditional: the server sends the body only if it has changed."""
        headers = self.meta.headers
        return [
            (request_headers.title(), headers[validator])
            for request_headers, validator in _VALIDATORS.items()
            if validator in headers
        ]

    def renewed(self, headers: Sequence[tuple[str, str]]) -> ResponseEnvelope[Any]:
        """Return the cached response with the headers of the 304 response."""
        fresh = http_meta(304, headers)
        cached = {name: value for name, value in fresh.headers.items() if not name.startswith("content-")}
        meta = msgspec.structs.replace(self.meta, headers={**self.meta.headers, **cached})
        return ResponseEnvelope(copy.deepcopy(self.envelope.data), meta)


class ValidatorCache:
    """Bounded cache of the latest responses to GET requests."""

    def __init__(self, *, capacity: int = 500) -> None:
        self._capacity = capacity
        self._responses: OrderedDict[Any, CachedResponse] = OrderedDict()

    def find(self, request: PreparedRequest, credentials: RequestCredentials) -> CachedResponse | None:
        """Return the cached response to an equal request."""
        return self._responses.get(_key(request, credentials))

    def store(self, request: PreparedRequest, credentials: RequestCredentials, envelope: ResponseEnvelope[Any]) -> None:
        """Cache a response if it has a validator and caching is allowed."""
        meta = envelope.meta
        if request.method != "GET" or not isinstance(meta, HTTPResponseMeta) or meta.status_code != 200:
            return
        may_not = "no-store" in meta.headers.get("cache-control", "") or meta.headers.get("vary") == "*"
        if may_not or not ("etag" in meta.headers or "last-modified" in meta.headers):
            return
        key = _key(request, credentials)
        # A copy: the caller may change its data.
        self._responses[key] = CachedResponse(ResponseEnvelope(copy.deepcopy(envelope.data), meta), meta)
        self._responses.move_to_end(key)
        if len(self._responses) > self._capacity:
            self._responses.popitem(last=False)


def _key(request: PreparedRequest, credentials: RequestCredentials) -> Any:
    """Return the cache key; it includes the credentials, so that callers never share responses."""
    return request.method, request.url_with(credentials), tuple(request.headers_with(credentials))
