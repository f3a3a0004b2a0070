"""Recent: bounded size and constant cost."""

from __future__ import annotations

from operations.recent import Recent


def test_the_latest_are_kept_and_the_oldest_dropped() -> None:
    recent: Recent[str, int] = Recent(100)
    for number in range(1_000):
        recent[str(number)] = number
        assert recent[str(number)] == number
        assert len(recent) <= 200
    assert all(str(number) in recent for number in range(900, 1_000))
    assert "0" not in recent


def test_a_newer_value_replaces_an_older_one() -> None:
    recent: Recent[str, int] = Recent(2)
    for value in range(5):
        recent["a"] = value
        assert recent["a"] == value
        recent[f"b{value}"] = 0


def test_each_stored_key_is_listed_once() -> None:
    recent: Recent[str, int] = Recent(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        recent[key] = value
    assert dict(recent.items()) == {"a": 3, "b": 2}
    assert recent.get("b") == 2
    assert recent.get("c") is None
