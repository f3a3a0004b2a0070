"""Conditional requests: answers with a validator are kept, and asked for again only if they changed."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta, ResponseEnvelope, http_envelope
from operations.sources.openapi.auth import Credentials
from operations.sources.openapi.requests import PreparedRequest

_VALIDATORS = {"if-none-match": "etag", "if-modified-since": "last-modified"}
CONDITIONS = frozenset({*_VALIDATORS, "if-match", "if-unmodified-since", "if-range"})
"""Headers that make a request conditional."""


class Kept(msgspec.Struct, frozen=True):
    """An answer that can be asked for conditionally."""

    envelope: ResponseEnvelope[Any]
    meta: HTTPResponseMeta

    def conditions(self) -> list[tuple[str, str]]:
        """The headers that ask for the answer only if it changed."""
        headers = self.meta.headers
        return [(ask.title(), headers[told]) for ask, told in _VALIDATORS.items() if told in headers]

    def renewed(self, headers: Sequence[tuple[str, str]]) -> ResponseEnvelope[Any]:
        """The kept answer with the headers of the one that said it is still good."""
        fresh = http_envelope(None, status_code=304, headers=headers).meta
        assert isinstance(fresh, HTTPResponseMeta)
        kept = {name: value for name, value in fresh.headers.items() if not name.startswith("content-")}
        meta = msgspec.structs.replace(self.meta, headers={**self.meta.headers, **kept})
        return ResponseEnvelope(copy.deepcopy(self.envelope.data), meta)


class ValidatorCache:
    """The latest answers to GET requests, a bounded number of them."""

    def __init__(self, *, capacity: int = 500) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[Any, Kept] = OrderedDict()

    def find(self, request: PreparedRequest, credentials: Credentials) -> Kept | None:
        """What was answered to the same request before."""
        return self._kept.get(_key(request, credentials))

    def keep(self, request: PreparedRequest, credentials: Credentials, envelope: ResponseEnvelope[Any]) -> None:
        """Keep an answer, if it has a validator and may be kept."""
        meta = envelope.meta
        if request.method != "GET" or not isinstance(meta, HTTPResponseMeta) or meta.status_code != 200:
            return
        may_not = "no-store" in meta.headers.get("cache-control", "") or meta.headers.get("vary") == "*"
        if may_not or not ("etag" in meta.headers or "last-modified" in meta.headers):
            return
        key = _key(request, credentials)
        # A copy: what a caller does with its answer is not seen by the next.
        self._kept[key] = Kept(ResponseEnvelope(copy.deepcopy(envelope.data), meta), meta)
        self._kept.move_to_end(key)
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)


def _key(request: PreparedRequest, credentials: Credentials) -> Any:
    """What tells requests apart: who asks is part of it, so that nobody is answered with another's data."""
    return request.method, request.url_with(credentials), tuple(request.headers_with(credentials))
