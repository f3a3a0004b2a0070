"""ResourceIndex: operations as MCP resources, resource templates and prompts, and those of imported servers.

Annotations, which `@resource` and `@prompt` write, make an operation a resource or prompt. Resources and prompts of
imported servers are read through the operations that the import created.
"""

from __future__ import annotations

import binascii
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from operations.context import Identity
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.function import FunctionOperation, make_operation
from operations.serving.exposure import Exposure
from operations.sources.mcp.own_fields import plain_json
from operations.sources.mcp.resources import OFFERS
from operations.spec import Operation

_log = logging.getLogger("operations.mcp")

RESOURCE = "mcpResource"
"""The annotation of a resource: `{uri, mimeType?, name?}`. URI variables, such as `{id}`, are input properties."""
PROMPT = "mcpPrompt"
"""The annotation of a prompt: `{name?}`. Its arguments are the input properties."""
COMPLETIONS = "mcpCompletions"
"""The annotation that maps an argument to the operation that completes its values."""
TOOL = "mcpTool"
"""The annotation that states whether an operation is a tool; by default, resources and prompts are not."""
MAX_COMPLETIONS = 100
MAX_URI_LENGTH = 8_192
Decorate = Callable[[Callable[..., Any]], FunctionOperation[..., Any, Any]]
_VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")


def resource(uri: str, /, *, mime_type: str | None = None, name: str | None = None, **options: Any) -> Decorate:
    """Make a function a resource: `@resource("notes://{id}", mime_type="text/markdown")`.

    `options` are those of `@operation`.
    """
    about = {key: value for key, value in (("uri", uri), ("mimeType", mime_type), ("name", name)) if value is not None}
    return _make_decorator(RESOURCE, about, options, sys._getframe(1).f_locals)


def prompt(name: str | None = None, /, *, completions: Mapping[str, str] | None = None, **options: Any) -> Decorate:
    """Make a function a prompt. The function returns a string, several strings, or messages (`role`, `content`).

    `completions` maps an argument of the prompt to the id of the operation that completes its values.
    """
    if completions:
        options["annotations"] = {**options.get("annotations", {}), COMPLETIONS: dict(completions)}
    return _make_decorator(PROMPT, {} if name is None else {"name": name}, options, sys._getframe(1).f_locals)


def _make_decorator(
    annotation: str, about: Mapping[str, Any], options: dict[str, Any], scope: Mapping[str, Any]
) -> Decorate:
    annotations = {**options.pop("annotations", {}), annotation: dict(about)}
    declared = {"type": "query", **options, "annotations": annotations}
    return lambda function: make_operation(function, scope, **declared)


def is_tool(operation: Operation[Any]) -> bool:
    """Whether an operation is listed as a tool."""
    annotations = operation.spec.annotations
    stated = annotations.get(TOOL)
    if isinstance(stated, bool):
        return stated
    return RESOURCE not in annotations and PROMPT not in annotations


class URITemplate:
    """A resource URI with variables. Matching takes linear time."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._literals: list[str] = []
        self._variables: list[tuple[str, bool]] = []
        position = 0
        for variable in _VARIABLE.finditer(uri):
            literal = uri[position : variable.start()]
            if self._variables and not literal:
                raise ValueError(f"invalid resource URI {uri}: two variables without text between them")
            self._literals.append(literal)
            self._variables.append((variable.group(2), variable.group(1) == "+"))
            position = variable.end()
        self._literals.append(uri[position:])
        if len(dict(self._variables)) < len(self._variables):
            raise ValueError(f"invalid resource URI {uri}: two variables with the same name")

    @property
    def has_variables(self) -> bool:
        """Whether the URI is a template for several resources."""
        return bool(self._variables)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the variables of a URI; None if it does not match. Each variable matches as little as possible."""
        first, last = self._literals[0], self._literals[-1]
        if not self._variables:
            return {} if uri == self.uri else None
        if len(uri) > MAX_URI_LENGTH or not uri.startswith(first) or not uri.endswith(last):
            return None
        position, end = len(first), len(uri) - len(last)
        values: dict[str, str] = {}
        for (name, is_path), literal in zip(self._variables, [*self._literals[1:-1], ""], strict=True):
            found = uri.find(literal, position + 1, end) if literal else end
            if found <= position:
                return None
            value = _variable(uri[position:found], is_path=is_path)
            if value is None:
                return None
            values[name] = value
            position = found + len(literal)
        return values


