"""serve_registry: serves a registry on a transport until the program is stopped, then drains it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from operations.calls.worker import CallHandler
from operations.dispatch import CONCURRENCY
from operations.pubsub import Transport
from operations.pubsub.limits import check_counts
from operations.registry import OperationRegistry


class ServedRegistry:
    """A registry on a transport: `async with` serves within the block, `await` until SIGTERM or SIGINT."""

    def __init__(
        self, registry: OperationRegistry, transport: Transport, *, grace: float, options: dict[str, Any]
    ) -> None:
        self._registry = registry
        self._transport = transport
        self._grace = grace
        self._options = options
        self._handler: CallHandler | None = None

    async def __aenter__(self) -> CallHandler:
        self._handler = CallHandler(self._registry, self._transport, **self._options)
        return self._handler

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            await self._handler.drain(grace=self._grace if error is None else 0.0)

    def __await__(self) -> Any:
        return self.until_stopped().__await__()

    async def until_stopped(self, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Serve until one of the signals arrives; then drain and close the transport."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        watched = list(signals)
        for number in watched:
            loop.add_signal_handler(number, stopped.set)
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(self._transport.close)
                await stack.enter_async_context(self)
                await stopped.wait()
        finally:
            for number in watched:
                loop.remove_signal_handler(number)


def serve_registry(
    registry: OperationRegistry,
    transport: Transport,
    *,
    concurrency: int = CONCURRENCY,
    grace: float = 30.0,
    **options: Any,
) -> ServedRegistry:
    """Serve `registry` on `transport`, at most `concurrency` calls at a time.

    `async with serve_registry(…):` serves within the block; `await serve_registry(…)` until SIGTERM or SIGINT. At the
    end no new requests are accepted, running calls get `grace` seconds, and `await` also closes the transport.
    """
    check_counts(concurrency=concurrency)
    return ServedRegistry(registry, transport, grace=grace, options={"concurrency": concurrency, **options})
