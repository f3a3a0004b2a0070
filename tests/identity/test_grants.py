"""Grants: each is for one request, and ends with it, at its deadline, or after the time for clean-up."""

from __future__ import annotations

import time

import pytest

from operations import CallError, ErrorCode, Identity
from operations.context import Grant
from operations.identity import Grants, grants

ADA = Identity("ada", ("read",))


@pytest.fixture
def held() -> Grants:
    return Grants()


def issue(held: Grants, identity: Identity | None, request_id: str, deadline: int | None) -> Grant:
    token = f"{len(held.held)}-{request_id}-{identity and identity.id}"
    grant = held.held[token] = Grant(identity=identity, token=token, origin=request_id, deadline=deadline)
    return grant


def is_refused(held: Grants, token: str) -> bool:
    refused = {"reason": "GRANT_ENDED", "executed": "no"}
    try:
        held.present(token)
    except CallError as error:
        return error.code is ErrorCode.ACCESS_DENIED and error.details == refused
    return False


def test_a_grant_gives_its_identity_until_it_ends(held: Grants) -> None:
    first, second = issue(held, ADA, "1", None), issue(held, None, "2", None)
    assert held.present(first.token) is first
    assert held.present(second.token).identity is None
    del held.held[first.token]
    assert is_refused(held, first.token)
    assert not is_refused(held, second.token)
    held.clear()
    assert is_refused(held, second.token)
    assert len(held.held) == 0


def test_a_reused_request_id_has_a_separate_grant(held: Grants) -> None:
    first = issue(held, ADA, "1", None)
    held.close(first, 60.0)
    second = issue(held, ADA, "1", None)
    assert held.present(first.token) is first
    held.close(second, 60.0)
    assert is_refused(held, first.token), "one clean-up at a time"
    held.confirm("1")
    assert is_refused(held, second.token)
    assert len(held.held) == 0


@pytest.mark.parametrize("token", ["", "1", "0" * 32, "\ud800"])
def test_other_tokens_are_not_grants(held: Grants, token: str) -> None:
    issue(held, ADA, "1", None)
    assert is_refused(held, token)


def test_grants_of_others_are_unknown(held: Grants) -> None:
    assert is_refused(Grants(), issue(held, ADA, "1", None).token)


def test_a_grant_ends_at_its_deadline(held: Grants, monkeypatch: pytest.MonkeyPatch) -> None:
    grant = issue(held, ADA, "1", 5_000)
    now = 4.999
    monkeypatch.setattr(time, "time", lambda: now)
    assert held.present(grant.token) is grant
    now = 5.0
    assert is_refused(held, grant.token)
    assert len(held.held) == 0


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_after_an_abort_there_is_time_to_clean_up(held: Grants, clock: Clock) -> None:
    grant = issue(held, ADA, "1", None)
    held.close(grant, 1.0)
    clock.now += 0.9
    assert held.present(grant.token) is grant
    clock.now += 0.2
    assert is_refused(held, grant.token)
    assert len(held.held) == 0


def test_the_worker_ends_that_time_and_only_that(held: Grants, clock: Clock) -> None:
    closing, running = issue(held, ADA, "1", None), issue(held, ADA, "2", None)
    held.close(closing, 1.0)
    for request_id in ("1", "2", "3"):
        held.confirm(request_id)
    assert is_refused(held, closing.token)
    assert held.present(running.token) is running


def test_unrequested_data_is_dropped(held: Grants, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(number: int) -> Grant:
        grant = issue(held, ADA, f"{number}", None)
        held.close(grant, 1.0)
        return grant

    for number in range(10):
        close(number)
    clock.now += 2.0
    close(10)
    assert len(held.held) == 1
    monkeypatch.setattr(grants, "_MAX_CLOSING", 5)
    closed = [close(number) for number in range(20, 30)]
    assert len(held.held) == 5
    assert [is_refused(held, grant.token) for grant in closed] == [True] * 5 + [False] * 5
