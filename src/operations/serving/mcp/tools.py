"""ToolList: the operations of an exposure as MCP tools, with names and cached pages.

For search mode and code mode, `tool_sets` caches a tool set of the permitted operations for each set of rights.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import msgspec

from operations.access import check_access
from operations.context import Identity
from operations.exports.code_limits import RUN
from operations.exports.search_tools import CALL, DESCRIBE, SEARCH
from operations.exports.tools import ToolSet
from operations.interceptors.base import Interceptor, asks
from operations.schema import Schema
from operations.serving.exposure import Exposure, PerRights, Rights
from operations.serving.mcp.resources import is_tool
from operations.sources.mcp.own_fields import INPUT, RESULT, SPEC, WRAPPED, move_references
from operations.spec import OPEN, Operation, OperationType

PAGE = 200
TTL_MS = 5_000
NAME = "mcpName"
"""The annotation with the tool name of an operation; ignored if the name is invalid or another tool has it."""
TASK = "mcpTask"
"""The annotation that lets calls of an operation run as tasks. Durable operations have `optional` by default."""
OPTIONAL, REQUIRED, QUESTIONS_FIRST = "optional", "required", "questions-first"
"""The values of `mcpTask`. With `questions-first`, a call asks its questions before it becomes a task.

With `optional` and `required`, the task asks the questions. With `required`, clients of version 2026-07-28
must support tasks.
"""
_MAX_NAME_LENGTH = 128
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CACHE_BYTES = 64 * 1024 * 1024
_HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_PASSED_ON = ("icons", "execution", "_meta")
_STREAM_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array"}, "complete": {"type": "boolean"}},
    "required": ["items", "complete"],
}
_encode = msgspec.json.Encoder().encode
_MAX_KEPT = 16
_MAX_VIEWS = 1_000
T = TypeVar("T")


class _Registry(Protocol):
    @property
    def interceptors(self) -> Sequence[Interceptor]: ...


def can_ask(operation: Operation[Any], registry: _Registry) -> bool:
    """Whether a call can ask its caller a question.

    It can if the handler has a context parameter, or if an interceptor asks, for example for approval.
    """
    return operation.wants_context or any(asks(each, operation.spec) for each in registry.interceptors)


def _task_support(operation: Operation[Any]) -> str | None:
    declared = operation.spec.annotations.get(TASK)
    if declared in (OPTIONAL, REQUIRED, QUESTIONS_FIRST):
        return str(declared)
    return OPTIONAL if operation.spec.durable else None


def tool_name(operation_id: str) -> str:
    """Return the tool name of an operation: `/` becomes `..`, and a long name ends with a hash."""
    name = operation_id.replace("/", "..")
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return f"{name[:119]}-{hashlib.sha256(operation_id.encode()).hexdigest()[:8]}"


class Tool:
    """One operation as a tool. Attributes that depend on the schemas are computed on first use."""

    def __init__(self, name: str, operation: Operation[Any], *, describes_output: bool, can_ask: bool) -> None:
        self.name = name
        self.operation = operation
        self.can_ask = can_ask
        self.is_open = operation.spec.access_control == OPEN
        self.is_stream = operation.handler is None
        self.task_support = _task_support(operation)
        """How a call becomes a task: `optional`, `required` or `questions-first`; None if it never becomes one."""
        self._describes_output = describes_output

    def is_allowed(self, identity: Identity | None) -> bool:
        """Whether an identity may call the tool."""
        return self.is_open or check_access(self.operation.spec.access_control, identity).allowed

    @cached_property
    def is_direct(self) -> bool:
        """Whether a call is simple: the arguments are the input, it cannot ask its caller, and it has one result."""
        return not (self.is_stream or self.can_ask or self.wraps_input)

    @cached_property
    def wraps_input(self) -> bool:
        """Whether the input is nested under `input`: it is if it may be something else than an object."""
        return not _is_object(self.operation.spec.input_schema)

    @cached_property
    def output_schema(self) -> Schema | None:
        """The operation's output schema; None if the tool is listed without a schema, or is a stream."""
        schema = self.operation.spec.output_schema
        return schema if self._describes_output and not self.is_stream and not schema.is_unknown else None

    @cached_property
    def wraps_modern(self) -> bool:
        """Whether structured content is nested under `result`: it is if it may be null.

        Clients would read null as absent content.
        """
        return self.output_schema is not None and self.output_schema.check(None)

    @cached_property
    def wraps_legacy(self) -> bool:
        """Whether structured content is nested under `result` in older versions, which allow only objects."""
        return self.output_schema is not None and (self.wraps_modern or not _is_object(self.output_schema))

    @cached_property
    def input_document(self) -> dict[str, Any]:
        """The listed input schema, whose root is an object."""
        schema = self.operation.spec.input_schema
        if self.wraps_input:
            return _nested(schema, INPUT)
        document = schema.original or schema.document
        # The protocol requires the type at the root, also for references and for schemas that accept anything.
        return {"type": "object", **document} if isinstance(document, Mapping) else {"type": "object"}

    @cached_property
    def has_headers(self) -> bool:
        """Whether clients must also send arguments as HTTP headers (`x-mcp-header` in the schema)."""
        return b'"x-mcp-header"' in _encode(self.input_document)

    @cached_property
    def modern(self) -> bytes:
        """The JSON of the tool in lists of 2026-07-28."""
        return _encode(self._listed(modern=True))

    @cached_property
    def legacy(self) -> bytes:
        """The JSON of the tool in lists of versions before 2026-07-28."""
        if self.output_schema is None or self.wraps_legacy is self.wraps_modern:
            return self.modern
        return _encode(self._listed(modern=False))

    def _listed(self, *, modern: bool) -> dict[str, Any]:
        spec = self.operation.spec
        passed_on = spec.annotations.get("mcp")
        more = passed_on if isinstance(passed_on, Mapping) else {}
        own = more.get("_meta")
        listed: dict[str, Any] = {key: more[key] for key in _PASSED_ON if key in more}
        listed.update(name=self.name, inputSchema=self.input_document, annotations=self._hints())
        if spec.title:
            listed["title"] = spec.title
        if spec.description:
            listed["description"] = spec.description
        about: dict[str, Any] = {"id": spec.id, "type": spec.type.value, "version": spec.version}
        if self.wraps_input:
            about["input"] = INPUT
        listed["_meta"] = {**(own if isinstance(own, Mapping) else {}), SPEC: about}
        if self.is_stream:
            listed["outputSchema"] = _STREAM_OUTPUT
        elif self.output_schema is not None:
            wraps = self.wraps_modern if modern else self.wraps_legacy
            document = self.output_schema.document
            listed["outputSchema"] = _nested(self.output_schema, RESULT) if wraps else document
            if wraps:
                listed["_meta"][WRAPPED] = True
        return listed

    def _hints(self) -> dict[str, Any]:
        annotations = self.operation.spec.annotations
        hints = {key: annotations[key] for key in _HINTS if key in annotations}
        if self.operation.spec.type is not OperationType.MUTATION:
            hints["readOnlyHint"] = True
        return hints


