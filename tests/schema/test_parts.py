"""Unit tests of the engine's parts: literals, values, patterns, samples, unrolling, closed form."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from operations.schema import from_schema
from operations.schema.casting.closed_form import Closer
from operations.schema.casting.nodes import Nodes
from operations.schema.checking.compiling import compiled, compiled_form
from operations.schema.checking.unrolling import unrolled
from operations.schema.checking.values import as_json, pointer, too_deep, unicode_text
from operations.schema.dialects.conversion import convert
from operations.schema.dialects.literals import LiteralBudget, NotPlainError, copied, plain, same
from operations.schema.dialects.patterns import engine_of, matcher, sample_strings, weakest_engine
from operations.schema.dialects.traversal import definitions_of, native_form


def test_json_equality() -> None:
    assert same({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not same(1, True)
    assert not same(0, False)
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})
    assert same("a", "a")


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, float("nan"), "\ud800", {"\ud800": 1}, object()])
def test_values_that_are_not_plain_json(value: Any) -> None:
    with pytest.raises(NotPlainError):
        plain(value, LiteralBudget())


def test_plain_copies() -> None:
    value = {"a": (1, [None, True, 1.5, "x"])}
    assert plain(value, LiteralBudget()) == {"a": [1, [None, True, 1.5, "x"]]}
    assert copied([{"a": 1}]) == [{"a": 1}]


def test_json_copies_for_checking() -> None:
    shared = [b"ab"]
    copy = as_json({"a": shared, "b": shared, "c": Decimal("1.5"), "d": {1}, 5: 6, "e": "\ud800"})
    assert copy.value["a"] is copy.value["b"]
    assert copy.value["a"] == ["\0\0"]
    assert copy.value["e"] == "\ufffd"
    assert [(item.path, item.what) for item in copy.foreign] == [
        ((), "a key of type int"),
        (("d",), "a value of type set"),
    ]
    assert as_json([[[1]]], depth=1).value == [[None]]


def test_depth() -> None:
    value: Any = []
    for _ in range(100):
        value = [value]
    assert too_deep(value, 100)
    assert not too_deep(value, 101)
    assert not too_deep({"a": object()}, 3)
    assert not too_deep("text")
    loop: list[Any] = []
    loop.append(loop)
    assert too_deep(loop)
    assert too_deep((loop,))


def test_pointers() -> None:
    assert pointer(["a/b", 0, "m~n"]) == "/a~1b/0/m~0n"
    assert unicode_text("plain") == "plain"


def test_pattern_engines() -> None:
    assert engine_of("^a+$") == "linear"
    assert engine_of("^(?=a)b$") == "fancy"
    assert engine_of("(") is None
    assert engine_of("^[a-z]{1,10000}$") == "large"
    # Each of these parts may be repeated so often, but all of them together take too long for each character.
    assert engine_of("|".join(f"[ab]*a[ab]{{4000}}c{number}|[ab]*b[ab]{{4000}}d" for number in range(100))) is None
    assert weakest_engine(["a", "(?!b)"]) == "fancy"
    assert not matcher("(")("x")
    assert matcher("^x")("xy")


def test_counts_in_patterns_that_python_cannot_parse_are_limited_too() -> None:
    assert engine_of(r"\h{1,400}") == "fancy"
    assert engine_of(r"(?=a)\h{20000}") is None
    assert engine_of(r"(?=a)(?:\hb?c?d?)?{9000}") is None


@pytest.mark.parametrize("pattern", ["a{%s}", r"\h{1,%s}"])
def test_a_count_of_thousands_of_digits_is_not_supported(pattern: str) -> None:
    assert engine_of(pattern % ("9" * 5_000)) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "^a",
        "b$",
        "^[a-z]{2,4}$",
        r"^\d{4}-\d{2}$",
        "^(red|green)$",
        "^[^a]$",
        r"^\w+@\w+\.com$",
        "^.{3,}$",
        r"^\/x$",
        "^#[0-9a-fA-F]{6}$",
        r"^\s*$",
        r"\A(25[0-5]|[0-1]?\d?\d)(\.(25[0-5]|[0-1]?\d?\d)){3}\z",
        r"^[^a-z0-9A-Z\s]+$",
        r"^[^\w]{2}$",
        "^(?i)[A-F]+$",
        r"(?=^.{8,64}$)((?=.*\d)(?=.*[A-Z])(?=.*[a-z]))^.*",
        r"(?=^.{2,256}$)(?!.*\s)[0-9a-z-]*$",
        r"^arn:(?=[^:]+:fsx:[^:]+:\d{12}:)((|(?![^:]*-{2})[a-z0-9].*(?<!-)):){4}(?!/).{0,1024}$",
    ],
)
def test_samples_match(pattern: str) -> None:
    assert any(matcher(pattern)(sample) for sample in sample_strings(pattern))


def test_a_sample_of_the_requested_length_is_found() -> None:
    pattern = r"^arn:[A-Za-z0-9_/.-]{0,63}:\d{12}$"
    assert 30 in [len(sample) for sample in sample_strings(pattern, 30)]


def test_samples_prefer_letters_to_path_characters() -> None:
    assert next(sample_strings(r"^[\.\-_A-Za-z0-9]+$")) == "A"


def test_an_invalid_pattern_has_no_samples() -> None:
    assert list(sample_strings("(")) == []


TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}}


def test_unrolled_accepts_the_first_levels() -> None:
    shallow = compiled(unrolled(definitions_of(TREE)))
    assert shallow is not None
    assert shallow.is_valid({"v": 1, "kids": [{"v": 2, "kids": []}]})
    assert not shallow.is_valid({"kids": [{"v": "x"}]})
    deep: Any = {"kids": []}
    for _ in range(100):
        deep = {"kids": [deep]}
    assert not shallow.is_valid(deep)


def test_schemas_whose_meaning_would_change_are_not_unrolled() -> None:
    assert unrolled(definitions_of(True)) is None
    assert unrolled(definitions_of({"properties": {"a": {"not": {"$ref": "#"}}}})) is None
    wide = {f"p{i}": {"type": "object", "properties": {"x": {"$ref": "#"}}} for i in range(200)}
    assert unrolled(definitions_of({"properties": wide})) is None


@pytest.mark.parametrize(
    ("document", "normal", "other"),
    [
        ({"properties": {"a": {}}}, [{}, {"a": 1}, 5], [{"b": 1}]),
        ({"properties": {"a": {"default": 1}}}, [{"a": 1}], [{}]),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, [{"a": 1, "b": 1}], [{"c": 1}]),
        (
            {"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"type": "null"}]},
            [{"a": 1}, None],
            [{"a": 1, "b": 1}],
        ),
        (
            {
                "properties": {"a": {}},
                "anyOf": [{"properties": {"b": {}}, "required": ["b"]}, {"properties": {"c": {}}}],
            },
            [{"a": 1, "b": 1}, {"c": 1}],
            [{"b": 1, "c": 1}],
        ),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, [], [{"a": 1}, {"b": 1}]),
        ({"prefixItems": [{}, {}]}, [[1, 2]], [[1], [1, 2, 3]]),
        ({"properties": {"a": {"$ref": "#"}}}, [{"a": {"a": {}}}], [{"a": {"b": 1}}]),
        (
            {"anyOf": [{"properties": {"a": {}, "b": {"default": 0}}}, {"properties": {"a": {}}}]},
            [{"a": 1, "b": 1}],
            [{"a": 1}],
        ),
    ],
)
def test_closed(document: Any, normal: list[Any], other: list[Any]) -> None:
    flat = convert(document).document
    assert isinstance(flat, dict)
    closed = compiled_form(native_form(Closer(Nodes(flat), definitions_of(flat)).form()))
    assert closed is not None
    assert [closed.is_valid(value) for value in normal] == [True] * len(normal)
    assert [closed.is_valid(value) for value in other] == [False] * len(other)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[\da-z]{26}$",
        r"arn:([a-z\d-]+):forecast:.*:.*:.+",
        r"^(https?:\/\/)?([\da-z\.-]+)\.([a-z\.]{2,6})([\/\w \.-]*)*\/?$",
        r"^[\p{L}\p{N}_-]+$",
        r"^(?<year>\d{4})-\d\d$",
        r"^[^\d\s]{3}$",
        r"\p{Lu}\d",
    ],
)
def test_total_finds_text_for_the_patterns_people_write(pattern: str) -> None:
    schema = from_schema({"type": "string", "pattern": pattern})
    assert schema.check(schema.cast(None, "total"))


def test_total_makes_items_differ_where_a_pattern_allows_it() -> None:
    item = {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}
    schema = from_schema({"type": "array", "items": item, "minItems": 4, "uniqueItems": True})
    assert schema.check(schema.cast([], "total"))
