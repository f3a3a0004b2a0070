"""Path items: the OpenAPI description of one operation. Pure functions, independent of requests, callers and caches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from operations.exports.definitions import SharedDefinition, hoist
from operations.schema import Schema
from operations.schema.dialects.keywords import SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS
from operations.schema.dialects.traversal import schemas_in
from operations.serving.http.parameters import QueryParameter, is_bytes, query_parameters, root_object
from operations.serving.http.problems import declared_status, is_http_source
from operations.serving.http.routes import encoded_path
from operations.serving.http.shared_components import (
    PROBLEM,
    PROBLEM_REFERENCE,
    PROBLEM_SCHEMA,
    RESULT_HEADERS,
    STREAM_ENDINGS,
    Security,
    describe_status,
    error_responses,
    is_general,
)
from operations.spec import OPEN, Operation, OperationType

Version = Literal["3.1", "3.2"]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
BINARY = "application/octet-stream"
SCHEMAS = "#/components/schemas/"

_FILE = {"type": "string", "format": "binary"}
_DOMAIN_MEMBERS = ("type", "title", "status", "detail", "requestId", "operationId", "executed")
_COMPONENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class PathItem(msgspec.Struct, frozen=True):
    """The description of one operation. References contain keys of definitions; documents replace the keys by names."""

    path: str
    methods: dict[str, Any]
    uses: tuple[str, ...]
    definitions: Mapping[str, SharedDefinition]
    streams: bool


def describe(operation: Operation[Any], version: Version, security: Security) -> PathItem:
    """Return the path item of an operation."""
    return _Describer(operation, version, security).item()


class _Describer:
    """Builds one description and collects the definitions that its schemas use."""

    def __init__(self, operation: Operation[Any], version: Version, security: Security) -> None:
        self._operation = operation
        self._spec = operation.spec
        self._version = version
        self._security = security
        self._base = self._spec.id.replace("/", "_")
        self._definitions: dict[str, SharedDefinition] = {}
        self._uses: dict[str, None] = {}
        # Inputs accept read-only properties and outputs contain write-only ones, so these keywords would be wrong here.
        self._input = _without(self._spec.input_schema.document, "readOnly")
        output = _without(self._spec.output_schema.document, "writeOnly")
        self._is_binary = isinstance(output, dict) and is_bytes(output, output.get("$defs", {}))
        self._output = self._schema(output, self._base)
        self._errors = {
            code: self._schema(schema.document, f"{self._base}.{_named(code)}")
            for code, schema in self._spec.error_schemas.items()
        }

    def item(self) -> PathItem:
        methods = {"post": self._post()}
        parameters = None if self._spec.type is OperationType.MUTATION else query_parameters(self._input)
        if parameters is not None:
            methods["get"] = self._get(parameters)
        path, streams = encoded_path(self._operation), self._operation.stream is not None
        return PathItem(path, methods, tuple(self._uses), self._definitions, streams)

    def _schema(self, document: Any, root_name: str) -> Any:
        title = document.get("title") if isinstance(document, dict) and "properties" in document else None
        if isinstance(title, str) and _COMPONENT_NAME.fullmatch(title):
            hoisted = hoist(
                document, title, with_root=True
            )  # a class: one component, also where other schemas refer to it
        else:
            hoisted = hoist(document, root_name)
        self._definitions = {**hoisted.definitions, **self._definitions}
        self._uses.update(dict.fromkeys(hoisted.uses))
        return hoisted.schema(SCHEMAS.__add__, plain_schema)

    def _post(self) -> dict[str, Any]:
        described = self._common(self._spec.id)
        described["requestBody"] = self._body()
        described["responses"] = self._responses(body=True)
        described["x-operations"] = self._extension()
        return described

    def _get(self, parameters: tuple[QueryParameter, ...]) -> dict[str, Any]:
        described = self._common(f"{self._spec.id}:get")
        described["parameters"] = self._parameters(parameters)
        described["responses"] = self._responses(body=False)
        described["x-operations"] = {"alias": self._spec.id}
        return described

    def _common(self, operation_id: str) -> dict[str, Any]:
        spec = self._spec
        described: dict[str, Any] = {
            "operationId": operation_id,
            "tags": [spec.namespace],
            "summary": spec.title or spec.name,
        }
        if spec.description:
            described["description"] = spec.description
        if spec.annotations.get("deprecated") is True:
            described["deprecated"] = True
        described["security"] = self._security.of(spec.access_control)
        return described

    def _parameters(self, parameters: tuple[QueryParameter, ...]) -> list[dict[str, Any]]:
        together = {"properties": {each.name: each.schema for each in parameters}}
        if isinstance(self._input, dict) and "$defs" in self._input:
            together["$defs"] = self._input["$defs"]
        schemas = self._schema(together, f"{self._base}.input")["properties"]
        return [_parameter(each, schemas[each.name]) for each in parameters]

    def _body(self) -> dict[str, Any]:
        content: dict[str, Any] = {JSON: {"schema": self._schema(self._input, f"{self._base}.input")}}
        parameters = query_parameters(self._input)
        # Forms are accepted but not described: form fields have no types, so no description is exact.
        if parameters is not None and len(parameters) == 1 and parameters[0].is_bytes:
            content[BINARY] = {"schema": _FILE}
        return {"required": _is_body_required(self._spec.input_schema, root_object(self._input)), "content": content}

    def _responses(self, *, body: bool) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if self._operation.handler is not None:
            content[BINARY if self._is_binary else JSON] = {"schema": _FILE if self._is_binary else self._output}
            if is_http_source(self._operation) and self._spec.output_schema.is_unknown:
                content["*/*"] = {}
        if self._operation.stream is not None:
            events = {"oneOf": [_event(self._output), *STREAM_ENDINGS]}
            content[EVENT_STREAM] = {"itemSchema" if self._version == "3.2" else "schema": events}
        result = {"description": "The result.", "headers": RESULT_HEADERS, "content": content}
        failures = error_responses(
            body=body,
            access=bool(self._security.of(self._spec.access_control)),
            conflict=self._spec.type is OperationType.MUTATION,
        )
        return {"200": result, **failures, **self._domain_errors()}

    def _domain_errors(self) -> dict[str, Any]:
        """Return the responses of the error codes that the operation declares, by status."""
        by_status: dict[int, dict[str, Any]] = {}
        for code, schema in self._spec.error_schemas.items():
            by_status.setdefault(declared_status(schema), {})[code] = self._errors[code]
        responses = {}
        for status, codes in sorted(by_status.items()):
            branches: list[Any] = [_domain_problem(code, schema) for code, schema in codes.items()]
            if is_general(status):
                branches.append(PROBLEM_REFERENCE)
            described = branches[0] if len(branches) == 1 else {"anyOf": branches}
            text = f"{', '.join(codes)}. {describe_status(status)}"
            responses[str(status)] = {"description": text, "content": {PROBLEM: {"schema": described}}}
        return responses

    def _extension(self) -> dict[str, Any]:
        """Return `x-operations`: the data, besides OpenAPI, for a registry that imports the operation."""
        spec, operation = self._spec, self._operation
        optional = {
            "title": spec.title,
            "tags": list(spec.tags),
            "annotations": dict(spec.annotations),
            "accessControl": None if spec.access_control == OPEN else msgspec.to_builtins(spec.access_control),
            "outputPolicy": spec.output_policy,
            "errorSchemas": self._errors,
            "durable": spec.durable,
        }
        # The response contains the output schema, except for bytes and for operations that only stream.
        if self._is_binary or operation.handler is None:
            optional["output"] = self._output
        ways = [way for way, given in (("call", operation.handler), ("stream", operation.stream)) if given is not None]
        said = {name: value for name, value in optional.items() if value}
        return {"id": spec.id, "type": spec.type.value, "version": spec.version, "ways": ways, **said}


def plain_schema(schema: Any) -> Any:
    """Return an equivalent schema that more tools can read.

    Boolean schemas become objects, `contentEncoding` is supplemented by the older `format`, and examples with `$ref`
    are removed.
    """
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        return schema
    if schema.get("contentEncoding") == "base64" and "format" not in schema:
        schema = {**schema, "format": "byte"}
    examples = schema.get("examples")
    if isinstance(examples, list) and any(isinstance(each, dict) and "$ref" in each for each in examples):
        schema = {**schema, "examples": [each for each in examples if not isinstance(each, dict) or "$ref" not in each]}
    return schema


def _parameter(parameter: QueryParameter, schema: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"name": parameter.name, "in": "query"}
    if parameter.required:
        described["required"] = True
    if isinstance(schema, dict) and isinstance(schema.get("description"), str):
        described["description"] = schema["description"]
    if parameter.kind is None:
        described["content"] = {JSON: {"schema": schema}}
    else:
        described["schema"] = schema
    return described


def _event(item: Any) -> dict[str, Any]:
    """Return the schema of an event that contains one item of a stream."""
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "event": {"type": "string", "not": {"pattern": "^operations\\."}},
            "data": {"type": "string", "contentMediaType": JSON, "contentSchema": item},
        },
        "required": ["data"],
    }


def _domain_problem(code: str, details: Any) -> dict[str, Any]:
    """Return the problem schema of one code, without `allOf`: client generators do not merge schemas."""
    properties = {name: PROBLEM_SCHEMA["properties"][name] for name in _DOMAIN_MEMBERS}
    own = {"code": {"type": "string", "const": code}, "details": details}
    return {"type": "object", "properties": {**properties, **own}, "required": PROBLEM_SCHEMA["required"]}


def _without(schema: Any, keyword: str) -> Any:
    """Return a schema without a keyword; the same object if the keyword does not occur."""
    marked = isinstance(schema, dict) and any(keyword in node for node in schemas_in(schema))
    return _stripped(schema, keyword) if marked else schema


def _stripped(schema: Any, keyword: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        if name in SCHEMA:
            out[name] = _stripped(value, keyword)
        elif name in SCHEMA_LISTS:
            out[name] = [_stripped(member, keyword) for member in value]
        elif name in SCHEMA_MAPS or name == "$defs":
            out[name] = {key: _stripped(member, keyword) for key, member in value.items()}
        elif name != keyword:
            out[name] = value
    return out


def _is_body_required(schema: Schema, root: Mapping[str, Any] | None) -> bool:
    """Whether a request without a body, which is read as an empty object, is invalid."""
    return bool(root.get("required")) if root is not None else not schema.check({})


def _named(code: str) -> str:
    """Return an error code as component name: characters that such names do not allow become underscores."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in code)
