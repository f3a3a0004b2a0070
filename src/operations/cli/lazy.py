"""Sources that are opened when one of their operations is first called: a call need not wait for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from types import TracebackType
from typing import Any

from operations.cli.opening import open_sources
from operations.config import Catalogue, Config
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType


class LazySources:
    """Registers what the cache knows of sources that are not open; the first call of one opens it."""

    def __init__(self, config: Config, registry: OperationRegistry) -> None:
        self._config = config
        self._registry = registry
        self._stand_ins: dict[str, Operation[Any]] = {}
        self._holders: dict[str, asyncio.Task[None]] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._closing = asyncio.Event()

    def register(self, catalogue: Catalogue, *, besides: Collection[str] = ()) -> None:
        """Stand in for every operation that is not registered, but for those of the sources `besides`."""
        for entry in catalogue.entries:
            if entry.id not in self._registry and entry.source not in besides:
                namespace, _, name = entry.id.rpartition(".")
                spec = OperationSpec(name=name, namespace=namespace, type=OperationType(entry.type))
                self._registry.register(self._stand_in(spec, entry.source))

    async def __aenter__(self) -> LazySources:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await asyncio.gather(*self._holders.values(), return_exceptions=True)

    def _stand_in(self, spec: OperationSpec, source: str) -> Operation[Any]:
        async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
            await self._open(source, spec.id)
            return await self._registry.execute(spec.id, input, context)

        async def follow(input: Any, context: OperationContext) -> AsyncIterator[Any]:
            await self._open(source, spec.id)
            async with contextlib.aclosing(self._registry.subscribe(spec.id, input, context)) as stream:
                async for envelope in stream:
                    yield envelope

        operation: Operation[Any] = Operation(spec=spec, handler=call, stream=follow, dump=None)
        self._stand_ins[spec.id] = operation
        return operation

    async def _open(self, source: str, operation_id: str) -> None:
        """Open a source, once; raises where it does not have the operation any more."""
        if source not in self._holders:
            self._ready[source] = asyncio.get_running_loop().create_future()
            self._holders[source] = asyncio.create_task(self._hold(source))
        await asyncio.shield(self._ready[source])
        if self._registry.get_operation(operation_id) is self._stand_ins[operation_id]:
            self._registry.unregister(operation_id)
            raise self._registry.not_found(operation_id)

    async def _hold(self, source: str) -> None:
        """Keep a source open until the end, in a task of its own: what opened it must be what closes it."""
        ready = self._ready[source]
        try:
            async with open_sources(self._config, [source]) as workspace:
                failed = next((report for report in workspace.reports if report.state == "failed"), None)
                if failed is not None:
                    message = f"the source {source} could not be opened: {failed.problem}"
                    ready.set_exception(CallError(ErrorCode.UNAVAILABLE, message, {"hint": failed.hint}))
                    return
                found = (workspace.registry.get_operation(spec.id) for spec in workspace.registry.list())
                self._registry.register_all([each for each in found if each is not None], replace=True)
                ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
