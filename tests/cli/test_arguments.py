from __future__ import annotations

from typing import Any

import pytest

from operations.cli.arguments import Argument, Command, Option, UsageError, parse, seconds, whole_number

COMMAND = Command(
    name="thing",
    summary="do it",
    arguments=(Argument("WHAT", "what to do"), Argument("MORE", "more of it", required=False, many=True)),
    options=(
        Option("--jobs", "how many", "-j", value="NUMBER", convert=whole_number, default=8),
        Option("--time", "how long", value="SECONDS", convert=seconds),
        Option("--tag", "a tag", value="TAG", many=True),
        Option("--kind", "a kind", value="KIND", choices=("query", "mutation")),
        Option("--deep", "deeply", "-d"),
    ),
    examples=(("ops thing x", "x"),),
)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["a"], {"what": "a", "more": [], "jobs": 8, "deep": False, "tag": []}),
        (["a", "-j", "4", "b", "-d", "c"], {"what": "a", "more": ["b", "c"], "jobs": 4, "deep": True}),
        (["-j4", "a"], {"jobs": 4}),
        (["--jobs=4", "a"], {"jobs": 4}),
        (["a", "--tag", "x", "--tag=y"], {"tag": ["x", "y"]}),
        (["a", "--", "-d", "--jobs"], {"more": ["-d", "--jobs"], "deep": False}),
        (["a", "-"], {"more": ["-"]}),
        (["a", "--time", "200ms"], {"time": 0.2}),
        (["a", "--time", "2m"], {"time": 120.0}),
        (["a", "n=-1"], {"more": ["n=-1"]}),
        (["a", "-q", "--json"], {"quiet": True, "json": True}),
    ],
)
def test_options_may_have_any_position(words: list[str], wanted: dict[str, Any]) -> None:
    given = parse(COMMAND, words)
    assert {name: getattr(given, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing WHAT"),
        (["a", "--job", "4"], "unknown option --job; did you mean --jobs?"),
        (["a", "--jobs"], "missing value: --jobs NUMBER"),
        (["a", "--jobs", "0"], "invalid --jobs '0': expected a whole number, 1 or more"),
        (["a", "--time", "soon"], "invalid --time 'soon': expected a duration such as 5, 0.5s, 200ms or 2m"),
        (["a", "--kind", "querry"], "invalid --kind 'querry': expected one of query, mutation; did you mean query?"),
        (["a", "--deep=yes"], "--deep does not take a value"),
    ],
)
def test_invalid_command_lines_are_reported(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(COMMAND, words)
    assert message in raised.value.message


def test_common_options_may_precede_the_command() -> None:
    assert parse(COMMAND, ["a"], before={"quiet": True, "config": "x.toml"}).config == "x.toml"
    assert parse(COMMAND, ["a", "-c", "y.toml"], before={"config": "x.toml"}).config == "y.toml"
