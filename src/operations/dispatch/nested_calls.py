"""Nested calls: the context of an external call. Its env has the operations of the registry and of other workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from operations.context import NO_ENV, Client, Grant, OperationContext, Progress, new_request_id
from operations.deadlines import TimerWheel
from operations.env import EnvNode, EnvScope, OperationLookup
from operations.envelope import ResponseEnvelope
from operations.interceptors import Interceptor
from operations.spec import Operation
from operations.telemetry.observer import Kind, Observer


class DispatchRegistry(OperationLookup, Protocol):
    """The part of a registry that a dispatcher uses."""

    @property
    def wheel(self) -> TimerWheel:
        """The timer wheel that expires the deadlines of the registry's calls."""

    @property
    def interceptors(self) -> Sequence[Interceptor]:
        """The interceptors around every call."""

    @property
    def observers(self) -> Sequence[Observer]:
        """The observers of every call."""

    @property
    def operations(self) -> Mapping[str, Operation[Any]]:
        """The operations by id."""

    def run(
        self,
        operation: Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        kind: Kind = "local",
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Run a registered operation and return its envelope; the caller of this method has checked access."""

    def run_stream(
        self,
        operation: Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        kind: Kind = "local",
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run a registered subscription and yield its envelopes; the caller of this method has checked access."""

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Count a handler that ignores its cancellation."""


class RemoteCalls(Protocol):
    """Interface to call operations of other workers, which this registry does not have."""

    def call_for(
        self, context: OperationContext, operation_id: str, input: Any
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call an operation with the deadline, caller and trace of `context`."""

    def subscribe_for(
        self, context: OperationContext, operation_id: str, input: Any
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe to an operation with the deadline, caller and trace of `context`."""


class NestedCalls:
    """Creates the contexts of external calls.

    A nested call through such a context runs in this registry, or through `remote` if the registry does not have the
    operation.
    """

    def __init__(self, registry: DispatchRegistry, remote: RemoteCalls | None) -> None:
        self._registry = registry
        self._remote = remote
        self._scope = EnvScope(registry, invoke=self._invoke, stream=self._follow)

    def context(
        self,
        grant: Grant,
        request_id: str,
        parent_id: str | None,
        deadline: int | None,
        metadata: Mapping[str, Any] | None,
        progress: Progress | None = None,
        client: Client | None = None,
    ) -> OperationContext:
        """Return the context of an external call: untrusted, with an env."""
        bare = OperationContext(
            request_id=request_id or new_request_id(),
            parent_request_id=parent_id,
            identity=grant.identity,
            deadline=deadline,
            metadata=metadata or {},
            trusted=False,
            grant=grant,
            progress=progress,
            client=client,
        )
        return msgspec.structs.replace(bare, env=EnvNode(self._scope, bare, bare.request_id))

    def _invoke(self, operation_id: str, input: Any, context: OperationContext) -> Awaitable[ResponseEnvelope[Any]]:
        """Run a nested call in this registry, or through `remote` if the registry does not have the operation.

        A call in this registry runs in the slot of its caller: waiting for a second slot could deadlock.
        """
        if operation_id in self._registry.operations or self._remote is None:
            return self._registry.execute_nested(operation_id, input, self._complete(operation_id, context))
        return self._remote.call_for(context, operation_id, input)

    def _follow(self, operation_id: str, input: Any, context: OperationContext) -> AsyncIterator[ResponseEnvelope[Any]]:
        if operation_id in self._registry.operations or self._remote is None:
            return self._registry.subscribe_nested(operation_id, input, self._complete(operation_id, context))
        return self._remote.subscribe_for(context, operation_id, input)

    def _complete(self, operation_id: str, context: OperationContext) -> OperationContext:
        """Return a context whose env includes remote operations.

        Return `context` unchanged if it has an env already, or if the operation does not use its context.
        """
        operation = self._registry.operations.get(operation_id)
        if context.env is not NO_ENV or operation is None or not operation.wants_context:
            return context
        return msgspec.structs.replace(context, env=EnvNode(self._scope, context, context.request_id))
