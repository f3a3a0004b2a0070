"""ConsoleEndpoint: the JSON below `/console/api/`, each response filtered by the caller's rights."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from operations import __version__
from operations.context import new_request_id
from operations.errors import CallError, ErrorCode
from operations.serving.admission import Caller
from operations.serving.asgi import JSON_TYPE, Headers, Receive, Response, Scope, Send, matches_etag, path_of
from operations.serving.console.catalogues import Catalogues, describe_operation
from operations.serving.console.feed import EventLog, FeedRequest, Feeds, read_topics
from operations.serving.console.jobs import ConsoleJobs
from operations.serving.console.pages import ROOT, accepts_gzip
from operations.serving.console.rights import Viewer
from operations.serving.console.sources import NamespaceSources
from operations.serving.console.spans import Parameters, SpanReader, not_visible, read_choice
from operations.serving.console.workers import Workers, worker_json
from operations.serving.exposure import Exposure
from operations.serving.http.events import check_last_event_id
from operations.serving.http.problems import problem_response
from operations.serving.refusals import RefusedError
from operations.serving.settings import AppSettings
from operations.telemetry.call_records import CallRecord, CallRecords
from operations.telemetry.time_series import ALL, RANGES, Key, columns

API = f"{ROOT}/api/"
_LONGEST_QUERY = 4_096
_MOST_PARAMETERS = 32
_log = logging.getLogger("operations.serving")
_encode = msgspec.json.Encoder().encode
_JSON_HEADERS: Headers = [
    JSON_TYPE,
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
_CATALOGUE_HEADERS: Headers = [
    JSON_TYPE,
    (b"cache-control", b"private, no-cache"),
    (b"vary", b"Authorization, X-API-Key, Accept-Encoding"),
    (b"x-content-type-options", b"nosniff"),
]


class _ConsoleRequest(msgspec.Struct):
    """One request to the console."""

    viewer: Viewer
    rest: str
    """The part of the path after the name of the resource, for example the id of a call."""
    parameters: Parameters
    headers: Mapping[bytes, bytes]


Answer = Callable[[_ConsoleRequest], Awaitable[Response]]


class ConsoleEndpoint:
    """Serves the data of the console. `cancel` cancels a running call, and returns False if that is not possible."""

    def __init__(
        self,
        exposure: Exposure,
        records: CallRecords,
        settings: AppSettings,
        *,
        cancel: Callable[[CallRecord], bool],
        workers: Sequence[Workers],
        jobs: ConsoleJobs | None,
    ) -> None:
        self.records = records
        self.settings = settings
        self._exposure = exposure
        self._cancel = cancel
        self._workers = workers
        self._jobs = jobs
        self.catalogues = Catalogues(exposure, settings.sources or NamespaceSources(exposure))
        self._log = EventLog()
        records.changed = self._log.append
        self.feeds = Feeds(self._log, records.series, self.catalogues, workers, jobs)
        self._answers: dict[tuple[str, str], Answer] = {
            ("GET", "session"): self._session,
            ("GET", "catalogue"): self._catalogue,
            ("GET", "operations"): self._operation,
            ("GET", "calls"): self._calls,
            ("DELETE", "calls"): self._cancel_call,
            ("GET", "traces"): self._trace,
            ("GET", "workers"): self._list_workers,
            ("GET", "metrics"): self._metrics,
            ("GET", "audit"): self._audit,
        }
        if jobs is not None:
            self._answers |= {("GET", "jobs"): self._list_jobs, ("POST", "jobs"): self._act_on_job}

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            name, _, rest = path_of(scope).removeprefix(API).partition("/")
            parameters = _read_query(scope["query_string"])
            if name == "feed" and scope["method"] == "GET":
                await self.feeds.serve(self._feed_request(parameters, caller), receive, send)
                return
            answer = self._answers.get((method, name))
            if answer is None:
                raise self._no_answer(method, name)
            response = await answer(_ConsoleRequest(self._viewer(caller), rest, parameters, caller.headers))
        except CallError as error:
            response = problem_response(error, new_request_id())
        except Exception:  # noqa: BLE001  # details of our own failure are never sent
            _log.exception("a request failed in the console")
            failed = CallError(ErrorCode.EXECUTION_ERROR, "the server failed")
            response = problem_response(failed, new_request_id())
        await response.send(send, head_only=scope["method"] == "HEAD")

    def _viewer(self, caller: Caller) -> Viewer:
        return Viewer(caller, self._exposure, is_open=self.settings.is_open)

    def _feed_request(self, parameters: Parameters, caller: Caller) -> FeedRequest:
        self._require(self._viewer(caller).is_known)
        resumed = caller.headers.get(b"last-event-id")
        return FeedRequest(
            viewer=lambda: self._viewer(caller),
            topics=read_topics(parameters.get("topics")),
            trace=parameters.get("trace", ""),
            last_event_id=check_last_event_id(resumed) if resumed else None,
        )

    def _no_answer(self, method: str, name: str) -> RefusedError:
        allowed = sorted(known for known, resource in self._answers if resource == name)
        if not allowed:
            return not_visible("the console has no such resource")
        header = (b"allow", ", ".join(allowed).encode())
        return RefusedError(405, ErrorCode.VALIDATION_ERROR, f"{name} does not support {method}", "METHOD", [header])

    async def _session(self, request: _ConsoleRequest) -> Response:
        viewer, settings, limits = request.viewer, self.settings, self.settings.limits
        identity = viewer.identity
        features = ["calls", "feed"] if viewer.is_known else []
        if viewer.may_watch:
            features += ["workers", "metrics", "audit"]
        if viewer.is_known and self._jobs is not None:
            features.append("jobs")
        described = None if identity is None else {"id": identity.id, "scopes": list(identity.scopes)}
        return _json(
            {
                "identity": described,
                "authRequired": not settings.admits_anonymous,
                "server": {
                    "name": settings.title,
                    "version": settings.version,
                    "release": __version__,
                    "kind": "registry" if settings.hub is None else "hub",
                },
                "features": features,
                "catalogueVersion": (await self.catalogues.get(viewer)).version,
                "limits": {"bodyBytes": limits.body_bytes, "deadlineSeconds": limits.deadline_seconds},
            }
        )

    async def _catalogue(self, request: _ConsoleRequest) -> Response:
        catalogue = await self.catalogues.get(request.viewer)
        headers = [*_CATALOGUE_HEADERS, (b"etag", catalogue.etag)]
        if matches_etag(request.headers, catalogue.etag):
            return Response(304, headers)
        if accepts_gzip(request.headers):
            return Response(200, [*headers, (b"content-encoding", b"gzip")], catalogue.compressed)
        return Response(200, headers, catalogue.body)

    async def _operation(self, request: _ConsoleRequest) -> Response:
        source = self.catalogues.source_of(request.rest)
        return Response(200, list(_JSON_HEADERS), describe_operation(request.viewer, request.rest, source))

    async def _calls(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.is_known)
        reader = self._reader(request)
        if request.rest:
            return _json(reader.one(request.rest))
        return _json(await reader.page(request.parameters))

    async def _cancel_call(self, request: _ConsoleRequest) -> Response:
        record = self._reader(request).find(request.rest)
        if not request.viewer.may_cancel(record):
            raise not_visible("the call is unknown, or may not be cancelled")
        if record.outcome is not None or not self._cancel(record):
            has_ended = record.outcome is not None
            message = "the call has ended" if has_ended else "a nested call cannot be cancelled: cancel the outer call"
            raise RefusedError(409, ErrorCode.VALIDATION_ERROR, message, "NOT_CANCELLABLE")
        return _json({"requestId": record.request_id, "state": "cancelling"}, 202)

    async def _trace(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.is_known)
        return _json(self._reader(request).trace(request.rest))

    async def _list_workers(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.may_watch)
        states = (state for each in self._workers for state in each.states())
        return _json({"workers": [worker_json(state, request.viewer, self.records.series) for state in states]})

    async def _metrics(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.may_watch)
        name = read_choice(request.parameters, "range", tuple(RANGES), "15m")
        key: Key = ALL
        if operation_id := request.parameters.get("operation"):
            if operation_id not in request.viewer.operations:
                raise not_visible("the operation is unknown, or not allowed")
            key = ("operation", operation_id)
        elif worker := request.parameters.get("worker"):
            key = ("worker", worker)
        return _json(columns(self.records.series.rows(name, key), RANGES[name][0]))

    async def _audit(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.may_watch)
        return _json(await self._reader(request).audit(request.parameters))

    async def _list_jobs(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.is_known)
        assert self._jobs is not None
        return _json(await self._jobs.page(request.viewer, request.parameters))

    async def _act_on_job(self, request: _ConsoleRequest) -> Response:
        self._require(request.viewer.is_known)
        assert self._jobs is not None
        job_id, _, action = request.rest.rpartition("/")
        return _json(await self._jobs.act(request.viewer, job_id, action))

    def _reader(self, request: _ConsoleRequest) -> SpanReader:
        return SpanReader(self.records, request.viewer, has_bodies=self.settings.console_bodies)

    def _require(self, allowed: bool) -> None:
        if not allowed:
            message = "credentials are required, and for workers, metrics and the audit log the scope operations:watch"
            raise RefusedError(403, ErrorCode.ACCESS_DENIED, message, "MISSING_RIGHTS")


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, list(_JSON_HEADERS), _encode(value))


def _read_query(query: bytes) -> Parameters:
    """Return the query parameters of a request; refuse too long a query or too many parameters with 400."""
    try:
        if len(query) > _LONGEST_QUERY:
            raise ValueError
        pairs = parse_qsl(query.decode("ascii"), max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        message = f"invalid query: expected at most {_LONGEST_QUERY} characters and {_MOST_PARAMETERS} parameters"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "PARAMETER") from None
    return dict(pairs)
