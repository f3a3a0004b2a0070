"""Jobs: submitted, waited for, fetched, cancelled, retried and listed, in one process, on Redis and on NATS."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls.replay_protection import STORED_SECONDS
from operations.context import Grant
from operations.dispatch import Dispatcher, Request
from operations.jobs import JOB_NOT_ENDED, JOB_NOT_FOUND, JobLimits, Jobs, JobState, durable, job_operations, memory
from operations.testing import error_of
from tests.jobs.places import ADA, ADMIN, BOB, PLACES, Place, open_place
from tests.waiting import until


class Gate:
    """Lets the test decide when a handler goes on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls = 0
        self.fails = False


gate = Gate()


@operation(id="shop.order", durable=True)
async def order(item: str, count: int = 1) -> str:
    return f"{count} x {item}"


@operation(id="shop.slow", durable=True)
async def slow(context: OperationContext) -> str:
    gate.calls += 1
    gate.entered.set()
    assert context.progress is not None
    context.progress(1, 2, "half")
    try:
        await gate.open.wait()
    except asyncio.CancelledError:
        gate.cancelled.set()
        raise
    return "at last"


@operation(id="shop.fail", durable=True)
async def fail() -> str:
    gate.calls += 1
    if gate.fails:
        raise CallError("SOLD_OUT", "no tea left", {"item": "tea"})
    return "fine"


@operation(id="shop.who", durable=True)
async def who(context: OperationContext) -> str:
    return context.identity.id if context.identity is not None else "nobody"


@operation(id="shop.guarded", durable=True, access_control=AccessControl(required_scopes=("shop.write",)))
async def guarded() -> str:
    return "secret"


@operation(id="shop.large", durable=True)
async def large() -> bytes:
    return bytes(2 << 20)


OPERATIONS: list[Any] = [order, slow, fail, who, guarded, large]


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    global gate
    gate = Gate()
    async with asyncio.timeout(60), open_place(request.param, OPERATIONS) as place:
        yield place
        gate.open.set()


async def test_a_job_is_submitted_here_and_its_result_is_fetched_elsewhere(place: Place) -> None:
    submitter, reader = await place.jobs(), await place.jobs()
    await place.work()
    job_id = await submitter.submit("shop.order", {"item": "tea", "count": 2})
    envelope = await reader.wait(job_id, timeout=30)
    assert envelope.data == "2 x tea"
    assert (await submitter.result(job_id)).data == "2 x tea"
    status = await reader.status(job_id)
    assert (status.operation_id, status.state, status.attempts) == ("shop.order", JobState.DONE, 1)
    assert status.started_at is not None
    assert status.ended_at is not None
    assert status.created_at <= status.started_at <= status.ended_at < (status.expires_at or 0)


@pytest.mark.parametrize("kind", ["valkey", "cluster"])
async def test_jobs_are_kept_on_valkey_and_on_a_redis_cluster(kind: str) -> None:
    async with asyncio.timeout(60), open_place(kind, OPERATIONS) as place:
        jobs, other = await place.jobs(), await place.jobs()
        cancelled, done = await jobs.submit("shop.fail"), await jobs.of(ADA).submit("shop.who")
        assert (await other.cancel(cancelled)).state is JobState.CANCELLED
        await place.work()
        assert (await other.wait(done, timeout=30)).data == "ada"
        assert {job.id for job in await other.list()} == {done, cancelled}
        assert [job.id for job in await other.of(ADA).list()] == [done]


