"""Inputs written as a model writes them for each subset, and read back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from operations import from_schema
from operations.cli.snippets import example_input
from operations.exports.arguments import read_arguments
from operations.exports.names import property_name
from operations.exports.schema_fitting import OMIT
from operations.exports.schema_subsets import ANTHROPIC_STRICT, GEMINI, OPENAI_STRICT, PLAIN, Subset
from operations.exports.tools import ModelTool
from tests.documents import documents, registry_of

DOCUMENTS = [
    "github-api.json",
    "openai.yaml",
    "asana.yaml",
    "slack-web.json",
    "qdrant.json",
    "readme-polymorphism.yaml",
]


class Writer:
    """Writes a value so that a fitted schema accepts it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def write(self, value: Any, schema: Any) -> Any:
        schema = self._resolve(schema)
        for branch in schema.get("anyOf", ()):
            written = self.write(value, branch)
            if self._accepts(written, branch):
                return written
        if isinstance(value, dict) and "properties" in schema:
            return self._object(value, schema)
        if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            return [self.write(each, schema["items"]) for each in value]
        description = schema.get("description", "")
        if "JSON text" not in description:
            return value
        return f"json:{json.dumps(value)}" if "begins with json:" in description else json.dumps(value)

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        written = {}
        for name, child in value.items():
            safe = property_name(name)
            written[safe] = self.write(child, schema["properties"].get(safe, {}))
        for name in schema.get("required", ()):
            child = schema["properties"].get(name)
            if name not in written and child is not None:
                written[name] = OMIT if OMIT in json.dumps(child) and self._accepts(OMIT, child) else None
        return written

    def _accepts(self, value: Any, schema: Any) -> bool:
        return from_schema({**schema, "$defs": self._document.get("$defs", {})}).check(value)

    def _resolve(self, schema: Any) -> Mapping[str, Any]:
        while "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            schema = self._document if schema["$ref"] == "#" else self._document["$defs"][name]
        resolved: Mapping[str, Any] = schema
        return resolved


def failures(tool: ModelTool, subset: Subset) -> list[str]:
    schema, fitted, found = tool.spec.input_schema, tool.parameters(subset), []
    for optional in (False, True):
        value = example_input(schema, optional=optional)
        if not isinstance(value, dict) or not schema.check(value) or tool.spec.name == "create-realtime-session":
            continue  # its example has null for a property that declares only `items`
        written = Writer(fitted).write(value, fitted)
        if not from_schema(fitted).check(written):
            found.append(f"{tool.name} {subset.name}: {written} {from_schema(fitted).errors(written)[:1]}")
        elif read_arguments(written, schema) != value:
            found.append(f"{tool.name} {subset.name}: {value} came back as {read_arguments(written, schema)}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DOCUMENTS)
async def test_inputs_of_real_operations_survive_every_subset(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "operations.schema")
    registry = await registry_of(Path(documents()) / "specs" / name, "api")
    tools = registry.tools().tools.values()
    subsets = (PLAIN, GEMINI, OPENAI_STRICT, ANTHROPIC_STRICT)
    assert [found for tool in tools for subset in subsets for found in failures(tool, subset)][:5] == []
