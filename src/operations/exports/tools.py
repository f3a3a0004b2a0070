"""ToolSet: operations of a registry as tools of a language model."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

import msgspec

from operations.access import check_access
from operations.catalogue import unknown_operation
from operations.context import Grant, Identity, OperationContext
from operations.dispatch import Dispatcher, Request
from operations.dispatch.nesting import Registry
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.exports.approval import Approval
from operations.exports.arguments import argument_schema, parse_arguments, read_arguments
from operations.exports.fitting import fit_schema
from operations.exports.names import tool_names
from operations.exports.results import Redact, Rendering, ToolResult
from operations.exports.subsets import ANTHROPIC_STRICT, GEMINI, OPENAI_STRICT, PLAIN, Subset
from operations.spec import Operation, OperationSpec, OperationType

_log = logging.getLogger("operations")
_MOST_OPENAI_TOOLS = 128
_STREAM_ITEMS = 100
_LONGEST_NAME = 500


class CallingRegistry(Registry, Protocol):
    """What a tool set needs of a registry."""

    @property
    def generation(self) -> int:
        """Grows with each change of the operations."""

    async def execute(self, operation: str, input: Any = None, context: OperationContext | None = None) -> Any:
        """Call an operation with the program's own rights."""

    def subscribe(self, operation: str, input: Any = None, context: OperationContext | None = None) -> Any:
        """Follow a stream with the program's own rights."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which operations become tools."""

    allow: Sequence[str] = ()
    """Patterns on ids; all of them without one."""
    deny: Sequence[str] = ()
    tags: Sequence[str] = ()
    """At least one of these."""
    read_only: bool = False
    """Only queries and subscriptions."""

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "tags"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ValueError(f"invalid {name} {value!r}: expected a list; pass [{value!r}]")

    def includes(self, operation: Operation[Any]) -> bool:
        """Whether an operation is selected; one that nothing runs never is."""
        spec = operation.spec
        if operation.handler is None and operation.stream is None:
            return False
        if self.read_only and spec.type is OperationType.MUTATION:
            return False
        if self.tags and not set(self.tags) & set(spec.tags):
            return False
        if self.allow and not any(fnmatchcase(spec.id, pattern) for pattern in self.allow):
            return False
        return not any(fnmatchcase(spec.id, pattern) for pattern in self.deny)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """An operation under the name that models call it by."""

    name: str
    operation: Operation[Any]

    @property
    def spec(self) -> OperationSpec:
        """The operation's spec."""
        return self.operation.spec

    def description(self, most: int = 1_024) -> str:
        """Return title and description, cut to a size."""
        spec = self.spec
        text = spec.description.strip()
        if spec.title and not text.startswith(spec.title):
            text = f"{spec.title}. {text}" if text else spec.title
        text = text or spec.id
        return text if len(text) <= most else f"{text[: most - 1]}…"

    def parameters(self, subset: Subset = PLAIN) -> dict[str, Any]:
        """Return the schema of the arguments."""
        return fit_schema(argument_schema(self.spec.input_schema), subset)


