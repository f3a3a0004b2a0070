from __future__ import annotations

import asyncio
from typing import Any

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.interceptors import Approval, ApprovalRequest, Approved, Refused
from operations.testing import error_of
from tests.interceptors.calls import Upstream, operation_of, registry_of


def answering(decision: Any) -> Approval:
    async def ask(request: ApprovalRequest) -> Any:
        return decision

    return Approval({"*": "ask"}, ask=ask)


async def test_an_approved_call_runs() -> None:
    for decision in (True, Approved()):
        assert (await registry_of([answering(decision)]).execute("a.b")).data == {"call": 1}


async def test_a_refused_call_does_not_run() -> None:
    for decision in (False, None, "yes", Refused("too dear")):
        upstream = Upstream()
        error = await error_of(registry_of([answering(decision)], upstream).execute("a.b"))
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "NOT_APPROVED")
        assert (error.details["executed"], upstream.calls) == ("no", 0)
    assert "too dear" in error.message


async def test_a_decision_may_change_the_input_which_is_validated() -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        return input

    approval = answering(Approved({"amount": 1}))
    assert (await registry_of([approval], handler).execute("a.b", {"amount": 100})).data == {"amount": 1}


async def test_a_missing_person_is_a_refusal() -> None:
    error = await error_of(registry_of([Approval({"*": "ask"})]).execute("a.b"))
    assert error.code is ErrorCode.ACCESS_DENIED


async def test_no_answer_in_time_is_a_refusal() -> None:
    async def never(request: ApprovalRequest) -> bool:
        await asyncio.Event().wait()
        return True

    error = await error_of(registry_of([Approval({"*": "ask"}, ask=never, timeout=0.01)]).execute("a.b"))
    assert "in time" in error.message


async def test_a_stream_needs_consent_once() -> None:
    asked: list[str] = []

    async def ask(request: ApprovalRequest) -> bool:
        asked.append(request.spec.id)
        return len(asked) == 1

    registry = registry_of([Approval({"*": "ask"}, ask=ask)], Upstream(), "subscription")
    assert [envelope.data async for envelope in registry.subscribe("a.b")] == [0, 1, 2]
    assert asked == ["a.b"]
    assert (await error_of(anext(registry.subscribe("a.b")))).code is ErrorCode.ACCESS_DENIED


async def test_nested_calls_need_their_own_consent() -> None:
    async def outer(input: Any, context: OperationContext) -> Any:
        return (await context.env.a.inner()).data

    async def ask(request: ApprovalRequest) -> bool:
        return request.spec.id != "a.inner"

    operations = [operation_of(outer, operation_id="a.outer"), operation_of(Upstream(), operation_id="a.inner")]
    registry = OperationRegistry(operations, interceptors=[Approval({"*": "ask"}, ask=ask)])
    assert (await error_of(registry.execute("a.outer"))).details["operationId"] == "a.inner"
