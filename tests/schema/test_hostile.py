"""Hostile schemas and values: each has a defined result quickly, and the process survives."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from operations.schema import Policy, from_schema
from operations.schema.checking import values
from operations.schema.dialects import patterns

POLICIES: tuple[Policy, ...] = ("cast", "total", "strict", "off")
RECURSIVE = {"type": ["object", "array"], "properties": {"a": {"$ref": "#"}}, "items": {"$ref": "#"}}

TWISTED = {"properties": {"a": {"$ref": "#"}}, "oneOf": [{"required": ["b"]}, {"not": {"$ref": "#"}}]}
WRAPPERS: list[Callable[[Any], Any]] = [
    lambda schema: {"properties": {"a": schema}},
    lambda schema: {"allOf": [schema]},
    lambda schema: {"items": schema},
    lambda schema: {"not": schema},
    lambda schema: {"anyOf": [schema, {}]},
]


def nested(levels: int, leaf: Any = None) -> Any:
    value = {} if leaf is None else leaf
    for _ in range(levels):
        value = {"a": value}
    return value


def survives(code: str) -> str:
    """Run `code` in a separate process, which must succeed; return its output."""
    prelude = "from operations.schema import from_schema\nfrom tests.schema.test_hostile import *\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("stack", [0, 512 * 1024])
def test_values_nested_without_end(stack: int) -> None:
    code = f"""
value = nested(100_000)
def work():
    for document in (RECURSIVE, TWISTED):
        schema = from_schema(document)
        print(schema.check(value), schema.errors(value)[0].message)
        for policy in POLICIES:
            assert schema.normalise(value, policy)[0] is value
    print(from_schema({{"type": "object"}}).check(value))
    print(len(from_schema({{"type": "string"}}).errors(value)))
    from_schema({{"enum": [nested(50), 1]}}).check(value)
    from_schema({{"properties": {{"a": {{"type": "integer"}}}}}}).normalise(value, "total")
if {stack}:
    threading.stack_size({stack})
    thread = threading.Thread(target=work); thread.start(); thread.join()
else:
    work()
"""
    lines = survives(code).splitlines()
    assert lines == ["False nested deeper than 400 levels"] * 2 + ["True", "1"]


@pytest.mark.slow
def test_schemas_nested_without_end() -> None:
    code = """
for wrap in WRAPPERS:
    schema = {"type": "string"}
    for _ in range(100_000):
        schema = wrap(schema)
    made = from_schema(schema)
    made.check({}), made.check([]), made.cast({"a": {}}), made.cast([1], "total"), made.errors(1)
