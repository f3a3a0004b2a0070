"""The threat model, `SECURITY.md`: each guarantee links to its tests, and the text fits on two pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()
TEXT = PAGE.partition("[start:text] -->")[2].partition("<!-- --8<-- [end:text]")[0]
TARGETS = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", PAGE, re.M))


def test_each_guarantee_links_to_an_existing_test() -> None:
    guarantees = [item for item in re.findall(r"^- (.*(?:\n  .*)*)", TEXT, re.M) if not item.startswith("**")]
    assert len(guarantees) > 30
    for guarantee in guarantees:
        tests = [TARGETS[name] for name in re.findall(r"\]\[([\w-]+)\]", guarantee)]
        assert any(test.startswith("tests/") for test in tests), guarantee


def test_every_target_exists() -> None:
    assert [target for target in TARGETS.values() if not (ROOT / target.partition("#")[0]).exists()] == []


def test_it_fits_on_two_pages() -> None:
    # At 10 points, two A4 pages have room for about 1,100 words in lists with headings.
    assert len(re.sub(r"\]\[[\w-]+\]", "", TEXT).split()) <= 1_150
