"""Conversion of Swagger 2.0 to OpenAPI 3, one operation at a time; references stay unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from operations.sources.openapi.documents import DocNode, Documents

_SCHEMA_KEYS = (
    *("type", "format", "items", "enum", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "multipleOf", "x-nullable"),
)
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def modern_parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter with its type in a `schema`, as in OpenAPI 3."""
    kept = {key: value for key, value in parameter.items() if key not in _SCHEMA_KEYS}
    if parameter.get("type") == "array":
        kept.setdefault("collectionFormat", "csv")
    return {**kept, "schema": _schema_of(parameter)}


def request_body(documents: Documents, parameters: Sequence[DocNode], consumes: Sequence[str]) -> DocNode | None:
    """Return the request body for `body` and `formData` parameters; None if there are none."""
    body = next((node for node in parameters if node.value.get("in") == "body"), None)
    if body is not None:
        media = list(consumes) or ["application/json"]
        content = {kind: {"schema": documents.schema(body.get("schema"))} for kind in media}
        value = {"required": body.value.get("required") is True, "content": content}
        return DocNode(value, documents.root.address)
    fields = [node.value for node in parameters if node.value.get("in") == "formData"]
    if not fields:
        return None
    schema = {
        "type": "object",
        "properties": {field["name"]: _described(field) for field in fields},
        "required": [field["name"] for field in fields if field.get("required") is True],
        "additionalProperties": False,
    }
    encoding = {
        field["name"]: {"collectionFormat": field.get("collectionFormat", "csv")}
        for field in fields
        if field.get("type") == "array"
    }
    uploads = any(field.get("type") == "file" for field in fields)
    media = [kind for kind in consumes if kind.partition(";")[0].strip().lower() in _FORMS]
    chosen = _FORMS[0] if uploads else (media[0] if media else _FORMS[1])
    value = {"required": bool(schema["required"]), "content": {chosen: {"schema": schema, "encoding": encoding}}}
    return DocNode(value, documents.root.address)


def modern_response(documents: Documents, response: DocNode, produces: Sequence[str]) -> DocNode:
    """Return a response with its schema under each media type of `produces`; by default, under JSON."""
    schema = response.get("schema")
    if schema.value is None:
        return response
    if isinstance(schema.value, Mapping) and schema.value.get("type") == "file":
        shown: Any = {"type": "string", "format": "binary"}  # the media type decides how the bytes are decoded
    else:
        shown = documents.schema(schema)
    media = list(produces) or ["application/json"]
    return DocNode({**response.value, "content": {kind: {"schema": shown} for kind in media}}, documents.root.address)


def servers(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the document's servers: a URL of host and base path for each URL scheme, `https` first."""
    base = document.get("basePath")
    path = base if isinstance(base, str) else ""
    host = document.get("host")
    if not isinstance(host, str) or not host:
        return [{"url": path or "/"}]
    declared = document.get("schemes")
    listed = declared if isinstance(declared, list) else []
    schemes = [scheme for scheme in listed if isinstance(scheme, str)] or ["https"]
    return [{"url": f"{scheme}://{host}{path}"} for scheme in sorted(schemes, key=lambda scheme: scheme != "https")]


def security_scheme(scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return a security definition in OpenAPI 3 form."""
    kind = scheme.get("type")
    if kind == "basic":
        return {"type": "http", "scheme": "basic"}
    if kind == "oauth2":
        return {"type": "oauth2", "flows": {"any": {"tokenUrl": scheme.get("tokenUrl")}}}
    return dict(scheme)


def _described(field: Mapping[str, Any]) -> dict[str, Any]:
    schema = _schema_of(field)
    return {**schema, "description": field["description"]} if isinstance(field.get("description"), str) else schema


def _schema_of(parameter: Mapping[str, Any]) -> dict[str, Any]:
    own = parameter.get("schema")
    if isinstance(own, Mapping) and "type" not in parameter:
        return dict(own)  # already in OpenAPI 3 form
    schema = {key: parameter[key] for key in _SCHEMA_KEYS if key in parameter}
    if schema.get("type") == "file":
        return {"type": "string", "format": "binary"}
    if schema.pop("x-nullable", None) is True:
        schema["nullable"] = True
    return schema
