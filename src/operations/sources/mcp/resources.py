"""Resources and prompts as operations: `<server>.resources.list` and `.read`, `<server>.prompts.list` and `.get`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope, mcp_envelope
from operations.errors import CallError
from operations.schema import from_schema
from operations.sources.mcp.calls import MCPRequest
from operations.sources.mcp.limits import list_all
from operations.sources.mcp.protocol import METHOD_NOT_FOUND
from operations.sources.mcp.tools import ServerOrigin
from operations.spec import Operation, OperationSpec, OperationType

OFFERS = "mcpOffers"
"""The annotation with the kind of a resource or prompt operation, for example `resources.list`."""
_TEXT = {"type": "string"}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_URI = {"type": "object", "properties": {"uri": _TEXT}, "required": ["uri"], "additionalProperties": False}
_PROMPT = {
    "type": "object",
    "properties": {"name": _TEXT, "arguments": {"type": "object", "additionalProperties": _TEXT}},
    "required": ["name"],
    "additionalProperties": False,
}


def _open(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that may have further properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": True}


_RESOURCES = _open(resources=_OBJECTS, resourceTemplates=_OBJECTS)
_CONTENTS = {"type": "array", "items": _open(uri=_TEXT)}
_PROMPTS = {"type": "array", "items": _open(name=_TEXT)}
_MESSAGES = _open(messages={"type": "array", "items": _open(role=_TEXT, content={"type": "object"})})

Handler = Callable[[Any, OperationContext], Awaitable[ResponseEnvelope[Any]]]


def resource_operations(origin: ServerOrigin) -> list[Operation[Any]]:
    """Return `resources.list` (resources and templates) and `resources.read` (the contents at a URI)."""
    run = _Handlers(origin)
    listing = "Resources and resource templates of the server"
    return [
        _query(origin, "resources.list", listing, _NOTHING, _RESOURCES, run.list_resources),
        _query(origin, "resources.read", "The contents of a resource", _URI, _CONTENTS, run.read_resource),
    ]


def prompt_operations(origin: ServerOrigin) -> list[Operation[Any]]:
    """Return `prompts.list` and `prompts.get` (the messages of one prompt)."""
    run = _Handlers(origin)
    return [
        _query(origin, "prompts.list", "Prompts of the server", _NOTHING, _PROMPTS, run.list_prompts),
        _query(origin, "prompts.get", "The messages of a prompt", _PROMPT, _MESSAGES, run.get_prompt),
    ]


class _Handlers:
    """Handlers of the operations on one server's resources and prompts."""

    def __init__(self, origin: ServerOrigin) -> None:
        self._origin = origin

    async def list_resources(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Return the resources and resource templates of all pages."""
        resources = await self._list("resources/list", "resources", context)
        try:
            templates = await self._list("resources/templates/list", "resourceTemplates", context)
        except CallError as error:
            # Many servers with resources do not implement templates.
            if not isinstance(error.details, dict) or error.details.get("code") != METHOD_NOT_FOUND:
                raise
            templates = []
        return mcp_envelope({"resources": resources, "resourceTemplates": templates})

    async def read_resource(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Return the contents at a URI; each is also a content block of the envelope."""
        uri = input["uri"]
        result = await self._request("resources/read", {"uri": uri}, f"resource {uri!r}", context)
        contents = [item for item in _items(result, "contents") if isinstance(item, Mapping)]
        blocks = [{"type": "resource", "resource": item} for item in contents]
        return mcp_envelope(contents, content=blocks, extensions=_meta(result))

    async def list_prompts(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Return the prompts of all pages."""
        return mcp_envelope(await self._list("prompts/list", "prompts", context))

    async def get_prompt(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Return the messages of a prompt; the content of each is also a content block of the envelope."""
        result = await self._request("prompts/get", input, f"prompt {input['name']!r}", context)
        messages = _items(result, "messages")
        blocks = [message["content"] for message in messages if _has_block(message)]
        data = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
        return mcp_envelope({"messages": messages, **data}, content=blocks, extensions=_meta(result))

    async def _request(
        self, method: str, params: Mapping[str, Any], what: str, context: OperationContext
    ) -> dict[str, Any]:
        request = MCPRequest(method=method, params=params, what=what, repeatable=True)
        return await self._origin.calls.call(request, context)

    async def _list(self, method: str, field: str, context: OperationContext) -> list[Any]:
        async def fetch(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            return await self._request(method, params, method, context)

        return await list_all(fetch, method, field, server=self._origin.server)


def _query(
    origin: ServerOrigin,
    id: str,
    description: str,
    takes: Mapping[str, Any],
    gives: Mapping[str, Any],
    handler: Handler,
) -> Operation[Any]:
    group, _, name = id.partition(".")
    spec = OperationSpec(
        name=name,
        namespace=f"{origin.namespace}.{group}",
        version=origin.version,
        type=OperationType.QUERY,
        description=description,
        input_schema=from_schema(takes),
        output_schema=from_schema(gives),
        output_policy=origin.output_policy,
        annotations={OFFERS: f"{group}.{'read' if name == 'get' else name}"},
    )
    return Operation(spec=spec, handler=handler, threaded=False, dump=None, schema_applies=lambda envelope: True)


def _items(result: Mapping[str, Any], member: str) -> list[Any]:
    items = result.get(member)
    return items if isinstance(items, list) else []


def _meta(result: Mapping[str, Any]) -> dict[str, Any] | None:
    meta = result.get("_meta")
    return meta if isinstance(meta, dict) else None


def _has_block(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), Mapping)
