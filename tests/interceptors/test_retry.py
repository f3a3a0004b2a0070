from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import CallError, ErrorCode, OperationContext, OperationRegistry
from operations.interceptors import RateLimit, Retry
from operations.testing import error_of
from tests.interceptors.calls import Clock, Upstream, operation_of, registry_of, unavailable


def retry(**options: Any) -> Retry:
    return Retry(sleep=Clock().sleep, **options)


async def test_a_query_is_repeated_until_it_succeeds() -> None:
    upstream, interceptor = Upstream([unavailable(), CallError(ErrorCode.TIMEOUT, "slow")]), retry()
    assert (await registry_of([interceptor], upstream).execute("a.b")).data == {"call": 3}
    assert interceptor.repeats == 2


async def test_the_last_error_is_raised() -> None:
    upstream = Upstream([unavailable()] * 9)
    error = await error_of(registry_of([retry(attempts=4)], upstream).execute("a.b"))
    assert (error.code, upstream.calls) == (ErrorCode.UNAVAILABLE, 4)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code not in ("UNAVAILABLE", "TIMEOUT")])
async def test_other_errors_are_final(code: ErrorCode) -> None:
    upstream = Upstream([CallError(code, "no", {"statusCode": 404})])
    await error_of(registry_of([retry()], upstream).execute("a.b"))
    assert upstream.calls == 1


async def test_http_statuses_that_may_pass_are_repeated() -> None:
    upstream = Upstream([CallError(ErrorCode.EXECUTION_ERROR, "busy", {"statusCode": 503})])
    assert (await registry_of([retry()], upstream).execute("a.b")).data == {"call": 2}


errors = st.builds(
    CallError,
    st.sampled_from([*ErrorCode, "DOMAIN"]),
    st.just("failed"),
    st.none()
    | st.fixed_dictionaries(
        {},
        optional={
            "executed": st.sampled_from(["no", "unknown", "yes", 1]),
            "operationId": st.sampled_from(["a.b", "other"]),
            "statusCode": st.sampled_from([429, 503]),
            "retryAfter": st.sampled_from([0, 1, -1, "x", float("nan")]),
        },
    ),
)


@given(st.lists(errors | st.builds(ValueError), min_size=1, max_size=5))
async def test_a_mutation_is_never_repeated(raised: list[Exception]) -> None:
    upstream = Upstream(raised)
    await error_of(registry_of([retry(attempts=10)], upstream, "mutation").execute("a.b"))
    assert upstream.calls == 1


@given(st.lists(errors, min_size=1, max_size=5))
async def test_a_mutation_is_repeated_only_if_it_was_not_executed(raised: list[CallError]) -> None:
    upstream, given_errors = Upstream(raised), list(raised)
    interceptor = retry(attempts=10, unexecuted_mutations=True)
    with contextlib.suppress(CallError):
        await registry_of([interceptor], upstream, "mutation").execute("a.b")
    for error in given_errors[: upstream.calls - 1]:
        assert error.details["executed"] == "no"
        assert error.details["operationId"] == "a.b"


async def test_a_mutation_whose_nested_call_was_not_executed_is_not_repeated() -> None:
    upstream = Upstream([unavailable("no", "other.op")])
    interceptor = retry(unexecuted_mutations=True)
    await error_of(registry_of([interceptor], upstream, "mutation").execute("a.b"))
    assert upstream.calls == 1


async def test_the_budget_limits_repeats_of_all_calls() -> None:
    upstream, interceptor = Upstream([unavailable()] * 10_000), retry(attempts=3, budget=0.1, reserve=5)
    registry = registry_of([interceptor], upstream)
    for _ in range(1_000):
        await error_of(registry.execute("a.b"))
    assert interceptor.repeats == upstream.calls - 1_000
    assert 100 <= interceptor.repeats <= 1_000 * 0.1 + 5
    assert interceptor.exhausted > 800


async def test_a_delay_beyond_the_deadline_is_not_waited_for() -> None:
    upstream = Upstream([unavailable()])
    context = OperationContext(deadline=int(time.time() * 1000) + 60_000)
    registry = registry_of([Retry(first_delay=1_000, longest_delay=1_000)], upstream)
    error = await error_of(registry.execute("a.b", None, context))
    assert (error.code, upstream.calls) == (ErrorCode.UNAVAILABLE, 1)


async def test_a_retry_waits_as_long_as_the_upstream_requests() -> None:
    clock = Clock()
    limit = RateLimit(1, burst=1, clock=clock)
    registry = registry_of([Retry(sleep=clock.sleep), limit])
    await registry.execute("a.b")
    began = clock.now
    await registry.execute("a.b")
    assert clock.now - began == pytest.approx(1.0)


async def test_a_longer_wait_than_allowed_ends_the_call() -> None:
    error = CallError(ErrorCode.EXECUTION_ERROR, "busy", {"statusCode": 429, "headers": {"retry-after": "3600"}})
    upstream = Upstream([error])
    await error_of(registry_of([retry()], upstream).execute("a.b"))
    assert upstream.calls == 1


async def test_streams_are_not_repeated() -> None:
    upstream = Upstream([unavailable()])
    registry = registry_of([retry()], upstream, "subscription")
    with pytest.raises(CallError):
        async for _ in registry.subscribe("a.b"):
            pass
    assert upstream.calls == 1


async def test_retry_does_not_apply_to_mutations() -> None:
    operation = operation_of(Upstream(), "mutation")
    assert not retry().applies(operation.spec)
    assert retry().applies(msgspec.structs.replace(operation.spec, type="query"))
    assert (await OperationRegistry([operation], interceptors=[retry()]).execute("a.b")).data == {"call": 1}


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="attempts"):
        Retry(0)
