"""HTTPEndpoint: operations at `/<namespace>/<name>`. It decodes a request, dispatches the call and encodes the result.

The caller comes from Admission, never from a payload.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

import msgspec

from operations.access import AccessDecision, access_error, check_access
from operations.context import MAX_TRACE_LENGTH, TRACE_FIELDS, Grant, new_request_id
from operations.dispatch import Dispatcher, Request
from operations.errors import CallError, ErrorCode
from operations.failures import aborted, executed_of
from operations.identity.rate_limits import ConcurrencyLimits, RateLimits
from operations.jobs import Jobs
from operations.serving.admission import Caller, challenge
from operations.serving.asgi import Receive, Response, Scope, Send, path_of
from operations.serving.audit import AuditWriter
from operations.serving.bodies import BodyReader, CallWatcher, ClientDisconnectedError
from operations.serving.exposure import Exposure
from operations.serving.http.events import EventStreams, StreamRequest, check_last_event_id
from operations.serving.http.idempotency import (
    IdempotencyStore,
    MemoryStore,
    fingerprint_of,
    read_key,
    replay,
    store_key,
)
from operations.serving.http.inputs import read_body
from operations.serving.http.jobs import JOBS_PATH, JobEndpoint, read_preference
from operations.serving.http.problems import problem_response
from operations.serving.http.responses import AcceptHeader, read_accept, write_response
from operations.serving.http.routes import Route, Routes
from operations.serving.limits import Limits
from operations.serving.refusals import RefusedError
from operations.telemetry.observer import CallSized, notify
from operations.wire import LARGE_MESSAGE

_log = logging.getLogger("operations.serving")
_SUGGESTIONS_PER_SECOND = 5
"""Largest number of errors per second, for all callers together, that suggest ids for an unknown path.

