"""Template: everything the description of one operation says, read when the operation is first used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from operations.sources.openapi import swagger2
from operations.sources.openapi.documents import DanglingReferenceError, Documents, Node
from operations.sources.openapi.inputs import Field, InputPlan, plan_input
from operations.sources.openapi.media import is_json, is_stream, is_text
from operations.sources.openapi.parameters import Parameter, place_name

_IGNORED_HEADERS = ("accept", "content-type", "authorization")
_VARIABLE = re.compile(r"\{([^{}?&#][^{}]*)\}")
_TELLING = frozenset({"type", "$ref", "allOf", "anyOf", "oneOf", "enum", "const", "properties", "items"})
"""Keywords that tell what kind of value a schema is about."""
_LOCATIONS = ("path", "query", "header", "cookie", "querystring")


class BrokenOperationError(Exception):
    """The description of an operation cannot be used; the text says why."""


class Answer(msgspec.Struct, frozen=True):
    """The answer that an operation's output schema speaks of."""

    status: str
    """A status, a range such as `2XX`, or `default`."""
    media_type: str
    schema: Any
    others: frozenset[str]
    """The statuses that are described apart, and so are not the default."""

    def describes(self, status: int, content_type: str) -> bool:
        """Whether an answer of this status and content type is the one described."""
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
    """One operation, ready to make requests from inputs."""

    method: str
    path: str
    plan: InputPlan
    servers: Sequence[Mapping[str, Any]]
    security: Sequence[Mapping[str, Any]]
    answer: Answer | None
    accepts: Sequence[str]
    """The media types of its successful answers, streams included."""
    notes: Sequence[str]
    """What in the description could not be used, and what was done instead."""

    @property
    def streams(self) -> bool:
        """Whether it can answer with a stream of events."""
        return any(is_stream(kind) for kind in self.accepts)


