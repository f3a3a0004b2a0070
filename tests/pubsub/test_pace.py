"""Whether answers come at once, as a caller hears it."""

from __future__ import annotations

from operations.pubsub.framing import join, shares
from operations.pubsub.pace import Pace

QUICK = join([b"{}"], quick=True)


def heard(*answers: bytes) -> Pace:
    pace = Pace()
    for answer in answers:
        pace.note(answer)
    return pace


def test_a_caller_that_has_heard_little_believes_nothing() -> None:
    assert not heard().is_quick
    assert not heard(*[QUICK] * 15).is_quick
    assert heard(*[QUICK] * 16).is_quick


def test_one_answer_that_took_its_time_is_doubt_and_a_few_are_certainty() -> None:
    assert heard(*[QUICK] * 100, b"{}").is_quick
    assert not heard(*[QUICK] * 100, b"{}", b"{}", b"{}").is_quick
    assert not heard(*[QUICK, QUICK, QUICK, join([b"{}", b"{}"])] * 100).is_quick


def test_a_quick_burst_is_cut_coarsely_and_any_other_one_finely() -> None:
    burst = [b"{}"] * 64
    assert [share.stop - share.start for share in shares(burst, 1 << 20, quick=True)] == [32, 32]
    assert [share.stop - share.start for share in shares(burst, 1 << 20)] == [8] * 8
