"""Jobs on an untrusted bus: a signature proves their submitter, and no other user reads, forges or repeats them."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from operations import CallError, ErrorCode, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.events import VERSION
from operations.calls.job_records import owner_key
from operations.calls.signed_transport import SignedTransport
from operations.jobs import JOB_NOT_FOUND, JobLimits, Jobs, JobState, job_operations
from operations.pubsub import Stores
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests import redis_servers
from tests.calls.test_redis_permissions import rules
from tests.security.test_signed_requests_run_once import SESSION, Wiretap, bus
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session

__all__ = ["bus"]  # a fixture
ADA, BOB = Identity("ada"), Identity("bob")
BOBS = session("bob")


class Office:
    """A worker whose handler may fail, and that also offers jobs as operations."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = False

    async def start(self, bus: Bus) -> CallHandler:
        @operation(id="office.sign", durable=True)
        async def sign(context: OperationContext) -> str:
            self.ran.append(context.identity.id if context.identity is not None else "")
            if self.fails:
                raise CallError("NO_INK", "the pen is empty")
            return self.ran[-1]

        transport = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS)
        registry = OperationRegistry([sign, *job_operations(Jobs(transport))])
        return CallHandler(registry, transport, identify=transport.identify)


@pytest.fixture
def office() -> Office:
    return Office()


async def test_a_signed_job_runs_as_its_signer_and_is_the_signers(bus: Bus, office: Office) -> None:
    handler = await office.start(bus)
    jobs = Jobs(SignedTransport(await bus(), session=SESSION))
    named, unnamed = await jobs.of(ADA).submit("office.sign"), await jobs.submit("office.sign")
    assert (await jobs.wait(named, timeout=30)).data == "ada"
    assert (await jobs.wait(unnamed, timeout=30)).data == "ada"
    assert (await jobs.of(ADA).status(unnamed)).owner == "ada"
    assert (await error_of(jobs.of(BOB).status(unnamed))).code == JOB_NOT_FOUND
    await handler.close()


async def test_a_job_in_anothers_name_is_refused(bus: Bus, office: Office) -> None:
    handler = await office.start(bus)
    forged = await Jobs(SignedTransport(await bus(), session=BOBS)).of(ADA).submit("office.sign")
    error = await error_of(Jobs(await bus()).wait(forged, timeout=30))
    assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "NOT_THE_OWNER")
    unsigned = await error_of(Jobs(await bus()).of(ADA).submit("office.sign"))
    assert unsigned.code is ErrorCode.VALIDATION_ERROR
    assert office.ran == []
    await handler.close()


async def test_a_signed_job_is_retried_and_a_copy_of_it_is_not_run(bus: Bus, office: Office) -> None:
    handler, tap = await office.start(bus), Wiretap(await bus())
    jobs = Jobs(SignedTransport(tap, session=SESSION))
    office.fails = True
    job_id = await jobs.of(ADA).submit("office.sign")
    assert (await error_of(jobs.wait(job_id, timeout=30))).code == "NO_INK"
    office.fails = False
    stored, done = tap.inner.optional(Stores), asyncio.Event()
    assert stored is not None
    stored.store("queue.office", tap.heard[-1], key="copy", stored=done.set, undelivered=pytest.fail)
    await done.wait()
    # What is stored after the copy is run after it.
    assert (await jobs.wait(await jobs.of(ADA).submit("office.sign"), timeout=30)).data == "ada"
    assert (await jobs.status(job_id)).state is JobState.FAILED
    assert office.ran == ["ada", "ada"]
    await jobs.of(ADA).retry(job_id)
    assert (await jobs.wait(job_id, timeout=30)).data == "ada"
    assert office.ran == ["ada", "ada", "ada"]
    await handler.close()


async def test_callers_use_jobs_through_operations_with_their_own_identity(bus: Bus, office: Office) -> None:
    handler = await office.start(bus)
    ada = PendingRequestMap(SignedTransport(await bus(), session=SESSION))
    bob = PendingRequestMap(SignedTransport(await bus(), session=BOBS))
    submitted = await ada.call("jobs.submit", {"operation_id": "office.sign"}, wait=True)
    job = {"job_id": submitted.data}
    assert (await ada.call("jobs.wait", {**job, "timeout": 20})).data == "ada"
    assert [each["id"] for each in (await ada.call("jobs.list")).data] == [submitted.data]
    for name in ("status", "result", "cancel", "retry"):
        assert (await error_of(bob.call(f"jobs.{name}", job))).code == JOB_NOT_FOUND
    assert (await bob.call("jobs.list")).data == []
    await handler.close()


async def test_callers_with_the_redis_permissions_of_the_guide_reach_no_record() -> None:
    async with redis_servers.own_server() as server:
        for name, given in rules().items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        address = f"127.0.0.1:{server.port}"
        async with (
            RedisTransport(f"redis://worker:w0rker@{address}", trusted=True) as worker,
            RedisTransport(f"redis://ada:s3cret@{address}", trusted=True) as caller,
        ):
            job_id = await Jobs(worker).submit("office.sign")
            for attempt in (Jobs(caller).status(job_id), Jobs(caller).cancel(job_id), Jobs(caller).list()):
                assert (await error_of(attempt)).code is ErrorCode.ACCESS_DENIED
            assert (await error_of(Jobs(caller).submit("office.sign"))).code is ErrorCode.ACCESS_DENIED
            assert [job.id for job in await Jobs(worker).list()] == [job_id]


async def test_a_bus_user_without_a_token_writes_no_record_of_another_identity() -> None:
    server = redis_servers.Server("redis").start()
    try:
        for name, given in rules().items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        url = f"redis://worker:w0rker@127.0.0.1:{server.port}"
        async with RedisTransport(url) as bus, RedisTransport(url) as other:
            signed = SignedTransport(bus, secret=SECRET, tokens=TOKENS, required=True)
            handler = CallHandler(OperationRegistry([_sign_once]), signed, identify=signed.identify)
            bob = Jobs(SignedTransport(other, session=BOBS), limits=JobLimits(jobs=2)).of(BOB)
            for number in range(4):
                key = owner_key("bob") + f"{number:032x}"
                entry = ("message", _forged_request("bob", key, number), "before", "0", "record", key)
                assert server.command("XADD", "operations:{desk}:stored", "*", *entry)
            job_id = await bob.submit("desk.sign_once")
            assert (await bob.wait(job_id, 30)).data == "signed"
            assert [job.id for job in await bob.list()] == [job_id]
            await handler.close()
    finally:
        server.remove()


@operation(id="desk.sign_once", durable=True)
async def _sign_once() -> str:
    return "signed"


def _forged_request(owner: str, key: str, number: int) -> str:
    """An unsigned request for a job of `owner`; every second one has expired."""
    request_id, now = f"ada.{number:032x}", int(time.time() * 1000)
    payload = {
        "requestId": request_id,
        "operationId": "desk.sign_once",
        "input": {},
        "sentAt": now,
        "notAfter": 1 if number % 2 else now + 3_600_000,
        "job": {"key": key, "keep": 10**12, "owner": owner},
    }
    event = {"v": VERSION, "type": "call.requested", "id": request_id, "to": "desk.sign_once", "payload": payload}
    return json.dumps(event)
