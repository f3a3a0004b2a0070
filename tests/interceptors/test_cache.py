from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import Identity, OperationContext, mcp_envelope
from operations.interceptors import Cache
from operations.testing import error_of
from tests.interceptors.calls import ANN, BOB, Clock, Upstream, registry_of, unavailable


async def test_a_result_is_kept_for_its_time_by_input() -> None:
    clock, upstream = Clock(), Upstream()
    cache = Cache(10, clock=clock)
    registry = registry_of([cache], upstream)
    first = await registry.execute("a.b", {"x": 1, "y": 2})
    assert await registry.execute("a.b", {"y": 2, "x": 1}) == first
    assert (await registry.execute("a.b", {"x": 2, "y": 2})).data == {"call": 2}
    clock.now += 10
    assert (await registry.execute("a.b", {"x": 1, "y": 2})).data == {"call": 3}
    assert (cache.hits, cache.misses) == (1, 3)


async def test_values_that_only_look_alike_are_kept_apart() -> None:
    upstream = Upstream()
    registry = registry_of([Cache(10)], upstream)
    inputs: list[Any] = [{"x": 1}, {"x": "1"}, {"x": True}, {"x": None}, {"x": b"1"}, {"x": [1]}, {"x": {"1": 1}}, {}]
    for value in inputs:
        await registry.execute("a.b", value)
    assert upstream.calls == len(inputs)


async def test_a_caller_never_gets_the_result_of_another() -> None:
    registry = registry_of([Cache(10)])
    assert (await registry.execute("a.b", {}, ANN)).data == {"call": 1}
    assert (await registry.execute("a.b", {}, BOB)).data == {"call": 2}
    assert (await registry.execute("a.b", {})).data == {"call": 3}
    assert (await registry.execute("a.b", {}, ANN)).data == {"call": 1}


identities = st.none() | st.builds(
    Identity,
    st.sampled_from(["ann", "bob"]),
    st.lists(st.sampled_from(["read", "write"]), unique=True),
    st.dictionaries(st.sampled_from(["doc:1", "doc:2"]), st.lists(st.sampled_from(["get", "put"]), unique=True)),
    st.dictionaries(st.sampled_from(["tenant"]), st.sampled_from(["x", "y"])),
)
contexts = st.builds(
    OperationContext,
    identity=identities,
    metadata=st.dictionaries(st.sampled_from(["http", "traceparent"]), st.sampled_from(["a", "b"])),
    trusted=st.sampled_from([None, True, False]),
)


@given(st.lists(contexts, max_size=20), st.sampled_from(["identity", "rights", "everyone"]))
async def test_a_cached_result_is_returned_only_to_an_equivalent_caller(given_contexts: Any, share: Any) -> None:
    """The handler returns everything that it knows about its caller."""

    async def handler(input: Any, context: OperationContext) -> Any:
        return {"identity": msgspec.to_builtins(context.identity), "http": context.metadata.get("http")}

    registry = registry_of([Cache(10, share=share)], handler)
    for context in given_contexts:
        data = (await registry.execute("a.b", {}, context)).data
        assert data["http"] == context.metadata.get("http")
        seen, own = data["identity"] or {}, msgspec.to_builtins(context.identity) or {}
        if share == "identity":
            assert _comparable(seen) == _comparable(own)
        elif share == "rights":
            assert sorted(seen.get("scopes", ())) == sorted(own.get("scopes", ()))
            assert seen.get("resources", {}) == own.get("resources", {})


def _comparable(identity: dict[str, Any]) -> dict[str, Any]:
    return {**identity, "scopes": sorted(identity.get("scopes", ()))}


async def test_callers_with_the_same_rights_share_if_configured() -> None:
    registry = registry_of([Cache(10, share="rights")])
    assert (await registry.execute("a.b", {}, ANN)).data == (await registry.execute("a.b", {}, BOB)).data
    other = OperationContext(identity=Identity("cat", ("write",)))
    assert (await registry.execute("a.b", {}, other)).data == {"call": 2}


async def test_a_caller_cannot_change_a_kept_result() -> None:
    registry = registry_of([Cache(10)])
    first = await registry.execute("a.b")
    first.data["call"] = "changed"
    second = await registry.execute("a.b")
    second.data["call"] = "changed"
    assert (await registry.execute("a.b")).data == {"call": 1}


async def test_mutations_errors_and_streams_are_not_kept() -> None:
    upstream, cache = Upstream(), Cache(10)
    registry = registry_of([cache], upstream, "mutation")
    await registry.execute("a.b")
    await registry.execute("a.b")
    assert (upstream.calls, len(cache)) == (2, 0)
    registry = registry_of([cache], Upstream([unavailable()]))
    await error_of(registry.execute("a.b"))
    assert len(cache) == 0
    stream = registry.subscribe("a.b")
    assert [envelope.data async for envelope in stream] == [0, 1, 2]
    assert len(cache) == 0


async def test_mcp_error_results_are_not_kept() -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        return mcp_envelope("bad", content=[], is_error=True)

    cache = Cache(10)
    assert (await registry_of([cache], handler).execute("a.b")).data == "bad"
    assert len(cache) == 0


async def test_an_input_that_cannot_be_compared_passes_through() -> None:
    upstream, cache = Upstream(), Cache(10)
    registry = registry_of([cache], upstream)
    value = {"x": object()}
    assert (await registry.execute("a.b", value)).data == {"call": 1}
    assert (await registry.execute("a.b", value)).data == {"call": 2}
    assert len(cache) == 0


async def test_memory_is_bounded() -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        return "x" * input["size"]

    cache = Cache(100, max_entries=10, max_bytes=5_000)
    registry = registry_of([cache], handler)
    for number in range(100):
        await registry.execute("a.b", {"n": number, "size": 10})
    assert len(cache) == 10
    for number in range(100):
        await registry.execute("a.b", {"n": number, "size": 1_500})
        assert cache.bytes <= 5_000
    await registry.execute("a.b", {"size": 10_000})
    assert cache.bytes == sum(len(kept) for _, kept in cache._entries.values())
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="ttl"):
        Cache(0)
    with pytest.raises(ValueError, match="share"):
        Cache(1, share="all")  # type: ignore[arg-type]