def _variable(text: str, *, is_path: bool) -> str | None:
    """Return the decoded value of a variable, or None for an invalid value.

    Only the value of a `{+path}` variable may contain separators, such as `/` or an escaped `/`.
    """
    value = unquote(text)
    if is_path:
        return value
    return None if any(each in text for each in "/?#") or "/" in value or "\\" in value else value


class ResourceEntry(msgspec.Struct, frozen=True):
    """One operation as a resource or a prompt."""

    name: str
    operation: Operation[Any]
    about: Mapping[str, Any]
    template: URITemplate | None = None

    def listed(self) -> dict[str, Any]:
        """Return the entry in the format of MCP's lists."""
        spec = self.operation.spec
        listed: dict[str, Any] = {"name": self.name}
        if spec.title:
            listed["title"] = spec.title
        if spec.description:
            listed["description"] = spec.description
        if self.template is None:
            listed["arguments"] = list(_arguments(self.operation))
            return listed
        listed["uriTemplate" if self.template.has_variables else "uri"] = self.template.uri
        mime_type = self.about.get("mimeType")
        return {**listed, "mimeType": mime_type} if isinstance(mime_type, str) else listed


class ResourceIndex:
    """The resources and prompts of an exposure. Lists contain only those that a caller may use."""

    def __init__(self, exposure: Exposure) -> None:
        self._exposure = exposure
        self._generation = -1
        self._resources: dict[str, ResourceEntry] = {}
        self._prompts: dict[str, ResourceEntry] = {}
        self._forwards: dict[str, dict[str, str]] = {}

    @property
    def resources(self) -> Mapping[str, ResourceEntry]:
        """Resources and templates by URI."""
        self._refresh()
        return self._resources

    @property
    def prompts(self) -> Mapping[str, ResourceEntry]:
        """Prompts by name."""
        self._refresh()
        return self._prompts

    @property
    def fingerprint(self) -> tuple[frozenset[str], frozenset[str]]:
        """The URIs of the resources and the names of the prompts, to detect changes of these lists."""
        return frozenset(self.resources), frozenset(self.prompts)

    def allowed(self, identity: Identity | None) -> Mapping[str, Operation[Any]]:
        """Return the operations that a caller may call."""
        return self._exposure.visible(identity)

    def visible(self, entries: Mapping[str, ResourceEntry], identity: Identity | None) -> Iterator[ResourceEntry]:
        """Yield the entries that a caller may use."""
        allowed = self._exposure.visible(identity)
        return (each for each in entries.values() if each.operation.id in allowed)

    def forwards(self, kind: str, identity: Identity | None) -> Iterator[tuple[str, Operation[Any], Operation[Any]]]:
        """Yield the namespace, list operation and read operation of each imported server that has `kind`.

        `kind` is `resources` or `prompts`.
        """
        self._refresh()
        allowed = self._exposure.visible(identity)
        for namespace, found in self._forwards.items():
            listing, reading = found.get(f"{kind}.list"), found.get(f"{kind}.read")
            if listing is not None and reading is not None and listing in allowed and reading in allowed:
                yield namespace, allowed[listing], allowed[reading]

    def find_resource(self, uri: str, identity: Identity | None) -> tuple[ResourceEntry, dict[str, str]] | None:
        """Return the resource of a URI and the variables of the URI; None if there is none that the caller may use."""
        exact = self.resources.get(uri)
        allowed = self._exposure.visible(identity)
        if exact is not None and exact.operation.id in allowed:
            return exact, {}
        for each in self.visible(self.resources, identity):
            values = each.template.match(uri) if each.template is not None else None
            if values is not None:
                return each, values
        return None

    def hides(self, uri: str, identity: Identity | None) -> bool:
        """Whether a URI matches resources, but none that the caller may use."""
        if self.find_resource(uri, identity) is not None:
            return False
        return any(
            each.template is not None and each.template.match(uri) is not None for each in self.resources.values()
        )

    def find_prompt(self, name: str, identity: Identity | None) -> ResourceEntry | None:
        """Return a prompt; None if it does not exist or the caller may not use it."""
        found = self.prompts.get(name)
        return found if found is not None and found.operation.id in self._exposure.visible(identity) else None

    def _refresh(self) -> None:
        if self._generation == self._exposure.generation:
            return
        self._generation = self._exposure.generation
        self._resources, self._prompts, self._forwards = {}, {}, {}
        for operation_id, each in self._exposure.operations.items():
            annotations = each.spec.annotations
            about, prompted = annotations.get(RESOURCE), annotations.get(PROMPT)
            if isinstance(about, Mapping) and isinstance(about.get("uri"), str):
                self._add_resource(each, about)
            if isinstance(prompted, Mapping):
                name = str(prompted.get("name") or operation_id)
                self._prompts.setdefault(name, ResourceEntry(name, each, prompted))
            forward = annotations.get(OFFERS)
            if isinstance(forward, str):
                namespace = each.spec.namespace.rpartition(".")[0]
                self._forwards.setdefault(namespace, {})[forward] = operation_id

    def _add_resource(self, operation: Operation[Any], about: Mapping[str, Any]) -> None:
        try:
            template = URITemplate(about["uri"])
        except ValueError as error:
            _log.warning("%s is not served as a resource: %s", operation.id, error)
            return
        name = about.get("name") or operation.spec.name
        self._resources.setdefault(template.uri, ResourceEntry(str(name), operation, about, template))


