"""The console's JSON, and its responses to invalid, huge and hostile requests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, Operation, OperationContext, OperationRegistry, from_schema, operation
from operations.interceptors import Retry
from operations.serving import Limits, ServedApp, app
from operations.serving.console.feed import EventLog, Sampler
from operations.serving.console.pages import POLICY, Pages
from operations.spec import OperationSpec, OperationType
from operations.telemetry.call_records import CallRecords
from tests.serving.asgi_client import Answer, events_of, exchange, following, post, request
from tests.serving.shop import Shop

API = "/console/api"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
async def served(shop: Shop) -> AsyncIterator[ServedApp]:
    application = app(shop.registry, console=True, console_bodies=True, mcp=False)
    async with application.lifespan():
        yield application


async def get(served: ServedApp, path: str, **options: Any) -> Answer:
    return await request(served, "GET", f"{API}/{path}", **options)


async def test_the_catalogue_is_cached_by_its_tag_and_compressed(served: ServedApp, shop: Shop) -> None:
    answer = await get(served, "catalogue")
    tag = answer.headers["etag"]
    assert answer.json["version"] == tag.strip('"') == (await get(served, "session")).json["catalogueVersion"]
    assert (await get(served, "catalogue", headers={"if-none-match": tag})).status == 304
    packed = await get(served, "catalogue", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == answer.body
    plain = await get(served, "catalogue", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    shop.registry.unregister("shop.quote")
    changed = await get(served, "catalogue", headers={"if-none-match": tag})
    assert changed.status == 200
    assert all(each["id"] != "shop.quote" for each in changed.json["operations"])


async def test_an_operation_has_the_fields_of_a_form(served: ServedApp) -> None:
    described = (await get(served, "operations/api.users/get")).json
    assert described["id"] == "api.users/get"
    assert described["http"] == {"path": "/api/users/get", "methods": ["GET", "HEAD", "POST"]}
    quote = (await get(served, "operations/shop.quote")).json
    assert quote["signature"].startswith("shop.quote(item: str")
    assert quote["examples"][-1]["input"]["count"] == 1
    assert (await get(served, "operations/shop.watch")).json["streams"] is True


async def test_a_call_has_its_input_and_output_without_secrets(served: ServedApp) -> None:
    await post(served, "/shop/quote", {"item": "tea", "extra": {"password": 5}}, headers=TRACED)
    [call] = (await get(served, "calls")).json["calls"]
    assert call["traceId"] == TRACE
    assert call["protocol"] == "http"
    assert call["outcome"] == "ok"
    assert call["label"] == "tea"
    full = (await get(served, f"calls/{call['requestId']}")).json
    assert full["input"] == {"item": "tea", "extra": {"password": "[redacted]"}}
    assert full["output"]["item"] == "tea"
    assert "5" not in json.dumps(full["output"]["extra"])


async def test_a_call_reports_differences_from_its_declared_schema() -> None:
    declared = {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "state": {"anyOf": [{"enum": ["open", "closed"]}, {"type": "null"}]},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        },
        "$defs": {"row": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
    }

    async def handler(input: Any, context: OperationContext) -> Any:
        return {"count": "7", "state": "draft", "rows": [{"on": "true", "secret": "gold"}], "node": "R_1"}

    spec = OperationSpec(
        name="look", namespace="a", type=OperationType.QUERY, description="Look.", output_schema=from_schema(declared)
    )
    served = app(OperationRegistry([Operation(spec=spec, handler=handler)]), console=True, mcp=False)
    answer = await post(served, "/a/look")
    call = (await get(served, f"calls/{answer.headers['operations-request-id']}")).json
    assert "output" not in call
    assert call["differences"] == [
        {"pointer": "/count", "action": "cast", "declared": "integer", "got": '"7"', "became": "7"},
        {"pointer": "/rows/0/on", "action": "cast", "declared": "boolean", "got": '"true"', "became": "true"},
        {"pointer": "/rows/0/secret", "action": "stripped", "got": "[redacted]"},
        {"pointer": "/node", "action": "stripped", "got": '"R_1"'},
        {
            "pointer": "/state",
            "action": "kept",
            "declared": "open | closed | null",
            "got": '"draft"',
            "detail": call["differences"][-1]["detail"],
        },
    ]


async def test_pages_of_calls_follow_each_other(served: ServedApp) -> None:
    for number in range(7):
        await post(served, "/shop/quote", {"item": f"item {number}"})
    await post(served, "/shop/fail", {"how": "domain"})
    first = (await get(served, "calls?limit=3&operation=shop.q*")).json
    second = (await get(served, f"calls?limit=3&operation=shop.q*&cursor={first['next']}")).json
    third = (await get(served, f"calls?limit=3&operation=shop.q*&cursor={second['next']}")).json
    labels = [call["label"] for page in (first, second, third) for call in page["calls"]]
    assert labels == [f"item {number}" for number in reversed(range(7))]
    assert "next" not in third
    [failed] = (await get(served, "calls?outcome=failed")).json["calls"]
    assert failed["code"] == "SOLD_OUT"
    assert (await get(served, f"calls?since={failed['startedAt']}")).json["calls"][0] == failed
    assert (await get(served, "calls?code=SOLD_OUT&protocol=http&kind=served")).json["calls"] == [failed]


@pytest.mark.parametrize(
    "query",
    [
        "cursor=" + "9" * 400,
        "cursor=-1",
        "cursor=%00",
        "cursor=1e9",
        "cursor=٣",
        "limit=0",
        "limit=100000",
        "limit=nan",
        "outcome=maybe",
        "kind=x",
        "operation=" + "*" * 20,
        "operation=" + "a" * 300,
        "since=" + "9" * 30,
        "&".join(f"a{number}=1" for number in range(200)),
        "x" * 5_000,
    ],
)
async def test_wrong_and_huge_parameters_are_refused(served: ServedApp, query: str) -> None:
    answer = await get(served, f"calls?{query}")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.body) < 1_000


async def test_other_resources_refuse_wrong_parameters(served: ServedApp) -> None:
    assert (await get(served, "metrics?range=1y")).status == 400
    assert (await get(served, "feed?topics=calls,secrets")).status == 400
    assert (await get(served, "feed", headers={"last-event-id": "x" * 600})).status == 400
    assert (await get(served, "nothing")).status == 404
    assert (await request(served, "POST", f"{API}/calls")).status == 405
    assert (await request(served, "PUT", f"{API}/session")).status == 405
    assert (await get(served, "calls/" + "x" * 4_000)).status == 404
    assert (await get(served, f"traces/{'f' * 4_000}")).status == 404


async def test_the_audit_lists_calls_from_elsewhere(served: ServedApp, shop: Shop) -> None:
    await post(served, "/shop/quote", {"item": "tea"})
    await post(served, "/shop/fail", {"how": "domain"})
    await shop.registry.execute("shop.quote", {"item": "tea"})
    entries = (await get(served, "audit")).json["entries"]
    assert [(each["operationId"], each["outcome"]) for each in entries] == [
        ("shop.fail", "failed"),
        ("shop.quote", "ok"),
    ]
    assert entries[0]["code"] == "SOLD_OUT"
    assert entries[0]["durationMs"] >= 0
    page = (await get(served, "audit?limit=1")).json
    assert (await get(served, f"audit?limit=1&cursor={page['next']}")).json["entries"] == entries[1:]


async def test_a_trace_has_nested_calls_within_their_parents() -> None:
    @operation(id="a.inner", type="query")
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @operation(id="a.outer", type="query")
    async def outer(context: OperationContext) -> int:
        results = await asyncio.gather(*(context.env.a.inner(n=number) for number in range(3)))
        return sum(result.data for result in results)

    served = app(OperationRegistry([inner, outer]), console=True, mcp=False)
    await post(served, "/a/outer", headers=TRACED)
    spans = (await get(served, f"traces/{TRACE}")).json["spans"]
    root = spans[0]
    assert [each["operationId"] for each in spans] == ["a.outer", "a.inner", "a.inner", "a.inner"]
    for child in spans[1:]:
        assert child["parentRequestId"] == root["requestId"]
        assert root["queuedAt"] <= child["startedAt"] <= child["endedAt"] <= root["endedAt"]
    assert [each["operationId"] for each in (await get(served, "calls?roots=1")).json["calls"]] == ["a.outer"]


async def test_attempts_are_listed() -> None:
    failures = iter([CallError("UNAVAILABLE", "not yet"), None])

    async def skip(seconds: float) -> None:
        return None

    @operation(id="a.flaky", type="query")
    async def flaky() -> int:
        if (error := next(failures)) is not None:
            raise error
        return 1

    registry = OperationRegistry([flaky], interceptors=[Retry(first_delay=0.05, sleep=skip)])
    served = app(registry, console=True, mcp=False)
    assert (await post(served, "/a/flaky")).status == 200
    [call] = (await get(served, "calls")).json["calls"]
    first, last = call["attempts"]
    assert first["code"] == "UNAVAILABLE"
    assert 0 < first["delayMs"] <= 50
    assert "code" not in last


async def test_a_call_that_waits_for_a_slot_is_shown_as_queued(shop: Shop) -> None:
    served = app(shop.registry, console=True, mcp=False, limits=Limits(concurrency=1))
    async with following(served, f"{API}/feed?topics=calls") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        async with (
            exchange(served, "POST", "/shop/slow", json_body={}),
            exchange(served, "POST", "/shop/slow", json_body={}) as second,
        ):
            await feed.until(lambda feed: b"call.queued" in feed.body)
            running = (await get(served, "calls?outcome=running")).json["calls"]
            waiting = next(each for each in running if "startedAt" not in each)
            assert (await get(served, "workers")).json["workers"][0]["state"] == "saturated"
            answer = await request(served, "DELETE", f"{API}/calls/{waiting['requestId']}")
            assert answer.status == 202
            assert (await second.complete()).json["executed"] == "no"
            shop.go_on.set()


async def test_a_feed_continues_after_the_last_event_that_its_client_has(served: ServedApp) -> None:
    async with following(served, f"{API}/feed?topics=calls") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        await post(served, "/shop/quote", {"item": "one"})
        await feed.until(lambda feed: b"call.ended" in feed.body)
    last = [event["id"] for event in events_of(feed.body) if "id" in event][-1]
    await post(served, "/shop/quote", {"item": "two"})
    async with following(served, f"{API}/feed?topics=calls", headers={"last-event-id": last}) as again:
        await again.until(lambda feed: b"call.ended" in feed.body)
    assert b"overflow" not in again.body
    assert b'"two"' in again.body
    assert b'"one"' not in again.body


@pytest.mark.parametrize("known", ["abcdef-1", "x", "-", "999", "{epoch}-99999999999999999999", "{epoch}-12345"])
async def test_a_feed_that_cannot_resume_reports_it(served: ServedApp, known: str) -> None:
    assert served.console is not None
    name = known.replace("{epoch}", "0" * 12)
    async with following(served, f"{API}/feed?topics=calls", headers={"last-event-id": name}) as feed:
        await feed.until(lambda feed: b"event: overflow" in feed.body)


async def test_an_idle_feed_sends_heartbeats(served: ServedApp) -> None:
    assert served.console is not None
    feeds = served.console._endpoint.feeds
    assert feeds.heartbeat == 10
    feeds.heartbeat, feeds.interval = 0.01, 0.01
    async with following(served, f"{API}/feed?topics=calls") as feed:
        await feed.until(lambda feed: feed.body.count(b"\n:\n\n") >= 3)


async def test_a_feed_reports_a_changed_catalogue(served: ServedApp, shop: Shop) -> None:
    async with following(served, f"{API}/feed?topics=catalogue,sources") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        before = (await get(served, "session")).json["catalogueVersion"]
        for each in ("math.double", "mcp.tool"):
            shop.registry.unregister(each)
        await feed.until(lambda feed: b"catalogue.changed" in feed.body)
    after = (await get(served, "session")).json["catalogueVersion"]
    assert after != before
    assert after.encode() in feed.body


async def test_an_identity_has_a_limited_number_of_feeds(served: ServedApp) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(16):
            feed = await stack.enter_async_context(following(served, f"{API}/feed"))
            await feed.until(lambda feed: b"hello" in feed.body)
        refused = await get(served, "feed")
        assert refused.status == 429
    assert (await get(served, "session")).status == 200


async def test_a_client_that_reads_nothing_uses_no_memory(served: ServedApp) -> None:
    """The feed waits for its client; what it misses meanwhile is counted, not queued."""
    async with following(served, f"{API}/feed?topics=calls&trace={TRACE}") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        feed.paused.clear()
        log = served.console._endpoint._log  # type: ignore[union-attr]
        record = served.console.records.add("r", "shop.quote", "served", trace_parent=TRACED["traceparent"])  # type: ignore[union-attr]
        assert record is not None
        log.append("started", record)
        await asyncio.sleep(0.15)  # the feed takes the first event and waits for its client
        for _ in range(20_000):
            log.append("items", record)
        feed.paused.set()
        await feed.until(lambda feed: b"overflow" in feed.body)
    dropped = [json.loads(event["data"])["dropped"] for event in events_of(feed.body) if event["event"] == "overflow"]
    assert sum(dropped) > 10_000
    assert len(log._ring) == 8_192


async def test_a_feed_reports_changes_that_do_not_fit_in_a_chunk(served: ServedApp) -> None:
    """Previously, a feed of a trace dropped all but the last 1,000 changes of an interval without `overflow`."""
    async with following(served, f"{API}/feed?topics=calls&trace={TRACE}") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        log = served.console._endpoint._log  # type: ignore[union-attr]
        record = served.console.records.add("r", "shop.quote", "served", trace_parent=TRACED["traceparent"])  # type: ignore[union-attr]
        assert record is not None
        before = log.last
        for _ in range(1_500):
            log.append("items", record)
        await feed.until(lambda feed: log.name_of(before + 1_500).encode() in feed.body)
    events = events_of(feed.body)
    assert sum(event["event"] == "call.items" for event in events) == 1_000
    assert sum(json.loads(event["data"])["dropped"] for event in events if event["event"] == "overflow") >= 500


def test_the_log_is_a_ring() -> None:
    log, records = EventLog(4), CallRecords()
    record = records.add("r", "a.b", "served")
    assert record is not None
    for _ in range(10):
        log.append("started", record)
    found, lost = log.after(2)
    assert [number for number, _, _ in found] == [7, 8, 9, 10]
    assert lost == 4
    assert log.after(10) == ([], 0)
    assert log.position_of(log.name_of(9)) == 9
    assert log.position_of(f"{log.epoch}-11") is None
    assert log.position_of(f"other-{9}") is None


def test_samples_are_bounded_and_failures_come_first() -> None:
    records, sampler = CallRecords(), Sampler(per_second=10)
    entries: list[Any] = []
    for number in range(500):
        record = records.add(f"r{number}", "a.b", "served")
        assert record is not None
        entries.append((2 * number, "started", record))
        records.end(record, "ok" if number % 100 else "TIMEOUT", seconds=0.1)
        entries.append((2 * number + 1, "ended", record))
    chosen = sampler.choose(entries, 1.0)
    calls = {entry[2].number for entry in chosen}
    assert len(calls) == 10
    assert sum(entry[2].outcome == "failed" for entry in chosen if entry[1] == "ended") == 5
    assert len(chosen) == 20
    assert sampler.choose([], 0.0) == []


def test_a_call_that_was_chosen_is_followed_to_its_end() -> None:
    records, sampler = CallRecords(), Sampler(per_second=1)
    first, second = records.add("a", "a.b", "served"), records.add("b", "a.b", "served")
    assert first is not None
    assert second is not None
    assert [entry[2] for entry in sampler.choose([(1, "started", first), (2, "started", second)], 0.0)] == [first]
    assert [entry[2] for entry in sampler.choose([(3, "items", second), (4, "items", first)], 0.0)] == [first]


# The page


@pytest.fixture
def built(tmp_path: Path) -> Pages:
    folder = tmp_path / "built"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text('<script src="/console/assets/index-1a2b3c4d.js"></script>')
    (folder / "assets" / "index-1a2b3c4d.js").write_text("x" * 2_000)
    (folder / "assets" / "icon.svg").write_text("<svg/>")
    (folder / "secret.py").write_text("not an asset")
    (tmp_path / "outside.js").write_text("secret")
    return Pages(folder)


def test_every_address_of_the_console_is_the_page(built: Pages) -> None:
    for path in ("/console/", "/console/op/github.issues/create", "/console/calls/x", "/console/index.html"):
        page = built.respond(path, "", {})
        assert page.status == 200
        assert b"index-1a2b3c4d.js" in page.body
        assert dict(page.headers)[b"content-security-policy"] == POLICY
        assert dict(page.headers)[b"x-content-type-options"] == b"nosniff"
    assert dict(built.respond("/console", "/api", {}).headers)[b"location"] == b"/api/console/"
    assert b'"/mounted/console/assets/' in built.respond("/console/", "/mounted", {}).body
    assert b"<script>" not in built.respond("/console/", '"><script>', {}).body.replace(b"<script src", b"")


def test_hashed_files_are_cached_and_compressed(built: Pages) -> None:
    found = built.respond("/console/assets/index-1a2b3c4d.js", "", {b"accept-encoding": b"gzip"})
    headers = dict(found.headers)
    assert headers[b"cache-control"] == b"public, max-age=31536000, immutable"
    assert gzip.decompress(found.body) == b"x" * 2_000
    assert built.respond("/console/assets/index-1a2b3c4d.js", "", {b"if-none-match": headers[b"etag"]}).status == 304
    assert built.respond("/console/assets/missing.js", "", {}).status == 404
    icon = built.respond("/console/assets/icon.svg", "", {})
    assert dict(icon.headers)[b"cache-control"] == b"no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/console/../outside.js",
        "/console/assets/../../outside.js",
        "/console/assets/..%2f..%2foutside.js",
        "/console//etc/passwd",
        "/console/assets//etc/passwd",
        "/console/secret.py",
        "/console/assets/\0",
        "/console/assets/..\\..\\outside.js",
    ],
)
def test_no_path_leads_out_of_the_directory(built: Pages, path: str) -> None:
    found = built.respond(path, "", {})
    assert b"secret" not in found.body
    assert b"not an asset" not in found.body
    assert found.status in (200, 404)


async def test_without_built_files_the_page_shows_the_build_command(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "nothing")
    assert not pages.is_built
    assert b"make console" in pages.respond("/console/", "", {}).body


async def test_without_the_setting_there_is_no_console(shop: Shop) -> None:
    served = app(shop.registry, mcp=False)
    assert (await request(served, "GET", "/console/")).status == 404
    assert (await get(served, "session")).status == 404
    assert shop.registry.observers == ()


async def test_a_drained_server_observes_no_more(shop: Shop) -> None:
    served = app(shop.registry, console=True, mcp=False)
    observing = list(shop.registry.observers)
    await served.drain()
    assert (len(observing), len(shop.registry.observers)) == (1, 0)


async def test_the_page_is_served_without_credentials_and_only_to_readers(served: ServedApp) -> None:
    page = await request(served, "GET", "/console/calls")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert (await request(served, "HEAD", "/console/")).body == b""
    assert (await request(served, "POST", "/console/calls")).status == 404
