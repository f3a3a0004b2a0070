"""SearchTools: three tools in place of a large tool set; they search, describe and call its operations.

`compact_listing` is an overview of many operations in few tokens. `FixedTools` is the base class of `SearchTools` and
`CodeTool`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from operations.catalogue import search_document
from operations.errors import CallError, ErrorCode
from operations.exports.arguments import parse_arguments
from operations.exports.results import ToolResult
from operations.exports.signatures import describe, description_line, signature
from operations.exports.tools import ToolSet
from operations.search import SearchIndex


class FixedTools:
    """A base class: `definitions` returns the tools in Anthropic's format, and the other methods convert them."""

    def definitions(self) -> list[dict[str, Any]]:
        """Return name, description and `input_schema` of each tool."""
        raise NotImplementedError

    def anthropic(self) -> list[dict[str, Any]]:
        """Return the definitions for Anthropic's messages."""
        return self.definitions()

    def openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's chat completions or responses."""
        functions = [_with_schema_as(each, "parameters") for each in self.definitions()]
        if api == "responses":
            return [{"type": "function", **function} for function in functions]
        return [{"type": "function", "function": function} for function in functions]

    def gemini(self) -> list[dict[str, Any]]:
        """Return the function declarations for Gemini."""
        return [_with_schema_as(each, "parameters_json_schema") for each in self.definitions()]

    def mcp(self) -> list[dict[str, Any]]:
        """Return the tools in the format of MCP's `tools/list`."""
        return [_with_schema_as(each, "inputSchema") for each in self.definitions()]


def tool_definition(name: str, description: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Return a tool in Anthropic's format."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


def text_result(text: str) -> ToolResult:
    """Return a successful tool result with the given text."""
    return ToolResult(text=text, blocks=[{"type": "text", "text": text}])


def _with_schema_as(definition: dict[str, Any], key: str) -> dict[str, Any]:
    return {"name": definition["name"], "description": definition["description"], key: definition["input_schema"]}


SEARCH, DESCRIBE, CALL = "search_operations", "describe_operations", "call_operation"
_MAX_FOUND = 50
_MAX_DESCRIBED = 20
_TEXT = {"type": "string"}
T = TypeVar("T")
_CHARACTERS_PER_TOKEN = 3
"""Assumed number of characters per token in an id; the real average is higher."""
_GROUP = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


class SearchTools(FixedTools):
    """Three tools in place of a large tool set: a model searches, reads signatures, and calls by id.

    The three tools find and call exactly the operations of the tool set, with its identity, approval and rendering.
    """

    def __init__(self, tools: ToolSet) -> None:
        self.tools = tools
        self._generation = -1
        self._index = SearchIndex(())

    def search(self, query: str, limit: int = 8) -> str:
        """Return a line for each of the best matches: signature and description. An empty query returns an overview.

        If nothing matches, the text says so and has a short overview.
        """
        by_id = {tool.spec.id: tool.spec for tool in self.tools.tools.values()}
        if not query.strip():
            return compact_listing(by_id)
        found = [each for each in self._current_index().search(query) if each in by_id]
        if not found:
            return f"no operation matches {query[:100]!r}. {compact_listing(by_id, tokens=500)}"
        shown = found[: max(1, min(limit, _MAX_FOUND))]
        return "\n".join(f"{signature(by_id[each])}: {description_line(by_id[each])}" for each in shown)

    def describe(self, ids: Sequence[str]) -> str:
        """Return the signatures, descriptions and properties of the first 20 operations in `ids`.

        For an unknown id, the text has the error message.
        """
        parts = []
        for operation_id in list(ids)[:_MAX_DESCRIBED]:
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
                query, limit = _argument(given, "query", str, ""), _argument(given, "limit", int, 8)
                return text_result(self.search(query, limit))
            if name == DESCRIBE:
                return text_result(self.describe(_strings(given, "ids")))
            if name == CALL:
                return await self.call_operation(_argument(given, "id", str), given.get("input"), timeout=timeout)
            message = f"no tool {name!r}: expected {SEARCH}, {DESCRIBE} or {CALL}"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, message)
        except CallError as error:
            return self.tools.rendering.failure(error)

    def definitions(self) -> list[dict[str, Any]]:
        """Return the three tools in Anthropic's format."""
        count = len(self.tools)
        return [
            tool_definition(
                SEARCH,
                f"Search {count:,} operations by what they do. Returns ids with signatures (? marks optional "
                "properties). An empty query returns an overview.",
                {"query": _TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_FOUND}},
                ["query"],
            ),
            tool_definition(
                DESCRIBE, "Describe operations by id: properties, results.", {"ids": _list_of(_TEXT)}, ["ids"]
            ),
            tool_definition(
                CALL,
                "Call an operation by id with an input that matches its signature.",
                {"id": _TEXT, "input": {"type": "object"}},
                ["id", "input"],
            ),
        ]

    def _current_index(self) -> SearchIndex:
        generation = self.tools.registry.generation
        if self._generation != generation:
            self._index = SearchIndex(search_document(tool.spec) for tool in self.tools.tools.values())
            self._generation = generation  # the last step: another thread may search meanwhile
        return self._index


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": _MAX_DESCRIBED}


def _strings(given: Mapping[str, Any], name: str) -> list[str]:
    if isinstance(given.get(name), str):
        return [given[name]]
    return _argument(given, name, list[str])


def _argument(given: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    value = given.get(name, default)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid argument {name}: {error}") from None


def compact_listing(operation_ids: Iterable[str], *, tokens: int = 2_000) -> str:
    """Return the ids by group: all ids if they fit into `tokens`, otherwise some ids and the size of each group.

    `github.repos/get` is in the group `github.repos`; for a name without a slash, its first word is the group.
    """
    ids = sorted(operation_ids)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for operation_id in ids:
        group, name = _split(operation_id)
        groups[group].append(name)
    room = tokens * _CHARACTERS_PER_TOKEN
    head = f"{len(ids)} operations. Each line: group (number of operations): names"
    for most in (10_000, 50, 20, 10, 6, 4, 3, 2, 1, 0):
        text = "\n".join([head, *(_line(group, names, most) for group, names in groups.items())])
        if len(text) <= room:
            return text
    return _largest_groups(head, groups, room)


def _split(operation_id: str) -> tuple[str, str]:
    namespace, _, name = operation_id.rpartition(".")
    group, slash, rest = name.partition("/")
    if slash:
        return f"{namespace}.{group}", rest
    words = _GROUP.findall(name)
    return (f"{namespace}.{words[0]}*", name) if len(words) > 1 else (namespace, name)


def _line(group: str, names: Sequence[str], most: int) -> str:
    shown = " ".join(names[:most])
    more = " …" if len(names) > most else ""
    return f"{group} ({len(names)}): {shown}{more}" if most else f"{group} ({len(names)})"


def _largest_groups(head: str, groups: dict[str, list[str]], room: int) -> str:
    """Return the largest groups that fit into `room` characters, and the number of the other groups."""
    lines, used = [head], len(head)
    for group, names in sorted(groups.items(), key=lambda each: -len(each[1])):
        line = f"{group} ({len(names)})"
        if used + len(line) + 30 > room:
            lines.append(f"and {len(groups) - len(lines) + 1} more groups")
            break
        lines.append(line)
        used += len(line) + 1
    return "\n".join(lines)
