"""Callers see only what they may in the console: operations, calls, traces, events, audit entries."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import AccessControl, CallError, Identity, OperationContext, OperationRegistry, operation
from operations.identity import Principal, StaticTokens
from operations.jobs import Jobs
from operations.serving import ServedApp, app
from tests.serving.asgi_client import Answer, events_of, exchange, following, post, request
from tests.serving.shop import Shop

TOKENS = {
    "ann-token": Principal(Identity("ann", ("read",))),
    "bob-token": Principal(Identity("bob", ("read", "write"))),
    "eve-token": Principal(Identity("eve")),
    "eye-token": Principal(Identity("eye", ("operations:watch",))),
    "all-token": Principal(Identity("all", ("read", "write", "operations:watch", "operations:manage"))),
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
API = "/console/api"


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
async def served(shop: Shop) -> AsyncIterator[ServedApp]:
    application = app(shop.registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False)
    async with application.lifespan():
        yield application


async def get(served: ServedApp, path: str, token: str | None = None, **options: Any) -> Answer:
    return await request(served, "GET", f"{API}/{path}", token=token, **options)


async def test_without_credentials_nothing_is_answered(served: ServedApp) -> None:
    resources = ("session", "catalogue", "operations/shop.quote", "calls", "calls/x", "traces/x", "workers", "metrics")
    for path in (*resources, "audit", "feed"):
        answer = await get(served, path)
        assert answer.status == 401, path
        assert "www-authenticate" in answer.headers
    assert (await get(served, "session", "wrong-token")).status == 401
    assert (await request(served, "DELETE", f"{API}/calls/x")).status == 401


async def test_the_catalogue_lists_only_permitted_operations(served: ServedApp) -> None:
    listed = {
        name: {each["id"] for each in (await get(served, "catalogue", f"{name}-token")).json["operations"]}
        for name in ("ann", "bob", "eve")
    }
    assert {"vault.look", "vault.follow"} == {each for each in listed["ann"] if each.startswith("vault")}
    assert "vault.put" in listed["bob"]
    assert not any(each.startswith("vault") for each in listed["eve"])
    assert "vault" not in (await get(served, "catalogue", "eve-token")).body.decode()
    versions = {(await get(served, "catalogue", f"{name}-token")).headers["etag"] for name in ("ann", "bob", "eve")}
    assert len(versions) == 3


async def test_a_forbidden_operation_looks_like_an_unknown_one(served: ServedApp) -> None:
    hidden = await get(served, "operations/vault.put", "ann-token")
    missing = await get(served, "operations/vault.nothing", "ann-token")
    assert hidden.status == missing.status == 404
    assert hidden.json["detail"] == missing.json["detail"]
    assert (await get(served, "operations/vault.put", "bob-token")).json["accessControl"] == {
        "requiredScopes": ["write"]
    }


async def test_an_identity_sees_its_own_calls_only(served: ServedApp) -> None:
    await post(served, "/vault/put", {"item": "gold"}, token="bob-token", headers=TRACED)
    await post(served, "/shop/quote", {"item": "tea"}, token="ann-token")
    bobs = (await get(served, "calls", "bob-token")).json["calls"]
    anns = (await get(served, "calls", "ann-token")).json["calls"]
    assert [each["operationId"] for each in bobs] == ["vault.put"]
    assert [each["operationId"] for each in anns] == ["shop.quote"]
    identifier = bobs[0]["requestId"]
    assert (await get(served, f"calls/{identifier}", "bob-token")).status == 200
    for token in ("ann-token", "eve-token", "eye-token"):
        assert (await get(served, f"calls/{identifier}", token)).status == 404
        assert (await get(served, f"traces/{TRACE}", token)).status == 404
    assert (await get(served, f"traces/{TRACE}", "bob-token")).json["spans"][0]["operationId"] == "vault.put"


async def test_the_scope_to_watch_shows_calls_of_operations_that_may_be_called(served: ServedApp) -> None:
    await post(served, "/vault/put", {"item": "gold"}, token="bob-token")
    await post(served, "/shop/quote", {"item": "tea"}, token="ann-token")
    seen = (await get(served, "calls", "eye-token")).json["calls"]
    assert [(each["operationId"], each["caller"]) for each in seen] == [("shop.quote", "ann")]
    seen = (await get(served, "calls", "all-token")).json["calls"]
    assert {each["caller"] for each in seen} == {"ann", "bob"}
    assert len((await get(served, "calls?caller=bob", "all-token")).json["calls"]) == 1
    assert (await get(served, "calls?caller=bob", "ann-token")).json["calls"] == []
    entries = (await get(served, "audit", "eye-token")).json["entries"]
    assert [each["operationId"] for each in entries] == ["shop.quote"]


@pytest.mark.parametrize("path", ["workers", "metrics", "audit"])
async def test_resources_about_all_callers_require_the_scope(served: ServedApp, path: str) -> None:
    assert (await get(served, path, "bob-token")).status == 403
    assert (await get(served, path, "eye-token")).status == 200
    features = (await get(served, "session", "bob-token")).json["features"]
    assert path not in features
    assert path in (await get(served, "session", "eye-token")).json["features"]


async def test_metrics_of_an_operation_that_may_not_be_called_are_not_shown(served: ServedApp) -> None:
    assert (await get(served, "metrics?operation=vault.put", "eye-token")).status == 404
    assert (await get(served, "metrics?operation=vault.put", "all-token")).status == 200


async def test_messages_and_bodies_of_others_are_not_shown_unless_retained(served: ServedApp) -> None:
    await post(served, "/shop/fail", {"how": "domain"}, token="ann-token")
    [call] = (await get(served, "calls", "eye-token")).json["calls"]
    assert "message" not in (await get(served, f"calls/{call['requestId']}", "eye-token")).json
    own = (await get(served, f"calls/{call['requestId']}", "ann-token")).json
    assert own["message"] == "no tea left"
    assert "input" not in own


async def test_values_of_differences_are_visible_to_their_caller_only(shop: Shop) -> None:
    @operation(id="shop.wrong", type="query")
    async def wrong() -> dict[str, int]:
        return {"count": "7"}  # type: ignore[dict-item]

    shop.registry.register(wrong)
    served = app(shop.registry, authenticator=StaticTokens(TOKENS), console=True, console_bodies=True, mcp=False)
    answer = await post(served, "/shop/wrong", token="ann-token")
    path = f"calls/{answer.headers['operations-request-id']}"
    assert (await get(served, path, "ann-token")).json["differences"] == [
        {"pointer": "/count", "action": "cast", "declared": "integer", "got": '"7"', "became": "7"}
    ]
    assert (await get(served, path, "eye-token")).json["differences"] == [
        {"pointer": "/count", "action": "cast", "declared": "integer"}
    ]
    quiet = app(shop.registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False)
    answer = await post(quiet, "/shop/wrong", token="ann-token")
    path = f"calls/{answer.headers['operations-request-id']}"
    assert "differences" in (await get(quiet, path, "ann-token")).json
    assert "differences" not in (await get(quiet, path, "eye-token")).json


async def test_the_catalogue_names_the_scopes_of_permitted_operations(served: ServedApp) -> None:
    listed = (await get(served, "catalogue", "bob-token")).json["operations"]
    assert {each["id"]: each.get("scopes") for each in listed if "scopes" in each}["vault.put"] == ["write"]
    assert all(
        "write" not in each.get("scopes", ())
        for each in (await get(served, "catalogue", "ann-token")).json["operations"]
    )


async def test_the_text_of_an_exception_is_never_sent(served: ServedApp) -> None:
    await post(served, "/shop/fail", {"how": "text"}, token="ann-token")
    [call] = (await get(served, "calls", "ann-token")).json["calls"]
    assert (await get(served, f"calls/{call['requestId']}", "ann-token")).json["message"] == "shop.fail failed"


async def test_a_feed_has_the_events_of_its_caller(served: ServedApp) -> None:
    async with (
        following(served, f"{API}/feed", token="ann-token") as anns,
        following(served, f"{API}/feed", token="eye-token") as eyes,
    ):
        await anns.until(lambda feed: b"hello" in feed.body)
        await eyes.until(lambda feed: b"hello" in feed.body)
        await post(served, "/vault/put", {"item": "gold"}, token="bob-token")
        await post(served, "/shop/quote", {"item": "tea"}, token="bob-token")
        await post(served, "/shop/quote", {"item": "tea"}, token="ann-token")
        await anns.until(lambda feed: b"call.ended" in feed.body)
        await eyes.until(lambda feed: feed.body.count(b"call.ended") >= 2)
    assert b'"bob"' not in anns.body
    assert b"vault" not in anns.body
    assert b"event: metrics" not in anns.body
    assert b"vault.put" not in eyes.body
    assert b'"bob"' in eyes.body


async def test_a_feed_of_a_trace_needs_rights_to_its_calls(served: ServedApp) -> None:
    async with following(served, f"{API}/feed?trace={TRACE}&topics=calls", token="ann-token") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        await post(served, "/shop/quote", {"item": "tea"}, token="bob-token", headers=TRACED)
        await post(served, "/shop/quote", {"item": "tea"}, token="ann-token", headers=TRACED)
        await feed.until(lambda feed: b"call.ended" in feed.body)
    callers = {event["data"] for event in events_of(feed.body) if event.get("event", "").startswith("call.")}
    assert all('"caller":"ann"' in each for each in callers)


async def test_only_its_caller_or_a_manager_cancels_a_call(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow", json_body={}, token="bob-token") as calling:
        await shop.started.wait()
        [call] = (await get(served, "calls", "bob-token")).json["calls"]
        identifier = call["requestId"]
        for token in ("ann-token", "eve-token", "eye-token"):
            assert (await request(served, "DELETE", f"{API}/calls/{identifier}", token=token)).status == 404
        assert not shop.cancelled.is_set()
        assert (await get(served, f"calls/{identifier}", "bob-token")).json["cancellable"] is True
        answer = await request(served, "DELETE", f"{API}/calls/{identifier}", token="bob-token")
        assert answer.status == 202
        await shop.cancelled.wait()
        assert (await calling.complete()).json["code"] == "ABORTED"
    assert (await request(served, "DELETE", f"{API}/calls/{identifier}", token="bob-token")).status == 409
    assert (await get(served, f"calls/{identifier}", "bob-token")).json["outcome"] == "cancelled"


async def test_the_scope_to_manage_cancels_calls_of_others(served: ServedApp, shop: Shop) -> None:
    async with exchange(served, "POST", "/shop/slow", json_body={}, token="bob-token") as calling:
        await shop.started.wait()
        [call] = (await get(served, "calls?outcome=running", "all-token")).json["calls"]
        assert (await request(served, "DELETE", f"{API}/calls/{call['requestId']}", token="all-token")).status == 202
        assert (await calling.complete()).status == 503


async def test_a_nested_call_without_rights_is_shown_as_hidden() -> None:
    secret = AccessControl(required_scopes=("write",))

    @operation(id="a.inner", type="query", access_control=secret)
    async def inner() -> int:
        return 1

    @operation(id="a.outer", type="query")
    async def outer(context: OperationContext) -> int:
        try:
            await context.env.a.inner()
        except CallError:
            return (await context.env.a.open()).data  # type: ignore[no-any-return]
        return 0

    @operation(id="a.open", type="query")
    async def opened() -> int:
        return 2

    registry = OperationRegistry([inner, outer, opened])
    served = app(registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False)
    await post(served, "/a/outer", token="bob-token", headers=TRACED)
    spans = (await get(served, f"traces/{TRACE}", "bob-token")).json["spans"]
    assert [each["operationId"] for each in spans] == ["a.outer", "a.inner"]
    spans = (await get(served, f"traces/{TRACE}", "eye-token")).json["spans"]
    assert spans[0]["operationId"] == "a.outer"
    assert spans[1]["hidden"] is True
    assert not {"operationId", "caller", "worker", "code", "label"} & spans[1].keys()
    assert b"a.inner" not in (await get(served, f"traces/{TRACE}", "eye-token")).body


async def test_anonymous_callers_of_a_server_with_tokens_see_operations_only(shop: Shop) -> None:
    served = app(shop.registry, authenticator=StaticTokens(TOKENS), allow_anonymous=True, console=True, mcp=False)
    await post(served, "/shop/quote", {"item": "tea"})
    session = (await get(served, "session")).json
    assert session["identity"] is None
    assert session["features"] == []
    assert (await get(served, "catalogue")).status == 200
    for path in ("calls", "feed", "workers", "audit", f"traces/{TRACE}"):
        assert (await get(served, path)).status == 403, path


async def test_a_server_without_an_authenticator_shows_everything_that_needs_no_rights(shop: Shop) -> None:
    served = app(shop.registry, console=True, mcp=False)
    await post(served, "/shop/quote", {"item": "tea"})
    session = (await get(served, "session")).json
    assert session["authRequired"] is False
    assert set(session["features"]) >= {"calls", "feed", "workers", "metrics", "audit"}
    [call] = (await get(served, "calls")).json["calls"]
    assert "caller" not in call
    assert b"vault" not in (await get(served, "catalogue")).body


async def test_a_request_id_that_a_peer_chose_cancels_no_call_of_another(served: ServedApp, shop: Shop) -> None:
    """Ids of HTTP requests are predictable: a peer that names one as its own must not reach the other call."""
    async with exchange(served, "POST", "/shop/slow", json_body={}, token="bob-token"):
        await shop.started.wait()
        [call] = (await get(served, "calls", "bob-token")).json["calls"]
        assert served.dispatcher.cancel(call["requestId"], "ann", "stolen") is False
        assert served.dispatcher.cancel(call["requestId"], None, "stolen") is False
        assert not shop.cancelled.is_set()
        shop.go_on.set()


async def test_a_feed_ends_when_tokens_are_revoked(served: ServedApp) -> None:
    async with following(served, f"{API}/feed", token="ann-token") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        await served.revoke()
        await feed.complete()


async def test_a_feed_ends_when_its_credentials_expire(shop: Shop) -> None:
    principal = Principal(Identity("ann"), expires_at=time.time() + 0.3)
    served = app(shop.registry, authenticator=StaticTokens({"t": principal}), console=True, mcp=False)
    async with following(served, f"{API}/feed", token="t") as feed:
        await feed.complete()
    assert feed.status == 200


async def test_a_caller_sees_and_changes_its_own_jobs_only(shop: Shop) -> None:
    async with Jobs(shop.registry) as jobs:
        served = app(shop.registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False, jobs=jobs)
        job_id = await jobs.of(TOKENS["bob-token"].identity).submit("shop.slow", {"item": "x"})
        await shop.started.wait()
        assert "jobs" in (await get(served, "session", "bob-token")).json["features"]
        [job] = (await get(served, "jobs", "bob-token")).json["jobs"]
        assert job["operationId"] == "shop.slow"
        assert (await get(served, "jobs", "ann-token")).json["jobs"] == []
        path = f"{API}/jobs/{job_id}/cancel"
        assert (await request(served, "POST", path, token="ann-token")).status == 404
        assert (await request(served, "POST", f"{API}/jobs/{job_id}/erase", token="bob-token")).status == 404
        assert (await request(served, "POST", f"{API}/jobs/{'x' * 4000}/cancel", token="bob-token")).status == 404
        assert not shop.cancelled.is_set()
        async with following(served, f"{API}/feed?topics=jobs", token="bob-token") as feed:
            await feed.until(lambda feed: b"hello" in feed.body)
            cancelled = await request(served, "POST", path, token="bob-token")
            assert cancelled.json["state"] == "cancelled"
            await feed.until(lambda feed: b"job.changed" in feed.body)
        assert (await request(served, "POST", f"{API}/jobs/{job_id}/retry", token="bob-token")).status == 409
    assert (await get(app(shop.registry, console=True, mcp=False), "jobs")).status == 404


SECRETS = {"ann": ("vault.put",), "eve": ("vault.",), "eye": ("vault.",)}
"""Strings that no response may contain; callers without `operations:watch` may not see names of others either."""


async def test_no_resource_shows_forbidden_data(served: ServedApp) -> None:
    """Every resource, with every id that exists, and every event since the start."""
    for token in ("ann-token", "bob-token", "all-token"):
        for path, data in (("/vault/put", {"item": "gold"}), ("/vault/look", {}), ("/shop/fail", {"how": "domain"})):
            await post(served, path, data, token=token, headers=TRACED)
    assert served.console is not None
    records = served.console.records.newest()
    paths = ["session", "catalogue", "calls?limit=200", "audit", "workers", "metrics", f"traces/{TRACE}"]
    paths += [f"calls/{record.request_id}" for record in records]
    paths += [f"operations/{each}" for each in served.exposure.operations]
    everything = {"last-event-id": served.console._endpoint._log.name_of(0)}
    for name, secrets in SECRETS.items():
        token = f"{name}-token"
        answers = [(await get(served, path, token)).body.decode() for path in paths]
        async with following(served, f"{API}/feed", token=token, headers=everything) as feed:
            await feed.until(lambda feed: b"hello" in feed.body)
            await post(served, "/shop/quote", {"item": "tea"}, token=token)
            await feed.until(lambda feed: b"shop.quote" in feed.body)
        others = () if name == "eye" else tuple(f'"{other}"' for other in ("ann", "bob", "all") if other != name)
        for answer in (*answers, feed.body.decode()):
            assert not [secret for secret in (*secrets, *others) if secret in answer]


async def test_two_tokens_of_one_identity_share_no_list_of_jobs(shop: Shop) -> None:
    plain, admin = Identity("bob"), Identity("bob", ("jobs.admin",))
    tokens = StaticTokens({"plain": Principal(plain), "admin": Principal(admin)})
    async with Jobs(shop.registry) as jobs:
        await jobs.of(Identity("ann")).submit("shop.quote", {"item": "tea"})
        served = app(shop.registry, authenticator=tokens, console=True, mcp=False, jobs=jobs)
        seen = {}
        for token in ("admin", "plain"):
            async with following(served, f"{API}/feed?topics=jobs", token=token) as feed:
                await feed.until(lambda feed: b"hello" in feed.body)
            seen[token] = len((await get(served, "jobs", token)).json["jobs"])
        assert served.console is not None
        kept = served.console._endpoint._jobs
        assert kept is not None
        assert sorted(len(known) for _, known in kept._snapshots.values()) == [0, 1]
        assert seen == {"admin": 1, "plain": 0}


async def test_a_token_with_fewer_rights_of_the_same_identity_does_not_reach_its_jobs() -> None:
    @operation(namespace="vault", type="mutation", access_control=AccessControl(required_scopes=["write"]))
    async def open_door() -> None:
        """Open the door."""
        raise ValueError("postgres://root:hunter2@db")

    full, low = Identity("bob", ("write",)), Identity("bob")
    tokens, registry = StaticTokens({"full": Principal(full), "low": Principal(low)}), OperationRegistry([open_door])
    async with Jobs(registry) as jobs:
        job_id = await jobs.of(full).submit("vault.open_door")
        with pytest.raises(CallError):
            await jobs.wait(job_id, 10)
        served = app(registry, authenticator=tokens, console=True, mcp=False, jobs=jobs)
        [job] = (await get(served, "jobs", "full")).json["jobs"]
        assert (job["state"], job["message"]) == ("failed", "vault.open_door failed")
        assert (await get(served, "jobs", "low")).json["jobs"] == []
        assert (await request(served, "POST", f"{API}/jobs/{job_id}/retry", token="low")).status == 404
        assert (await request(served, "POST", f"{API}/jobs/{job_id}/retry", token="full")).status == 200