async def test_a_job_waits_for_a_worker(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("the process that submits is the worker")
    jobs = await place.jobs()
    job_id = await jobs.submit("shop.order", {"item": "tea"})
    assert (await jobs.status(job_id)).state is JobState.QUEUED
    assert (await error_of(jobs.result(job_id))).code == JOB_NOT_ENDED
    waiting = asyncio.create_task(jobs.wait(job_id, timeout=30))
    await place.work()
    assert (await waiting).data == "1 x tea"


async def test_a_running_job_shows_its_progress(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    job_id = await jobs.submit("shop.slow")
    await gate.entered.wait()
    while (await jobs.status(job_id)).progress is None:  # noqa: ASYNC110  # another process would set it
        await asyncio.sleep(0.01)
    status = await jobs.status(job_id)
    assert status.state is JobState.RUNNING
    assert status.progress is not None
    assert (status.progress.value, status.progress.total, status.progress.message) == (1, 2, "half")
    error = await error_of(jobs.wait(job_id, timeout=0.05))
    assert (error.code, error.details["jobId"]) == (ErrorCode.TIMEOUT, job_id)
    assert "operationId" not in error.details
    gate.open.set()
    assert (await jobs.wait(job_id, timeout=30)).data == "at last"
    assert (await jobs.status(job_id)).progress is None


async def test_a_running_job_is_cancelled_and_its_handler_too(place: Place) -> None:
    jobs, other = await place.jobs(), await place.jobs()
    await place.work()
    job_id = await jobs.submit("shop.slow")
    await gate.entered.wait()
    waiting = asyncio.create_task(jobs.wait(job_id, timeout=30))
    status = await other.cancel(job_id)
    assert (status.state, status.code) == (JobState.CANCELLED, ErrorCode.ABORTED)
    await gate.cancelled.wait()
    assert (await error_of(waiting)).code is ErrorCode.ABORTED
    assert (await other.cancel(job_id)).state is JobState.CANCELLED
    assert (await jobs.status(job_id)).state is JobState.CANCELLED


async def test_a_queued_job_that_is_cancelled_never_runs(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("nothing is queued in one process")
    jobs = await place.jobs()
    cancelled = await jobs.submit("shop.fail")
    assert (await jobs.cancel(cancelled)).state is JobState.CANCELLED
    await place.work()
    assert (await jobs.wait(await jobs.submit("shop.order", {"item": "tea"}), timeout=30)).data == "1 x tea"
    assert gate.calls == 0
    assert (await jobs.status(cancelled)).state is JobState.CANCELLED


async def test_whether_a_cancelled_job_of_one_process_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    global gate
    gate = Gate()
    monkeypatch.setattr(memory, "Dispatcher", functools.partial(Dispatcher, concurrency=1))
    async with Jobs(OperationRegistry([slow, fail])) as jobs:
        running, queued = await jobs.submit("shop.slow"), await jobs.submit("shop.slow")
        await gate.entered.wait()
        for job_id, executed in ((queued, "no"), (running, "unknown")):
            await jobs.cancel(job_id)
            error = await error_of(jobs.wait(job_id))
            assert (error.code, error.details["executed"]) == (ErrorCode.ABORTED, executed)
        assert gate.calls == 1
        gate.fails = True
        failed = await jobs.submit("shop.fail")
        await error_of(jobs.wait(failed))
        gate.entered.clear()
        await jobs.submit("shop.slow")
        await gate.entered.wait()
        await jobs.retry(failed)  # it waits for the slot, but it ran before
        await jobs.cancel(failed)
        assert (await error_of(jobs.wait(failed))).details["executed"] == "unknown"


async def test_a_failed_job_keeps_its_error_and_is_retried_under_the_same_id(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    gate.fails = True
    job_id = await jobs.submit("shop.fail")
    error = await error_of(jobs.wait(job_id, timeout=30))
    assert (error.code, error.message, error.details["item"]) == ("SOLD_OUT", "no tea left", "tea")
    assert (await jobs.status(job_id)).state is JobState.FAILED
    gate.fails = False
    await jobs.retry(job_id)
    assert (await jobs.wait(job_id, timeout=30)).data == "fine"
    assert gate.calls == 2
    assert (await error_of(jobs.retry(job_id))).code is ErrorCode.VALIDATION_ERROR


async def test_a_job_runs_as_its_submitter_and_with_no_other_rights(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    assert (await jobs.wait(await jobs.of(ADA).submit("shop.who"), timeout=30)).data == "ada"
    assert (await jobs.wait(await jobs.of(None).submit("shop.who"), timeout=30)).data == "nobody"

    async def denied() -> None:
        await jobs.wait(await jobs.of(ADA).submit("shop.guarded"), timeout=30)

    assert (await error_of(denied())).code is ErrorCode.ACCESS_DENIED


async def test_only_the_submitter_and_an_admin_see_cancel_and_retry_a_job(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    gate.fails = True
    job_id = await jobs.of(ADA).submit("shop.fail")
    await error_of(jobs.wait(job_id, timeout=30))
    for stranger in (jobs.of(BOB), jobs.of(None)):
        for attempt in (stranger.status, stranger.result, stranger.wait, stranger.cancel, stranger.retry):
            assert (await error_of(attempt(job_id))).code == JOB_NOT_FOUND
        assert await stranger.list() == []
    for allowed in (jobs, jobs.of(ADA), jobs.of(ADMIN)):
        assert (await allowed.status(job_id)).owner == "ada"
        assert [job.id for job in await allowed.list()] == [job_id]
    gate.fails = False
    await jobs.of(ADMIN).retry(job_id)
    assert (await jobs.of(ADA).wait(job_id, timeout=30)).data == "fine"


async def test_jobs_are_listed_newest_first_and_by_state(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    first = await jobs.of(ADA).submit("shop.order", {"item": "tea"})
    await jobs.wait(first, timeout=30)
    second = await jobs.of(ADA).submit("shop.slow")
    await gate.entered.wait()
    assert [job.id for job in await jobs.of(ADA).list()] == [second, first]
    assert [job.id for job in await jobs.list(states=["done"])] == [first]
    assert [job.id for job in await jobs.list(operation_id="shop.slow")] == [second]
    assert [job.id for job in await jobs.list(limit=1)] == [second]
    assert await jobs.dead() == []


async def test_an_owner_has_a_limited_number_of_jobs_and_others_are_not_affected(place: Place) -> None:
    jobs = await place.jobs(jobs=3)
    for _ in range(3):
        await jobs.of(ADA).submit("shop.order", {"item": "tea"})
    error = await error_of(jobs.of(ADA).submit("shop.order", {"item": "tea"}))
    assert (error.code, error.details["reason"]) == (ErrorCode.UNAVAILABLE, "TOO_MANY_JOBS")
    await jobs.of(BOB).submit("shop.order", {"item": "tea"})


async def test_stored_jobs_have_a_limited_size_and_lifetime(place: Place) -> None:
    jobs = await place.jobs(input_bytes=100, keep_seconds=60)
    await place.work()
    assert (await error_of(jobs.submit("shop.order", {"item": "x" * 101}))).code is ErrorCode.VALIDATION_ERROR
    assert (await error_of(jobs.submit("shop.order", {"item": "x"}, keep=61))).code is ErrorCode.VALIDATION_ERROR
    error = await error_of(jobs.wait(await jobs.submit("shop.large"), timeout=30))
    assert (error.code, error.details["reason"]) == (ErrorCode.EXECUTION_ERROR, "RESULT_TOO_LARGE")
    job_id = await jobs.submit("shop.order", {"item": "tea"}, keep=0.2)
    await jobs.wait(job_id, timeout=30)

    while job_id in {job.id for job in await jobs.list()}:  # noqa: ASYNC110  # the server deletes it
        await asyncio.sleep(0.02)
    assert (await error_of(jobs.status(job_id))).code == JOB_NOT_FOUND


@pytest.mark.parametrize(
    "job_id", ["", "x", "shop.", "shop.*", "shop." + "0" * 48, "a.b." + "z" * 48, "shop." + "é" * 48]
)
async def test_an_id_that_names_no_job_is_not_found(place: Place, job_id: str) -> None:
    jobs = await place.jobs()
    for attempt in (jobs.status, jobs.result, jobs.wait, jobs.cancel, jobs.retry):
        assert (await error_of(attempt(job_id))).code == JOB_NOT_FOUND


NO_OPERATIONS = ["", "order", "shop.", ".order", "shop order.x", "s{h}op.order", "a." + "b" * 300]


@pytest.mark.parametrize("operation_id", NO_OPERATIONS)
async def test_an_invalid_operation_id_is_refused(place: Place, operation_id: str) -> None:
    jobs = await place.jobs()
    assert (await error_of(jobs.submit(operation_id))).code is ErrorCode.VALIDATION_ERROR


async def test_ids_are_long_random_and_differ(place: Place) -> None:
    jobs = await place.jobs()
    ids = {await jobs.of(ADA).submit("shop.order", {"item": "tea"}) for _ in range(20)}
    randoms = {job_id.rpartition(".")[2][16:] for job_id in ids}
    assert len(randoms) == 20
    assert {len(random) for random in randoms} == {32}


async def test_a_released_job_is_run_by_another_worker(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("there is only one process")
    jobs = await place.jobs()
    await place.work()
    job_id = await jobs.submit("shop.slow")
    await gate.entered.wait()
    gate.entered.clear()
    await place.handlers[0].close()
    await place.work()
    await until(gate.entered.is_set)
    gate.open.set()
    assert (await jobs.wait(job_id, timeout=30)).data == "at last"


async def test_job_operations_check_their_caller(place: Place) -> None:
    jobs = await place.jobs()
    await place.work()
    registry = OperationRegistry(job_operations(jobs))
    dispatcher = Dispatcher(registry)

    async def call(name: str, identity: Identity | None, **input: Any) -> Any:
        request = Request(operation_id=f"jobs.{name}", input=input, grant=Grant(identity=identity))
        return (await dispatcher.call(request)).data

    job_id = await call("submit", ADA, operation_id="shop.who")
    assert await call("wait", ADA, job_id=job_id, timeout=30) == "ada"
    assert await call("result", ADMIN, job_id=job_id) == "ada"
    assert (await call("status", ADA, job_id=job_id))["state"] == "done"
    assert [job["id"] for job in await call("list", ADA)] == [job_id]
    assert (await call("cancel", ADA, job_id=job_id))["state"] == "done"
    for stranger in (BOB, None):
        assert (await error_of(call("status", stranger, job_id=job_id))).code == JOB_NOT_FOUND
        assert await call("list", stranger) == []
    assert (await error_of(call("retry", ADA, job_id=job_id))).code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_job_that_no_worker_takes_within_a_day_is_a_dead_letter(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60), open_place(kind, OPERATIONS) as place:
        jobs = await place.jobs()
        job_id = await jobs.submit("shop.order", {"item": "tea"})
        monkeypatch.setattr(durable, "now_ms", lambda: int((time.time() + STORED_SECONDS + 1) * 1000))
        assert [job.id for job in await jobs.dead()] == [job_id]
        assert (await error_of(jobs.result(job_id))).code is ErrorCode.TIMEOUT


async def test_one_identity_keeps_a_limited_number_and_size_in_memory() -> None:
    blocked = asyncio.Event()

    @operation(namespace="work", durable=True)
    async def wait_for_it(text: str) -> str:
        await blocked.wait()
        return text

    limits = JobLimits(unfinished=2, kept_bytes=100_000)
    async with Jobs(OperationRegistry([wait_for_it]), limits=limits) as jobs:
        ada, bob = jobs.of(Identity("ada")), jobs.of(Identity("bob"))
        ids = [await ada.submit("work.wait_for_it", {"text": "x" * 60_000}) for _ in range(2)]
        error = await error_of(ada.submit("work.wait_for_it", {"text": ""}))
        assert error.details["reason"] == "TOO_MANY_JOBS"
        assert error.message == "too many jobs: this identity has 2 waiting and running jobs already"
        first = await bob.submit("work.wait_for_it", {"text": "b"})
        blocked.set()
        for job_id in (*ids, first):
            await jobs.wait(job_id, 10)
        error = await error_of(ada.submit("work.wait_for_it", {"text": ""}))
        assert error.details["reason"] == "TOO_MANY_JOBS"
        assert error.message == "too many jobs: this identity has 100,000 bytes of inputs and outcomes of jobs already"
        assert await bob.submit("work.wait_for_it", {"text": "b"})


async def test_retried_jobs_count_towards_the_limit_of_unfinished_jobs() -> None:
    blocked = asyncio.Event()
    runs: list[int] = []

    @operation(namespace="work", durable=True)
    async def fail_once(number: int) -> None:
        runs.append(number)
        if runs.count(number) == 1:
            raise ValueError
        await blocked.wait()

    async with Jobs(OperationRegistry([fail_once]), limits=JobLimits(unfinished=2)) as jobs:
        ada = jobs.of(Identity("ada"))
        failed = []
        for number in range(4):
            failed.append(await ada.submit("work.fail_once", {"number": number}))
            assert (await error_of(ada.wait(failed[-1], 10))).code == "EXECUTION_ERROR"
        for job_id in failed[:2]:
            await ada.retry(job_id)
        error = await error_of(ada.retry(failed[2]))
        assert error.details["reason"] == "TOO_MANY_JOBS"
        assert (await ada.status(failed[2])).state == "failed"
        blocked.set()
        await ada.wait(failed[0], 10)
        assert (await ada.retry(failed[2])).state != "failed"


def test_limits_are_settings_or_a_mapping_of_their_fields() -> None:
    assert Jobs(OperationRegistry(), limits={"keep_seconds": 60.0}).keep_seconds == 60.0
    with pytest.raises(CallError, match=r"limits: unknown key 'keep': expected one of .*keep_seconds"):
        Jobs(OperationRegistry(), limits={"keep": 60.0})
