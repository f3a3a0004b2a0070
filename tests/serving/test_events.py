"""Streams as server-sent events: ids, ends, heartbeats, resumption, limits."""

from __future__ import annotations

import asyncio

import pytest

from operations import CallError
from operations.serving import Limits, app
from operations.serving.app import ServedApp
from tests.serving.asgi_client import Exchange, events_of, exchange, following, post, request
from tests.serving.shop import Shop, tokens

EVENTS = {"accept": "text/event-stream"}


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
def served(shop: Shop) -> ServedApp:
    return app(shop.registry, mcp=False)


def has(count: int) -> object:
    return lambda sent: len(events_of(sent.body)) >= count


async def test_a_stream_ends_with_complete(served: ServedApp, shop: Shop) -> None:
    for item in ({"a": 1}, "two", None):
        shop.items.put_nowait(item)
    answer = await request(served, "GET", "/shop/watch", headers=EVENTS)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    assert answer.body.startswith(b"retry: 2000\n\n")
    first, second, last = events_of(answer.body)
    assert (first["data"], second["data"]) == ('{"a":1}', '"two"')
    assert first["id"].rpartition("-")[0] == second["id"].rpartition("-")[0]
    assert (first["id"].rpartition("-")[2], second["id"].rpartition("-")[2]) == ("1", "2")
    assert "event" not in first
    assert last["event"] == "operations.complete"


async def test_a_post_follows_a_stream_too(served: ServedApp, shop: Shop) -> None:
    shop.items.put_nowait(None)
    answer = await post(served, "/shop/watch", {"first": 1})
    assert events_of(answer.body)[-1]["event"] == "operations.complete"


async def test_a_failure_is_the_last_event_and_has_no_exception_text(served: ServedApp, shop: Shop) -> None:
    async with following(served, "/shop/watch") as sent:
        shop.items.put_nowait(1)
        await sent.until(has(1))
        shop.items.put_nowait(ValueError("hunter2"))
        answer = await sent.complete()
    last = events_of(answer.body)[-1]
    assert last["event"] == "operations.problem"
    assert '"EXECUTION_ERROR"' in last["data"]
    assert "hunter2" not in last["data"]


async def test_a_failure_before_the_first_wait_is_a_status(served: ServedApp) -> None:
    answer = await request(served, "GET", "/shop/watch?first=x")
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    answer = await post(served, "/shop/watch", {"first": "x"})
    assert answer.status == 422


async def test_items_before_a_failure_are_not_lost(served: ServedApp, shop: Shop) -> None:
    shop.items.put_nowait(1)
    shop.items.put_nowait(CallError("SOLD_OUT", "none left"))
    answer = await request(served, "GET", "/shop/watch")
    first, last = events_of(answer.body)
    assert (answer.status, first["data"], last["event"]) == (200, "1", "operations.problem")


async def test_a_domain_error_of_a_stream(served: ServedApp, shop: Shop) -> None:
    shop.items.put_nowait(CallError("SOLD_OUT", "none left"))
    answer = await request(served, "GET", "/shop/watch")
    if answer.status == 200:  # it may come after the head of the response
        assert '"SOLD_OUT"' in events_of(answer.body)[-1]["data"]
    else:
        assert (answer.status, answer.json["code"]) == (409, "SOLD_OUT")


async def test_envelopes_are_sent_if_requested(served: ServedApp, shop: Shop) -> None:
    shop.items.put_nowait(5)
    shop.items.put_nowait(None)
    headers = {"accept": "text/event-stream; profile=envelope"}
    answer = await request(served, "GET", "/shop/watch", headers=headers)
    assert '"operationId":"shop.watch"' in events_of(answer.body)[0]["data"]


async def test_a_call_as_events_sends_progress_and_then_its_result(served: ServedApp) -> None:
    answer = await post(served, "/shop/bake", {"steps": 2}, headers=EVENTS)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    one, two, result, last = events_of(answer.body)
    assert [each["event"] for each in (one, two, last)] == ["operations.progress"] * 2 + ["operations.complete"]
    assert one["data"] == '{"progress":1,"total":2,"message":"step 1"}'
    assert result["data"] == '"bread"'
    answer = await post(served, "/shop/bake", {"steps": 1, "fails": True}, headers=EVENTS)
    one, last = events_of(answer.body)
    assert (one["event"], last["event"]) == ("operations.progress", "operations.problem")
    assert '"BURNT"' in last["data"]