class TemplateReader:
    """Reads the operations of one document."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._root = documents.root
        self._swagger = str(self._root.value.get("swagger", "")).startswith("2")

    def read(self, path: str, method: str, item: Node, operation: Node) -> Template:
        """Read one operation; raises BrokenOperationError with the reason when it cannot be used."""
        if not isinstance(operation.value, Mapping):
            raise BrokenOperationError(f"its description is {type(operation.value).__name__}, not an object")
        notes: list[str] = []
        try:
            parameters = self._parameters(path, item, operation, notes)
            body = self._body(operation, parameters)
            plan = plan_input(self._documents, self._fields(path, parameters, notes), body, notes)
            answer, accepts = self._answer(operation, notes)
        except DanglingReferenceError as error:
            raise BrokenOperationError(str(error)) from error
        return Template(
            method=method.upper(),
            path=path if path.startswith("/") else f"/{path}",
            plan=plan,
            servers=self._servers(item, operation),
            security=self._security(operation),
            answer=answer,
            accepts=accepts,
            notes=notes,
        )

    def _parameters(self, path: str, item: Node, operation: Node, notes: list[str]) -> list[Node]:
        """The parameters of the path and of the operation, the latter going before the former."""
        found: dict[tuple[str, str], Node] = {}
        for owner in (item, operation):
            for _, reference in owner.get("parameters").items():
                node = self._documents.follow(reference)
                if node.text("name") and node.text("in"):
                    found[node.text("in"), node.text("name")] = node
                else:
                    notes.append(f"the parameter at {reference.pointer} has no name or no place: left out")
        return list(found.values())

    def _fields(self, path: str, parameters: Sequence[Node], notes: list[str]) -> list[Field]:
        names = {node.text("name") for node in parameters if node.text("in") == "path"}
        wanted = [name if name in names else place_name(name) for name in _VARIABLE.findall(path)]
        fields = [self._field(node) for node in parameters if self._is_sent(node, wanted, notes)]
        declared = {field.parameter.name for field in fields if field.parameter.location == "path"}
        for name in dict.fromkeys(wanted):
            if name not in declared:
                notes.append(f"the path has {{{name}}}, which is not declared: taken as text")
                fields.append(Field(Parameter(name=name, location="path"), _filled({"type": "string"}), True, ""))
        return fields

    def _is_sent(self, node: Node, wanted: Sequence[str], notes: list[str]) -> bool:
        place, name = node.text("in"), node.text("name")
        if place not in _LOCATIONS:
            if place not in ("body", "formData"):
                notes.append(f"the parameter {name!r} is in {place!r}, which is nowhere: left out")
            return False
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            return False
        if place == "path" and name not in wanted:
            notes.append(f"the path has no {{{name}}}: the parameter is left out")
            return False
        return True

    def _field(self, node: Node) -> Field:
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
        )
        schema = True if schema is None else schema
        in_path = value["in"] == "path"
        required = in_path or value.get("required") is True
        return Field(parameter, _filled(schema) if in_path else schema, required, node.text("description"))

    def _body(self, operation: Node, parameters: Sequence[Node]) -> Node | None:
        if self._swagger:
            return swagger2.request_body(self._documents, parameters, self._media("consumes", operation))
        node = self._documents.follow(operation.get("requestBody"))
        return node if isinstance(node.value, Mapping) and isinstance(node.value.get("content"), Mapping) else None

    def _media(self, key: str, operation: Node) -> list[str]:
        declared = operation.value.get(key, self._root.value.get(key))
        return [kind for kind in declared if isinstance(kind, str)] if isinstance(declared, list) else []

    def _answer(self, operation: Node, notes: list[str]) -> tuple[Answer | None, list[str]]:
        """The successful answer that the output schema is taken from, and the media types of all of them."""
        accepts: list[str] = []
        chosen: Answer | None = None
        responses = dict(operation.get("responses").items())
        for status in _successes(responses):
            try:
                response = self._response(responses[status], operation)
            except DanglingReferenceError as error:
                notes.append(f"the answer {status} is not described: {error}")
                continue
            media = {kind.partition(";")[0].strip().lower(): node for kind, node in response.get("content").items()}
            accepts += [kind for kind in media if kind not in accepts]
            if chosen is None and media:
                chosen = self._choose(status, media, frozenset(responses))
        return chosen, accepts

    def _response(self, node: Node, operation: Node) -> Node:
        response = self._documents.follow(node)
        if self._swagger:
            return swagger2.modern_response(self._documents, response, self._media("produces", operation))
        return response

    def _choose(self, status: str, media: Mapping[str, Node], others: frozenset[str]) -> Answer:
        kind = min(media, key=lambda kind: (not is_json(kind), is_stream(kind), not is_text(kind)))
        node = self._documents.follow(media[kind])
        if is_stream(kind):
            # OpenAPI 3.2 describes the events of a stream one by one.
            schema: Any = self._documents.schema(node.get("itemSchema"))
        elif is_json(kind) or is_text(kind) or kind in ("*/*", "application/*"):
            schema = self._documents.schema(node.get("schema"))
        else:
            schema = True
        return Answer(status, kind, schema, others - {"default"})

    def _servers(self, item: Node, operation: Node) -> list[Mapping[str, Any]]:
        for owner in (operation, item, self._root):
            found = [node.value for _, node in owner.get("servers").items() if isinstance(node.value, Mapping)]
            if found:
                return found
        return list(swagger2.servers(self._root.value)) if self._swagger else [{"url": "/"}]

    def _security(self, operation: Node) -> list[Mapping[str, Any]]:
        declared = operation.value.get("security", self._root.value.get("security"))
        return [entry for entry in declared if isinstance(entry, Mapping)] if isinstance(declared, list) else []


def security_schemes(documents: Documents) -> dict[str, Mapping[str, Any]]:
    """The document's security schemes by name, as OpenAPI 3 writes them."""
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


def _filled(schema: Any) -> Any:
    """The schema of a path parameter, which cannot be empty: an empty segment would be another path."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return schema
    if not schema.keys() & _TELLING:
        schema = {**schema, "type": ["string", "number", "boolean"]}  # what else it is, nobody says
    bounds = {"string": "minLength", "array": "minItems", "object": "minProperties"}
    kind = schema.get("type")
    bound = bounds.get(kind) if isinstance(kind, str) else "minLength"
    if "$ref" in schema:
        return {"allOf": [schema], **dict.fromkeys(bounds.values(), 1)}
    if kind == "array" and "items" in schema:
        schema = {**schema, "items": _filled(schema["items"])}
    if bound is None or (isinstance(schema.get(bound), int) and schema[bound] > 0):
        return schema
    return {**schema, bound: 1}


def _successes(responses: Mapping[str, Any]) -> Iterator[str]:
    """The statuses that mean success, the most telling first: 200, 201, the other 2xx, the default."""
    known = [status for status in responses if status[:1] == "2"]
    yield from sorted(known, key=lambda status: (status != "200", status != "201", status))
    if "default" in responses:
        yield "default"
