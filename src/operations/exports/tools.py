"""ToolSet: operations of a registry as tools of a language model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack

import msgspec

from operations.access import check_access
from operations.catalogue import unknown_operation
from operations.context import Client, Grant, Identity, OperationContext, check_identity, limit_context
from operations.dispatch import Dispatcher, Request
from operations.dispatch.nested_calls import DispatchRegistry
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.exports.arguments import argument_schema, parse_arguments, read_arguments
from operations.exports.names import tool_names
from operations.exports.results import Redaction, Rendering, ToolResult
from operations.exports.schema_fitting import fit_schema
from operations.exports.schema_subsets import ANTHROPIC_STRICT, GEMINI, OPENAI_STRICT, PLAIN, Subset
from operations.interceptors import Approval
from operations.pubsub.limits import check_counts, check_seconds
from operations.selection import Selection
from operations.spec import Operation, OperationSpec, OperationType

_log = logging.getLogger("operations")
_MAX_OPENAI_TOOLS = 128
_STREAM_ITEMS = 100
_LONGEST_NAME = 500


class CallingRegistry(DispatchRegistry, Protocol):
    """The methods of a registry that a tool set uses."""

    @property
    def generation(self) -> int:
        """A number that grows with each change of the operations."""

    async def execute(self, operation: str, input: Any = None, context: OperationContext | None = None) -> Any:
        """Call an operation with the program's own rights."""

    def subscribe(self, operation: str, input: Any = None, context: OperationContext | None = None) -> Any:
        """Follow a stream with the program's own rights."""


class ToolOptions(TypedDict, total=False):
    """Options of a tool set."""

    allow: Iterable[str]
    """Shell patterns of ids; an operation that matches one of them is selected. Without patterns, all are selected."""
    deny: Iterable[str]
    """Shell patterns of ids; an operation that matches one of them is left out."""
    tags: Iterable[str]
    """Tags; an operation with at least one of them is selected. Without tags, all are selected."""
    read_only: bool
    """Whether mutations are left out."""
    identity: Identity | None
    """The identity of the calls; only operations that this identity may call are selected.

    With None, calls have the program's own rights.
    """
    approval: Approval | None
    """The `Approval` that decides which calls run."""
    client: Client | None
    """The `Client` that answers questions: requests for approval, and questions of handlers (`context.ask`)."""
    timeout: float | None
    """Seconds for one call: 60 by default. The time for an approval does not count."""
    max_characters: int
    """Maximum length of a result's text: 20,000 by default."""
    fields: Sequence[str]
    """Paths of the data to keep, such as `name` and `owner.login`; if empty, all data is kept."""
    redact: Redaction
    """Which values are replaced: True (values that look like secrets), patterns of field names, or a function."""