literal = nested(100_000)
print(from_schema({"const": literal}).check(1), from_schema({"default": literal, "type": "string"}).check(1))
"""
    assert survives(code) == "True False"


@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"if": {"$ref": "#"}, "then": {"$ref": "#"}, "else": {"$ref": "#"}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
    ],
)
def test_cycles_with_no_base_case(document: Any) -> None:
    schema = from_schema(document)
    values: list[Any] = [1, "x", {"a": {}}, []]
    for value in values:
        assert schema.check(value) is (schema.errors(value) == [])
        for policy in POLICIES:
            schema.normalise(value, policy)


@pytest.mark.parametrize(
    "pattern",
    ["^(a+)+$", "^(a|a)*$", "^(?=(a+)+$)(a|a)*b$", "^(([a-z])+.)+[A-Z]([a-z])+$", r"^(\w+\s?)*\$$", "(a{500}){500}"],
)
def test_catastrophic_patterns(pattern: str) -> None:
    schema = from_schema({"type": "string", "pattern": pattern})
    value = "a" * 50_000 + "!"
    assert schema.check(value) in (True, False)
    for policy in POLICIES:
        schema.normalise(value, policy)
    from_schema({"patternProperties": {pattern: {"type": "null"}}}).cast({value: 1})


QUADRATIC = [
    "(?=a*b)x",
    "(?!.*b)c",
    "(?<=(a+)+)b",
    "(?<!a+)b",
    "^a*(?=a*b)c",
    "(a*)\\1b",
    "^(?:(?=.*b)a)*$",
    "^x|(?=a*b)",
]
LINEAR = ["^(?=.*b)(?=.*c).*$", "^(?!\\s).*(?<!\\s)b$", "^((?!a).)*$", "^(?!.*a).*$", "(?<=ab)c", "(?<![a-z])foo"]


@pytest.mark.parametrize("pattern", QUADRATIC)
def test_look_around_that_may_take_quadratic_time_matches_only_short_strings(pattern: str) -> None:
    """The engine limits the steps; a step may read the rest of the string. These would take minutes."""
    many = "a" * 1_000_000
    for document, value in (
        ({"type": "string", "pattern": pattern}, many),
        ({"propertyNames": {"pattern": pattern}}, {many: 1}),
        ({"patternProperties": {pattern: {"type": "integer"}}}, {many: 1}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"pattern": pattern}}, [many]),
        ({"$defs": {"a": {"pattern": pattern}}, "anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, many),
    ):
        schema = from_schema(document)
        assert schema.check(value) is ("patternProperties" in document)
        assert len(schema.errors(value)) == (0 if schema.check(value) else 1)
        schema.cast(value, "total")


def test_look_around_matches_short_strings_as_before() -> None:
    schema = from_schema({"type": "string", "pattern": "(?=.*[0-9])(?=.*[a-z]).{8,}"})
    assert [schema.check(each) for each in ("abcdefg1", "1bcdefgh" * 100, "abcdefgh", "abc1")] == [
        True,
        True,
        False,
        False,
    ]
    assert schema.check("x" * 999 + "1")
    [problem] = schema.errors("abc1")
    assert problem.message == '"abc1" does not match the pattern "(?=.*[0-9])(?=.*[a-z]).{8,}"'
    [problem] = schema.errors("x" * 1_000 + "1")
    assert problem.message.endswith('does not match the pattern "(?=.*[0-9])(?=.*[a-z]).{8,}"')
    assert schema.document == {"type": "string", "pattern": "(?=.*[0-9])(?=.*[a-z]).{8,}"}


@pytest.mark.parametrize(
    "pattern", ["a[\\s\\S]{300}[cd]", "[ab]*a[ab]{300}[cd]", "^(a[ab]{0,300}[cd]?)*$", f"a{'[ab]' * 300}[cd]"]
)
def test_many_counted_repetitions_match_only_short_strings(pattern: str) -> None:
    """Each character of a string may cost as many steps as the pattern has parts."""
    matching = "a" + "b" * 300 + "c"
    schema = from_schema({"type": "string", "pattern": pattern})
    assert schema.check(matching)
    assert not schema.check("x" * 300)
    assert not schema.check(matching * 4)


def test_too_many_counted_repetitions_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert from_schema({"type": "string", "pattern": "\\w{1,2000}[^\\w]Z"}).check("x")
    assert "is not a supported regular expression" in caplog.text


@pytest.mark.parametrize(
    "pattern", ["^.{0,10000}$", "^([a-z]{1,5000})$", ".{1,2048}", "^(?:[a-z0-9+/]{4})*$", "^(?:ab|cd|xx){2000}$"]
)
def test_repetitions_that_begin_at_one_place_match_long_strings(pattern: str) -> None:
    assert from_schema({"type": "string", "pattern": pattern}).check("x" * 4_000)


@pytest.mark.parametrize("pattern", LINEAR)
def test_look_around_that_takes_linear_time_is_not_limited(pattern: str) -> None:
    assert patterns.native_pattern(pattern) == pattern
    assert not from_schema({"type": "string", "pattern": pattern}).check("a" * 1_000_000)


@pytest.mark.parametrize("pattern", ["^(?!\\s).*(?<!\\s)$", "^((?!--).)*$", "^(?!x-)", "(?<!x)$"])
def test_long_strings_match_such_patterns(pattern: str) -> None:
    assert from_schema({"type": "string", "pattern": pattern}).check("a" * 20_000)


def test_huge_enums() -> None:
    words = from_schema({"enum": [f"word{i}" for i in range(100_000)]})
    assert words.check("word99999")
    assert not words.check("other")
    assert len(words.errors("other")[0].message) < 400
    assert words.cast("other", "total") == "word0"


@pytest.mark.parametrize(
    "document",
    [
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
        {"type": "object", "minProperties": 10**9},
    ],
)
def test_bounds_that_no_small_value_satisfies(document: Any) -> None:
    value, problems = from_schema(document).normalise(None, "total")
    assert value is None or len(value) < 10**6
    assert problems


ODD: list[Any] = [
    float("nan"),
    float("inf"),
    10**5000,
    -(10**400),
    "\ud800",
    {"\ud800": "\udfff"},
    "9" * 100_000,
    "1e999999999",
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_scalars(value: Any) -> None:
    for document in (
        {"type": "integer"},
        {"type": "string"},
        {"type": "number", "maximum": 5},
        {"multipleOf": 3},
        {"const": 1},
        {"maxLength": 2},
    ):
        schema = from_schema(document)
        assert schema.check(value) is (schema.errors(value) == [])
        for policy in POLICIES:
            schema.normalise(value, policy)


def test_values_that_contain_themselves() -> None:
    loop: list[Any] = []
    loop.append(loop)
    ring: dict[str, Any] = {}
    ring["a"] = ring
    for document in (
        RECURSIVE,
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
    ):
        for value in (loop, ring):
            schema = from_schema(document)
            assert not schema.check(value)
            assert schema.errors(value)
            for policy in POLICIES:
                schema.normalise(value, policy)


def test_values_that_share_their_parts() -> None:
    value: Any = {}
    for _ in range(60):
        value = {"a": value, "b": value}
    schema = from_schema({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}})
    assert schema.check(value)
    assert schema.cast(value) is value


def test_foreign_objects() -> None:
    schema = from_schema(RECURSIVE)
    for value in (object(), sys, threading.Lock(), {1: 2}, {"a": {1, 2}}, [RECURSIVE.keys()]):
        assert not schema.check(value)
        assert schema.errors(value)
        for policy in POLICIES:
            schema.normalise(value, policy)


def test_foreign_objects_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Python 3.12 the garbage collector returns dead objects of asyncio, and asyncio hangs afterwards."""
    asked: set[type] = set()

    def get_referents(*parts: Any) -> list[Any]:
        asked.update(map(type, parts))
        return gc.get_referents(*parts)

    monkeypatch.setattr(values, "get_referents", get_referents)
    schema = from_schema(RECURSIVE)
    for value in (sys, {"a": sys}, [asyncio, {"a": [object(), "text", MappingProxyType({"a": sys})]}]):
        assert schema.errors(value)
        schema.normalise(value, "total")
    assert asked <= {dict, list, str}


