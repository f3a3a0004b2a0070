"""The page and the server report the same problems of an invalid input: both are checked against the same examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from operations import collect_errors, from_schema

EXAMPLES = json.loads((Path(__file__).parent.parent.parent / "console" / "tests" / "messages.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=[each["errors"][0][1][:60] for each in EXAMPLES])
def test_the_server_uses_these_words(example: dict[str, Any]) -> None:
    found = collect_errors(from_schema(example["schema"]), example["value"])
    assert [[problem.path, problem.message] for problem in found] == example["errors"]
