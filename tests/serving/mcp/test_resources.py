"""Addresses of resources with variables: what matches, in linear time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.serving.mcp.resources import URITemplate


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("notes://today", "notes://today", {}),
        ("notes://today", "notes://todays", None),
        ("notes://{id}", "notes://7", {"id": "7"}),
        ("notes://{id}", "notes://", None),
        ("notes://{id}", "notes://a/b", None),
        ("notes://{id}", "notes://a%2Fb", None),
        ("notes://{id}", "notes://a%5Cb", None),
        ("notes://{id}", "notes://a%20b", {"id": "a b"}),
        ("notes://{id}", "other://7", None),
        ("file:///{+path}", "file:///a/b/c", {"path": "a/b/c"}),
        ("a://{x}/b/{y}", "a://1/b/2", {"x": "1", "y": "2"}),
        ("a://{x}/b/{y}.txt", "a://1/b/2.txt", {"x": "1", "y": "2"}),
        ("a://{x}/b/{y}.txt", "a://1/b/.txt", None),
        ("a://{x}-{y}", "a://1-2-3", {"x": "1", "y": "2-3"}),
        ("a://{x}aa", "a://aa", None),
    ],
)
def test_variables_are_found(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert URITemplate(template).match(uri) == values


@pytest.mark.parametrize("template", ["a://{x}{y}", "a://{x}/{x}"])
def test_a_template_that_could_be_read_in_two_ways_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="variable"):
        URITemplate(template)


@given(st.text("abc-/", max_size=20), st.text("abc-", min_size=1, max_size=8))
def test_template_values_round_trip(before: str, value: str) -> None:
    assert URITemplate(f"x://{before}/{{id}}").match(f"x://{before}/{value}") == {"id": value}


def test_a_template_is_not_tried_in_every_way() -> None:
    template = URITemplate("a://" + "-".join(f"{{v{index}}}" for index in range(50)) + "!")
    # With backtracking, this would take longer than the time limit of the test.
    assert template.match("a://" + "-" * 8_000) is None
