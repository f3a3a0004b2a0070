"""Dead letters of durable calls are listed, shown and retried like those of jobs, and their number is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from operations import CallError, ErrorCode, Identity, OperationContext, operation
from operations.calls import PendingRequestMap, job_records, stored_requests
from operations.jobs import JOB_NOT_FOUND, Jobs, JobState, JobStatus
from operations.testing import error_of
from tests.jobs.places import ADA, ADMIN, BUSES, Place, open_place

ran: list[str] = []


@operation(id="mail.send", durable=True)
async def send(to: str, context: OperationContext) -> str:
    if to == "nobody":
        raise CallError("NO_ADDRESS", "there is no such address")
    ran.append(to)
    return f"sent to {to} for {context.identity.id if context.identity is not None else 'nobody'}"


@pytest.fixture(params=BUSES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    ran.clear()
    async with asyncio.timeout(60), open_place(request.param, [send]) as place:
        await place.work()
        yield place


async def dead_letter(place: Place, monkeypatch: pytest.MonkeyPatch, to: str, identity: Identity | None = None) -> None:
    """Make a durable call that its worker dead-letters, as if three workers had been lost."""
    with monkeypatch.context() as patched:
        patched.setattr(stored_requests, "MOST_DELIVERIES", 0)
        pending = PendingRequestMap(await place.end())
        error = await error_of(pending.call("mail.send", {"to": to}, durable=True, wait=True, identity=identity))
        assert (error.code, error.details["reason"]) == (ErrorCode.EXECUTION_ERROR, "DEAD_LETTERED")


async def find_dead(jobs: Jobs, count: int = 1) -> list[JobStatus]:
    """Wait for dead letters: their callers get an error before they are written."""
    while len(dead := await jobs.dead()) < count:  # noqa: ASYNC110  # another process writes them
        await asyncio.sleep(0.01)
    return dead


async def test_a_durable_call_is_listed_and_retried_and_its_result_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await place.jobs()
    await dead_letter(place, monkeypatch, "ada")
    (dead,) = await find_dead(jobs)
    assert (dead.operation_id, dead.state, dead.owner, dead.code) == ("mail.send", "dead", None, "EXECUTION_ERROR")
    assert "unanswered deliveries" in (await jobs.status(dead.id)).message
    assert ran == []
    assert place.handlers[0].counters.dead_lettered == 1
    await jobs.retry(dead.id)
    assert (await jobs.wait(dead.id, timeout=30)).data == "sent to ada for nobody"
    assert (await jobs.status(dead.id)).state is JobState.DONE
    assert await jobs.dead() == []


async def test_a_retried_one_that_fails_again_can_be_retried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await place.jobs()
    await dead_letter(place, monkeypatch, "nobody")
    (dead,) = await find_dead(jobs)
    for _ in range(2):
        await jobs.retry(dead.id)
        assert (await error_of(jobs.wait(dead.id, timeout=30))).code == "NO_ADDRESS"
        assert (await jobs.status(dead.id)).state is JobState.FAILED


async def test_a_dead_letter_has_no_owner_until_it_runs_as_its_caller(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await place.jobs()
    await dead_letter(place, monkeypatch, "bob", ADA)
    (dead,) = await find_dead(jobs)
    assert (await error_of(jobs.of(ADA).status(dead.id))).code == JOB_NOT_FOUND
    assert (await error_of(jobs.of(None).retry(dead.id))).code == JOB_NOT_FOUND
    await jobs.of(ADMIN).retry(dead.id)
    assert (await jobs.wait(dead.id, timeout=30)).data == "sent to bob for ada"
    assert (await jobs.of(ADA).status(dead.id)).owner == "ada"


async def test_dead_letters_beyond_the_limit_have_no_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_requests, "MOST_DEAD_LETTERS", 2)
    jobs = await place.jobs()
    await dead_letter(place, monkeypatch, "ada")
    await dead_letter(place, monkeypatch, "bob")
    await find_dead(jobs, 2)
    await dead_letter(place, monkeypatch, "eve")
    # Requests are handled in the order in which they were stored.
    job_id = await jobs.submit("mail.send", {"to": "zoe"})
    await jobs.wait(job_id, timeout=30)
    assert len(await jobs.dead()) == 2
    assert job_records.MOST_DEAD_LETTERS > 2