async def test_progress_is_dropped_while_the_client_does_not_read(served: ServedApp) -> None:
    async with exchange(served, "POST", "/shop/bake", json_body={"steps": 1}, headers=EVENTS) as sent:
        await sent.complete()  # the handler is known to work
    async with exchange(served, "POST", "/shop/flood", json_body={}, headers=EVENTS) as sent:
        answer = await sent.complete()
    events = events_of(answer.body)
    assert 0 < len(events) < 1_000
    assert (events[-2]["data"], events[-1]["event"]) == ('"done"', "operations.complete")


async def test_a_call_is_sent_as_events_only_if_nothing_else_is_accepted(served: ServedApp) -> None:
    both = {"accept": "application/json, text/event-stream"}
    answer = await post(served, "/shop/bake", {}, headers=both)
    assert (answer.headers["content-type"], answer.json) == ("application/json", "bread")
    answer = await post(served, "/shop/order", {}, headers=EVENTS)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    answer = await post(served, "/shop/order", {"item": "tea"}, headers={**EVENTS, "idempotency-key": "k"})
    assert answer.status == 400


async def test_a_call_as_events_stops_when_its_client_disconnects(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow", json_body={}, headers=EVENTS) as sent:
        async with asyncio.timeout(5):
            await shop.started.wait()
        sent.leave()
        async with asyncio.timeout(5):
            await shop.cancelled.wait()


async def test_a_stream_is_not_json(served: ServedApp) -> None:
    answer = await request(served, "GET", "/shop/watch", headers={"accept": "application/json"})
    assert answer.status == 406


async def test_a_disconnected_client_closes_the_handlers_generator(served: ServedApp, shop: Shop) -> None:
    async with following(served, "/shop/watch") as sent:
        await shop.started.wait()
        sent.leave()
        async with asyncio.timeout(5):
            await shop.closed.wait()
    assert served.streams.in_flight == 0


async def test_a_silent_stream_sends_comments(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(heartbeat_seconds=0.02))
    async with following(served, "/shop/watch") as sent:
        await sent.until(lambda each: each.body.count(b":\n\n") >= 3)
        shop.items.put_nowait(None)
        answer = await sent.complete()
    assert [event["event"] for event in events_of(answer.body)] == ["operations.complete"]


async def test_a_client_that_does_not_read_slows_the_handler_down(served: ServedApp, shop: Shop) -> None:
    async with following(served, "/shop/watch") as sent:
        await sent.until(lambda each: each.status == 200)
        sent.paused.clear()
        for number in range(1_000):
            shop.items.put_nowait(number)
        for _ in range(50):
            await asyncio.sleep(0)
        assert shop.items.qsize() >= 1_000 - 2 * 64
        shop.items.put_nowait(None)
        sent.paused.set()
        answer = await sent.complete()
    assert len(events_of(answer.body)) == 1_001


async def test_a_handler_resumes_by_the_ids_that_it_gave(served: ServedApp, shop: Shop) -> None:
    answer = await request(served, "GET", "/shop/ticks?until=3")
    assert [(event["event"], event.get("id")) for event in events_of(answer.body)] == [
        ("tick", "0"),
        ("tick", "1"),
        ("tick", "2"),
        ("operations.complete", None),
    ]
    answer = await request(served, "GET", "/shop/ticks?until=4", headers={"last-event-id": "1"})
    assert [event["data"] for event in events_of(answer.body)[:-1]] == ["2", "3"]
    assert shop.resumed_after == [None, "1"]


async def test_a_stream_that_is_not_kept_cannot_be_resumed(served: ServedApp, shop: Shop) -> None:
    async with following(served, "/shop/watch") as sent:
        shop.items.put_nowait(1)
        await sent.until(has(1))
        identifier = events_of(sent.body)[0]["id"]
        refused = await request(served, "GET", "/shop/watch", headers={"last-event-id": identifier})
        assert (refused.status, refused.json["details"]["reason"]) == (410, "STREAM_GONE")
        sent.leave()


async def drop(sent: Exchange, count: int) -> str:
    """Read some events, leave, and return the id of the last one."""
    await sent.until(has(count))
    sent.leave()
    return events_of(sent.body)[count - 1]["id"]


async def test_a_stream_that_lost_its_client_is_resumed_without_a_gap(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(replay_seconds=30))
    async with following(served, "/shop/watch") as sent:
        for number in range(3):
            shop.items.put_nowait(number)
        await sent.until(has(3))
        last = events_of(sent.body)[1]["id"]
    for number in (3, 4):
        shop.items.put_nowait(number)
    assert not shop.closed.is_set()
    async with following(served, "/shop/watch", headers={"last-event-id": last}) as again:
        await again.until(has(3))
        shop.items.put_nowait(None)
        answer = await again.complete()
    data = [event["data"] for event in events_of(answer.body)]
    assert data == ["2", "3", "4", "{}"]


async def test_an_end_that_the_client_missed_is_sent_again(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(replay_seconds=30))
    async with following(served, "/shop/watch") as sent:
        shop.items.put_nowait(1)
        last = await drop(sent, 1)
    shop.items.put_nowait(2)
    shop.items.put_nowait(None)
    async with asyncio.timeout(5):
        await shop.closed.wait()
    answer = await request(served, "GET", "/shop/watch", headers={"last-event-id": last})
    assert [event["data"] for event in events_of(answer.body)] == ["2", "{}"]


async def test_only_the_same_caller_resumes_with_the_same_input(shop: Shop) -> None:
    served = app(
        shop.registry, mcp=False, authenticator=tokens(), limits=Limits(replay_seconds=30), allow_anonymous=True
    )
    async with following(served, "/shop/watch?first=1", token="reader-token") as sent:
        shop.items.put_nowait(1)
        last = await drop(sent, 1)
    headers = {"last-event-id": last}
    for target, options in (
        ("/shop/watch?first=1", {"token": "writer-token"}),
        ("/shop/watch?first=1", {}),
        ("/shop/watch?first=2", {"token": "reader-token"}),
        ("/vault/follow", {"token": "reader-token"}),
    ):
        assert (await request(served, "GET", target, headers=headers, **options)).status == 410
    for invalid in (f"{last}0", last.replace("-1", "--1"), "x", "-", f"{last[:-1]}99999999999999999999"):
        refused = await request(
            served, "GET", "/shop/watch?first=1", headers={"last-event-id": invalid}, token="reader-token"
        )
        assert refused.status == 410
    shop.items.put_nowait(None)
    answer = await request(served, "GET", "/shop/watch?first=1", headers=headers, token="reader-token")
    assert answer.status == 200


async def test_a_stream_that_is_not_resumed_in_time_ends(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(replay_seconds=0.05))
    async with following(served, "/shop/watch") as sent:
        shop.items.put_nowait(1)
        last = await drop(sent, 1)
    async with asyncio.timeout(5):
        await shop.closed.wait()
    assert (await request(served, "GET", "/shop/watch", headers={"last-event-id": last})).status == 410


async def test_a_resumed_stream_has_one_connection(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(replay_seconds=30))
    async with following(served, "/shop/watch") as first:
        shop.items.put_nowait(1)
        await first.until(has(1))
        last = events_of(first.body)[0]["id"]
        async with following(served, "/shop/watch", headers={"last-event-id": last}) as second:
            assert (await first.complete()).status == 200
            shop.items.put_nowait(2)
            shop.items.put_nowait(None)
            answer = await second.complete()
    assert [event["data"] for event in events_of(answer.body)] == ["2", "{}"]


async def test_streams_of_one_identity_are_bounded(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(streams=1))
    async with following(served, "/shop/watch") as sent:
        await sent.until(lambda each: each.status == 200)
        assert (await request(served, "GET", "/shop/watch")).status == 429
        async with following(served, "/shop/watch", address="10.0.0.9") as other:
            await other.until(lambda each: each.status == 200)
    async with exchange(served, "GET", "/shop/watch") as sent:
        await sent.until(lambda each: each.status == 200)


async def test_a_stream_ends_with_the_credentials_of_its_caller(shop: Shop) -> None:
    import time

    from operations.context import Identity
    from operations.identity import Principal, StaticTokens

    soon = StaticTokens({"t": Principal(Identity("i"), expires_at=time.time() + 0.2)})
    served = app(shop.registry, mcp=False, authenticator=soon)
    answer = await request(served, "GET", "/shop/watch", token="t")
    assert '"TIMEOUT"' in events_of(answer.body)[-1]["data"]


async def test_ended_streams_that_can_be_resumed_count_towards_the_limit(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(streams=2, replay_seconds=0.2))
    for _ in range(2):
        async with following(served, "/shop/watch") as sent:
            shop.items.put_nowait(1)
            await drop(sent, 1)
        shop.items.put_nowait(None)
    await asyncio.sleep(0.05)
    assert (await request(served, "GET", "/shop/watch")).status == 429
    await asyncio.sleep(0.3)
    for _ in range(3):
        shop.items.put_nowait(None)
        assert (await request(served, "GET", "/shop/watch")).status == 200
    async with following(served, "/shop/watch") as sent:
        shop.items.put_nowait(1)
        await drop(sent, 1)
    await asyncio.sleep(0.4)
    for _ in range(3):
        shop.items.put_nowait(None)
        assert (await request(served, "GET", "/shop/watch")).status == 200
