"""ResourceRequests: MCP requests for resources, prompts and completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.serving.mcp.calls import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MCPCalls,
    ProtocolError,
    RequestInfo,
    public_failure,
)
from operations.serving.mcp.resources import (
    COMPLETIONS,
    MAX_COMPLETIONS,
    ResourceEntry,
    ResourceIndex,
    URITemplate,
    completed_values,
    completion_input,
    is_not_found,
    listed_values,
    prompt_messages,
    read_arguments,
    resource_contents,
)
from operations.serving.suspended_calls import InputRequired
from operations.spec import Operation

RESOURCE_NOT_FOUND = -32002
_MAX_LISTED = 10_000


class ResourceRequests:
    """Lists and reads resources and prompts, and completes arguments."""

    def __init__(self, calls: MCPCalls, resource_index: ResourceIndex) -> None:
        self._calls = calls
        self._resource_index = resource_index

    async def list_resources(self, info: RequestInfo) -> list[dict[str, Any]]:
        """Return the resources whose URI has no variables."""
        return await self._list_all("resources", "uri", info)

    async def list_templates(self, info: RequestInfo) -> list[dict[str, Any]]:
        """Return the resource templates."""
        return await self._list_all("resourceTemplates", "uriTemplate", info)

    async def _list_all(self, member: str, field: str, info: RequestInfo) -> list[dict[str, Any]]:
        index = self._resource_index
        own = (each.listed() for each in index.visible(index.resources, info.identity))
        listed = {each[field]: each for each in own if field in each}
        for _, listing, _ in index.forwards("resources", info.identity):
            data = await self._forwarded(listing, info)
            for each in data.get(member, ()) if isinstance(data, Mapping) else ():
                if isinstance(each, Mapping) and isinstance(each.get(field), str) and len(listed) < _MAX_LISTED:
                    listed.setdefault(each[field], dict(each))
        return list(listed.values())

    async def read_resource(self, uri: str, info: RequestInfo) -> dict[str, Any] | InputRequired:
        """Return the contents of a resource."""
        found = self._resource_index.find_resource(uri, info.identity)
        if found is None:
            return await self._read_forwarded(uri, info)
        entry, values = found
        envelope = await self._run(entry.operation, values, info)
        if isinstance(envelope, InputRequired):
            return envelope
        return {"contents": resource_contents(envelope, uri, entry.about.get("mimeType"))}

    async def _read_forwarded(self, uri: str, info: RequestInfo) -> dict[str, Any] | InputRequired:
        """Read a resource of an imported server. The URI is sent only to a server whose list contains it."""
        for _, listing, reading in self._resource_index.forwards("resources", info.identity):
            data = await self._forwarded(listing, info)
            if isinstance(data, Mapping) and _lists(data, uri):
                envelope = await self._run(reading, {"uri": uri}, info)
                if isinstance(envelope, InputRequired):
                    return envelope
                return {"contents": envelope.data}
        raise _not_found(uri, info)

    async def list_prompts(self, info: RequestInfo) -> list[dict[str, Any]]:
        """Return the prompts. The name of an imported prompt begins with the namespace of its server."""
        index = self._resource_index
        listed = [each.listed() for each in index.visible(index.prompts, info.identity)]
        for namespace, listing, _ in index.forwards("prompts", info.identity):
            data = await self._forwarded(listing, info)
            for each in data if isinstance(data, list) else ():
                if isinstance(each, Mapping) and isinstance(each.get("name"), str) and len(listed) < _MAX_LISTED:
                    listed.append({**each, "name": f"{namespace}.{each['name']}"})
        return listed

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], info: RequestInfo
    ) -> dict[str, Any] | InputRequired:
        """Return the messages of a prompt."""
        entry = self._resource_index.find_prompt(name, info.identity)
        if entry is None:
            return await self._get_forwarded(name, arguments, info)
        envelope = await self._run(entry.operation, arguments, info)
        if isinstance(envelope, InputRequired):
            return envelope
        result: dict[str, Any] = {"messages": prompt_messages(envelope)}
        if entry.operation.spec.description:
            result["description"] = entry.operation.spec.description
        return result

    async def _get_forwarded(
        self, name: str, arguments: Mapping[str, Any], info: RequestInfo
    ) -> dict[str, Any] | InputRequired:
        for namespace, _, reading in self._resource_index.forwards("prompts", info.identity):
            if name.startswith(f"{namespace}."):
                wanted = {"name": name[len(namespace) + 1 :], "arguments": dict(arguments)}
                envelope = await self._run(reading, wanted, info)
                if isinstance(envelope, InputRequired):
                    return envelope
                data = envelope.data
                return dict(data) if isinstance(data, Mapping) else {"messages": []}
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name}")

    async def complete(
        self, reference: Mapping[str, Any], argument: str, value: str, others: Mapping[str, Any], info: RequestInfo
    ) -> dict[str, Any]:
        """Return completions for an argument.

        They come from the operation named by the annotation `mcpCompletions`, or else from the argument's `enum`.
        """
        entry = self._referred(reference, info)
        values: list[str] = []
        if entry is not None:
            values = await self._completions(entry, argument, value, others, info)
        shown = values[:MAX_COMPLETIONS]
        return {"completion": {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}}

    async def _completions(
        self, entry: ResourceEntry, argument: str, value: str, others: Mapping[str, Any], info: RequestInfo
    ) -> list[str]:
        named = entry.operation.spec.annotations.get(COMPLETIONS)
        operation_id = named.get(argument) if isinstance(named, Mapping) else None
        completing = self._resource_index.allowed(info.identity).get(operation_id) if operation_id else None
        if completing is None:
            return listed_values(entry.operation, argument, value)
        input = completion_input(completing, argument, value, others)
        envelope = await self._run(completing, input, msgspec.structs.replace(info, modern=False, client=None))
        return [] if isinstance(envelope, InputRequired) else completed_values(envelope)

    def _referred(self, reference: Mapping[str, Any], info: RequestInfo) -> ResourceEntry | None:
        if reference.get("type") == "ref/prompt":
            return self._resource_index.find_prompt(str(reference.get("name")), info.identity)
        entry = self._resource_index.resources.get(str(reference.get("uri")))
        allowed = self._resource_index.allowed(info.identity)
        return entry if entry is not None and entry.operation.id in allowed else None

    async def _forwarded(self, listing: Operation[Any], info: RequestInfo) -> Any:
        """Return the resources or prompts that an imported server lists; None if the server fails."""
        try:
            envelope = await self._calls.run(
                listing, {}, msgspec.structs.replace(info, modern=False, client=None, progress=None)
            )
        except CallError:
            return None
        return None if isinstance(envelope, InputRequired) else envelope.data

    async def _run(
        self, operation: Operation[Any], values: Mapping[str, Any], info: RequestInfo
    ) -> ResponseEnvelope[Any] | InputRequired:
        try:
            return await self._calls.run(operation, read_arguments(operation, values), info)
        except CallError as error:
            if is_not_found(error):
                raise _not_found(str(values.get("uri") or values.get("name")), info) from None
            code = INVALID_PARAMS if error.code is ErrorCode.VALIDATION_ERROR else INTERNAL_ERROR
            raise public_failure(error, operation.id, code, info) from None


def _lists(data: Mapping[str, Any], uri: str) -> bool:
    for each in data.get("resources", ()):
        if isinstance(each, Mapping) and each.get("uri") == uri:
            return True
    for each in data.get("resourceTemplates", ()):
        template = each.get("uriTemplate") if isinstance(each, Mapping) else None
        try:
            if isinstance(template, str) and URITemplate(template).match(uri) is not None:
                return True
        except ValueError:
            continue
    return False


def _not_found(uri: str, info: RequestInfo) -> ProtocolError:
    code = INVALID_PARAMS if info.modern else RESOURCE_NOT_FOUND
    return ProtocolError(code, f"Resource not found: {uri}", {"uri": uri})