The number is limited because each search for similar ids takes milliseconds.
"""


class _Call(msgspec.Struct):
    """One request for an operation."""

    route: Route
    caller: Caller
    id: str
    headers: Mapping[bytes, bytes]
    accepts: AcceptHeader
    raw: bytes
    """The body, or the query string."""
    input: Any


class HTTPEndpoint:
    """Serves the operations of an exposure over HTTP. Streams have a separate dispatcher, and so separate slots."""

    def __init__(
        self,
        exposure: Exposure,
        dispatcher: Dispatcher,
        *,
        streams: Dispatcher,
        limits: Limits,
        audit: AuditWriter,
        store: IdempotencyStore | None,
        jobs: Jobs | None,
        challenge: str,
    ) -> None:
        self._exposure = exposure
        self._dispatcher = dispatcher
        self._limits = limits
        self._audit = audit
        self._store = store or MemoryStore()
        self._challenge = challenge
        self._routes = Routes(exposure)
        self._bodies = BodyReader(exposure.registry, limits)
        self._calls = ConcurrencyLimits(limits.calls, "calls at once")
        self._inputs = ConcurrencyLimits(limits.incoming_bytes, "bytes of inputs at once")
        self._streams = EventStreams(streams, limits)
        self._jobs: JobEndpoint | None = None
        if jobs is not None:
            limit = limits.response_bytes
            self._jobs = JobEndpoint(jobs, exposure, max_bytes=limit, wait_seconds=limits.deadline_seconds)
        self._suggestions = RateLimits(_SUGGESTIONS_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request."""
        is_audited = self._audit.is_on
        began = perf_counter() if is_audited else 0.0
        request_id = new_request_id()
        route: Route | None = None
        code, status = "OK", 200
        answer: Response | str
        try:
            route = self._find(scope, caller)
            if route is None:
                answer = await self._serve_job(scope, caller, request_id)
            else:
                if not route.is_open:
                    self._check_access(route, caller)
                answer = await self._answer(route, scope, receive, send, caller, request_id)
        except ClientDisconnectedError:
            return
        except asyncio.CancelledError:  # the server stops
            if is_audited and route is not None:
                self._record(route, caller, request_id, str(ErrorCode.ABORTED), None, began)
            raise
        except Exception as raised:  # noqa: BLE001  # the text of an internal error is not sent
            error = _public(raised)
            code = str(error.code)
            answer = problem_response(error, request_id, route.operation if route is not None else None)
        if isinstance(answer, Response):
            status = answer.status
        else:
            code = answer
        if is_audited and route is not None:  # before the response is sent: the client may read it slowly, or never
            self._record(route, caller, request_id, code, status, began)
        if isinstance(answer, Response):
            await answer.send(send, head_only=scope["method"] == "HEAD")

    def _record(
        self, route: Route, caller: Caller, request_id: str, code: str, status: int | None, began: float
    ) -> None:
        self._audit.record("http", route.id, caller, request_id=request_id, code=code, status=status, began=began)

    def _find(self, scope: Scope, caller: Caller) -> Route | None:
        """Return the route of a request; None for the path of a job."""
        path = path_of(scope)
        route = self._routes.find(path)
        if route is None and (self._jobs is None or not path.startswith(JOBS_PATH)):
            raise self._not_found(path, caller)
        return route

    async def _serve_job(self, scope: Scope, caller: Caller, request_id: str) -> Response:
        assert self._jobs is not None
        return await self._jobs.serve(scope, caller, request_id)

    def _check_access(self, route: Route, caller: Caller) -> None:
        """Refuse a caller without the required rights, before the body is read."""
        decision = check_access(route.operation.spec.access_control, caller.identity)
        if not decision.allowed:
            raise self._denied(route, decision, caller)

    async def _answer(
        self, route: Route, scope: Scope, receive: Receive, send: Send, caller: Caller, request_id: str
    ) -> Response | str:
        """Return the response, or the outcome code of a stream that was sent."""
        method: str = scope["method"]
        if method != "POST":
            if method not in route.methods:
                message = f"{route.id} does not support {method}"
                raise RefusedError(405, ErrorCode.VALIDATION_ERROR, message, "METHOD", [route.allow])
            if method == "OPTIONS":
                return Response(204, [route.allow])
        headers = caller.headers
        accepts = read_accept(headers.get(b"accept"))
        streams = _wants_stream(route, accepts)
        if method == "POST":
            raw = await self._bodies.read(receive, headers, caller.key)
            input = self._read_input(route, raw, caller)
        else:
            raw = scope["query_string"]
            input = route.inputs.read_query(raw)
        if input is None:
            route.inputs.check_null()  # the registry reads None as no input
        call = _Call(route, caller, request_id, headers, accepts, raw, input)
        has_key = route.is_mutation and b"idempotency-key" in headers
        if streams:
            if has_key and not route.has_stream:
                message = "an event stream cannot be repeated: send Idempotency-Key without Accept: text/event-stream"
                raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "IDEMPOTENCY_KEY")
            return await self._stream(call, receive, send)
        prefers = method == "POST" and self._jobs is not None and b"prefer" in headers
        wait = read_preference(headers) if prefers else None
        if wait is not None and self._jobs is not None and self._jobs.accepts(route, input):
            root_path = scope.get("root_path", "")
            submit = functools.partial(self._submit, self._jobs, call, wait, root_path)
            return await (self._run_once(call, submit) if has_key else submit())
        if has_key:
            return await self._run_once(call, functools.partial(self._call, call, None))
        return await self._call(call, receive)

    def _read_input(self, route: Route, body: bytes, caller: Caller) -> Any:
        """Return the input in a body. Refuse the request if tokens were revoked while the body arrived."""
        caller.check_current()
        most = None
        if len(body) > LARGE_MESSAGE and not caller.has_rights:
            most, caller.input_bytes = self._limits.values, len(body)
        return read_body(route.inputs_of, route.id, body, caller.headers.get(b"content-type"), most)

    async def _call(self, call: _Call, receive: Receive | None) -> Response:
        """Dispatch a call and encode its result. With `receive`, a disconnect of the client stops the call."""
        key, input_bytes = call.caller.key, call.caller.input_bytes
        self._calls.check(key)
        if input_bytes:
            self._inputs.acquire(key, input_bytes)
        watcher = CallWatcher(receive, call.route.id, self._calls, key)
        try:
            request = self._request(self._dispatcher, call, self._deadline(call))
            request.suspended = watcher
            envelope = await self._dispatcher.call(request)
        finally:
            if watcher.is_counted:
                self._calls.release(key)
            if input_bytes:
                self._inputs.release(key, input_bytes)
        max_bytes = self._limits.response_bytes
        response = write_response(
            envelope, call.route.id, call.id, as_envelope=call.accepts.envelope, max_bytes=max_bytes
        )
        if observers := self._dispatcher.registry.observers:
            notify(observers, CallSized(call.id, call.route.id, len(call.raw), len(response.body)))
        return response

    async def _submit(self, jobs: JobEndpoint, call: _Call, wait: float, root_path: str) -> Response:
        """Submit a call as a job. While the client waits for the result, the job counts towards the caller's limit."""
        self._calls.acquire(call.caller.key)
        try:
            return await jobs.submit(
                call.route,
                call.caller,
                call.input,
                request_id=call.id,
                root_path=root_path,
                wait=wait,
                as_envelope=call.accepts.envelope,
                metadata=_trace(call.headers) if b"traceparent" in call.headers else None,
            )
        finally:
            self._calls.release(call.caller.key)

    async def _run_once(self, call: _Call, run: Callable[[], Awaitable[Response]]) -> Response:
        """Run a mutation with an idempotency key, or return its stored response. A disconnect does not stop the run."""
        key = read_key(call.headers)
        assert key is not None
        owner, name = call.caller.key, store_key(call.route.id, key)
        fingerprint = fingerprint_of(call.raw, call.headers.get(b"content-type"))
        known = await self._store.begin(owner, name, fingerprint)
        if known is not None:
            return replay(known, fingerprint)
        try:
            response = await run()
        except CallError as error:
            if executed_of(error) == "no":
                await self._store.release(owner, name)
                raise
            response = problem_response(error, call.id, call.route.operation)
        except BaseException:
            lost = aborted(call.route.id, "the server stopped")
            await self._store.finish(owner, name, problem_response(lost, call.id, call.route.operation))
            raise
        await self._store.finish(owner, name, Response(response.status, list(response.headers), response.body))
        return response

    async def _stream(self, call: _Call, receive: Receive, send: Send) -> str:
        """Dispatch a stream, or a call whose progress and result are sent as events; return the outcome code.

        Both end when the credentials of the caller expire.
        """
        resumed = call.headers.get(b"last-event-id")
        last_event_id = check_last_event_id(resumed) if resumed else None
        is_limited = not call.route.has_stream or b"operations-timeout" in call.headers
        deadline = self._deadline(call) if is_limited else None
        principal = call.caller.principal
        if principal is not None and principal.expires_at is not None:
            expires = int(principal.expires_at * 1000)
            deadline = expires if deadline is None else min(deadline, expires)
        request = self._request(self._streams.dispatcher, call, deadline)
        if last_event_id is not None:
            request.metadata = {**(request.metadata or {}), "lastEventId": last_event_id}
        wanted = StreamRequest(
            route=call.route,
            request=request,
            owner=call.caller.key,
            principal=principal,
            fingerprint=fingerprint_of(call.raw, b""),
            envelopes=call.accepts.envelope_events,
            last_event_id=last_event_id,
        )
        return await self._streams.serve(wanted, receive, send)

    def _request(self, dispatcher: Dispatcher, call: _Call, deadline: int | None) -> Request:
        headers = call.headers
        return Request(
            host=dispatcher,
            caller=call.caller.key,
            operation_id=call.route.id,
            input=call.input,
            id=call.id,
            grant=Grant(identity=call.caller.identity, deadline=deadline, protocol="http", exposure=self._exposure),
            deadline=deadline,
            metadata=_trace(headers) if b"traceparent" in headers else None,
        )

    def _deadline(self, call: _Call) -> int:
        """Return the deadline of a call in epoch milliseconds."""
        seconds = self._limits.deadline_seconds
        asked = call.headers.get(b"operations-timeout")
        if asked is not None:
            seconds = min(seconds, _read_seconds(asked))
        return int((time.time() + seconds) * 1000)

    def _not_found(self, path: str, caller: Caller) -> RefusedError:
        """Return the error for an unknown path; suggest similar ids at a limited rate, because the search is slow."""
        if path == "/":
            message = "no operation is at /: operations are at /<namespace>/<name>, and /docs lists them"
            return RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, message, "NOT_SERVED", nearest=[])
        operation_id = path.removeprefix("/").replace("/", ".", 1)[:256]
        message, nearest = f"unknown operation {operation_id!r}", []
        try:
            self._suggestions.acquire("")
        except CallError:
            pass
        else:
            found = self._exposure.not_found(operation_id, caller.identity)
            message, nearest = found.message, found.details["nearest"]
        return RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, message, "NOT_SERVED", nearest=nearest)

    def _denied(self, route: Route, decision: AccessDecision, caller: Caller) -> RefusedError:
        error = access_error(route.id, decision, caller.identity)
        scopes = " ".join((*decision.missing_scopes, *decision.missing_any))
        if caller.principal is None:
            status, header = 401, challenge(self._challenge, scope=scopes)
        else:
            status, header = 403, challenge(self._challenge, error="insufficient_scope", scope=scopes)
        refused = RefusedError(status, ErrorCode.ACCESS_DENIED, error.message, "MISSING_RIGHTS", [header])
        refused.details = {**error.details, **refused.details}
        return refused


