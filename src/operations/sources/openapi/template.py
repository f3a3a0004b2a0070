"""Template: the parsed operation object of one operation, read on first use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from operations.sources.openapi import swagger2
from operations.sources.openapi.documents import DanglingReferenceError, DocNode, Documents
from operations.sources.openapi.inputs import Compile, InputField, InputPlan, plan_input, require_items
from operations.sources.openapi.media import essence, is_json, is_stream, is_text, usable_media_types
from operations.sources.openapi.parameters import Parameter, placeholder_name

_IGNORED_HEADERS = ("accept", "content-type", "authorization")
"""Header parameters that OpenAPI 3 ignores; Swagger 2.0 has no such rule."""
_VARIABLE = re.compile(r"\{([^{}?&#][^{}]*)\}")
_TYPE_KEYWORDS = frozenset({"type", "$ref", "allOf", "anyOf", "oneOf", "enum", "const", "properties", "items"})
"""Keywords that determine the type of a schema's values."""
_PROBLEMS = frozenset({"application/problem+json", "application/problem+xml"})
_LOCATIONS = ("path", "query", "header", "cookie", "querystring")


class BrokenOperationError(Exception):
    """An operation object that cannot be used; the message has the reason."""


class ResponseDescription(msgspec.Struct, frozen=True):
    """The response that an operation's output schema describes."""

    status: str
    """A status, a range such as `2XX`, or `default`."""
    media_type: str
    schema: Any
    others: frozenset[str]
    """Statuses with their own description, to which the default does not apply."""

    def applies_to(self, status: int, content_type: str) -> bool:
        """Whether the schema applies to a response with this status and content type."""
        text = str(status)
        if self.status.lower() == "default":
            fits = text not in self.others and f"{text[0]}XX" not in self.others
        else:
            fits = self.status in (text, f"{text[0]}XX", f"{text[0]}xx")
        got = content_type.partition(";")[0].strip().lower()
        return fits and (got == self.media_type or (is_json(got) and (is_json(self.media_type) or self._is_range)))

    @property
    def _is_range(self) -> bool:
        return self.media_type in ("*/*", "application/*")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed operation, ready to build requests."""

    method: str
    path: str
    plan: InputPlan
    servers: Sequence[Mapping[str, Any]]
    security: Sequence[Mapping[str, Any]]
    response_description: ResponseDescription | None
    accepts: Sequence[str]
    """Media types of successful responses, including streams."""
    notes: Sequence[str]
    """A line for each unusable part of the operation object, with its replacement."""

    def __post_init__(self) -> None:
        # The path follows the base URL: without the slash, `.example` would change the host, `8080` its port.
        if not self.path.startswith("/"):
            msgspec.structs.force_setattr(self, "path", f"/{self.path}")

    @property
    def streams(self) -> bool:
        """Whether the operation may respond with an event stream."""
        return any(is_stream(kind) for kind in self.accepts)


class TemplateReader:
    """Reads the operations of one document."""

    def __init__(self, documents: Documents, compile: Compile) -> None:
        self._documents = documents
        self._compile = compile
        self._root = documents.root
        self._swagger = str(self._root.value.get("swagger", "")).startswith("2")

    def read(self, path: str, method: str, item: DocNode, operation: DocNode) -> Template:
        """Read one operation; raise `BrokenOperationError` if it cannot be used."""
        if not isinstance(operation.value, Mapping):
            raise BrokenOperationError(f"its operation object is {type(operation.value).__name__}, not an object")
        notes: list[str] = []
        try:
            parameters = self._parameters(item, operation, notes)
            body = self._body(operation, parameters)
            plan = plan_input(self._documents, self._compile, self._fields(path, parameters, notes), body, notes)
            response_description, accepts = self._response_description(operation, notes)
        except DanglingReferenceError as error:
            raise BrokenOperationError(str(error)) from error
        return Template(
            method=method.upper(),
            path=path,
            plan=plan,
            servers=self._servers(item, operation),
            security=self._security(operation),
            response_description=response_description,
            accepts=accepts,
            notes=notes,
        )

    def _parameters(self, item: DocNode, operation: DocNode, notes: list[str]) -> list[DocNode]:
        """Return the parameters of path and operation; the operation's take precedence."""
        found: dict[tuple[str, str], DocNode] = {}
        for owner in (item, operation):
            for _, reference in owner.get("parameters").items():
                node = self._documents.follow(reference)
                if node.text("name") and node.text("in"):
                    found[node.text("in"), node.text("name")] = node
                else:
                    notes.append(f"parameter at {reference.pointer} is skipped: missing name or location")
        return list(found.values())

    def _fields(self, path: str, parameters: Sequence[DocNode], notes: list[str]) -> list[InputField]:
        names = {node.text("name") for node in parameters if node.text("in") == "path"}
        path_names = [name if name in names else placeholder_name(name) for name in _VARIABLE.findall(path)]
        fields = [self._field(node) for node in parameters if self._is_sent(node, path_names, notes)]
        declared = {field.parameter.name for field in fields if field.parameter.location == "path"}
        for name in dict.fromkeys(path_names):
            if name not in declared:
                notes.append(f"path parameter {{{name}}} is not declared: assumed to be a string")
                fields.append(
                    InputField(Parameter(name=name, location="path"), _non_empty({"type": "string"}), True, "")
                )
        return fields

    def _is_sent(self, node: DocNode, path_names: Sequence[str], notes: list[str]) -> bool:
        place, name = node.text("in"), node.text("name")
        if place not in _LOCATIONS:
            if place not in ("body", "formData"):
                notes.append(f"parameter {name!r} is skipped: unknown location {place!r}")
            return False
        if place == "header" and name.lower() in _IGNORED_HEADERS and not self._swagger:
            return False
        if place == "path" and name not in path_names:
            notes.append(f"path parameter {name!r} is skipped: the path has no {{{name}}}")
            return False
        return True

    def _field(self, node: DocNode) -> InputField:
        value = swagger2.modern_parameter(node.value) if self._swagger else node.value
        schema_node = node.get("schema")
        media_type = None
        content = node.get("content")
        if isinstance(content.value, Mapping) and content.value:
            media_type, media = next(content.items())
            schema_node = self._documents.follow(media).get("schema")
        schema = value.get("schema") if self._swagger else self._documents.schema(schema_node)
        parameter = Parameter(
            name=node.text("name"),
            location=value["in"],
            style=value.get("style") if isinstance(value.get("style"), str) else None,
            explode=value.get("explode") if isinstance(value.get("explode"), bool) else None,
            allow_reserved=value.get("allowReserved") is True,
            media_type=media_type,
            collection_format=value.get("collectionFormat") if self._swagger else None,
            allow_empty=value.get("allowEmptyValue") is True,
        )
        schema = True if schema is None else schema
        required = value["in"] == "path" or value.get("required") is True
        if value["in"] == "path":
            schema = _non_empty(schema)
        elif required and media_type is None and not parameter.allow_empty:
            # An empty array or object is not sent at all.
            schema = require_items(schema, self._documents.declared_type(node if self._swagger else schema_node))
        return InputField(parameter, schema, required, node.text("description"))

    def _body(self, operation: DocNode, parameters: Sequence[DocNode]) -> DocNode | None:
        if self._swagger:
            return swagger2.request_body(self._documents, parameters, self._media("consumes", operation))
        node = self._documents.follow(operation.get("requestBody"))
        return node if isinstance(node.value, Mapping) and isinstance(node.value.get("content"), Mapping) else None

    def _media(self, key: str, operation: DocNode) -> list[str]:
        declared = operation.value.get(key, self._root.value.get(key))
        return [kind for kind in declared if isinstance(kind, str)] if isinstance(declared, list) else []

    def _response_description(
        self, operation: DocNode, notes: list[str]
    ) -> tuple[ResponseDescription | None, list[str]]:
        """Return the response that the output schema describes, and the media types of all successful responses."""
        accepts: list[str] = []
        chosen: ResponseDescription | None = None
        responses = dict(operation.get("responses").items())
        for status in _successes(responses):
            try:
                response = self._response(responses[status], operation)
            except DanglingReferenceError as error:
                notes.append(f"response {status} is ignored: {error}")
                continue
            described = usable_media_types(response.get("content").items(), status, notes)
            media = {essence(kind): node for kind, node in described.items()}
            for kind in _PROBLEMS & media.keys():
                del media[kind]  # describes an error, whatever the status
            accepts += [kind for kind in media if kind not in accepts]
            if chosen is None and media:
                chosen = self._choose(status, media, frozenset(responses))
        return chosen, accepts

    def _response(self, node: DocNode, operation: DocNode) -> DocNode:
        response = self._documents.follow(node)
        if self._swagger:
            return swagger2.modern_response(self._documents, response, self._media("produces", operation))
        return response

    def _choose(self, status: str, media: Mapping[str, DocNode], others: frozenset[str]) -> ResponseDescription:
        kind = min(media, key=lambda kind: (not is_json(kind), is_stream(kind), not is_text(kind)))
        node = self._documents.follow(media[kind])
        schema: Any = True
        if is_stream(kind):
            schema = self._documents.schema(self._event_schema(node))
        elif (is_json(kind) or is_text(kind) or kind in ("*/*", "application/*")) and not self._is_file(node):
            schema = self._documents.schema(node.get("schema"))
        return ResponseDescription(status, kind, schema, others - {"default"})

    def _event_schema(self, media: DocNode) -> DocNode:
        """Return the schema of one event of a stream.

        In OpenAPI 3.2, `itemSchema` describes an event. In older versions, `schema` describes an event, or the stream
        as an array of events. A `schema` of type string describes the text of the stream: its events have no schema.
        """
        item = media.get("itemSchema")
        if item.value is not None:
            return item
        schema = media.get("schema")
        kind = self._documents.declared_type(schema)
        if kind == "array":
            return self._documents.follow_if_found(schema).get("items")
        return schema if kind != "string" else media.get("itemSchema")

    def _is_file(self, media: DocNode) -> bool:
        """Whether a response is a file: its schema describes bytes with any content."""
        schema = self._documents.follow_if_found(media.get("schema")).value
        return isinstance(schema, Mapping) and schema.get("type") == "string" and schema.get("format") == "binary"

    def _servers(self, item: DocNode, operation: DocNode) -> list[Mapping[str, Any]]:
        for owner in (operation, item, self._root):
            found = [node.value for _, node in owner.get("servers").items() if isinstance(node.value, Mapping)]
            if found:
                return found
        return list(swagger2.servers(self._root.value)) if self._swagger else [{"url": "/"}]

    def _security(self, operation: DocNode) -> list[Mapping[str, Any]]:
        declared = operation.value.get("security", self._root.value.get("security"))
        return [entry for entry in declared if isinstance(entry, Mapping)] if isinstance(declared, list) else []


