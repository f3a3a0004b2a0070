"""Addresses and subjects: each peer has its own, and no text of a peer becomes a protocol command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.pubsub.nats.subjects import Subjects

SUBJECTS = Subjects("calls.v1", "ada")


@pytest.mark.parametrize(
    ("address", "subject"),
    [
        ("work.math/add", b"calls.v1.work.ada.math.add"),
        ("work.a.b/list/all", b"calls.v1.work.ada.a.b.list/all"),
        ("direct.stock.00ff/a.b/list/all", b"calls.v1.direct.stock.00ff.ada.a.b.list/all"),
        ("queue.a.b", b"calls.v1.queue.ada.a.b"),
        ("inbox.bob.00ff", b"calls.v1.inbox.bob.00ff"),
        ("inbox.bob-by-night.00ff", b"calls.v1.inbox.bob-by-night.00ff"),
        ("peer.bob.00ff", b"calls.v1.peer.bob.00ff"),
        ("control.math", b"calls.v1.control.math"),
        ("workers", b"calls.v1.workers"),
    ],
)
def test_each_address_has_its_subject(address: str, subject: bytes) -> None:
    assert SUBJECTS.target(address) == subject


def test_workers_subscribe_to_every_caller_of_their_namespace_only() -> None:
    assert SUBJECTS.filter("work.math") == b"calls.v1.work.*.math.*"
    assert SUBJECTS.filter("queue.math") == b"calls.v1.queue.*.math"
    assert SUBJECTS.filter("suspect.math") == b"calls.v1.suspect.*.math"


@pytest.mark.parametrize(
    "address",
    [
        "work.a b/c",
        "work.a/*",
        "inbox.a.b\r\nPUB x 0",
        "inbox.>.1",
        "inbox..1",
        "inbox.a",
        "inbox.a.b.7",  # where answers to one message of that peer go
        "peer.a-b",
        "direct.a/shop/look",
        "direct.a.b.c/shop/look",
        "direct.a.*/shop/look",
        f"inbox.{'a' * 65}.b",
        "control.",
        "work.ü/x",
        "x" * 2_000,
    ],
)
def test_invalid_addresses_have_no_subject(address: str) -> None:
    assert SUBJECTS.target(address) is None


@given(st.text())
def test_a_subject_is_one_word_without_wildcards(text: str) -> None:
    for kind in ("inbox", "peer", "work", "direct", "direct.a.b/", "queue", "control"):
        subject = SUBJECTS.target(f"{kind}.{text}")
        assert subject is None or not set(subject) & set(b" \t\r\n*>\0")


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("calls.>", "ada"), ("", "ada"), ("calls", "a.b"), ("calls", ""), ("calls", "*"), ("calls", "a" * 65)],
)
def test_an_invalid_prefix_or_name_is_refused(prefix: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"invalid prefix|invalid name"):
        Subjects(prefix, name)