def _arguments(operation: Operation[Any]) -> Iterator[dict[str, Any]]:
    document = operation.spec.input_schema.document
    if not isinstance(document, Mapping):
        return
    required = document.get("required", ())
    for name, schema in document.get("properties", {}).items():
        argument: dict[str, Any] = {"name": name, "required": name in required}
        if isinstance(schema, Mapping) and isinstance(schema.get("description"), str):
            argument["description"] = schema["description"]
        yield argument


def read_arguments(operation: Operation[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert strings (variables of a URI, arguments of a prompt) to the types that the input schema requires.

    If the result would not match the schema, return the strings unchanged.
    """
    schema = operation.spec.input_schema
    given = dict(values)
    if schema.check(given):
        return given
    cast = schema.cast(given)
    # Values may change their type, but properties are neither added nor removed.
    return cast if isinstance(cast, dict) and cast.keys() == given.keys() and schema.check(cast) else given


def resource_contents(envelope: ResponseEnvelope[Any], uri: str, mime_type: Any) -> list[dict[str, Any]]:
    """Return a result as the contents of a resource."""
    data, meta = envelope.data, envelope.meta
    if isinstance(meta, MCPResponseMeta):
        embedded = [block.to_dict().get("resource") for block in meta.content if block.type == "resource"]
        if embedded:
            return [each for each in embedded if isinstance(each, dict)]
    if isinstance(data, bytes | bytearray | memoryview):
        blob = binascii.b2a_base64(data, newline=False).decode("ascii")
        return [{"uri": uri, "mimeType": mime_type or "application/octet-stream", "blob": blob}]
    if isinstance(data, str):
        return [{"uri": uri, "mimeType": mime_type or "text/plain", "text": data}]
    text = msgspec.json.encode(plain_json(data)[0]).decode()
    return [{"uri": uri, "mimeType": mime_type or "application/json", "text": text}]


def prompt_messages(envelope: ResponseEnvelope[Any]) -> list[dict[str, Any]]:
    """Convert a result to prompt messages: a string, a list of strings or messages, or an object with `messages`."""
    data = plain_json(envelope.data)[0]
    if isinstance(data, Mapping) and isinstance(data.get("messages"), list):
        data = data["messages"]
    elif not isinstance(data, list):
        data = [data]
    return [_message(each) for each in data]


def _message(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and "content" in value:
        content = value["content"]
        role = value.get("role") if value.get("role") in ("user", "assistant") else "user"
        return {"role": role, "content": {"type": "text", "text": content} if isinstance(content, str) else content}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"role": "user", "content": {"type": "text", "text": text}}


def completion_input(
    completing: Operation[Any], argument: str, value: str, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the input of an operation that completes values.

    Of the properties `value`, `argument` and `arguments`, the input has those that the operation declares.
    """
    document = completing.spec.input_schema.document
    taken = document.get("properties", {}) if isinstance(document, Mapping) else {}
    known = {"value": value, "argument": argument, "arguments": dict(others)}
    return {name: each for name, each in known.items() if name in taken}


def listed_values(operation: Operation[Any], argument: str, value: str) -> list[str]:
    """Return the `enum` values of an argument that begin with `value`."""
    document = operation.spec.input_schema.document
    schema = document.get("properties", {}).get(argument) if isinstance(document, Mapping) else None
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    texts = [each for each in listed if isinstance(each, str)] if isinstance(listed, Sequence) else []
    return [each for each in texts if each.startswith(value)][:MAX_COMPLETIONS]


def completed_values(envelope: ResponseEnvelope[Any]) -> list[str]:
    """Return the strings in the result of an operation that completes values: a list, or the list `values`."""
    data = envelope.data
    found = data.get("values") if isinstance(data, Mapping) else data
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def is_not_found(error: CallError) -> bool:
    """Whether an imported server reported an unknown resource or prompt, or invalid parameters."""
    return isinstance(error.details, dict) and error.details.get("code") in (-32002, -32602)
