"""What a worker remembers of past requests: each by its own id, whoever made it, and the latest ones always."""

from __future__ import annotations

import string
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from operations.calls.seen import Seen, mark_of

PEER = "0123456789abcdef" * 2
ids = st.one_of(
    st.builds(lambda peer, number: f"{peer}-{number:x}", st.sampled_from([PEER, "peer"]), st.integers(0, 300)),
    st.text(string.hexdigits + "-zé", max_size=4),
)


def note(seen: Seen, request_id: str, attempt: int = 0) -> None:
    seen.mark(request_id, *seen.place(request_id), attempt)


def attempts(seen: Seen, request_id: str) -> int:
    block, number = seen.place(request_id)
    return block[number]


@given(st.lists(st.tuples(ids, st.integers(0, 3))), st.lists(ids))
def test_ids_are_never_taken_for_each_other(came: list[tuple[str, int]], others: list[str]) -> None:
    seen, expected = Seen(1_000), dict.fromkeys(others, 0)
    for request_id, attempt in came:
        note(seen, request_id, attempt)
        expected[request_id] = attempt + 1
    assert {request_id: attempts(seen, request_id) for request_id in expected} == expected


def test_the_latest_are_remembered_however_many_came() -> None:
    seen = Seen(20)
    for number in range(10_000):
        note(seen, f"{PEER}-{number:x}")
        assert attempts(seen, f"{PEER}-{max(0, number - 100):x}") == 1
    assert attempts(seen, f"{PEER}-0") == 0
    for number in range(1_000):
        note(seen, f"{number:032x}-1")  # of a peer each
        assert attempts(seen, f"{max(0, number - 9):032x}-1") == 1


def test_a_block_that_is_used_again_is_not_forgotten() -> None:
    seen = Seen(10)
    note(seen, "old-1")
    for number in range(100):
        note(seen, f"peer{number}-1")
        if number % 5 == 0:
            note(seen, "old-2")
    assert attempts(seen, "old-1") == 1


def test_what_is_only_looked_up_takes_nobodys_place() -> None:
    seen = Seen(10)
    note(seen, "old-1")
    for number in range(1_000):
        assert attempts(seen, f"peer{number}-1") == 0
    for number in range(9):
        note(seen, f"other{number}-1")
        assert attempts(seen, "old-1") == 1
    note(seen, "old-2")
    for number in range(9):
        note(seen, f"another{number}-1")
    assert (attempts(seen, "old-1"), attempts(seen, "old-2")) == (1, 1)


def test_what_is_remembered_is_small() -> None:
    seen = Seen(32_768)
    tracemalloc.start()
    try:
        for number in range(100_000):
            note(seen, f"{PEER}-{number:x}")
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100_000 * 40  # of the ids themselves, it would be three times as much


def test_an_attempt_of_any_size_has_a_mark() -> None:
    assert [mark_of(attempt) for attempt in (0, 1, 253, 254, 10**18, -1, -(10**18))] == [1, 2, 254, 255, 255, 1, 1]