class ToolList:
    """The tools of an exposure, and the pages of their list per set of rights."""

    def __init__(self, exposure: Exposure, server_info: bytes) -> None:
        self._exposure = exposure
        self._server_info = server_info
        self._generation = -1
        self._tools: dict[str, Tool] = {}
        self._by_id: dict[str, Tool] = {}
        self._pages: OrderedDict[tuple[Rights, bool, int], bytes] = OrderedDict()
        self._views = PerRights(exposure, self._visible, _MAX_VIEWS)
        self._bytes = 0

    @property
    def tools(self) -> Mapping[str, Tool]:
        """All exposed tools by name."""
        if self._generation != self._exposure.generation:
            self._refresh()
        return self._tools

    def find(self, name: str, identity: Identity | None) -> Tool | None:
        """Return a tool; None if it does not exist or the identity may not call it."""
        tool = self.tools.get(name)
        return tool if tool is not None and tool.is_allowed(identity) else None

    def find_operation(self, operation_id: str, identity: Identity | None) -> Tool | None:
        """Return the tool of an operation; None if it does not exist or the identity may not call it."""
        self.tools  # noqa: B018  # refreshes the index
        tool = self._by_id.get(operation_id)
        return tool if tool is not None and tool.is_allowed(identity) else None

    async def page(self, identity: Identity | None, cursor: str | None, *, modern: bool) -> bytes | None:
        """Return one page of the list as JSON; None for an invalid cursor."""
        after = "" if cursor is None else _read_cursor(cursor)
        if after is None:
            return None
        rights = self._exposure.rights(identity)
        visible = self.visible(identity)
        start = bisect_right(visible, after, key=lambda tool: tool.operation.id) if after else 0
        key = (rights, modern, start)
        page = self._pages.get(key)
        if page is None:
            tools = visible[start : start + PAGE]
            generation = self._generation
            # In a thread, because the first use of a tool converts its schemas.
            await asyncio.to_thread(_encode_tools, tools, modern=modern)
            last = tools[-1].operation.id if start + PAGE < len(visible) else None
            page = self.join([tool.modern if modern else tool.legacy for tool in tools], last, modern=modern)
            if generation == self._exposure.generation:
                self._keep(key, page)
        else:
            self._pages.move_to_end(key)
        return page

    def visible(self, identity: Identity | None) -> list[Tool]:
        """Return the tools that a caller may call, in the order of operation ids."""
        return self._views.of(identity)

    def _visible(self, identity: Identity | None) -> list[Tool]:
        self.tools  # noqa: B018  # refreshes the names
        by_id = self._by_id
        return [by_id[each] for each in self._exposure.visible(identity) if each in by_id]

    def join(self, tools: list[bytes], last: str | None = None, *, modern: bool) -> bytes:
        """Return a page of encoded tools; `last` is the operation after which the next page starts."""
        parts = [b'{"tools":[', b",".join(tools), b"]"]
        if last is not None:
            parts += [b',"nextCursor":', _encode(_cursor(last))]
        if modern:
            parts.append(
                b',"ttlMs":%d,"cacheScope":"private","resultType":"complete","_meta":{%b}' % (TTL_MS, self._server_info)
            )
        parts.append(b"}")
        return b"".join(parts)

    def _keep(self, key: tuple[Rights, bool, int], page: bytes) -> None:
        if key in self._pages:  # another request created the same page meanwhile
            return
        self._pages[key] = page
        self._bytes += len(page)
        while self._bytes > _CACHE_BYTES and self._pages:
            self._bytes -= len(self._pages.popitem(last=False)[1])

    def _refresh(self) -> None:
        """Update the tools after a change of the registry; keep the Tool of each unchanged operation."""
        exposure = self._exposure
        operations = {each: operation for each, operation in exposure.operations.items() if is_tool(operation)}
        self._generation = exposure.generation
        names = {each: tool_name(each) for each in operations}
        taken = {*names.values(), SEARCH, DESCRIBE, CALL, RUN}  # the last four are those of search mode and code mode
        for each, operation in operations.items():
            wanted = operation.spec.annotations.get(NAME)
            if isinstance(wanted, str) and _NAME.fullmatch(wanted) and wanted not in taken:
                names[each] = wanted
                taken.add(wanted)
        before = self._by_id
        self._by_id = {each: self._tool(names[each], operation, before) for each, operation in operations.items()}
        self._tools = {tool.name: tool for tool in self._by_id.values()}
        self._pages.clear()
        self._bytes = 0

    def _tool(self, name: str, operation: Operation[Any], before: Mapping[str, Tool]) -> Tool:
        known = before.get(operation.id)
        if known is not None and known.operation is operation and known.name == name:
            return known
        policy = operation.spec.output_policy or self._exposure.registry.output_policy
        # Results of imported operations may not match their schemas, and clients would refuse such results.
        described = operation.dump is not None or policy in ("strict", "total")
        asks = can_ask(operation, self._exposure.registry)
        return Tool(name, operation, describes_output=described, can_ask=asks)


