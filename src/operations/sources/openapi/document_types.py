"""Types of OpenAPI documents, for type checkers: the properties that the source reads; a document may have others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

OpenAPIParameter = TypedDict(
    "OpenAPIParameter",
    {
        "$ref": str,
        "name": str,
        "in": str,
        "required": bool,
        "description": str,
        "schema": Mapping[str, Any] | bool,
        "content": Mapping[str, Mapping[str, Any]],
        "style": str,
        "explode": bool,
        "allowReserved": bool,
        "allowEmptyValue": bool,
        "deprecated": bool,
    },
    total=False,
)
"""A parameter of an operation, or a reference to one."""

OpenAPIOperation = TypedDict(
    "OpenAPIOperation",
    {
        "$ref": str,
        "operationId": str,
        "summary": str,
        "description": str,
        "tags": list[str],
        "deprecated": bool,
        "parameters": list[OpenAPIParameter],
        "requestBody": Mapping[str, Any],
        "responses": Mapping[str, Mapping[str, Any]],
        "security": list[Mapping[str, list[str]]],
        "servers": list[Mapping[str, Any]],
    },
    total=False,
)
"""The description of one path and method."""


class OpenAPISpec(TypedDict, total=False):
    """An OpenAPI document, for `from_openapi`, which also accepts any mapping.

    In `paths`, the value of each method of a path is an `OpenAPIOperation`.
    """

    openapi: str
    swagger: str
    info: Mapping[str, Any]
    servers: list[Mapping[str, Any]]
    paths: Mapping[str, Mapping[str, Any]]
    webhooks: Mapping[str, Mapping[str, Any]]
    components: Mapping[str, Any]
    security: list[Mapping[str, list[str]]]
    tags: list[Mapping[str, Any]]
