"""from_call: imports the operations of remote workers into a local registry and follows their changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from operations.calls.announcements import WorkerDirectory
from operations.calls.caller import PendingRequestMap
from operations.calls.endpoint import endpoint_of
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Transport
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType


class RemoteOperations:
    """The operations of remote workers, imported into `registry`. Their handlers call the workers."""

    def __init__(
        self,
        transport: Transport,
        registry: OperationRegistry | None,
        *,
        namespaces: Iterable[str] | None,
        as_worker: bool = False,
    ) -> None:
        self.registry = registry if registry is not None else OperationRegistry()
        self._pending = PendingRequestMap(transport)
        self._as_worker = as_worker
        self._namespaces = None if namespaces is None else tuple(namespaces)
        self._offered: dict[str, dict[str, Operation[Any]]] = {}
        self._imported: dict[str, Operation[Any]] = {}
        self._next_change = asyncio.Event()
        """The event that the next change of workers or operations sets; afterwards a new event replaces it."""
        self._stores = transport.capabilities.durable
        self._endpoint = endpoint_of(transport)
        self._directory = WorkerDirectory(self._endpoint, self._changed)
        self._directory.ask()

    @property
    def ids(self) -> list[str]:
        """The ids that are imported now."""
        return sorted(self._imported)

    async def until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until `condition` is true; it is checked whenever workers or operations change.

        Raise `TIMEOUT` after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._next_change.wait()
        except TimeoutError:
            message = f"the expected remote operations did not appear within {timeout:g} s"
            raise CallError(ErrorCode.TIMEOUT, message, {"imported": self.ids}) from None

    async def ready(self, *operation_ids: str, timeout: float | None = None) -> None:
        """Wait until these operations are imported, or any operation if none is given.

        Raise `TIMEOUT` after `timeout` seconds.
        """
        wanted = set(operation_ids)
        try:
            await self.until(lambda: wanted <= self._imported.keys() if wanted else bool(self._imported), timeout)
        except CallError as error:
            missing = sorted(wanted - self._imported.keys())
            offered = f"{', '.join(missing) or 'any operation'} was not offered to this caller within {timeout:g} s"
            reason = "no worker registered it, or the caller may not call it"
            raise CallError(error.code, f"{offered}: {reason}", {"missing": missing}) from None

    async def close(self) -> None:
        """Remove the imported operations and stop following workers."""
        self._directory.close()
        for operation_id in list(self._imported):
            self._withdraw(operation_id)

    async def __aenter__(self) -> RemoteOperations:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _changed(self, worker_id: str, specs: Iterable[dict[str, Any]]) -> None:
        before = self._offered.pop(worker_id, {})
        after = self._read(specs)
        if after:
            self._offered[worker_id] = after
        for operation_id in before.keys() | after.keys():
            self._update(operation_id)
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _read(self, specs: Iterable[dict[str, Any]]) -> dict[str, Operation[Any]]:
        operations = (self._read_one(data) for data in specs)
        return {operation.id: operation for operation in operations if operation is not None}

    def _read_one(self, data: dict[str, Any]) -> Operation[Any] | None:
        try:
            spec = OperationSpec.from_dict(data)
        except CallError:
            self._pending.counters.malformed += 1
            return None
        if self._namespaces is not None and not any(spec.id.startswith(f"{name}.") for name in self._namespaces):
            return None
        streams = bool(data.get("streams", spec.type is OperationType.SUBSCRIPTION))
        executes = bool(data.get("executes", spec.type is not OperationType.SUBSCRIPTION))
        return Operation(
            spec=spec,
            handler=self._caller(spec) if executes else None,
            stream=self._follower(spec) if streams else None,
            dump=None,
            origin=self._endpoint,
        )

    def _update(self, operation_id: str) -> None:
        """Update one operation in the registry, unless the program registered another one there."""
        offered = next((each[operation_id] for each in self._offered.values() if operation_id in each), None)
        imported = self._imported.get(operation_id)
        registered = self.registry.get_operation(operation_id)
        if offered is None:
            if imported is not None:
                self._withdraw(operation_id)
        elif registered is None or registered is imported:
            self.registry.register(offered, replace=True)
            self._imported[operation_id] = offered
        else:
            self._imported.pop(operation_id, None)

    def _withdraw(self, operation_id: str) -> None:
        imported = self._imported.pop(operation_id)
        if self.registry.get_operation(operation_id) is imported:
            self.registry.unregister(operation_id)

    def _caller(self, spec: OperationSpec) -> Callable[[Any, OperationContext], Coroutine[Any, Any, Any]]:
        durable = spec.durable and self._stores
        retry = spec.type is OperationType.QUERY

        async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
            return await self._pending.call_for(
                context,
                spec.id,
                input,
                retry=retry,
                durable=durable,
                as_worker=self._as_worker,
                parent=context.request_id,
            )

        return call

    def _follower(self, spec: OperationSpec) -> Callable[[Any, OperationContext], AsyncIterator[Any]]:
        return lambda input, context: self._pending.subscribe_for(
            context, spec.id, input, as_worker=self._as_worker, parent=context.request_id
        )


def from_call(
    transport: Transport,
    *,
    registry: OperationRegistry | None = None,
    namespaces: Iterable[str] | None = None,
    as_worker: bool = False,
) -> RemoteOperations:
    """Import the operations of remote workers into `registry`, by default a new registry; follow their changes.

    Pass `as_worker` in a process that also serves operations at the hub and calls outside any request: such calls then
    use the process's own rights. A call that a handler makes always has the identity of the handler's caller.
    """
    return RemoteOperations(transport, registry, namespaces=namespaces, as_worker=as_worker)
