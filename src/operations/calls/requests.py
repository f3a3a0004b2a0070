"""Protocols of the requests that an endpoint passes messages to, and of the transport that signs their nested calls."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, runtime_checkable

from operations.calls.codec import Codec
from operations.calls.events import CallCompleted, CallRequested, CallResponded
from operations.context import Grant, Identity
from operations.errors import CallError
from operations.pubsub import Transport


class PendingRequest(Protocol):
    """A call or stream of this side that waits for its responses."""

    worker: str | None
    """The id of the worker that runs the request, once it is known."""
    since: float
    """Time at which the request was last sent or a response was received, by the event loop's clock."""
    patience: float
    """Seconds after which the request counts as lost if no worker accepts it.

    If this is longer than three heartbeat intervals, the request counts as lost after three intervals.
    """

    @property
    def operation_id(self) -> str:
        """The id of the called operation."""

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """Handle a response."""

    def completed(self, event: CallCompleted) -> None:
        """Handle the end of a stream."""

    def failed(self, error: CallError) -> None:
        """Handle an error."""

    def accepted(self, worker: str) -> None:
        """Store the id of the worker that runs the request."""

    def lost(self, reason: str) -> None:
        """Handle the loss of the connection."""

    def regained(self) -> None:
        """Handle the return of the connection."""


class RunningRequest(Protocol):
    """A call or stream that runs here. Its caller can abort it, and grant credit to a stream."""

    id: str
    """The request id."""
    credits: int
    """The number of the last accepted credit message; used where other peers also receive control messages."""

    def abort(self, reason: str) -> None:
        """Cancel the request."""

    def credit(self, items: int, size: int) -> None:
        """Allow a stream to send `items` more items and `size` more bytes."""


@runtime_checkable
class SignsNestedCalls(Protocol):
    """The part of a signing transport that PendingRequestMap and CallHandler use; `SignedTransport` implements it."""

    def for_grant(self, grant: Grant | None, *, as_worker: bool) -> Transport:
        """Return the transport that signs for the caller of `grant`; without a grant, for this process itself."""

    def sign_for(self, grant: Grant, address: str, message: bytes) -> bytes:
        """Return a request, signed for the caller of `grant`; raise a CallError if `grant` is for an unsigned one."""

    def root_of(self, event: CallRequested) -> object:
        """Return the root (see `RootRequest`) of the request that is being received; None if it is not signed."""

    def record(self, event: CallRequested) -> Coroutine[Any, Any, bool] | None:
        """Return a coroutine that adds the current request to the shared record of signed requests.

        The coroutine returns False if the record already has the request. Return None if the request is not recorded.
        """


class RoutedRequest(Protocol):
    """A request that the router of this process passes to this endpoint."""

    identity: Identity | None
    """The caller, as the router has authenticated it."""
    caller_id: str
    """The id that the caller gave the request."""
