"""Several messages as one, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.pubsub.framing import batches, join, shares, split

MESSAGES = st.lists(st.binary(min_size=1, max_size=40).filter(lambda message: message[0] != 0), min_size=1)


@given(MESSAGES, st.integers(1, 200))
def test_batches_hold_every_message_once_in_order_and_fit_where_they_can(messages: list[bytes], most: int) -> None:
    made = list(batches(messages, most))
    assert [message for batch in made for message in split(batch)] == messages
    assert all(len(batch) <= most or len(split(batch)) == 1 for batch in made)


def test_a_message_alone_stays_as_it_is() -> None:
    assert list(batches([b"{}"], 1)) == [b"{}"]
    assert split(b"{}") == (b"{}",)


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_what_is_cut_short_is_one_unreadable_message(cut: int) -> None:
    assert split(join([b"first", b"second"])[:-cut]) == [b"first", b"\0"]


@given(MESSAGES, st.integers(1, 200))
def test_a_burst_is_shared_by_eight_at_least_and_eight_go_together_at_most(messages: list[bytes], most: int) -> None:
    cut = list(shares(messages, most))
    assert [message for share in cut for message in messages[share]] == messages
    assert len(cut) >= min(len(messages), 8)
    assert all(share.stop - share.start <= 8 for share in cut)