class ToolSet:
    """Operations as tools: their definitions for each provider, and `call`.

    With an identity, the set has only what the identity may call, and calls go through a dispatcher, which checks
    access. Without one, calls are the program's own. Changes of the registry are visible at once.
    """

    def __init__(
        self,
        registry: CallingRegistry,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        tags: Iterable[str] = (),
        read_only: bool = False,
        identity: Identity | None = None,
        approval: Approval | None = None,
        timeout: float | None = 60.0,
        max_characters: int = 20_000,
        fields: Sequence[str] = (),
        redact: Redact = False,
    ) -> None:
        self.registry = registry
        self.identity = identity
        self.approval = approval
        self.timeout = timeout
        self.rendering = Rendering(max_characters=max_characters, fields=fields, redact=redact)
        self._selection = Selection(allow=_listed(allow), deny=_listed(deny), tags=_listed(tags), read_only=read_only)
        self._dispatcher = None if identity is None else Dispatcher(registry)
        self._generation = -1
        self._tools: dict[str, Tool] = {}

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, in order of id."""
        if self._generation != self.registry.generation:
            self._generation = self.registry.generation
            selected = {
                operation_id: operation
                for operation_id, operation in sorted(self.registry.operations.items())
                if self._selection.includes(operation) and self._may_call(operation.spec)
            }
            names = tool_names(selected)
            self._tools = {names[each]: Tool(name=names[each], operation=selected[each]) for each in selected}
        return self._tools

    def __len__(self) -> int:
        return len(self.tools)

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def find(self, name: str) -> Tool:
        """Return a tool by its name or its operation's id; the error for an unknown one suggests tools of this set."""
        if len(name) > _LONGEST_NAME:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"no tool {name[:_LONGEST_NAME]!r}…: the name is too long")
        tool = self.tools.get(name)
        if tool is None and "." in name:
            tool = next((each for each in self.tools.values() if each.spec.id == name), None)
        if tool is None:
            raise unknown_operation(name, self.tools)
        return tool

    def openai(self, *, api: Literal["chat", "responses"] = "chat", strict: bool = False) -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's chat completions or responses; at most 128.

        With `strict`, every property is required: null leaves an optional one out, and free-form values are JSON text.
        """
        if len(self) > _MOST_OPENAI_TOOLS:
            message = (
                f"{len(self)} tools: OpenAI accepts {_MOST_OPENAI_TOOLS}; select fewer with allow, deny or tags, "
                "or use SearchTools"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return [self.openai_tool(tool, api=api, strict=strict) for tool in self.tools.values()]

    def openai_tool(self, tool: Tool, *, api: str = "chat", strict: bool = False) -> dict[str, Any]:
        """Return the definition of one tool for OpenAI."""
        function = {
            "name": tool.name,
            "description": tool.description(),
            "parameters": tool.parameters(OPENAI_STRICT if strict else PLAIN),
            "strict": strict,
        }
        return {"type": "function", **function} if api == "responses" else {"type": "function", "function": function}

    def anthropic(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """Return the definitions for Anthropic's messages."""
        subset = ANTHROPIC_STRICT if strict else PLAIN
        return [
            {
                "name": tool.name,
                "description": tool.description(),
                "input_schema": tool.parameters(subset),
                **({"strict": True} if strict else {}),
            }
            for tool in self.tools.values()
        ]

    def gemini(self) -> list[dict[str, Any]]:
        """Return the function declarations for Gemini: `{"function_declarations": tools.gemini()}`."""
        return [
            {"name": tool.name, "description": tool.description(), "parameters_json_schema": tool.parameters(GEMINI)}
            for tool in self.tools.values()
        ]

    def mcp(self) -> list[dict[str, Any]]:
        """Return the tools as `tools/list` of MCP has them."""
        return [
            {
                "name": tool.name,
                **({"title": tool.spec.title} if tool.spec.title else {}),
                "description": tool.description(),
                "inputSchema": tool.parameters(PLAIN),
                "annotations": {"readOnlyHint": tool.spec.type is not OperationType.MUTATION},
            }
            for tool in self.tools.values()
        ]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | bytes | None = None,
        *,
        timeout: float | None = None,
        fields: Sequence[str] | None = None,
    ) -> ToolResult:
        """Call a tool with a model's arguments (a mapping or JSON text). Failures are results, never exceptions.

        Only a cancellation of the current task is raised. The time for an approval does not count.
        """
        rendering = self.rendering
        if fields is not None:
            rendering = msgspec.structs.replace(rendering, fields=fields)
        try:
            tool = self.find(name)
            value = read_arguments(parse_arguments(arguments), tool.spec.input_schema)
            if self.approval is not None:
                value = await self.approval.require(tool.spec, value, self.identity)
            return await self._run(tool.operation, value, self.timeout if timeout is None else timeout, rendering)
        except CallError as error:
            return rendering.failure(error)
        except Exception:  # noqa: BLE001  # a model gets a result, whatever happens
            _log.exception("the tool %s failed", name)
            return rendering.failure(CallError(ErrorCode.EXECUTION_ERROR, f"{name}: internal error"))

    async def _run(
        self, operation: Operation[Any], value: Any, timeout: float | None, rendering: Rendering
    ) -> ToolResult:
        deadline = None if timeout is None else int((time.time() + timeout) * 1000)
        if operation.handler is None:
            return await self._collect(operation.id, value, deadline, rendering)
        if self._dispatcher is None:
            context = OperationContext(deadline=deadline)
            return rendering.result(await self.registry.execute(operation.id, value, context))
        return rendering.result(
            await self._dispatcher.call(self._request(self._dispatcher, operation.id, value, deadline))
        )

    async def _collect(self, operation_id: str, value: Any, deadline: int | None, rendering: Rendering) -> ToolResult:
        """Return the first items of a stream: as many as a model can use, or as come in time."""
        envelopes: list[ResponseEnvelope[Any]] = []
        async with contextlib.aclosing(self._stream(operation_id, value, deadline)) as stream:
            try:
                async for envelope in stream:
                    envelopes.append(envelope)
                    if len(envelopes) >= _STREAM_ITEMS:
                        return rendering.items(envelopes, is_complete=False)
            except CallError as error:
                if error.code is not ErrorCode.TIMEOUT or not envelopes:
                    raise
                return rendering.items(envelopes, is_complete=False)
        return rendering.items(envelopes, is_complete=True)

    def _stream(self, operation_id: str, value: Any, deadline: int | None) -> Any:
        if self._dispatcher is None:
            return self.registry.subscribe(operation_id, value, OperationContext(deadline=deadline))
        return self._dispatcher.stream(self._request(self._dispatcher, operation_id, value, deadline))

    def _request(self, host: Dispatcher, operation_id: str, value: Any, deadline: int | None) -> Request:
        grant = Grant(identity=self.identity)
        return Request(host=host, operation_id=operation_id, input=value, grant=grant, deadline=deadline)

    def _may_call(self, spec: OperationSpec) -> bool:
        return self.identity is None or check_access(spec.access_control, self.identity).allowed


def _listed(values: Iterable[str]) -> Sequence[str]:
    return values if isinstance(values, str) else tuple(values)
