"""Every tool list of real APIs satisfies the rules of each provider, and each name maps to its operation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from operations import Operation, OperationRegistry, OperationSpec, OperationType, from_schema
from operations.exports.tools import ToolSet
from tests.documents import documents, github, manifest, registry_of
from tests.exports.provider_rules import problems_of_name, problems_of_schema


def definitions(tools: ToolSet) -> Iterator[tuple[str, bool, str, str, dict[str, Any]]]:
    """Yield provider, strictness, name, description and parameters of every tool in every format."""
    for strict in (False, True):
        for tool in tools.tools.values():
            chat = tools.openai_tool(tool, strict=strict)
            flat = tools.openai_tool(tool, api="responses", strict=strict)
            assert chat == {"type": "function", "function": {key: flat[key] for key in flat if key != "type"}}
            assert flat["type"] == "function"
            assert flat["strict"] is strict
            yield "openai", strict, flat["name"], flat["description"], flat["parameters"]
        for each in tools.anthropic(strict=strict):
            yield "anthropic", strict, each["name"], each["description"], each["input_schema"]
    for each in tools.gemini():
        yield "gemini", False, each["name"], each["description"], each["parameters_json_schema"]
    for each in tools.mcp():
        yield "mcp", False, each["name"], each["description"], each["inputSchema"]


def problems(registry: OperationRegistry) -> list[str]:
    tools = registry.tools()
    found = []
    names: dict[tuple[str, bool], list[str]] = {}
    for provider, strict, name, description, parameters in definitions(tools):
        broken = [*problems_of_name(provider, name), *problems_of_schema(provider, parameters, strict=strict)]
        if not 0 < len(description) <= 1_024:
            broken.append(f"description of {len(description)} characters")
        found += [f"{provider} {'strict ' * strict}{name}: {problem}" for problem in broken]
        names.setdefault((provider, strict), []).append(name)
    for provider_names in names.values():
        assert len(set(provider_names)) == len(provider_names) == len(registry)
    return found


async def unreached(registry: OperationRegistry) -> list[str]:
    """Call every tool by its name; return the names that did not reach their own operation."""
    reached: list[str] = []

    async def record(invocation: Any, proceed: Any) -> Any:
        reached.append(invocation.spec.id)
        raise ValueError("reached")

    tools = OperationRegistry(registry.operations.values(), interceptors=[record]).tools()
    missed = []
    for name, tool in tools.tools.items():
        reached.clear()
        assert (await tools.call(name)).is_error
        if reached != [tool.spec.id]:
            missed.append(name)
    assert sorted(tool.spec.id for tool in tools.tools.values()) == sorted(registry.operations)
    return missed


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("entry", manifest(), ids=lambda entry: entry["name"])
async def test_the_tools_of_a_document_satisfy_every_provider(
    entry: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "operations.schema")
    registry = await registry_of(documents() / entry["file"], "api")
    assert problems(registry)[:20] == []
    assert await unreached(registry) == []


async def test_every_name_of_githubs_tools_reaches_its_operation() -> None:
    registry = await github()
    assert len(registry.tools()) == 1223
    assert await unreached(registry) == []


async def test_a_list_that_is_too_long_for_openai_is_refused() -> None:
    tools = (await github()).tools()
    with pytest.raises(Exception, match="1223 tools: OpenAI accepts 128"):
        tools.openai()
    assert len((await github()).tools(allow=["github.gists/*"]).openai()) == 20


@pytest.mark.parametrize("value", [{"properties": ["a"]}, {"required": True}, {"$ref": 5}, {"$ref": "#"}, {"not": 1}])
def test_a_constant_that_looks_like_a_schema_is_exported_as_it_is(value: Any) -> None:
    """A server may choose such a schema; it must not make the lists of all tools fail."""
    document = {"type": "object", "properties": {"a": {"const": value}, "b": {"allOf": [True], "default": value}}}
    spec = OperationSpec(name="x", namespace="s", type=OperationType.QUERY, input_schema=from_schema(document))
    tools = OperationRegistry([Operation(spec=spec, handler=lambda input, context: input)]).tools()
    assert len(list(definitions(tools))) == 6
    assert tools.mcp()[0]["inputSchema"]["properties"]["a"] == {"const": value}
    assert tools.gemini()[0]["parameters_json_schema"]["properties"]["a"] in ({"const": value}, {"enum": [value]})


def test_the_rules_detect_violations() -> None:
    open_object = {"type": "object", "properties": {"a": {"type": "string", "default": 1}}, "required": []}
    assert problems_of_schema("openai", open_object, strict=True) == [
        "#: open object",
        "#: optional property",
        "#/properties/a: default",
    ]
    assert problems_of_schema("gemini", {"type": "object", "properties": {"x" * 65: {"const": 1}}}) != []
    assert problems_of_schema("openai", {"anyOf": [{}]}) == ["root has anyOf", "root is not an object"]
    assert problems_of_schema("mcp", {"type": "object", "required": "a"}) == ["not JSON Schema 2020-12"]
    assert problems_of_schema("mcp", {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}) != []
    assert problems_of_name("openai", "a.b")
    assert not problems_of_name("mcp", "a.b")
