"""Submitting, reading and retrying a job needs the same rights as a call with that token at that server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from operations import AccessControl, CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.signed_transport import SignedTransport
from operations.jobs import JOB_NOT_FOUND, Jobs, JobState, job_operations
from operations.pubsub import nats
from operations.pubsub.nats.wire import ServerInfo
from operations.serving import app
from operations.testing import error_of
from tests.jobs.places import ADMIN, BUSES, PLACES, Place, open_place
from tests.nats_server import nats_server
from tests.security.untrusted_bus import SECRET, TOKENS, session, untrusted_bus
from tests.serving.asgi_client import post

FULL, FEW = Identity("ada", scopes=("read", "write")), Identity("ada", scopes=("read",))
fails = True


@operation(id="vault.put", durable=True, access_control=AccessControl(required_scopes=("write",)))
async def put() -> str:
    return "secret"


@operation(id="vault.scopes", durable=True)
async def scopes(context: OperationContext) -> list[str]:
    if fails:
        raise CallError("CLOSED", "the vault is closed")
    return sorted(context.identity.scopes) if context.identity is not None else []


@operation(id="vault.once")
async def once() -> str:
    return "once"


OPERATIONS: list[Any] = [put, scopes, once]


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    global fails
    fails = True
    async with asyncio.timeout(60), open_place(request.param, OPERATIONS) as place:
        await place.work()
        yield place


async def test_a_token_with_fewer_scopes_cannot_use_jobs_of_forbidden_operations(place: Place) -> None:
    jobs = await place.jobs()
    job_id = await jobs.of(FULL).submit("vault.put")
    assert (await jobs.of(FULL).wait(job_id, timeout=30)).data == "secret"
    few = jobs.of(FEW)
    for attempt in (few.status, few.result, few.wait, few.cancel, few.retry):
        assert (await error_of(attempt(job_id))).code == JOB_NOT_FOUND
    assert await few.list() == []
    assert [job.id for job in await jobs.of(FULL).list()] == [job_id]
    assert (await jobs.of(ADMIN).result(job_id)).data == "secret"


async def test_a_submitter_without_the_rights_learns_why(place: Place) -> None:
    jobs = (await place.jobs()).of(FEW)

    async def denied() -> None:
        await jobs.wait(await jobs.submit("vault.put"), timeout=30)

    error = await error_of(denied())
    assert (error.code, error.details["missingScopes"]) == (ErrorCode.ACCESS_DENIED, ["write"])


@pytest.mark.parametrize(("who", "rights"), [(FEW, ["read"]), (FULL, ["read", "write"]), (ADMIN, ["read", "write"])])
async def test_a_job_is_retried_with_the_rights_of_its_owner_who_retries_it(
    place: Place, who: Identity, rights: list[str]
) -> None:
    global fails
    jobs = await place.jobs()
    job_id = await jobs.of(FULL).submit("vault.scopes")
    assert (await error_of(jobs.wait(job_id, timeout=30))).code == "CLOSED"
    fails = False
    await jobs.of(who).retry(job_id)
    assert (await jobs.wait(job_id, timeout=30)).data == rights


@pytest.mark.parametrize("kind", BUSES)
async def test_a_signed_job_is_retried_with_the_rights_of_the_token_that_retries_it(kind: str) -> None:
    global fails
    fails = True
    async with asyncio.timeout(60), untrusted_bus(kind) as bus:
        transport = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS)
        registry = OperationRegistry([scopes, *job_operations(Jobs(transport))])
        handler = CallHandler(registry, transport, identify=transport.identify)
        full = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "read write")))
        few = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "read")))
        job = {"job_id": (await full.call("jobs.submit", {"operation_id": "vault.scopes"}, wait=True)).data}
        assert (await error_of(full.call("jobs.wait", {**job, "timeout": 20}))).code == "CLOSED"
        fails = False
        await few.call("jobs.retry", job)
        assert (await full.call("jobs.wait", {**job, "timeout": 20})).data == ["read"]
        await handler.close()


async def test_denied_operations_cannot_be_submitted_as_jobs(place: Place) -> None:
    registry = OperationRegistry([*OPERATIONS, *job_operations(await place.jobs())])
    served = app(registry, mcp=False, deny=["vault.scopes"])

    async def submit(operation_id: str) -> tuple[int, Any]:
        answer = await post(served, "/jobs/submit", {"operation_id": operation_id})
        return answer.status, answer.json

    for hidden in ("vault.scopes", "vault.*"):
        status, problem = await submit(hidden)
        assert (status, problem["code"], problem["executed"]) == (422, "VALIDATION_ERROR", "no")
    status, problem = await submit("vault.put")
    assert (status, problem["code"]) == (403, "ACCESS_DENIED")
    job_id = await (await place.jobs()).of(None).submit("vault.scopes")
    for name in ("status", "result", "cancel", "retry"):
        answer = await post(served, f"/jobs/{name}", {"job_id": job_id})
        assert answer.json["code"] == JOB_NOT_FOUND


async def test_patterns_decide_about_operations_of_other_workers(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("there is no other worker")
    served = app(OperationRegistry(job_operations(await place.jobs())), mcp=False, deny=["vault.put"])
    assert (await post(served, "/jobs/submit", {"operation_id": "vault.put"})).status == 422
    job_id = (await post(served, "/jobs/submit", {"operation_id": "vault.scopes"})).json
    answer = await post(served, "/jobs/wait", {"job_id": job_id, "timeout": 20})
    assert answer.json["code"] == "CLOSED"


async def test_a_job_of_an_operation_that_is_not_durable(place: Place) -> None:
    jobs = await place.jobs()
    if place.kind == "memory":
        assert (await jobs.wait(await jobs.submit(once), timeout=30)).data == "once"
        return
    error = await error_of(jobs.submit(once))
    assert (error.code, error.details["reason"]) == (ErrorCode.VALIDATION_ERROR, "NOT_DURABLE")
    assert "durable=True" in error.message
    job_id = await jobs.submit("vault.once")  # only a worker knows
    error = await error_of(jobs.wait(job_id, timeout=30))
    assert (error.code, error.details["reason"]) == (ErrorCode.VALIDATION_ERROR, "NOT_DURABLE")
    assert (await jobs.status(job_id)).state is JobState.FAILED


@operation(id="size.echo", durable=True)
async def echo(size: int, text: str = "", fail: bool = False) -> bytes:
    if fail:
        raise CallError("TOO_BAD", "no", {"text": "x" * size})
    return bytes(size)


@pytest.mark.parametrize("kind", BUSES)
async def test_outcomes_fit_into_the_messages_of_the_bus(kind: str) -> None:
    most = ServerInfo().max_payload  # the default of a server
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))
        if kind == "nats":
            url = stack.enter_context(nats_server(max_payload=most)).url
            first, second = nats.connect(url, trusted=True), nats.connect(url, trusted=True)
            jobs, worker = Jobs(await stack.enter_async_context(first)), await stack.enter_async_context(second)
            stack.push_async_callback(CallHandler(OperationRegistry([echo]), worker).close)
        else:
            place = await stack.enter_async_context(open_place(kind, [echo]))
            await place.work()
            jobs = await place.jobs()
        for size in (most // 2, most - 30_000, most - 1_000, most - 10, most, most + 10):
            job_id = await jobs.submit("size.echo", {"size": size})
            if size == most // 2:
                assert len((await jobs.wait(job_id, timeout=30)).data) >= size
            elif size >= most:
                assert (await error_of(jobs.wait(job_id, timeout=30))).details["reason"] == "RESULT_TOO_LARGE"
            else:
                await outcome(jobs, job_id)
            failing = {"size": size // 2, "text": "x" * (size // 2), "fail": True}
            assert (await error_of(jobs.wait(await jobs.submit("size.echo", failing), timeout=30))).code == "TOO_BAD"
        for size in (most - 1_000, most - 100, most + 100):
            submitting = jobs.submit("size.echo", {"size": 0, "text": "x" * size, "fail": True})
            if kind == "nats" or size + 500 > most:
                assert (await error_of(submitting)).details["reason"] == "PAYLOAD_TOO_LARGE"
            else:
                job_id = await submitting
                assert (await error_of(jobs.wait(job_id, timeout=30))).code == "TOO_BAD"
                assert (await jobs.retry(job_id)).state in (JobState.QUEUED, JobState.FAILED)


async def outcome(jobs: Jobs, job_id: str) -> str:
    """The state in which a job ends, with a result or without."""
    with suppress(CallError):
        await jobs.wait(job_id, timeout=30)
    return (await jobs.status(job_id)).state
