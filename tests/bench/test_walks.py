"""Each walk stays within its limit: the table is `bench.walks.LIMITS`."""

from __future__ import annotations

import sys

import pytest
from bench.walks import LIMITS, WALKS, Step, Walk, count

from operations.telemetry.tracing import SDK

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list(WALKS))
def test_a_walk_enters_no_more_files_than_its_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of this process may have imported OpenTelemetry; calls then check whether it is set up.
    monkeypatch.delitem(sys.modules, SDK, raising=False)
    walk, limit = count(WALKS[name]()), LIMITS[name]
    assert walk.files <= limit.files
    assert limit.switches is None or walk.switches <= limit.switches
    assert limit.calls is None or walk.calls <= limit.calls


def test_files_are_counted_once_and_each_change_of_file_is_a_switch() -> None:
    steps = [Step("a.py", "f"), Step("a.py", "g"), Step("b.py", "h"), Step("a.py", "f")]
    assert count(steps) == Walk(files=2, calls=4, switches=2)
