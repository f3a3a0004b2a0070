"""The pictures of the documentation equal what the scripts draw now, in light and dark."""

import re
from xml.etree import ElementTree

import pytest
from bench.pictures import benchmarks, diagrams, terminal
from bench.pictures.drawing import FOLDER

_DURATION = re.compile(r"\d+ ms|\d+\.\d s\b")


@pytest.mark.parametrize("name", [*diagrams.pictures(), *benchmarks.pictures()])
def test_a_picture_matches_its_script(name: str) -> None:
    drawn = {**diagrams.pictures(), **benchmarks.pictures()}[name]
    assert (FOLDER / name).read_text() == drawn, "run `python -m bench.pictures`"
    ElementTree.fromstring(drawn)


@pytest.mark.slow
def test_the_picture_of_the_terminal_session_is_current() -> None:
    for name, drawn in terminal.pictures().items():
        kept = (FOLDER / name).read_text()
        assert _DURATION.sub("", kept) == _DURATION.sub("", drawn), "run `python -m bench.pictures`"
        ElementTree.fromstring(drawn)
