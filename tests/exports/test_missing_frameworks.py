from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

MODULES = {
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "langchain": ("langchain_core", "langchain"),
    "openai_agents": ("agents", "openai-agents"),
    "anthropic": ("anthropic", "anthropic"),
    "google_genai": ("google.genai", "google-genai"),
    "google_adk": ("google.adk", "google-adk"),
    "llama_index": ("llama_index.core", "llama-index"),
}


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_framework_names_its_extra(module: str) -> None:
    framework, extra = MODULES[module]
    if is_installed(framework):
        pytest.skip(f"{framework} is installed")
    with pytest.raises(ImportError, match=rf"pip install 'operations\[{extra}\]'"):
        import_module(f"operations.exports.frameworks.{module}")
