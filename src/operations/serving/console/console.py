"""Console: records the calls of a served application, and serves the page and JSON that show them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from operations import __version__
from operations.calls.endpoint import Endpoint, endpoint_of
from operations.dispatch import Dispatcher
from operations.errors import CallError
from operations.interceptors.redaction import FieldRedactor
from operations.jobs import Jobs
from operations.serving.admission import Caller
from operations.serving.asgi import Receive, Response, Scope, Send
from operations.serving.console.bus import Buses
from operations.serving.console.endpoint import API, ConsoleEndpoint
from operations.serving.console.hub import HubRecorder
from operations.serving.console.jobs import ConsoleJobs
from operations.serving.console.pages import ROOT, Pages
from operations.serving.console.workers import OwnProcess, Workers
from operations.serving.exposure import Exposure
from operations.serving.refusals import public_error
from operations.serving.settings import AppSettings
from operations.telemetry.call_recorder import CallRecorder
from operations.telemetry.call_records import CallRecord, CallRecords
from operations.telemetry.time_series import TimeSeries

_REASON = "cancelled in the console"


class Console:
    """The console of one application. From its creation until `close`, the console observes the registry.

    `dispatchers` returns the dispatchers of external calls. If the settings have a hub, the calls that the hub routes
    are also recorded.
    """

    def __init__(
        self,
        exposure: Exposure,
        settings: AppSettings,
        dispatchers: Callable[[], Iterable[Dispatcher]],
    ) -> None:
        registry, hub, jobs = exposure.registry, settings.hub, settings.jobs
        self._registry = registry
        self._dispatchers = dispatchers
        self.records = CallRecords(series=TimeSeries(self._levels))
        name = "hub" if hub is not None else socket.gethostname()
        clean: Callable[[Any], Any] | None = FieldRedactor().clean if settings.console_bodies else None
        slots = settings.limits.concurrency
        self._recorder = CallRecorder(self.records, worker=name, slots=slots, clean=clean, explain=_explain)
        registry.observers = (*registry.observers, self._recorder)
        self._own = OwnProcess(name, dispatchers, slots=slots, version=__version__)
        self._hub = None if hub is None else HubRecorder(hub, self.records)
        self._buses = Buses(lambda: _endpoints(exposure, jobs))
        workers: list[Workers] = [self._own, *([] if self._hub is None else [self._hub]), self._buses]
        self._endpoint = ConsoleEndpoint(
            exposure,
            self.records,
            settings,
            cancel=self._cancel,
            workers=workers,
            jobs=None if jobs is None else ConsoleJobs(jobs),
        )
        self._pages = Pages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request below `/console/api/`."""
        await self._endpoint(scope, receive, send, caller)

    @property
    def is_built(self) -> bool:
        """Whether the files of the page exist."""
        return self._pages.is_built

    def page(self, scope: Scope, path: str) -> Response | None:
        """Return the page or one of its files, which need no credentials; None for any other path."""
        if scope["method"] not in ("GET", "HEAD") or path.startswith(API):
            return None
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            return None
        return self._pages.respond(path, scope.get("root_path") or "", dict(scope["headers"]))

    async def warm(self) -> None:
        """Start to listen to workers, and build the catalogue entries before the first request."""
        self._buses.find()
        await self._endpoint.catalogues.warm()

    def end_feeds(self) -> None:
        """End every feed; clients with valid credentials reconnect."""
        self._endpoint.feeds.close()

    def close(self) -> None:
        """Stop recording calls and listening to workers, and end every feed."""
        self._own.is_draining = True
        self._registry.observers = tuple(each for each in self._registry.observers if each is not self._recorder)
        if self._hub is not None:
            self._hub.close()
        self._buses.close()
        self._endpoint.feeds.close()

    def _cancel(self, record: CallRecord) -> bool:
        """Cancel a running or waiting call.

        Return False if there is nothing to cancel, or for a nested call of this process, which cannot be cancelled.
        """
        if record.kind == "served":
            return any(each.cancel(record.request_id, record.caller, _REASON) for each in self._dispatchers())
        return self._hub is not None and self._hub.cancel(record, _REASON)

    def _levels(self) -> tuple[int, int]:
        dispatchers = tuple(self._dispatchers())
        waiting = sum(each.slots.waiting.size for each in dispatchers)
        return max(0, sum(each.in_flight for each in dispatchers) - waiting), waiting


def _endpoints(exposure: Exposure, jobs: Jobs | None) -> set[Endpoint]:
    """Return the endpoints of the buses from which the exposed operations come, and of the bus that stores jobs."""
    operations = exposure.registry.operations.values()
    found = {operation.origin for operation in operations if isinstance(operation.origin, Endpoint)}
    transport = None if jobs is None else jobs.transport
    return found if transport is None else {*found, endpoint_of(transport)}


def _explain(error: CallError, operation_id: str) -> str:
    """Return the first line of an error's message, without the text of an exception that a handler raised."""
    return public_error(error, operation_id).message.partition("\n")[0]
