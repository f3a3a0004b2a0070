"""Forms, read back by the standard library's parser."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError
from operations.sources.openapi.bodies import encode_body
from operations.sources.openapi.forms import encode_form

FORM = "application/x-www-form-urlencoded"


def read(data: bytes) -> list[tuple[str, str]]:
    return parse_qsl(data.decode("ascii"), keep_blank_values=True, strict_parsing=True)


@pytest.mark.parametrize(
    ("value", "encoding", "expected"),
    [
        (5, {}, [("p", "5")]),
        (1.0, {}, [("p", "1")]),
        (True, {}, [("p", "true")]),
        ("a b&c=d+é", {}, [("p", "a b&c=d+é")]),
        ("", {}, [("p", "")]),
        (b"\xff", {}, [("p", "/w==")]),
        ([1, 2], {}, [("p", "1"), ("p", "2")]),
        ({"a": {"b": [1, None]}}, {}, [("p", '{"a":{"b":[1,null]}}')]),
        ([{"a": 1}, {"a": 2}], {}, [("p", '{"a":1}'), ("p", '{"a":2}')]),
        ([1, 2], {"contentType": "application/json"}, [("p", "[1,2]")]),
        ("x", {"contentType": "application/json"}, [("p", '"x"')]),
        ([1, None, 2], {"contentType": "text/plain"}, [("p", "1"), ("p", "2")]),
        ({"a": 1, "b": 2}, {"style": "form"}, [("a", "1"), ("b", "2")]),
        ({"a": 1, "b": 2}, {"style": "form", "explode": False}, [("p", "a,1,b,2")]),
        ([1, 2], {"explode": False}, [("p", "1,2")]),
        ([1, 2], {"style": "pipeDelimited"}, [("p", "1|2")]),
        ([1, 2], {"collectionFormat": "csv"}, [("p", "1,2")]),
        ([1, 2], {"collectionFormat": "tsv"}, [("p", "1\t2")]),
        ([1, 2], {"collectionFormat": "multi"}, [("p", "1"), ("p", "2")]),
        (
            {"card": {"number": "4242"}, "tags": ["a", "b"], "items": [{"price": 1}]},
            {"style": "deepObject", "explode": True},
            [("p[card][number]", "4242"), ("p[tags][]", "a"), ("p[tags][]", "b"), ("p[items][0][price]", "1")],
        ),
        (["a", "b"], {"style": "deepObject"}, [("p[]", "a"), ("p[]", "b")]),
        ({"a": None}, {"style": "deepObject"}, []),
    ],
)
def test_a_property_is_written_by_its_encoding(value: Any, encoding: dict[str, Any], expected: Any) -> None:
    data = encode_form({"first": 1, "p": value, "none": None}, {"p": encoding})
    assert read(data) == [("first", "1"), *expected]


def test_reserved_characters_stay_where_they_are_allowed() -> None:
    assert encode_form({"p": "a/b?c&d"}, {"p": {"allowReserved": True}}) == b"p=a/b?c%26d"
    assert encode_form({"p": "a/b"}, {}) == b"p=a%2Fb"


def test_an_object_is_encoded_as_a_form_and_a_string_is_sent_unchanged() -> None:
    assert encode_body(FORM, {"a": {"b": 1}}).data == b"a=%7B%22b%22%3A1%7D"
    assert encode_body(FORM, {}).data == b""
    assert encode_body(FORM, {}).content_type == FORM
    assert encode_body(FORM, "a=1&b=2").data == b"a=1&b=2"


@pytest.mark.parametrize("value", [5, None])
def test_a_value_that_is_not_an_object_is_rejected(value: Any) -> None:
    with pytest.raises(CallError, match="pass an object"):
        encode_body(FORM, value)


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, "\ud800", {"a": object()}])
def test_a_refusal_names_the_property(value: Any) -> None:
    with pytest.raises(CallError, match="property 'bad'"):
        encode_body(FORM, {"good": 1, "bad": value})


texts = st.text(st.characters(codec="utf-8"))
leaves = texts | st.integers() | st.booleans()


@given(st.dictionaries(texts, leaves | st.lists(leaves) | st.dictionaries(texts, leaves)))
def test_forms_round_trip(value: dict[str, Any]) -> None:
    def text(item: Any) -> str:
        return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"))

    expected = [
        (name, text(item))
        for name, member in value.items()
        for item in (member if isinstance(member, list) else [member])
    ]
    data = encode_form(value, {})
    assert (read(data) if data else []) == expected
