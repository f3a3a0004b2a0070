"""Secrets are never printed, whatever is wrong with a value; messages cannot forge log lines."""

from __future__ import annotations

import types
from typing import Any

import pytest

from operations.errors import CallError
from operations.schema import Policy, format_value_errors, from_schema

SECRET = "hunter2"
PASSWORD = {"type": "string", "format": "password", "minLength": 12}
POLICIES: tuple[Policy, ...] = ("cast", "total", "strict")


def account(members: Any, **rules: Any) -> Any:
    return {"type": "object", "properties": members, **rules}


def printed(document: Any, value: Any) -> str:
    """Every message of a schema about a value."""
    schema = from_schema(document)
    said = [repr(schema.errors(value)), format_value_errors(schema.errors(value))]
    for policy in POLICIES:
        said.append(repr(schema.normalise(value, policy)[1]))
        try:
            schema.cast(value, policy)
        except CallError as error:
            said.append(f"{error} {error.details}")
    return "\n".join(said)


def nested(levels: int) -> Any:
    value: Any = {"p": SECRET}
    for _ in range(levels):
        value = {"c": value}
    return value


RECURSIVE = {"$ref": "#/$defs/n", "$defs": {"n": account({"p": PASSWORD, "c": {"$ref": "#/$defs/n"}})}}


@pytest.mark.parametrize(
    ("document", "value"),
    [
        pytest.param(RECURSIVE, nested(250), id="deep"),
        pytest.param(RECURSIVE, nested(390), id="deepest"),
        pytest.param(account({"p": {"const": SECRET, "format": "password"}}), {"p": "x"}, id="the const"),
        pytest.param(account({"p": {"enum": [SECRET], "writeOnly": True}}), {"p": "x"}, id="the enum"),
        pytest.param(account({"p": {**PASSWORD, "const": SECRET}}, required=["p"]), {}, id="made up"),
        pytest.param(
            account({"p": {"type": "string", "default": SECRET, "format": "password"}}), {"p": 5}, id="the default"
        ),
        pytest.param(account({"p": {"type": "array", "items": PASSWORD}}), {"p": SECRET}, id="text for an array"),
        pytest.param(account({"p": {"type": "array", "items": PASSWORD}}), {"p": {"k": SECRET}}, id="map for an array"),
        pytest.param(account({"c": account({"p": PASSWORD})}), {"c": SECRET}, id="text for an object"),
        pytest.param(account({"c": account({"p": PASSWORD})}), {"c": [SECRET]}, id="array for an object"),
        pytest.param(account({"p": PASSWORD}, additionalProperties=False), {"passwrd": SECRET}, id="misspelt"),
        pytest.param(account({"$defs": PASSWORD}), {"$defs": SECRET}, id="named like a keyword"),
        pytest.param(account({"p": PASSWORD}, minProperties=3), {"passwrd": SECRET}, id="misspelt and shown whole"),
    ],
)
def test_secrets_stay_hidden(document: Any, value: Any) -> None:
    assert SECRET not in printed(document, value)


def test_values_that_are_not_secret_are_still_shown() -> None:
    document = account({"p": PASSWORD, "c": account({"n": {"type": "integer"}})}, required=["q"])
    problems = from_schema(document).errors({"p": "long enough to pass", "c": {"n": "many"}})
    assert [str(problem) for problem in problems] == [
        '/c/n: "many" is not an integer',
        '(value): missing required property "q"',
    ]
    assert problems[1].value == {"p": "[redacted]", "c": {"n": "many"}}
    assert str(from_schema(account({"p": PASSWORD})).errors(None)[0]) == "(value): null is not an object"


def test_mappings_of_any_kind_are_redacted() -> None:
    document = account({"c": account({"p": {"format": "password"}}, minProperties=2)})
    value = {"c": types.MappingProxyType({"p": SECRET})}
    assert SECRET not in printed(document, value)
    assert SECRET not in printed({"type": "array", "items": {"format": "password"}, "minItems": 3}, (SECRET,))


@pytest.mark.parametrize("break_", ["\n", "\r", "\x1b", "\x7f", "\x85", "\u2028", "\u202e"])
def test_messages_contain_no_line_break(break_: str) -> None:
    text = f"a{break_}ERROR forged"
    schema = from_schema(
        {"additionalProperties": {"enum": [text]}, "maxProperties": 0, "propertyNames": {"maxLength": 1}}
    )
    problems = schema.errors({text: text + "!", text * 2: 1})
    assert problems
    for problem in problems:
        assert break_ not in str(problem)
        assert break_ not in problem.message
    assert len(format_value_errors(problems).splitlines()) == len(problems)
    assert any(text in problem.path for problem in problems), "a path is still the exact pointer"


def test_quotes_are_escaped_as_in_json() -> None:
    assert str(from_schema({"const": 1}).errors('a"b\\\n')[0]) == r'(value): "a\"b\\\n" is not 1'


def test_an_example_that_looks_like_a_reference_is_data() -> None:
    schema = from_schema({"type": "object", "examples": [{"$ref": "#/components/schemas/nowhere"}, {"$ref": "x"}]})
    assert schema.cast({"a": 1}) == {"a": 1}
    assert [problem.path for problem in schema.errors(5)] == [""]
