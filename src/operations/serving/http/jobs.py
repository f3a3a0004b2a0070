"""JobEndpoint: calls as jobs (`Prefer: respond-async`), and the status, result and cancellation of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from operations.errors import CallError, ErrorCode
from operations.jobs import JOB_NOT_ENDED, JOB_NOT_FOUND, Jobs, JobStatus
from operations.serving.admission import Caller
from operations.serving.asgi import JSON_TYPE, NO_SNIFF, REQUEST_ID_HEADER, Headers, Response, Scope, path_of
from operations.serving.exposure import Exposure
from operations.serving.http.problems import problem_response
from operations.serving.http.responses import read_accept, write_response
from operations.serving.http.routes import Route
from operations.serving.refusals import RefusedError, public_error
from operations.spec import Operation

JOBS_PATH = "/~/jobs/"
_RESULT = "result"
_RETRY_AFTER = (b"retry-after", b"1")
_NO_STORE = (b"cache-control", b"no-store")
_APPLIED = (b"preference-applied", b"respond-async")
_ALLOW = {"": (b"allow", b"DELETE, GET, HEAD, OPTIONS"), _RESULT: (b"allow", b"GET, HEAD, OPTIONS")}
_MAX_ID_LENGTH = 512
_encode = msgspec.json.Encoder().encode


class JobEndpoint:
    """Submits calls as jobs, and serves requests about jobs.

    `Jobs.of` decides which jobs a caller may use. The caller must also have the right to call the operation of a job.
    """

    def __init__(self, jobs: Jobs, exposure: Exposure, *, max_bytes: int, wait_seconds: float) -> None:
        self._jobs = jobs
        self._exposure = exposure
        self._max_bytes = max_bytes
        self._wait_seconds = wait_seconds

    def accepts(self, route: Route, input: Any) -> bool:
        """Whether a call can become a job: the operation permits it, and the input is valid.

        Any other call runs during the request, so that an invalid input is refused immediately.
        """
        operation = route.operation
        is_call = operation.handler is not None and self._jobs.runs(operation)
        return is_call and operation.spec.input_schema.check(input)

    async def submit(
        self,
        route: Route,
        caller: Caller,
        input: Any,
        *,
        request_id: str,
        root_path: str,
        wait: float,
        as_envelope: bool,
        metadata: Mapping[str, Any] | None,
    ) -> Response:
        """Submit a job; return its outcome if it ends within `wait` seconds, else 202 with the path of the job."""
        jobs = self._jobs.of(caller.identity, exposure=self._exposure)
        job_id = await jobs.submit(route.operation, input, metadata=metadata)
        if wait > 0:
            with contextlib.suppress(CallError):  # the job failed or still runs: respond with its status
                await jobs.wait(job_id, min(wait, self._wait_seconds))
        status = await jobs.status(job_id)
        if wait > 0 and status.is_final:
            response = await self._outcome(jobs, status, route.operation, request_id, as_envelope=as_envelope)
            response.headers.append(_APPLIED)
            return response
        location = f"{root_path}{JOBS_PATH}{quote(job_id, safe='')}".encode()
        headers: Headers = [JSON_TYPE, _NO_STORE, NO_SNIFF, _RETRY_AFTER, _APPLIED, (b"location", location)]
        headers.append((REQUEST_ID_HEADER, request_id.encode()))
        return Response(202, headers, _encode(_described(status, None)))

    async def serve(self, scope: Scope, caller: Caller, request_id: str) -> Response:
        """Return the status or the result of a job, or cancel it."""
        job_id, _, part = path_of(scope)[len(JOBS_PATH) :].partition("/")
        method: str = scope["method"]
        if part not in _ALLOW or not job_id or len(job_id) > _MAX_ID_LENGTH:
            raise _not_found(job_id)
        allow = _ALLOW[part]
        if method == "OPTIONS":
            return Response(204, [allow])
        if method not in allow[1].decode().split(", "):
            raise RefusedError(405, ErrorCode.VALIDATION_ERROR, f"a job does not support {method}", "METHOD", [allow])
        jobs = self._jobs.of(caller.identity, exposure=self._exposure)
        status, operation = await self._find(jobs, job_id, caller)
        if part == _RESULT:
            if not status.is_final:
                message = f"the job is {status.state.value}: it has no result yet"
                raise RefusedError(409, JOB_NOT_ENDED, message, JOB_NOT_ENDED, [_RETRY_AFTER])
            as_envelope = read_accept(caller.headers.get(b"accept")).envelope
            return await self._outcome(jobs, status, operation, request_id, as_envelope=as_envelope)
        if method == "DELETE":
            status = await jobs.cancel(job_id)
        return await self._status_response(jobs, status, request_id)

    async def _find(self, jobs: Jobs, job_id: str, caller: Caller) -> tuple[JobStatus, Operation[Any]]:
        try:
            status = await jobs.status(job_id)
        except CallError as error:
            if error.code != JOB_NOT_FOUND:
                raise
            raise _not_found(job_id) from None
        operation = self._exposure.visible(caller.identity).get(status.operation_id)
        if operation is None:
            raise _not_found(job_id)
        return status, operation

    async def _status_response(self, jobs: Jobs, status: JobStatus, request_id: str) -> Response:
        headers: Headers = [JSON_TYPE, _NO_STORE, NO_SNIFF, (REQUEST_ID_HEADER, request_id.encode())]
        message = None
        if not status.is_final:
            headers.append(_RETRY_AFTER)
        elif status.code is not None:
            try:
                await jobs.result(status.id)
            except CallError as error:
                message = public_error(error, status.operation_id).message
        return Response(200, headers, _encode(_described(status, message)))

    async def _outcome(
        self, jobs: Jobs, status: JobStatus, operation: Operation[Any], request_id: str, *, as_envelope: bool
    ) -> Response:
        """Return the response with the result or the error of a job, as for a call that does not run as a job."""
        try:
            envelope = await jobs.result(status.id)
            return write_response(
                envelope, operation.id, request_id, as_envelope=as_envelope, max_bytes=self._max_bytes
            )
        except CallError as error:
            return problem_response(error, request_id, operation)


def read_preference(headers: Mapping[bytes, bytes]) -> float | None:
    """Return for how many seconds a client waits for the result (RFC 7240); None if it does not request a job."""
    header = headers.get(b"prefer")
    if header is None:
        return None
    is_async, wait = False, 0.0
    for item in header[:1_000].decode("latin-1").lower().split(","):
        name, _, value = item.partition(";")[0].partition("=")
        if name.strip() == "respond-async":
            is_async = True
        elif name.strip() == "wait" and value.strip().isascii() and value.strip().isdecimal():
            wait = float(value.strip()[:9])
    return wait if is_async else None


def _described(status: JobStatus, message: str | None) -> dict[str, Any]:
    """Return a status as JSON for the caller that submitted the job. `message` replaces the message of the status."""
    described: dict[str, Any] = msgspec.to_builtins(status)
    described.pop("owner", None)
    described.pop("message", None)
    return described if message is None else {**described, "message": message}


def _not_found(job_id: str) -> RefusedError:
    return RefusedError(404, JOB_NOT_FOUND, f"unknown job {job_id[:100]!r}", JOB_NOT_FOUND)
