"""Batches: several messages joined into one, and split again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.pubsub.framing import BatchSizing, batches, join, messages_of, shares, split

MESSAGES = st.lists(st.binary(min_size=1, max_size=40).filter(lambda message: message[0] not in (0, 2)), min_size=1)


@given(MESSAGES, st.integers(1, 200))
def test_batches_contain_every_message_once_in_order_and_respect_the_size_if_possible(
    messages: list[bytes], most: int
) -> None:
    made = list(batches(messages, most))
    assert [message for batch in made for message in split(batch)] == messages
    assert all(len(batch) <= most or len(split(batch)) == 1 for batch in made)


def test_a_single_message_is_sent_unchanged() -> None:
    assert list(batches([b"{}"], 1)) == [b"{}"]
    assert split(b"{}") == (b"{}",)


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_a_truncated_batch_is_one_unreadable_message(cut: int) -> None:
    assert split(join([b"first", b"second"])[:-cut]) == [b"first", b"\0"]


@pytest.mark.parametrize(
    ("batch", "messages"),
    [
        (b"\0", [b"\0"]),
        (b"\0\0\0", [b"\0"]),
        (b"\0\0\0\0\0", [b"\0"]),
        (b"\0\0\0\0\0ab", [b"\0"]),
        (b"\0\0\0\0\1", [b"\0"]),
        (b"\0\0\0\0\1\0\0\0\2ab", [b"ab"]),
        (b"\0\0\0\0\1\0\0\0\1ab", [b"a", b"\0"]),
        (b"\0\0\0\0\2\0\0\0\1\xff\xff\xff\xffab", [b"a", b"\0"]),
        (b"\0\0\0\0\3\xff\xff\xff\xff\0\0\0\0\0\0\0\1ab", [b"\0"]),
        (b"\0\xff\xff\xff\xff" + b"\xff" * 40, [b"\0"]),
    ],
)
def test_batches_with_false_lengths_give_their_complete_messages(batch: bytes, messages: list[bytes]) -> None:
    assert list(split(batch)) == messages


def test_a_batch_that_claims_too_many_messages_is_refused() -> None:
    numbers = 1 << 20
    assert split(b"\0" + numbers.to_bytes(4, "big") + bytes(4 * numbers)) == (b"\0",)
    most = [b"x"] * 4_097
    assert [len(split(batch)) for batch in batches(most, 1 << 20)] == [4_096, 1]


@given(st.binary(max_size=60))
def test_any_bytes_are_at_least_one_message_and_no_longer_than_received(rest: bytes) -> None:
    for batch in (b"\0" + rest, b"\0\0\0\0" + rest):
        messages = split(batch)
        assert messages
        assert sum(map(len, messages)) <= len(batch)


def test_an_empty_list_is_not_a_batch() -> None:
    assert list(batches([], 10)) == []
    assert list(shares([], 10)) == []


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_batch_may_have_exactly_the_maximum_size(spare: int) -> None:
    messages = [b"abc", b"de", b"f"]
    whole = len(join(messages))
    assert [split(batch) for batch in batches(messages, whole + spare)] == (
        [[b"abc", b"de"], (b"f",)] if spare < 0 else [messages]
    )


@given(MESSAGES, st.integers(1, 200))
def test_a_burst_is_split_into_at_least_eight_batches_of_at_most_eight_messages(
    messages: list[bytes], most: int
) -> None:
    cut = list(shares(messages, most))
    assert [message for share in cut for message in messages[share]] == messages
    assert len(cut) >= min(len(messages), 8)
    assert all(share.stop - share.start <= 8 for share in cut)


QUICK = join([b"{}"], quick=True)


def heard(*answers: bytes) -> BatchSizing:
    sizing = BatchSizing()
    for answer in answers:
        sizing.note(answer)
    return sizing


def test_a_caller_with_few_responses_uses_small_batches() -> None:
    assert not heard().is_quick
    assert not heard(*[QUICK] * 15).is_quick
    assert heard(*[QUICK] * 16).is_quick


def test_a_few_slow_responses_end_large_batches_but_one_does_not() -> None:
    assert heard(*[QUICK] * 100, b"{}").is_quick
    assert not heard(*[QUICK] * 100, b"{}", b"{}", b"{}").is_quick
    assert not heard(*[QUICK, QUICK, QUICK, join([b"{}", b"{}"])] * 100).is_quick


def test_a_burst_of_quick_requests_has_large_batches_and_others_small_ones() -> None:
    burst = [b"{}"] * 64
    assert [share.stop - share.start for share in shares(burst, 1 << 20, quick=True)] == [32, 32]
    assert [share.stop - share.start for share in shares(burst, 1 << 20)] == [8] * 8


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=5), min_size=1, max_size=200),
    st.integers(-40, 40),
    st.sampled_from([None, 0, 65, 66_000, 1 << 31]),
)
def test_messages_one_by_one_are_those_of_the_whole_batch(
    messages: list[bytes], change: int, count: int | None
) -> None:
    batch = join(messages)
    batch = batch[:change] if change < 0 else batch + bytes(change)
    if count is not None:
        batch = batch[:1] + count.to_bytes(4, "big") + batch[5:]
    assert list(messages_of(batch)) == list(split(batch))