def _encode_tools(tools: list[Tool], *, modern: bool) -> None:
    for tool in tools:
        tool.modern if modern else tool.legacy  # noqa: B018  # encoded on first use


def _cursor(operation_id: str) -> str:
    return operation_id.encode().hex()


def _read_cursor(cursor: str) -> str | None:
    try:
        return bytes.fromhex(cursor).decode() or None
    except ValueError:
        return None


def _is_object(schema: Schema) -> bool:
    """Whether the root of a schema allows only objects. True also for the schema of an unknown type."""
    document: Any = schema.document
    if schema.is_unknown:
        return True
    definitions = document.get("$defs", {}) if isinstance(document, dict) else {}
    for _ in range(10):
        if not isinstance(document, dict):
            return False
        if document.get("type") == "object":
            return True
        reference = document.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
            return False
        document = definitions.get(reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~"))
    return False


def _nested(schema: Schema, name: str) -> dict[str, Any]:
    """Return the schema of an object whose only property `name` has the given schema, with adjusted references."""
    document = schema.document
    moved = move_references(document, "#", f"#/properties/{name}")
    return {"type": "object", "properties": {name: moved}, "required": [name]}


def tool_sets(exposure: Exposure, tool_list: ToolList, make: Callable[[ToolSet], T]) -> PerRights[T]:
    """Return a cache with one object for each set of rights; `make` creates the object from the permitted operations.
    The tool sets are used only to list and describe operations; calls go through `MCPCalls`.
    """

    def made(identity: Identity | None) -> T:
        operations = {tool.operation.id: tool.operation for tool in tool_list.visible(identity)}
        tool_set = ToolSet(cast(Any, _View(operations)))
        tool_set.tools  # noqa: B018  # computed here, before threads read it
        return make(tool_set)

    return PerRights(exposure, made, _MAX_KEPT)


class _View(msgspec.Struct, frozen=True):
    """The part of a registry that is read to list and describe tools: the operations of one set of rights."""

    operations: Mapping[str, Operation[Any]]
    generation: int = 0
    interceptors: Sequence[Interceptor] = ()
