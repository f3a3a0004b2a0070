"""One flat input out of parameters and body, and the way back: which member goes where in the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from operations.sources.openapi.documents import DanglingReferenceError, Documents, Node
from operations.sources.openapi.media import essence, is_json, is_text
from operations.sources.openapi.parameters import Parameter

_PLAIN_OBJECT = frozenset(
    {
        *("type", "properties", "required", "title", "description", "example", "examples", "default", "nullable"),
        *("additionalProperties", "externalDocs", "xml", "deprecated", "$schema", "$comment"),
    }
)
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class Field(msgspec.Struct, frozen=True):
    """A parameter with the schema of its value."""

    parameter: Parameter
    schema: Any
    required: bool
    description: str


class BodyPlan(msgspec.Struct, frozen=True):
    """How the body is given: member by member, or whole under one key."""

    media_types: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Each media type with the `encoding` of its members."""
    preferred: str
    required: bool
    members: Mapping[str, str] | None
    """Input key to body member, when the body is an object taken apart; None when it is given whole."""
    key: str
    """The input key of a body given whole."""
    schema: Any = True

    @property
    def takes_files(self) -> bool:
        """Whether one of its media types can carry what is no data: a file, or bytes that come in pieces."""
        return any(not is_json(kind) and essence(kind) != _FORMS[0] for kind in self.media_types)


class InputPlan(msgspec.Struct, frozen=True):
    """The input schema of an operation, and where each member of an input goes."""

    document: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    """Input key to parameter."""
    body: BodyPlan | None


def plan_input(documents: Documents, fields: Sequence[Field], body: Node | None, notes: list[str]) -> InputPlan:
    """Merge parameters and body into one object; whatever would collide is kept apart, never lost."""
    parameters, properties, required = _plan_parameters(fields)
    plan = None
    if body is not None:
        plan, members, needed = _plan_body(documents, body, frozenset(parameters), notes)
        properties |= members
        required += needed
    document: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        document["required"] = required
    return InputPlan(document, parameters, plan)


def _plan_parameters(fields: Sequence[Field]) -> tuple[dict[str, Parameter], dict[str, Any], list[str]]:
    parameters: dict[str, Parameter] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    times = Counter(field.parameter.name for field in fields)
    for field in fields:
        name = field.parameter.name
        key = _free(name if times[name] == 1 else f"{field.parameter.location}_{name}", parameters)
        parameters[key] = field.parameter
        properties[key] = _described(field.schema, field.description)
        if field.required:
            required.append(key)
    return parameters, properties, required


def _plan_body(
    documents: Documents, body: Node, taken: frozenset[str], notes: list[str]
) -> tuple[BodyPlan, dict[str, Any], list[str]]:
    content = dict(body.get("content").items())
    preferred = min(content, key=_preference) if content else "application/octet-stream"
    media = content.get(preferred, Node(None, body.address))
    schema = media.get("schema")
    encodings = {kind: _encoding(node) for kind, node in content.items()}
    required = body.value.get("required") is True
    structured = is_json(preferred) or essence(preferred) in _FORMS
    members = _members(documents, schema, notes) if structured else None
    if members is not None and not taken.intersection(members.properties) and members.properties:
        plan = BodyPlan(encodings, preferred, required, {name: name for name in members.properties}, "body")
        shown = {name: documents.schema(node) for name, node in members.properties.items()}
        if essence(preferred) == "multipart/form-data":
            shown = {name: _file_schema(schema) for name, schema in shown.items()}
        return plan, shown, [name for name in members.required if name in shown] if required else []
    key = _free("body", taken)
    whole = documents.schema(schema) if structured else _raw_schema(documents, schema, preferred)
    plan = BodyPlan(encodings, preferred, required, None, key, whole)
    return plan, {key: _described(whole, body.text("description"))}, [key] if required else []


def _raw_schema(documents: Documents, schema: Node, media_type: str) -> Any:
    """The schema of a body that is sent as it is given: text or bytes, whatever structure the text has."""
    try:
        kind = documents.follow(schema).get("type").value
    except DanglingReferenceError:
        kind = None
    if kind == "string":
        return documents.schema(schema)
    if essence(media_type).endswith(("/*", "yaml", "jsonl", "ndjson", "json-seq")):
        return documents.schema(schema)
    return {"type": "string", "contentMediaType": essence(media_type)}


def _file_schema(schema: Any) -> Any:
    """The schema of a part of a form: a file may be its content, or its content with a name and a type."""
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return {**schema, "items": _file_schema(schema["items"])}
    if schema.get("format") not in ("binary", "byte") and "contentMediaType" not in schema:
        return schema
    text = {"type": "string"}
    named = {
        "type": "object",
        "properties": {"filename": text, "content": {"type": "string", "format": "binary"}, "contentType": text},
        "required": ["content"],
        "additionalProperties": False,
    }
    return {"anyOf": [schema, named]}


class _Members(msgspec.Struct):
    """The members of an object that can be taken apart."""

    properties: dict[str, Node]
    required: list[str]


def _members(documents: Documents, node: Node, notes: list[str], depth: int = 0) -> _Members | None:
    """The members of a plain object schema, those joined by `allOf` included; None for any other schema."""
    try:
        node = documents.follow(node)
    except DanglingReferenceError as error:
        notes.append(f"the body's schema accepts anything: {error}")
        return None
    schema = node.value
    if not isinstance(schema, Mapping) or depth > 20:
        return None
    if schema.get("additionalProperties") not in (None, False):
        return None
    members = _Members({}, [])
    for _, part in node.get("allOf").items():
        inherited = _members(documents, part, notes, depth + 1)
        if inherited is None:
            return None
        members.properties |= inherited.properties
        members.required += inherited.required
    if any(key not in _PLAIN_OBJECT and key != "allOf" and not key.startswith("x-") for key in schema):
        return None
    if schema.get("type", "object") != "object":
        return None
    members.properties |= dict(node.get("properties").items())
    required = schema.get("required")
    members.required += [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return _without_read_only(members)


def _without_read_only(members: _Members) -> _Members:
    """The members a caller may send: what only the server sets is not asked for."""
    shown = {
        name: node
        for name, node in members.properties.items()
        if not (isinstance(node.value, Mapping) and node.value.get("readOnly") is True)
    }
    required = [name for name in dict.fromkeys(members.required) if name in shown or name not in members.properties]
    return _Members(shown, required)


def _encoding(media: Node) -> Mapping[str, Mapping[str, Any]]:
    declared = media.get("encoding").value
    if not isinstance(declared, Mapping):
        return {}
    return {name: value for name, value in declared.items() if isinstance(value, Mapping)}


def _preference(media_type: str) -> tuple[bool, bool, bool, bool]:
    kind = essence(media_type)
    return not is_json(kind), kind != _FORMS[0], kind != _FORMS[1], not is_text(kind)


def _described(schema: Any, description: str) -> Any:
    """A schema with a description, where it has none of its own."""
    if not description or not isinstance(schema, (Mapping, bool)) or schema is False:
        return schema
    if schema is True:
        return {"description": description}
    if "$ref" in schema:
        return {"allOf": [schema], "description": description}
    return schema if "description" in schema else {**schema, "description": description}


def _free(name: str, taken: Any) -> str:
    while name in taken:
        name = f"{name}_"
    return name
