"""Mutations with an Idempotency-Key run once."""

from __future__ import annotations

import asyncio

import pytest

from operations.serving import app
from operations.serving.app import ServedApp
from operations.serving.asgi import Response
from operations.serving.http.idempotency import MemoryStore
from operations.serving.refusals import RefusedError
from tests.serving.asgi_client import exchange, post
from tests.serving.shop import Shop, tokens

KEY = {"idempotency-key": "k1"}


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
def served(shop: Shop) -> ServedApp:
    return app(shop.registry, mcp=False, authenticator=tokens(), allow_anonymous=True)


async def test_a_repeated_request_gets_the_first_response(served: ServedApp, shop: Shop) -> None:
    first = await post(served, "/shop/order", {"item": "tea"}, headers=KEY)
    again = await post(served, "/shop/order", {"item": "tea"}, headers={"idempotency-key": '"k1"'})
    assert (first.status, first.json) == (again.status, again.json) == (200, {"number": 1, "item": "tea"})
    assert again.headers["operations-request-id"] == first.headers["operations-request-id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert [name for name, _ in again.raw_headers].count(b"content-length") == 1
    assert shop.sent == ["tea"]


async def test_another_body_with_the_same_key_is_refused(served: ServedApp, shop: Shop) -> None:
    await post(served, "/shop/order", {"item": "tea"}, headers=KEY)
    refused = await post(served, "/shop/order", {"item": "milk"}, headers=KEY)
    assert (refused.status, refused.json["details"]["reason"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert shop.sent == ["tea"]


async def test_a_key_belongs_to_its_caller_and_operation(served: ServedApp, shop: Shop) -> None:
    await post(served, "/shop/order", {"item": "tea"}, headers=KEY, token="reader-token")
    await post(served, "/shop/order", {"item": "tea"}, headers=KEY, token="writer-token")
    await post(served, "/shop/order", {"item": "tea"}, headers=KEY)
    await post(served, "/shop/order", {"item": "tea"}, headers=KEY, address="10.0.0.2")
    await post(served, "/vault/put", {"item": "tea"}, headers=KEY, token="writer-token")
    assert len(shop.sent) == 5


async def test_of_concurrent_requests_one_runs(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow", json_body={}, headers=KEY) as first:
        await shop.started.wait()
        answers = await asyncio.gather(*(post(served, "/shop/slow", {}, headers=KEY) for _ in range(50)))
        assert {answer.status for answer in answers} == {409}
        assert all("retry-after" in answer.headers for answer in answers)
        shop.go_on.set()
        assert (await first.complete()).json == "done"
    assert (await post(served, "/shop/slow", {}, headers=KEY)).json == "done"
    assert len(shop.sent) == 1


async def test_a_race_of_first_requests_runs_one(served: ServedApp, shop: Shop) -> None:
    answers = await asyncio.gather(*(post(served, "/shop/order", {"item": "a"}, headers=KEY) for _ in range(50)))
    assert {answer.status for answer in answers} <= {200, 409}
    assert shop.sent == ["a"]


async def test_a_disconnected_client_does_not_stop_it(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow", json_body={}, headers=KEY) as first:
        await shop.started.wait()
        first.leave()
        await asyncio.sleep(0)
        shop.go_on.set()
        await first.complete()
    assert not shop.cancelled.is_set()
    assert (await post(served, "/shop/slow", {}, headers=KEY)).json == "done"
    assert len(shop.sent) == 1


async def test_calls_that_never_ran_release_their_key(served: ServedApp, shop: Shop) -> None:
    assert (await post(served, "/shop/order", {"wrong": 1}, headers=KEY)).status == 422
    assert (await post(served, "/shop/order", {"item": "tea"}, headers=KEY)).status == 200


async def test_a_failure_that_may_have_run_is_kept(served: ServedApp, shop: Shop) -> None:
    headers = {**KEY, "operations-timeout": "0.05"}
    assert (await post(served, "/shop/slow", {}, headers=headers)).status == 504
    again = await post(served, "/shop/slow", {}, headers=headers)
    assert (again.status, again.headers["idempotency-replayed"]) == (504, "true")
    assert len(shop.sent) == 1


@pytest.mark.parametrize("key", ["", '""', "k" * 256, "a\x01b"])
async def test_keys_are_bounded(served: ServedApp, shop: Shop, key: str) -> None:
    assert (await post(served, "/shop/order", {"item": "a"}, headers={"idempotency-key": key})).status == 400
    assert shop.sent == []


async def test_queries_ignore_the_key(served: ServedApp) -> None:
    for item in ("a", "b"):
        assert (await post(served, "/shop/quote", {"item": item}, headers=KEY)).status == 200


async def run(store: MemoryStore, owner: str, key: bytes, body: bytes = b"") -> None:
    assert await store.begin(owner, key, b"f") is None
    await store.finish(owner, key, Response(200, [], body))


async def test_one_owner_cannot_evict_the_entries_of_others() -> None:
    store = MemoryStore(entries=80)
    await run(store, "quiet", b"mine")
    for number in range(1_000):
        await run(store, "loud", str(number).encode())
    assert await store.begin("quiet", b"mine", b"f") is not None
    assert len(store) <= 80


async def test_large_responses_of_one_owner_cannot_evict_those_of_others() -> None:
    store = MemoryStore(size=80_000)
    for number in range(20):
        await store.begin("bob", b"%d" % number, b"f")
        await store.finish("bob", b"%d" % number, Response(200, [], b"x" * 1_000))
    for number in range(50):
        await store.begin("eve", b"%d" % number, b"f")
        await store.finish("eve", b"%d" % number, Response(200, [], b"x" * 9_000))
    kept = [await store.begin("bob", b"%d" % number, b"f") for number in range(20)]
    assert all(call is not None and call.response is not None for call in kept)
    assert len(store) < 20 + 10


async def test_a_store_is_bounded_in_number_bytes_and_time() -> None:
    now = [0.0]
    store = MemoryStore(entries=16, size=100_000, seconds=10, clock=lambda: now[0])
    for owner in range(100):
        await run(store, f"o{owner}", b"k", b"x" * 5_000)
    assert len(store) <= 16
    await run(store, "last", b"k", b"x" * 5_000)
    assert await store.begin("last", b"k", b"f") is not None
    now[0] = 11.0
    assert await store.begin("last", b"k", b"f") is None
    large = MemoryStore(size=1_000)
    await run(large, "o", b"k", b"x" * 2_000)
    kept = await large.begin("o", b"k", b"f")
    assert kept is not None
    assert kept.is_lost


async def test_running_calls_are_never_pushed_out() -> None:
    store = MemoryStore(entries=16)
    for number in range(2):
        assert await store.begin("o", str(number).encode(), b"f") is None
    with pytest.raises(RefusedError):
        await store.begin("o", b"3", b"f")
    for number in range(2):
        assert await store.begin("o", str(number).encode(), b"f") is not None
