"""Workplace: what a running call needs of the CallHandler it runs for."""

from __future__ import annotations

from typing import Any, Protocol

from operations.calls.counters import Counters
from operations.calls.eager import Starter
from operations.calls.endpoint import Endpoint
from operations.calls.events import Requested
from operations.context import Identity, OperationContext
from operations.errors import CallError
from operations.pubsub import Transport
from operations.registry import OperationRegistry
from operations.spec import Operation


class Entrant(Protocol):
    """Something that waits for a place to run."""

    def begin(self) -> None:
        """There is a place: run, and give it back with `leave`."""


class Workplace(Protocol):
    """Where calls run: a registry, an end of the bus, and a bounded number of places."""

    registry: OperationRegistry
    endpoint: Endpoint
    transport: Transport
    worker_id: str
    starter: Starter

    @property
    def counters(self) -> Counters:
        """What became of the messages of this end of the transport."""

    @property
    def is_full(self) -> bool:
        """Whether every place is taken and as many wait as may."""

    def admit(self, operation_id: str, identity: Identity | None) -> Operation[Any]:
        """The operation, if it is here and this caller may call it."""

    def context(
        self, operation: Operation[Any], request: Requested, identity: Identity | None, *, kept: bool = True
    ) -> OperationContext:
        """The context of a call from elsewhere."""

    def refuse(self, operation_id: str) -> CallError:
        """Count a request that there is no room for."""

    def enter(self, entrant: Entrant) -> None:
        """Run at once where there is a place, else when one becomes free."""

    def withdraw(self, entrant: Entrant) -> None:
        """Stop waiting for a place."""

    def take_place(self) -> bool:
        """Take a place without waiting, if there is one."""

    def leave(self) -> None:
        """Give a place back."""

    def finished(self, request_id: str) -> None:
        """A call or stream is over."""
