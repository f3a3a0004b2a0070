"""Jobs as operations: `jobs.submit`, `jobs.status` and so on, for callers without access to a `Jobs` object."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from operations.calls.job_records import JobState
from operations.context import OperationContext
from operations.errors import CallError, ErrorCode
from operations.failures import executed_of
from operations.function import operation
from operations.jobs.service import Jobs
from operations.jobs.status import JOB_NOT_ENDED, JOB_NOT_FOUND, JobStatus
from operations.spec import Operation

_ERRORS: dict[str, Any] = {JOB_NOT_FOUND: {}, JOB_NOT_ENDED: {}}
_MOST_LISTED = 1_000


def job_operations(jobs: Jobs, *, namespace: str = "jobs") -> list[Operation[Any]]:
    """Return the methods of `jobs` as operations, with which each caller uses its own jobs.

    The verified identity of a caller decides which jobs are its own. A caller can use a job only if it may call the
    job's operation at the server that received the request. The scope `jobs.admin` gives access to all existing jobs,
    and so does a trusted context, such as that of `registry.execute` without an identity.
    """

    of = partial(_jobs_of, jobs)

    async def submit(operation_id: str, context: OperationContext, input: Any = None, keep: float | None = None) -> str:
        """Submit a call that runs later; return the id of the job."""
        try:
            return await of(context).submit(operation_id, input, keep=keep)
        except CallError as error:
            raise _not_submitted(error, f"{namespace}.submit") from None

    async def status(job_id: str, context: OperationContext) -> dict[str, Any]:
        """Return the state of a job."""
        return _plain(await of(context).status(job_id), context)

    async def result(job_id: str, context: OperationContext) -> Any:
        """Return the result of a job that is done."""
        return await of(context).result(job_id)

    async def wait(job_id: str, context: OperationContext, timeout: float | None = None) -> Any:
        """Wait for the end of a job and return its result."""
        return await of(context).wait(job_id, timeout)

    async def cancel(job_id: str, context: OperationContext) -> dict[str, Any]:
        """End a job that has not ended, and return its state."""
        return _plain(await of(context).cancel(job_id), context)

    async def retry(job_id: str, context: OperationContext) -> dict[str, Any]:
        """Retry a job that failed or is a dead letter; return its state."""
        return _plain(await of(context).retry(job_id), context)

    async def find(
        context: OperationContext,
        states: list[JobState] | None = None,
        operation_id: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return the caller's jobs, the newest first."""
        found = await of(context).list(states=states, operation_id=operation_id, limit=min(limit, _MOST_LISTED))
        return [_plain(job, context) for job in found]

    queries: dict[str, Any] = {"status": status, "result": result, "wait": wait, "list": find}
    mutations: dict[str, Any] = {"submit": submit, "cancel": cancel, "retry": retry}
    return [
        operation(id=f"{namespace}.{name}", type=kind, error_schemas=_ERRORS, tags=["jobs"])(function)
        for kind, functions in (("query", queries), ("mutation", mutations))
        for name, function in functions.items()
    ]


def _jobs_of(jobs: Jobs, context: OperationContext) -> Jobs:
    """Return the jobs that the caller of an operation may use."""
    if context.is_trusted:
        return jobs
    return jobs.of(context.identity, exposure=None if context.grant is None else context.grant.exposure)


def _not_submitted(error: CallError, operation_id: str) -> CallError:
    """Return the error of a refused submission as an error of `jobs.submit`.

    An unknown operation becomes an invalid input, because the operation that was called, `jobs.submit`, exists. If the
    job may have been stored, return the error unchanged.
    """
    if error.code is not ErrorCode.OPERATION_NOT_FOUND and executed_of(error) != "no":
        return error
    code = ErrorCode.VALIDATION_ERROR if error.code is ErrorCode.OPERATION_NOT_FOUND else error.code
    details = error.details if isinstance(error.details, dict) else {}
    return CallError(code, error.message, {**details, "operationId": operation_id, "executed": "no"})


def _plain(status: JobStatus, context: OperationContext) -> dict[str, Any]:
    """Return a status as JSON. The text of an exception is for trusted callers only."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    if status.code == ErrorCode.EXECUTION_ERROR and not context.is_trusted:
        plain["message"] = f"{status.operation_id} failed"
    return plain
