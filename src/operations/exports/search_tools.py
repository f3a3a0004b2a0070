"""SearchTools: a large tool set as three tools, which search, describe and call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from operations.catalogue import search_document
from operations.errors import CallError, ErrorCode
from operations.exports.arguments import parse_arguments
from operations.exports.listing import compact_listing
from operations.exports.results import ToolResult
from operations.exports.signatures import describe, description_line, signature
from operations.exports.tools import ToolSet
from operations.search import SearchIndex

SEARCH, DESCRIBE, CALL = "search_operations", "describe_operations", "call_operation"
_MOST_FOUND = 50
_MOST_DESCRIBED = 20
_TEXT = {"type": "string"}
T = TypeVar("T")


class SearchTools:
    """Three tools in place of a tool set's many: a model searches, reads signatures, and calls by id.

    It sees and calls exactly what the tool set has: filters, identity, approval and rendering are the set's.
    """

    def __init__(self, tools: ToolSet) -> None:
        self.tools = tools
        self._generation = -1
        self._index = SearchIndex(())

    def search(self, query: str, limit: int = 8) -> str:
        """Return the likeliest operations, a line with signature and description each; without a query, an overview."""
        by_id = {tool.spec.id: tool.spec for tool in self.tools.tools.values()}
        if not query.strip():
            return compact_listing(by_id)
        found = [each for each in self._current_index().search(query) if each in by_id]
        if not found:
            return f"no operation matches {query[:100]!r}. {compact_listing(by_id, tokens=500)}"
        shown = found[: max(1, min(limit, _MOST_FOUND))]
        return "\n".join(f"{signature(by_id[each])}: {description_line(by_id[each])}" for each in shown)

    def describe(self, ids: Sequence[str]) -> str:
        """Return signatures, descriptions and properties of operations by id."""
        parts = []
        for operation_id in list(ids)[:_MOST_DESCRIBED]:
            try:
                parts.append(describe(self.tools.find(operation_id).spec))
            except CallError as error:
                parts.append(str(error))
        return "\n\n".join(parts)

    async def call_operation(
        self, operation_id: str, input: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """Call an operation by id; never raises."""
        return await self.tools.call(operation_id, input, timeout=timeout)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | bytes | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """Call one of the three tools with a model's arguments; never raises."""
        try:
            given = parse_arguments(arguments)
            if name == SEARCH:
                return _result(self.search(_string(given, "query", ""), _number(given, "limit", 8)))
            if name == DESCRIBE:
                return _result(self.describe(_strings(given, "ids")))
            if name == CALL:
                return await self.call_operation(_string(given, "id"), given.get("input"), timeout=timeout)
            message = f"no tool {name!r}: the tools are {SEARCH}, {DESCRIBE} and {CALL}"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, message)
        except CallError as error:
            return self.tools.rendering.failure(error)

    def definitions(self) -> list[dict[str, Any]]:
        """Return name, description and `input_schema` of the three tools: Anthropic's format."""
        count = len(self.tools)
        return [
            _tool(
                SEARCH,
                f"Search {count:,} operations by what they do. Returns ids with signatures (? marks optional "
                "properties). Without a query: an overview.",
                {"query": _TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_FOUND}},
                ["query"],
            ),
            _tool(DESCRIBE, "Describe operations by id: properties, results.", {"ids": _list_of(_TEXT)}, ["ids"]),
            _tool(
                CALL,
                "Call an operation by id with an input as its signature says.",
                {"id": _TEXT, "input": {"type": "object"}},
                ["id", "input"],
            ),
        ]

    def anthropic(self) -> list[dict[str, Any]]:
        """Return the definitions for Anthropic's messages."""
        return self.definitions()

    def openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's chat completions or responses."""
        made = []
        for each in self.definitions():
            function = {"name": each["name"], "description": each["description"], "parameters": each["input_schema"]}
            made.append({"type": "function", **(function if api == "responses" else {"function": function})})
        return made

    def gemini(self) -> list[dict[str, Any]]:
        """Return the function declarations for Gemini."""
        return [_renamed(each, "parameters_json_schema") for each in self.definitions()]

    def mcp(self) -> list[dict[str, Any]]:
        """Return the tools as `tools/list` of MCP has them."""
        return [_renamed(each, "inputSchema") for each in self.definitions()]

    def _current_index(self) -> SearchIndex:
        tools = self.tools.tools
        if self._generation != self.tools.registry.generation:
            self._generation = self.tools.registry.generation
            self._index = SearchIndex(search_document(tool.spec) for tool in tools.values())
        return self._index


def _result(text: str) -> ToolResult:
    return ToolResult(text=text, blocks=[{"type": "text", "text": text}])


def _renamed(definition: dict[str, Any], key: str) -> dict[str, Any]:
    return {"name": definition["name"], "description": definition["description"], key: definition["input_schema"]}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": _MOST_DESCRIBED}


def _tool(name: str, description: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


def _string(given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    return _argument(given, name, str, default)


def _number(given: Mapping[str, Any], name: str, default: int) -> int:
    return _argument(given, name, int, default)


def _strings(given: Mapping[str, Any], name: str) -> list[str]:
    if isinstance(given.get(name), str):
        return [given[name]]
    return _argument(given, name, list[str], None)


def _argument(given: Mapping[str, Any], name: str, kind: type[T], default: T | None) -> T:
    value = given.get(name, default)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid argument {name}: {error}") from None
