"""RouteObserver: the interface that a hub notifies of routed calls; and functions that read fields for observers."""

from __future__ import annotations

import msgspec

from operations.calls.codec import UNREADABLE, Codec, part_reader
from operations.calls.events import EventHeader
from operations.calls.hub.session import HubSession, RoutedCall
from operations.context import Identity
from operations.errors import ErrorCode

_LONGEST_CODE = 64
_MOST_TRACED = 64 << 10
"""Largest payload that is searched for a trace context, in bytes."""


class _TraceContext(msgspec.Struct, gc=False):
    traceparent: str | None = None


class _Traced(msgspec.Struct, gc=False):
    """The part of a request that contains its trace context."""

    metadata: _TraceContext | None = None


class _Coded(msgspec.Struct, gc=False):
    """The part of an error that contains its code."""

    code: str


_read_traced = part_reader(_Traced)
_read_coded = part_reader(_Coded)


class RouteObserver:
    """Interface that a hub notifies of routed calls and of ended sessions. A subclass overrides what it needs."""

    def began(
        self, call: RoutedCall, identity: Identity | None, parent: str | None, header: EventHeader, codec: Codec
    ) -> None:
        """Handle a call that is about to be sent to a worker; `parent` is the result of `parent_of` for the call."""

    def item(self, call: RoutedCall) -> None:
        """Handle an item of a stream."""

    def ended(self, call: RoutedCall, code: str) -> None:
        """Handle the end of a call; `code` is `ok`, or the code of its error."""

    def refused(self, session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        """Handle a refused request; `operation_id` may be an id that no worker has registered."""

    def left(self, session: HubSession, reason: str) -> None:
        """Handle the removal of a session."""


def read_trace(header: EventHeader, codec: Codec) -> str | None:
    """Return the `traceparent` of a request; None if it is missing, or if the request is too large or not decodable."""
    if memoryview(header.payload).nbytes > _MOST_TRACED:
        return None
    try:
        metadata = _read_traced(header.payload, codec).metadata
    except UNREADABLE:
        return None
    return None if metadata is None else metadata.traceparent


def parent_of(session: HubSession, header: EventHeader) -> str | None:
    """Return the id of the request that this request is nested in (the parent); None if the hub does not know it.

    The result is the id that the parent's caller gave the parent. A grant identifies the parent, because the hub makes
    a grant for one request. Only code in the hub's own process may state a parent without a grant.
    """
    grant = None if header.grant is None else session.grants.held.get(header.grant)
    if grant is None:
        return header.parent if session.trusted else None
    call = session.running.get(str(grant.origin))
    return None if call is None else call.caller_id


def read_code(header: EventHeader, codec: Codec) -> str:
    """Return how a call ended, from its last response: `ok`, or the code of its error."""
    if header.type != "call.error":
        return "ok"
    try:
        return _read_coded(header.payload, codec).code[:_LONGEST_CODE]
    except UNREADABLE:
        return str(ErrorCode.UNKNOWN_ERROR)
