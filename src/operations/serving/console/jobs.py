"""Jobs in the console: a list, retry and cancel, for the jobs that a caller may see."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.jobs import ADMIN_SCOPE, JOB_NOT_FOUND, Jobs, JobState, JobStatus
from operations.serving.console.rights import Viewer
from operations.serving.console.spans import Parameters, not_visible, read_choice, read_number
from operations.serving.exposure import Rights
from operations.serving.refusals import RefusedError

_LONGEST_ID = 256
_SNAPSHOT_SECONDS = 2.0
_MOST_SNAPSHOTS = 1_000
_STATES = tuple(state.value for state in JobState)


class ConsoleJobs:
    """The jobs of one application.

    A caller sees only jobs of operations that it may call. With an authenticator, it sees only the jobs that `Jobs.of`
    allows; without one, the jobs of every caller.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._snapshots: dict[tuple[str, Rights, bool], tuple[float, dict[str, dict[str, Any]]]] = {}
        """The newest jobs that each caller of a feed may see, by job id, with the time at which they were read."""

    async def page(self, viewer: Viewer, parameters: Parameters) -> dict[str, Any]:
        """Return jobs, the newest first."""
        state = read_choice(parameters, "state", _STATES)
        limit = read_number(parameters, "limit", 100, least=1, most=1_000)
        found = await self._of(viewer).list(
            states=[state] if state else None, operation_id=parameters.get("operation") or None, limit=limit
        )
        return {"jobs": [job_json(job) for job in found if _is_visible(job, viewer)]}

    async def act(self, viewer: Viewer, job_id: str, action: str) -> dict[str, Any]:
        """Retry or cancel a job; return the changed job."""
        if action not in ("retry", "cancel") or not 0 < len(job_id) <= _LONGEST_ID:
            raise not_visible("the console has no such resource")
        jobs = self._of(viewer)
        try:
            if not _is_visible(await jobs.status(job_id), viewer):
                raise not_visible("the job is unknown, or not allowed")
            return job_json(await (jobs.retry(job_id) if action == "retry" else jobs.cancel(job_id)))
        except CallError as error:
            if error.code == JOB_NOT_FOUND:
                raise not_visible("the job is unknown, or not allowed") from error
            if error.code is ErrorCode.VALIDATION_ERROR:
                raise RefusedError(409, ErrorCode.VALIDATION_ERROR, error.message, "JOB_STATE") from error
            raise

    async def snapshot(self, viewer: Viewer) -> dict[str, dict[str, Any]]:
        """Return the newest jobs by id, for the feeds of a caller. The jobs are read at most every two seconds."""
        caller = viewer.caller
        is_admin = viewer.identity is not None and ADMIN_SCOPE in viewer.identity.scopes
        key, now = (caller.key, caller.rights, is_admin), time.monotonic()  # one identity may have several tokens
        read_at, known = self._snapshots.get(key, (-_SNAPSHOT_SECONDS, {}))
        if now - read_at >= _SNAPSHOT_SECONDS:
            known = {job["id"]: job for job in (await self.page(viewer, {}))["jobs"]}
            if len(self._snapshots) >= _MOST_SNAPSHOTS:
                self._snapshots.clear()
            self._snapshots[key] = now, known
        return known

    def _of(self, viewer: Viewer) -> Jobs:
        return self._jobs if viewer.is_open else self._jobs.of(viewer.identity)


def job_json(job: JobStatus) -> dict[str, Any]:
    """Return a job in the console's format."""
    described: dict[str, Any] = msgspec.to_builtins(job)
    if job.code == ErrorCode.EXECUTION_ERROR:  # may be the text of an exception: `/~/jobs/<id>` returns the public part
        described["message"] = f"{job.operation_id} failed"
    return {"attempts": 0, **described}


def _is_visible(job: JobStatus, viewer: Viewer) -> bool:
    return job.operation_id in viewer.operations