def _public(error: Exception) -> CallError:
    """Return the error that the caller gets; log an internal error."""
    if isinstance(error, CallError):
        return error
    _log.error("internal error while serving an HTTP request", exc_info=error)
    return CallError(ErrorCode.EXECUTION_ERROR, "internal server error")


def _wants_stream(route: Route, accepts: AcceptHeader) -> bool:
    """Whether the response is an event stream.

    Raise RefusedError if the client accepts none of the media types in which the operation can respond.
    """
    if route.streams_only:
        acceptable, streams = accepts.takes_events, True
    else:
        # An operation without a stream is sent as events only to a client that accepts nothing else.
        streams = accepts.events and (route.has_stream or not (accepts.json or accepts.envelope))
        acceptable = streams or accepts.json or accepts.envelope or accepts.other
    if not acceptable:
        message = (
            f"not acceptable: {route.id} returns {'text/event-stream' if route.streams_only else 'application/json'}"
        )
        raise RefusedError(406, ErrorCode.VALIDATION_ERROR, message, "NOT_ACCEPTABLE")
    return streams


def _read_seconds(header: bytes) -> float:
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        message = "invalid Operations-Timeout: expected a number of seconds above 0"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "TIMEOUT_HEADER")
    return seconds


def _trace(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the trace context in the headers of a request."""
    return {
        field: headers[name].decode("latin-1")[:MAX_TRACE_LENGTH]
        for field in TRACE_FIELDS
        if (name := field.encode()) in headers
    }
