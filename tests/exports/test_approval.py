from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from operations import CallError, Identity, OperationRegistry, OperationType
from operations.context import ELICIT, Question
from operations.interceptors import Approval, ApprovalRequest, Approved, Refused
from operations.testing import stub_operation


def registry(*interceptors: Any) -> OperationRegistry:
    return OperationRegistry(
        [
            stub_operation("git.read", returns=lambda input: input),
            stub_operation("git.write", returns=lambda input: input, type=OperationType.MUTATION),
        ],
        interceptors=interceptors,
    )


async def test_the_first_pattern_that_matches_decides() -> None:
    approval = Approval({"git.read": "allow", "git.*": "deny"})
    tools = registry().tools(approval=approval)
    assert not (await tools.call("git_read")).is_error
    refused = await tools.call("git_write")
    assert refused.is_error
    assert refused.error is not None
    assert refused.error.code == "ACCESS_DENIED"
    assert refused.error.details["reason"] == "NOT_APPROVED"
    assert refused.error.details["executed"] == "no"
    assert "was refused and did not run: the policy denies it" in refused.text


async def test_a_hook_allows_changes_or_refuses() -> None:
    asked: list[ApprovalRequest] = []
    answers: list[Any] = [True, Approved({"a": 2}), Approved(), Refused("not today"), False, None]

    async def ask(request: ApprovalRequest) -> Any:
        asked.append(request)
        return answers.pop(0)

    identity = Identity("ann")
    tools = registry().tools(identity=identity, approval=Approval(mutations="ask", ask=ask))
    texts = [(await tools.call("git_write", {"a": 1})).text for _ in range(6)]
    assert texts[:3] == ['{"a":1}', '{"a":2}', '{"a":1}']
    assert "not today" in texts[3]
    assert "the user refused it" in texts[4]
    assert "the user refused it" in texts[5]
    assert asked[0].spec.id == "git.write"
    assert asked[0].input == {"a": 1}
    assert asked[0].identity is identity
    await tools.call("git_read")
    assert len(asked) == 6


async def test_a_missing_person_and_a_failing_hook_are_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "operations")
    assert "no one can be asked" in (await registry().tools(approval=Approval(mutations="ask")).call("git_write")).text

    async def fail(request: ApprovalRequest) -> bool:
        raise RuntimeError("secret")

    failed = await registry().tools(approval=Approval({"*": "ask"}, ask=fail)).call("git_read")
    assert "the request for approval failed" in failed.text
    assert "secret" not in failed.text


class Person:
    """A client that answers every question with the same action."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.asked: list[str] = []

    def supports(self, method: str) -> bool:
        return method == ELICIT

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        self.asked += [str(question.params["message"]) for question in questions.values()]
        return {key: {"action": self.action} for key in questions}

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("identity", [None, Identity("ann")])
async def test_without_a_hook_the_client_of_the_set_is_asked(identity: Identity | None) -> None:
    for action, is_error in (("accept", False), ("decline", True), ("cancel", True)):
        person = Person(action)
        tools = registry().tools(identity=identity, approval=Approval(mutations="ask"), client=person)
        result = await tools.call("git_write", {"token": "t0ps3cret", "text": "x" * 5_000})
        assert result.is_error is is_error
        (question,) = person.asked
        assert question.startswith('Allow mutation git.write with the input {"token":"[redacted]","text":"xxx')
        assert "more characters" in question
        assert len(question) < 2_200


@pytest.mark.parametrize("identity", [None, Identity("ann")])
async def test_an_approval_of_the_registry_asks_the_client_of_the_set(identity: Identity | None) -> None:
    person = Person("accept")
    tools = registry(Approval(mutations="ask")).tools(identity=identity, client=person)
    assert (await tools.call("git_write", {"a": 1})).text == '{"a":1}'
    assert len(person.asked) == 1


async def test_as_an_interceptor_it_guards_every_call() -> None:
    async def ask(request: ApprovalRequest) -> Approved:
        return Approved({"changed": True})

    guarded = registry(Approval({"git.read": "ask", "git.write": "deny"}, ask=ask))
    assert (await guarded.execute("git.read", {})).data == {"changed": True}
    with pytest.raises(CallError, match="refused"):
        await guarded.execute("git.write", {})


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of allow, ask, deny"):
        Approval({"*": "maybe"})  # type: ignore[dict-item]
