"""Calls as jobs over HTTP: `Prefer: respond-async`, status, result, cancellation, and who may use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import OperationContext, operation
from operations.jobs import JobLimits, Jobs
from operations.serving import app
from operations.serving.app import ServedApp
from operations.sources.openapi import HTTPServiceConfig, from_openapi
from tests.jobs.places import BUSES, open_place
from tests.serving.asgi_client import Answer, post, request
from tests.serving.shop import Shop, tokens

ASYNC = {"prefer": "respond-async"}
WAITING = {"prefer": "respond-async, wait=20"}


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
async def jobs(shop: Shop) -> AsyncIterator[Jobs]:
    async with Jobs(shop.registry) as jobs:
        yield jobs


@pytest.fixture
def served(shop: Shop, jobs: Jobs) -> ServedApp:
    return app(shop.registry, mcp=False, jobs=jobs, authenticator=tokens(), allow_anonymous=True)


async def ended(served: ServedApp, answer: Answer, **options: Any) -> Any:
    """Wait for the end of a job and return its status."""
    async with asyncio.timeout(10):
        while True:
            status = await request(served, "GET", answer.headers["location"], **options)
            if "retry-after" not in status.headers:
                return status.json
            await asyncio.sleep(0.01)


async def test_a_call_as_a_job(served: ServedApp) -> None:
    answer = await post(served, "/shop/bake", {"steps": 2}, headers=ASYNC)
    assert (answer.status, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["location"] == f"/~/jobs/{answer.json['id']}"
    status = await ended(served, answer)
    assert (status["state"], status["operationId"]) == ("done", "shop.bake")
    assert "owner" not in status
    result = await request(served, "GET", answer.headers["location"] + "/result")
    assert (result.status, result.json, result.headers["operations-source"]) == (200, "bread", "local")
    envelope = {"accept": "application/vnd.operations.envelope+json"}
    result = await request(served, "GET", answer.headers["location"] + "/result", headers=envelope)
    assert result.json["data"] == "bread"


async def test_a_job_that_ends_within_the_wait_is_the_response(served: ServedApp) -> None:
    answer = await post(served, "/shop/bake", {}, headers=WAITING)
    assert (answer.status, answer.json, answer.headers["preference-applied"]) == (200, "bread", "respond-async")
    answer = await post(served, "/shop/bake", {"fails": True}, headers=WAITING)
    assert (answer.status, answer.json["code"]) == (409, "BURNT")


async def test_a_running_job_has_no_result_and_is_cancelled(served: ServedApp, shop: Shop) -> None:
    answer = await post(served, "/shop/slow", {}, headers=ASYNC)
    async with asyncio.timeout(5):
        await shop.started.wait()
    place = answer.headers["location"]
    early = await request(served, "GET", place + "/result")
    assert (early.status, early.json["code"], early.headers["retry-after"]) == (409, "JOB_NOT_ENDED", "1")
    assert (await request(served, "DELETE", place)).json["state"] == "cancelled"
    async with asyncio.timeout(5):
        await shop.cancelled.wait()
    result = await request(served, "GET", place + "/result")
    assert (result.status, result.json["code"]) == (503, "ABORTED")


async def test_failures_have_the_responses_of_the_call(served: ServedApp) -> None:
    answer = await post(served, "/shop/bake", {"fails": True}, headers=ASYNC)
    status = await ended(served, answer)
    assert (status["state"], status["code"], status["message"]) == ("failed", "BURNT", "black")
    failed = await post(served, "/shop/fail", {"how": "text"}, headers=ASYNC)
    status = await ended(served, failed)
    assert status["code"] == "EXECUTION_ERROR"
    result = await request(served, "GET", failed.headers["location"] + "/result")
    assert result.status == 500
    assert "hunter2" not in json.dumps(status) + result.body.decode()
    invalid = await post(served, "/shop/order", {}, headers=ASYNC)
    assert (invalid.status, invalid.json["code"]) == (422, "VALIDATION_ERROR")


async def test_jobs_are_those_of_their_submitter(served: ServedApp) -> None:
    answer = await post(served, "/vault/put", {}, headers=ASYNC, token="writer-token")
    assert answer.status == 202
    await ended(served, answer, token="writer-token")
    for path in (answer.headers["location"], answer.headers["location"] + "/result"):
        assert (await request(served, "GET", path, token="writer-token")).status == 200
        for other in ("reader-token", "nobody-token", None):
            refused = await request(served, "GET", path, token=other)
            assert (refused.status, refused.json["code"]) == (404, "JOB_NOT_FOUND")
    assert (await request(served, "DELETE", answer.headers["location"], token="reader-token")).status == 404
    denied = await post(served, "/vault/put", {}, headers=ASYNC, token="reader-token")
    assert denied.status == 403


async def test_a_job_of_an_operation_that_is_not_served_is_not_found(shop: Shop, jobs: Jobs) -> None:
    served = app(shop.registry, mcp=False, jobs=jobs, deny=["shop.bake"])
    job_id = await jobs.of(None).submit("shop.bake", {})
    assert (await request(served, "GET", f"/~/jobs/{job_id}")).status == 404


async def test_an_idempotency_key_repeats_the_202(served: ServedApp, shop: Shop) -> None:
    headers = {**ASYNC, "idempotency-key": "k1"}
    first = await post(served, "/shop/order", {"item": "tea"}, headers=headers)
    again = await post(served, "/shop/order", {"item": "tea"}, headers=headers)
    assert (again.status, again.json["id"]) == (202, first.json["id"])
    await ended(served, first)
    assert shop.sent == ["tea"]


async def test_calls_that_cannot_be_jobs_run_in_the_request(served: ServedApp, shop: Shop) -> None:
    shop.items.put_nowait(None)
    assert (await post(served, "/shop/watch", {}, headers=ASYNC)).status == 200
    assert (await post(served, "/shop/order", {"item": "a"}, headers={"prefer": "wait=5"})).status == 200
    without = app(shop.registry, mcp=False)
    assert (await post(without, "/shop/order", {"item": "b"}, headers=ASYNC)).status == 200
    assert (await request(without, "GET", "/~/jobs/x")).status == 404


async def test_paths_methods_and_limits(shop: Shop) -> None:
    async with Jobs(shop.registry, limits=JobLimits(jobs=1)) as jobs:
        served = app(shop.registry, mcp=False, jobs=jobs)
        answer = await post(served, "/shop/bake", {}, headers=ASYNC)
        assert (await post(served, "/shop/bake", {}, headers=ASYNC)).status == 429
        place = answer.headers["location"]
        assert (await request(served, "OPTIONS", place)).headers["allow"] == "DELETE, GET, HEAD, OPTIONS"
        assert (await request(served, "POST", place)).status == 405
        assert (await request(served, "DELETE", place + "/result")).status == 405
        for path in ("/~/jobs/", "/~/jobs/x/y", "/~/jobs/" + "x" * 2_000, place + "/result/more"):
            assert (await request(served, "GET", path)).status == 404


async def test_the_document_describes_jobs(served: ServedApp, shop: Shop) -> None:
    document = (await request(served, "GET", "/openapi.json")).json
    assert {"get", "delete"} <= document["paths"]["/~/jobs/{id}"].keys()
    assert "Prefer: respond-async" in document["info"]["description"]
    assert "Job" in document["components"]["schemas"]
    imported = from_openapi(json.dumps(document).encode(), HTTPServiceConfig(namespace=None, base_url="http://far"))
    assert not [each.id for each in imported if "~" in each.id]
    plain = (await request(app(shop.registry, mcp=False), "GET", "/openapi.json")).json
    assert "/~/jobs/{id}" not in plain["paths"]


@operation(id="store.who", durable=True)
async def who(context: OperationContext) -> str:
    return context.identity.id if context.identity is not None else "nobody"


@operation(id="store.quick")
async def quick() -> str:
    return "here"


@pytest.mark.parametrize("kind", BUSES)
async def test_jobs_on_a_transport_run_on_workers_and_are_read_from_another_server(kind: str) -> None:
    async with asyncio.timeout(60), open_place(kind, [who, quick]) as place:
        await place.work()
        first = app(place.registry, jobs=await place.jobs(), authenticator=tokens())
        second = app(place.registry, jobs=await place.jobs(), authenticator=tokens())
        answer = await post(first, "/store/who", {}, headers=WAITING, token="reader-token")
        assert (answer.status, answer.json) == (200, "reader")
        answer = await post(first, "/store/who", {}, headers=ASYNC, token="reader-token")
        status = await ended(second, answer, token="reader-token")
        assert status["state"] == "done"
        result = await request(second, "GET", answer.headers["location"] + "/result", token="reader-token")
        assert result.json == "reader"
        assert (await request(second, "GET", answer.headers["location"], token="writer-token")).status == 404
        answer = await post(first, "/store/quick", {}, headers=ASYNC, token="reader-token")
        assert (answer.status, answer.json) == (200, "here")  # it is not durable
