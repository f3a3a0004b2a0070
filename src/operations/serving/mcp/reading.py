"""Reading: the requests for resources, prompts and completions, answered by operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.serving.asking import InputRequired
from operations.serving.mcp.calls import INTERNAL_ERROR, INVALID_PARAMS, Calls, Incoming, ProtocolError, public_failure
from operations.serving.mcp.offers import (
    COMPLETIONS,
    MOST_COMPLETIONS,
    Offered,
    Offers,
    Template,
    completed_values,
    completion_input,
    is_not_found,
    listed_values,
    prompt_messages,
    read_arguments,
    resource_contents,
)
from operations.spec import Operation

RESOURCE_NOT_FOUND = -32002
_MOST_LISTED = 10_000


class Reading:
    """Lists and reads what is offered, for one caller at a time."""

    def __init__(self, calls: Calls, offers: Offers) -> None:
        self._calls = calls
        self._offers = offers

    async def list_resources(self, incoming: Incoming) -> list[dict[str, Any]]:
        """Return the resources with a fixed address."""
        return await self._list_all("resources", "uri", incoming)

    async def list_templates(self, incoming: Incoming) -> list[dict[str, Any]]:
        """Return the resources whose address has variables."""
        return await self._list_all("resourceTemplates", "uriTemplate", incoming)

    async def _list_all(self, member: str, field: str, incoming: Incoming) -> list[dict[str, Any]]:
        offers = self._offers
        own = (each.listed() for each in offers.visible(offers.resources, incoming.identity))
        listed = {each[field]: each for each in own if field in each}
        for _, listing, _ in offers.forwards("resources", incoming.identity):
            data = await self._forwarded(listing, incoming)
            for each in data.get(member, ()) if isinstance(data, Mapping) else ():
                if isinstance(each, Mapping) and isinstance(each.get(field), str) and len(listed) < _MOST_LISTED:
                    listed.setdefault(each[field], dict(each))
        return list(listed.values())

    async def read_resource(self, uri: str, incoming: Incoming) -> dict[str, Any] | InputRequired:
        """Return the contents at an address."""
        found = self._offers.find_resource(uri, incoming.identity)
        if found is None:
            return await self._read_forwarded(uri, incoming)
        offered, values = found
        envelope = await self._run(offered.operation, values, incoming)
        if isinstance(envelope, InputRequired):
            return envelope
        return {"contents": resource_contents(envelope, uri, offered.about.get("mimeType"))}

    async def _read_forwarded(self, uri: str, incoming: Incoming) -> dict[str, Any] | InputRequired:
        """Read from the imported server that lists the address: no other server learns of it."""
        for _, listing, reading in self._offers.forwards("resources", incoming.identity):
            data = await self._forwarded(listing, incoming)
            if isinstance(data, Mapping) and _lists(data, uri):
                envelope = await self._run(reading, {"uri": uri}, incoming)
                if isinstance(envelope, InputRequired):
                    return envelope
                return {"contents": envelope.data}
        raise _not_found(uri, incoming)

    async def list_prompts(self, incoming: Incoming) -> list[dict[str, Any]]:
        """Return the prompts; those of imported servers are named after their server."""
        offers = self._offers
        listed = [each.listed() for each in offers.visible(offers.prompts, incoming.identity)]
        for namespace, listing, _ in offers.forwards("prompts", incoming.identity):
            data = await self._forwarded(listing, incoming)
            for each in data if isinstance(data, list) else ():
                if isinstance(each, Mapping) and isinstance(each.get("name"), str) and len(listed) < _MOST_LISTED:
                    listed.append({**each, "name": f"{namespace}.{each['name']}"})
        return listed

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], incoming: Incoming
    ) -> dict[str, Any] | InputRequired:
        """Return the messages of a prompt."""
        offered = self._offers.find_prompt(name, incoming.identity)
        if offered is None:
            return await self._get_forwarded(name, arguments, incoming)
        envelope = await self._run(offered.operation, arguments, incoming)
        if isinstance(envelope, InputRequired):
            return envelope
        result: dict[str, Any] = {"messages": prompt_messages(envelope)}
        if offered.operation.spec.description:
            result["description"] = offered.operation.spec.description
        return result

    async def _get_forwarded(
        self, name: str, arguments: Mapping[str, Any], incoming: Incoming
    ) -> dict[str, Any] | InputRequired:
        for namespace, _, reading in self._offers.forwards("prompts", incoming.identity):
            if name.startswith(f"{namespace}."):
                wanted = {"name": name[len(namespace) + 1 :], "arguments": dict(arguments)}
                envelope = await self._run(reading, wanted, incoming)
                if isinstance(envelope, InputRequired):
                    return envelope
                data = envelope.data
                return dict(data) if isinstance(data, Mapping) else {"messages": []}
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name}")

    async def complete(
        self, reference: Mapping[str, Any], argument: str, value: str, others: Mapping[str, Any], incoming: Incoming
    ) -> dict[str, Any]:
        """Return values for an argument that begin with a text: of an operation, or those that its schema lists."""
        offered = self._referred(reference, incoming)
        values: list[str] = []
        if offered is not None:
            values = await self._completions(offered, argument, value, others, incoming)
        shown = values[:MOST_COMPLETIONS]
        return {"completion": {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}}

    async def _completions(
        self, offered: Offered, argument: str, value: str, others: Mapping[str, Any], incoming: Incoming
    ) -> list[str]:
        named = offered.operation.spec.annotations.get(COMPLETIONS)
        operation_id = named.get(argument) if isinstance(named, Mapping) else None
        completing = self._offers.allowed(incoming.identity).get(operation_id) if operation_id else None
        if completing is None:
            return listed_values(offered.operation, argument, value)
        input = completion_input(completing, argument, value, others)
        envelope = await self._run(completing, input, msgspec.structs.replace(incoming, modern=False, client=None))
        return [] if isinstance(envelope, InputRequired) else completed_values(envelope)

    def _referred(self, reference: Mapping[str, Any], incoming: Incoming) -> Offered | None:
        if reference.get("type") == "ref/prompt":
            return self._offers.find_prompt(str(reference.get("name")), incoming.identity)
        offered = self._offers.resources.get(str(reference.get("uri")))
        allowed = self._offers.allowed(incoming.identity)
        return offered if offered is not None and offered.operation.id in allowed else None

    async def _forwarded(self, listing: Operation[Any], incoming: Incoming) -> Any:
        """Return the list of an imported server; one that does not answer has none."""
        try:
            envelope = await self._calls.run(
                listing, {}, msgspec.structs.replace(incoming, modern=False, client=None, progress=None)
            )
        except CallError:
            return None
        return None if isinstance(envelope, InputRequired) else envelope.data

    async def _run(
        self, operation: Operation[Any], values: Mapping[str, Any], incoming: Incoming
    ) -> ResponseEnvelope[Any] | InputRequired:
        try:
            return await self._calls.run(operation, read_arguments(operation, values), incoming)
        except CallError as error:
            if is_not_found(error):
                raise _not_found(str(values.get("uri") or values.get("name")), incoming) from None
            code = INVALID_PARAMS if error.code is ErrorCode.VALIDATION_ERROR else INTERNAL_ERROR
            raise public_failure(error, operation.id, code, incoming) from None


def _lists(data: Mapping[str, Any], uri: str) -> bool:
    for each in data.get("resources", ()):
        if isinstance(each, Mapping) and each.get("uri") == uri:
            return True
    for each in data.get("resourceTemplates", ()):
        template = each.get("uriTemplate") if isinstance(each, Mapping) else None
        try:
            if isinstance(template, str) and Template(template).match(uri) is not None:
                return True
        except ValueError:
            continue
    return False


def _not_found(uri: str, incoming: Incoming) -> ProtocolError:
    code = INVALID_PARAMS if incoming.modern else RESOURCE_NOT_FOUND
    return ProtocolError(code, f"Resource not found: {uri}", {"uri": uri})