@pytest.mark.slow
def test_many_references_to_one_long_list_take_no_memory() -> None:
    """Written out they would take 80 GB; the process may have 2."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
value = [[1] * 100_000] * 100_000
for document in (RECURSIVE, {"type": "string"}):
    schema = from_schema(document)
    print(schema.errors(value)[0].message)
    for policy in POLICIES:
        assert schema.normalise(value, policy)[0] is value
"""
    assert survives(code).splitlines() == ["too much work to check"] * 2


def test_deep_but_allowed() -> None:
    schema = from_schema(RECURSIVE)
    value = nested(120)
    assert schema.check(value)
    assert schema.cast(value) is value
    assert schema.cast(nested(120, {"x": 1})) == value
    assert len(schema.errors(nested(120, 5))) == 1


def chain(levels: int, wrap: Callable[[Any], Any]) -> Any:
    """Definitions that each refer to the one before, by what `wrap` makes of the reference."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        definitions[f"d{level}"] = wrap({"$ref": f"#/$defs/d{level - 1}"})
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def shared(levels: int, wrap: Callable[[Any], Any]) -> Any:
    """A schema that holds the same Python object twice, on every level."""
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = wrap(schema)
    return schema


def pair(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema, "b": schema}}


def perhaps(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}, {"type": "array", "items": schema}]}


def tree(levels: int) -> Any:
    return "x" if levels == 0 else {"l": tree(levels - 1), "r": tree(levels - 1), "z": 1}


SIDES = {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}}
SYNTAX = {
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {
            "anyOf": [
                {"type": "object", "properties": SIDES, "required": ["l", "r"]},
                {"type": "object", "properties": {**SIDES, "q": {"type": "integer"}}, "required": ["l", "r"]},
                {"type": "integer"},
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("document", "value"),
    [
        pytest.param(SYNTAX, tree(8), id="tree of overlapping variants"),
        pytest.param(chain(30, perhaps), [["x"]], id="chain of unions"),
        pytest.param(chain(30, lambda r: {"anyOf": [r, {**r, "title": "again"}]}), "x", id="chain of equal branches"),
        pytest.param(chain(30, lambda r: {"allOf": [r, r]}), "x", id="chain of allOf"),
        pytest.param(chain(35, lambda r: {**pair(r), "required": ["a", "b"]}), {"a": 1}, id="pairs of pairs"),
        pytest.param(chain(30, lambda r: {**pair(r), "required": ["a"], "default": {}}), 1, id="defaults of defaults"),
        pytest.param(chain(40, lambda r: {"type": "array", "items": r, "minItems": 2}), [], id="items of items"),
        pytest.param(
            {"type": "array", "minItems": 10**4, "items": {"type": "array", "minItems": 10**4}}, [], id="many of many"
        ),
        pytest.param(shared(25, pair), {"a": {"a": 1}}, id="shared members"),
        pytest.param(shared(20, perhaps), [["x"]], id="shared branches"),
    ],
)
@pytest.mark.timeout(60)
def test_work_is_bounded(document: Any, value: Any) -> None:
    schema = from_schema(document)
    assert not schema.check(value)
    assert schema.errors(value)
    result, problems = schema.normalise(value)
    assert problems
    assert not schema.check(result)
    result, problems = schema.normalise(value, "total")
    assert problems
    assert schema.check(result) or any("too much work" in problem.message for problem in problems)


def test_problems_beside_many_secrets() -> None:
    row = {"type": "object", "properties": {"p": {"type": "string", "format": "password"}, "a": {"type": "integer"}}}
    problems = from_schema({"type": "array", "items": row}).errors([{"a": "x", "p": "s"}] * 12_000)
    assert len(problems) == 12_000
