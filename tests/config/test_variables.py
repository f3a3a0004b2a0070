"""Variables in strings and files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.config.variables import Substituted, VariableProblem, Variables, read_variables

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
TEXTS = st.text(st.characters(blacklist_characters="${}", blacklist_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(TEXTS, NAMES, TEXTS, TEXTS, st.sampled_from(["set", "unset", "escaped", "env"])), max_size=6))
def test_variables_are_replaced_by_their_values(parts: list[tuple[str, str, str, str, str]]) -> None:
    written, expected = "", ""
    values: dict[str, str] = {}
    for before, name, value, default, kind in parts:
        name = f"{name}_{kind}"
        if kind in ("set", "env"):
            values.setdefault(name, value)
            shown = values[name]
            written += f"{before}${{env:{name}}}" if kind == "env" else f"{before}${{{name}}}"
            expected += before + shown
        elif kind == "unset":
            written += f"{before}${{{name}:-{default}}}"
            expected += before + default
        else:
            written += f"{before}$${{{name}}}"
            expected += f"{before}${{{name}}}"
    variables = Variables(values)
    filled = variables.fill(written)
    assert filled == expected
    assert set(variables.used) <= set(values)
    assert isinstance(filled, Substituted) is any(kind != "escaped" for *_, kind in parts)


@given(TEXTS)
def test_a_string_without_variables_is_unchanged(text: str) -> None:
    assert Variables({}).fill(text) == text


@given(NAMES, NAMES, TEXTS)
def test_defaults_may_hold_variables(outer: str, inner: str, default: str) -> None:
    written = f"<${{{outer}_o:-({'${'}{inner}_i:-{default}}})}}>"
    assert Variables({}).fill(written) == f"<({default})>"
    assert Variables({f"{inner}_i": "x"}).fill(written) == "<(x)>"
    assert Variables({f"{outer}_o": "y"}).fill(written) == "<y>"


@given(NAMES)
def test_an_unset_variable_is_named(name: str) -> None:
    with pytest.raises(VariableProblem) as caught:
        Variables({}).fill(f"a ${{{name}}} b")
    assert f"variable {name} is not set" in caught.value.message
    assert caught.value.mention == f"${{{name}}}"


def test_an_empty_value_takes_the_default_and_is_a_value_without_one() -> None:
    assert Variables({"A": ""}).fill("[${A:-x}] [${A}]") == "[x] []"


def test_editor_variables_are_reported_as_unsupported() -> None:
    with pytest.raises(VariableProblem, match="unsupported variable"):
        Variables({}).fill("${input:key}")
    assert Variables({}, special={"workspaceFolder": "/w"}).fill("${workspaceFolder}/x") == "/w/x"


VALUES = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_quoted_variables_round_trip(values: dict[str, str]) -> None:
    def quote(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "".join(f"{name}={quote(value)}  # a comment\n" for name, value in values.items())
    assert read_variables(text) == (values, [])


def test_the_forms_of_a_file_of_variables() -> None:
    text = "\n".join(
        [
            "# comment",
            "",
            "A=plain text # comment",
            "export B = 'single $quoted'",
            'C="two\\nlines and a \\"quote\\""',
            "D=",
            "E=#nothing",
            'F="over',
            'lines"',
            "not an assignment",
            "G='open",
        ]
    )
    assert read_variables(text) == (
        {
            "A": "plain text",
            "B": "single $quoted",
            "C": 'two\nlines and a "quote"',
            "D": "",
            "E": "",
            "F": "over\nlines",
        },
        [10, 11],
    )