class ModelTool(msgspec.Struct, frozen=True, kw_only=True):
    """An operation and its name for models."""

    name: str
    operation: Operation[Any]

    @property
    def spec(self) -> OperationSpec:
        """The operation's spec."""
        return self.operation.spec

    def description(self, most: int = 1_024) -> str:
        """Return title and description, truncated."""
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

    With an identity, the set has only operations that the identity may call, and calls go through a dispatcher, which
    checks access. Without an identity, calls have the program's own rights. Changes of the registry are visible
    immediately.
    """

    def __init__(self, registry: CallingRegistry, **options: Unpack[ToolOptions]) -> None:
        unknown = options.keys() - ToolOptions.__annotations__.keys()
        if unknown:
            expected = ", ".join(ToolOptions.__annotations__)
            raise TypeError(f"unknown option {min(unknown)}: expected one of {expected}")
        self.registry = registry
        self.identity = identity = options.get("identity")
        self.approval = options.get("approval")
        self.client = options.get("client")
        self.timeout = options.get("timeout", 60.0)
        self.rendering = Rendering(
            max_characters=options.get("max_characters", 20_000),
            fields=options.get("fields", ()),
            redact=options.get("redact", False),
        )
        self._selection = Selection(
            allow=options.get("allow", ()),
            deny=options.get("deny", ()),
            tags=options.get("tags", ()),
            read_only=options.get("read_only", False),
        )
        if identity is not None:
            check_identity(identity)
        if self.timeout is not None:
            check_seconds(timeout=self.timeout)
        check_counts(max_characters=self.rendering.max_characters, least=0)
        self._dispatcher = None if identity is None else Dispatcher(registry)
        self._generation = -1
        self._tools: dict[str, ModelTool] = {}

    @property
    def tools(self) -> Mapping[str, ModelTool]:
        """The tools by name, in order of id."""
        if self._generation != self.registry.generation:
            self._generation = self.registry.generation
            selected = {
                operation_id: operation
                for operation_id, operation in sorted(self.registry.operations.items())
                if self._selection.includes(operation) and self._may_call(operation.spec)
            }
            names = tool_names(selected)
            self._tools = {names[each]: ModelTool(name=names[each], operation=selected[each]) for each in selected}
        return self._tools

    def __len__(self) -> int:
        return len(self.tools)

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def find(self, name: str) -> ModelTool:
        """Return a tool by its name or its operation's id; the error for an unknown name suggests tools of this set."""
        if len(name) > _LONGEST_NAME:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"no tool {name[:_LONGEST_NAME]!r}…: the name is too long")
        tool = self.tools.get(name)
        if tool is None and "." in name:
            tool = next((each for each in self.tools.values() if each.spec.id == name), None)
        if tool is None:
            raise unknown_operation(name, self.tools)
        return tool

    def serves(self, operation_id: str) -> bool:
        """Whether an operation is a tool of this set."""
        return any(tool.spec.id == operation_id for tool in self.tools.values())

    def authorize(self, operation_id: str, identity: Identity | None) -> None:
        """Raise `OPERATION_NOT_FOUND` if an operation is not a tool of this set.

        There is no further check, because the set has only operations that its identity may call.
        """
        self.find(operation_id)

    def openai(self, *, api: Literal["chat", "responses"] = "chat", strict: bool = False) -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's chat completions or responses; raise an error for more than 128 tools.

        With `strict`, every property is required: a model omits an optional property with null, and writes free-form
        values as JSON strings.
        """
        if len(self) > _MAX_OPENAI_TOOLS:
            message = (
                f"{len(self)} tools: OpenAI accepts {_MAX_OPENAI_TOOLS}; select fewer with allow, deny or tags, "
                "or use SearchTools"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return [self.openai_tool(tool, api=api, strict=strict) for tool in self.tools.values()]

    def openai_tool(self, tool: ModelTool, *, api: str = "chat", strict: bool = False) -> dict[str, Any]:
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
        """Return the tools in the format of MCP's `tools/list`."""
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

        Only a cancellation of the current task is raised. The time for an approval does not count towards `timeout`.
        """
        rendering = self.rendering
        if fields is not None:
            rendering = msgspec.structs.replace(rendering, fields=fields)
        try:
            tool = self.find(name)
            value = read_arguments(parse_arguments(arguments), tool.spec.input_schema)
            value = await self._approve(tool.spec, value)
            if tool.operation.handler is None:
                items, is_complete = await self._collect(tool.spec.id, value, timeout)
                return rendering.items(items, is_complete=is_complete)
            return rendering.result(await self._execute(tool.spec.id, value, timeout))
        except CallError as error:
            return rendering.failure(error)
        except Exception:  # noqa: BLE001  # a model always gets a result
            _log.exception("the tool %s failed", name)
            return rendering.failure(CallError(ErrorCode.EXECUTION_ERROR, f"{name}: internal error"))

    async def call_for_data(self, tool: ModelTool, input: Any, *, timeout: float | None = None) -> Any:
        """Call a tool and return its data, reduced to `fields` and redacted; raise a CallError if the call fails.

        A stream's data is a list of its first items.
        """
        value = await self._approve(tool.spec, input)
        if tool.operation.handler is None:
            items, _ = await self._collect(tool.spec.id, value, timeout)
            return self.rendering.data([envelope.data for envelope in items])
        envelope = await self._execute(tool.spec.id, value, timeout)
        envelope.raise_for_error()
        return self.rendering.data(envelope.data)

    async def _approve(self, spec: OperationSpec, value: Any) -> Any:
        """Return the input of the approved call, which the approval may have changed; raise if the call is refused."""
        if self.approval is None:
            return value
        context = OperationContext(identity=self.identity, client=self.client)
        return await self.approval.require(spec, value, context)

    async def _execute(self, operation_id: str, value: Any, timeout: float | None) -> ResponseEnvelope[Any]:
        deadline = self._deadline(timeout)
        if self._dispatcher is not None:
            return await self._dispatcher.call(self._request(self._dispatcher, operation_id, value, deadline))
        context = OperationContext(deadline=deadline, client=self.client)
        envelope: ResponseEnvelope[Any] = await self.registry.execute(operation_id, value, context)
        return envelope

    async def _collect(
        self, operation_id: str, value: Any, timeout: float | None
    ) -> tuple[list[ResponseEnvelope[Any]], bool]:
        """Return the first items of a stream (at most 100, until the deadline), and whether these are all items."""
        envelopes: list[ResponseEnvelope[Any]] = []
        async with contextlib.aclosing(self._stream(operation_id, value, self._deadline(timeout))) as stream:
            try:
                async for envelope in stream:
                    envelopes.append(envelope)
                    if len(envelopes) >= _STREAM_ITEMS:
                        return envelopes, False
            except CallError as error:
                if error.code is not ErrorCode.TIMEOUT or not envelopes:
                    raise
                return envelopes, False
        return envelopes, True

    def _deadline(self, timeout: float | None) -> int | None:
        return limit_context(None, self.timeout if timeout is None else timeout).deadline

    def _stream(self, operation_id: str, value: Any, deadline: int | None) -> Any:
        if self._dispatcher is None:
            context = OperationContext(deadline=deadline, client=self.client)
            return self.registry.subscribe(operation_id, value, context)
        return self._dispatcher.stream(self._request(self._dispatcher, operation_id, value, deadline))

    def _request(self, host: Dispatcher, operation_id: str, value: Any, deadline: int | None) -> Request:
        grant = Grant(identity=self.identity, exposure=self)
        return Request(
            host=host, operation_id=operation_id, input=value, grant=grant, deadline=deadline, client=self.client
        )

    def _may_call(self, spec: OperationSpec) -> bool:
        return self.identity is None or check_access(spec.access_control, self.identity).allowed