def security_schemes(documents: Documents) -> dict[str, Mapping[str, Any]]:
    """Return the document's security schemes by name, in OpenAPI 3 form."""
    schemes: dict[str, Mapping[str, Any]] = {}
    root = documents.root
    for owner, modern in ((root.get("components", "securitySchemes"), False), (root.get("securityDefinitions"), True)):
        for name, node in owner.items():
            try:
                value = documents.follow(node).value
            except DanglingReferenceError:
                continue
            if isinstance(value, Mapping):
                schemes[name] = swagger2.security_scheme(value) if modern else value
    return schemes


def _non_empty(schema: Any) -> Any:
    """Return the schema of a path parameter without empty values: an empty segment would change the path."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return schema
    if not schema.keys() & _TYPE_KEYWORDS:
        schema = {**schema, "type": ["string", "number", "boolean"]}  # the type is not declared
    bounds = {"string": "minLength", "array": "minItems", "object": "minProperties"}
    kind = schema.get("type")
    bound = bounds.get(kind) if isinstance(kind, str) else "minLength"
    if "$ref" in schema:
        return {"allOf": [schema], **dict.fromkeys(bounds.values(), 1)}
    if kind == "array" and "items" in schema:
        schema = {**schema, "items": _non_empty(schema["items"])}
    if bound is None or (isinstance(schema.get(bound), int) and schema[bound] > 0):
        return schema
    return {**schema, bound: 1}


def _successes(responses: Mapping[str, Any]) -> Iterator[str]:
    """Yield the statuses that mean success, most specific first: 200, 201, other 2xx, the default."""
    known = [status for status in responses if status[:1] == "2"]
    yield from sorted(known, key=lambda status: (status != "200", status != "201", status))
    if "default" in responses:
        yield "default"
