"""The loops of the agents page, each run as it is written, with what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "agents.md"
LOOP = re.compile(r"^### ([^\n]+)\n\n```py\n(.*?)^```\n\n```text\n(.*?)^```$", re.M | re.S)
FRAMEWORKS = {
    "pydantic-ai": "pydantic_ai",
    "LangChain": "langchain_core",
    "OpenAI Agents SDK": "agents",
    "Anthropic tool runner": "anthropic",
    "google-genai": "google.genai",
    "Agent Development Kit": "google.adk",
    "LlamaIndex": "llama_index.core",
}
LOOPS = {heading: (code, output) for heading, code, output in LOOP.findall(PAGE.read_text())}


def test_the_page_has_a_loop_for_each_framework() -> None:
    assert list(LOOPS) == list(FRAMEWORKS)
    table = PAGE.read_text().rpartition("|Framework|")[2]
    assert [heading for heading in FRAMEWORKS if f"\n|{heading}|" not in table] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # LlamaIndex uses an old attribute of pydantic
@pytest.mark.parametrize("heading", LOOPS)
def test_a_loop_prints_the_output_on_the_page(heading: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(FRAMEWORKS[heading], reason=f"{heading} is not installed: `make agents` runs this")
    code, output = LOOPS[heading]
    first = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert first is not None
    names: dict[str, Any] = {"__name__": "page"}
    exec(first[1], names)
    capsys.readouterr()
    exec(code, names)
    assert capsys.readouterr().out == output
