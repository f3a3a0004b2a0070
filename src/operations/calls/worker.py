"""CallHandler and serve_registry: the worker's side of the call protocol. They serve a registry on a transport."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from operations.calls.addresses import namespaces_of
from operations.calls.announcements import Announcer
from operations.calls.caller import PendingRequestMap
from operations.calls.endpoint import Endpoint, endpoint_of
from operations.calls.request_handler import Identify, RequestHandler, ShowError
from operations.calls.requests import SignsNestedCalls
from operations.calls.stored_replies import start_stored
from operations.calls.stored_requests import StoredRequests
from operations.context import Exposed
from operations.dispatch import CONCURRENCY, QUEUE, Dispatcher
from operations.pubsub import Flushes, InProcess, ReportsCongestion, ReportsConnection, Stop, Stores, Transport
from operations.pubsub.limits import check_counts
from operations.registry import OperationRegistry
from operations.spec import Operation
from operations.telemetry.counters import Counters
from operations.telemetry.metrics import Measure, measures_of
from operations.telemetry.observer import ConnectionChanged, notify
from operations.wire import MAX_VALUES

_FLUSHED_WITHIN = 5.0


class CallHandler:
    """The worker's side of the call protocol: it announces, serves and drains the operations of a registry.

    At most `concurrency` calls run at a time and `queue` more wait; requests beyond that fail with `executed: "no"`.
    The transport or `identify` authenticates the caller. An identity in a payload is ignored, except on a transport
    that trusts its callers, such as the one in memory. A large input (over 64 KiB) of a caller without scopes and
    resources may contain at most `max_values` values; None is no limit. Operations that are registered or removed later
    are announced automatically.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        transport: Transport,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        pool: bool = False,
        identify: Identify | None = None,
        exposure: Exposed | None = None,
        show_error: ShowError | None = None,
        max_values: int | None = MAX_VALUES,
    ) -> None:
        check_counts(concurrency=concurrency)
        if max_values is not None:
            check_counts(max_values=max_values)
        check_counts(queue=queue, least=0)
        self.registry = registry
        self.transport = transport
        self.endpoint: Endpoint = endpoint_of(transport)
        self.pending = PendingRequestMap(transport)
        self.dispatcher = Dispatcher(
            registry, concurrency=concurrency, queue=queue, counters=self.endpoint.counters, remote=self.pending
        )
        self._exposure = exposure
        self._concurrency = concurrency
        self._stops: dict[str, list[Stop]] = {}
        self._queues: dict[str, Stop] = {}
        self._stop_control = self.endpoint.listen(f"peer.{self.endpoint.peer}")
        self._announcer = Announcer(self._served, self.endpoint, pool=pool, slots=concurrency, load=self._load)
        self.worker_id = self._announcer.worker_id
        """The id of this worker on its transport."""
        self._requests = RequestHandler(
            self.dispatcher,
            registry,
            transport,
            worker_id=self.worker_id,
            identify=identify,
            exposure=exposure,
            show_error=show_error,
            max_values=max_values,
        )
        self._stored = StoredRequests(self.endpoint, partial(start_stored, self._requests))
        self.endpoint.in_flight.append(self._count)
        self._refreshing: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._unwatch_registry = registry.watch(self._registry_changed)
        self._unwatch_transport = transport.watch(self._connected, self._disconnected)
        reports = transport.optional(ReportsCongestion)
        changed = self.dispatcher.backpressure.change
        self._unwatch_congestion = None if reports is None else reports.watch_congestion(changed)
        self._announcer.start_heartbeats()
        self.refresh()

    @property
    def counters(self) -> Counters:
        """Counters of unusual messages on this transport."""
        return self.endpoint.counters

    @property
    def in_flight(self) -> int:
        """Number of calls and streams that run here or wait for a slot."""
        return self.dispatcher.in_flight

    @property
    def rejected(self) -> Mapping[str, str]:
        """The operations that the hub rejected, each with the reason."""
        return self._announcer.rejected

    def measures(self) -> Iterator[Measure]:
        """Return the metrics of this worker: those of its registry, dispatcher and transport."""
        yield from measures_of([self.registry, self.dispatcher, self.counters])
        yield from measures_of([self.transport.optional(SignsNestedCalls)])
        connection = self.transport.optional(ReportsConnection)
        if connection is not None:
            yield Measure("operations_transport_reconnects_total", connection.reconnects)

    def _connected(self) -> None:
        notify(self.registry.observers, ConnectionChanged(type(self.transport).__name__, True))

    def _disconnected(self, reason: str) -> None:
        notify(self.registry.observers, ConnectionChanged(type(self.transport).__name__, False, reason))

    async def registered(self, timeout: float | None = 30.0) -> None:
        """Wait until the hub has accepted the operations.

        Raise `ACCESS_DENIED` if the hub rejected one of the operations, and `TIMEOUT` after `timeout` seconds. On Redis
        and NATS this waits until the server has processed the worker's subscriptions. Without a connection to the
        server it returns immediately.
        """
        await self._announcer.registered(timeout)

    def refresh(self) -> None:
        """Serve and announce the operations of the registry; this also runs after each change of the registry."""
        self._refreshing = None
        served = self._served()
        wanted = namespaces_of(operation.id for operation in served)
        for namespace in wanted - self._stops.keys():
            self._stops[namespace] = self._open(namespace)
        for namespace in self._stops.keys() - wanted:
            self._shut(namespace)
        store = self.transport.optional(Stores) if self.transport.capabilities.durable else None
        if store is not None:
            self._refresh_queues(store, served)
        self._announcer.announce()

    def _served(self) -> list[Operation[Any]]:
        """Return the operations that `exposure` selects, except those that were imported from this transport."""
        served = [operation for operation in self.registry.operations.values() if operation.origin is not self.endpoint]
        exposure = self._exposure
        return served if exposure is None else [operation for operation in served if exposure.serves(operation.id)]

    def _registry_changed(self) -> None:
        """Schedule an announcement, one for all changes in the same iteration of the event loop."""
        if self._refreshing is None:
            loop = asyncio.get_running_loop() if self._loop.is_closed() else self._loop
            self._refreshing = loop.call_soon_threadsafe(self.refresh)

    def _refresh_queues(self, store: Stores, served: list[Operation[Any]]) -> None:
        """Take stored requests for the namespaces that have durable operations."""
        wanted = namespaces_of(operation.id for operation in served if operation.spec.durable)
        for namespace in wanted - self._queues.keys():
            self._queues[namespace] = store.take(f"queue.{namespace}", self._stored.take, limit=self._concurrency)
        for namespace in self._queues.keys() - wanted:
            self._queues.pop(namespace)()

    def _open(self, namespace: str) -> list[Stop]:
        endpoint = self.endpoint
        endpoint.namespaces.setdefault(namespace, []).append(self._requests.receive)
        stops = [
            endpoint.listen(f"work.{namespace}", f"workers.{namespace}"),
            endpoint.listen(f"control.{namespace}"),
        ]
        in_process = self.transport.optional(InProcess)
        if in_process is not None:
            stops.append(in_process.offer(f"work.{namespace}", self.dispatcher))
        return stops

    def _shut(self, namespace: str) -> None:
        for stop in self._stops.pop(namespace):
            stop()
        self.endpoint.namespaces[namespace].remove(self._requests.receive)

    def _stop_accepting(self) -> None:
        """Stop following the registry and taking stored requests."""
        self._unwatch_registry()
        self._unwatch_transport()
        if self._refreshing is not None:
            self._refreshing.cancel()
        for stop in self._queues.values():
            stop()
        self._queues.clear()

    async def drain(self, *, grace: float = 30.0) -> None:
        """Leave gracefully: accept no new requests and wait for running calls.

        This takes at most `grace` seconds, even if the hub or bus is lost. Handlers that are then cancelled have some
        more time to clean up.
        """
        end = self._loop.time() + grace

        def left() -> float:
            return max(0.0, end - self._loop.time())

        await self._announcer.leave(grace)
        for namespace in list(self._stops):
            for stop in self._stops[namespace]:
                stop()
        self._stop_accepting()
        flushes = self.transport.optional(Flushes)
        if flushes is not None:
            # The bus may have sent requests before it knew that this worker leaves: they still get a response.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flushes.flush(), min(_FLUSHED_WITHIN, left()))
        if self._requests.recording:
            await asyncio.wait(list(self._requests.recording), timeout=left())
        await self.dispatcher.drain(left())
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave immediately: release stored requests for other workers, and cancel all other calls with an error."""
        self._announcer.close()
        for namespace in list(self._stops):
            self._shut(namespace)
        self._stop_accepting()
        self._stored.release_all()
        self._requests.close()
        await self.dispatcher.close()
        if self._unwatch_congestion is not None:
            self._unwatch_congestion()
        self._stop_control()
        self._stored.close()
        if self._count in self.endpoint.in_flight:
            self.endpoint.in_flight.remove(self._count)

    def _load(self) -> tuple[int, int, int]:
        requests = self._requests
        return self.dispatcher.in_flight, requests.finished, requests.failed

    def _count(self) -> int:
        return self.dispatcher.in_flight


class ServedRegistry:
    """A registry on a transport: `async with` serves it within the block, `await` serves it until SIGTERM or SIGINT."""

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

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
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
