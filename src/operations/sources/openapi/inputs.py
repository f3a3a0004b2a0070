"""One flat input out of parameters and body, and the way back: which member goes where in the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from operations.sources.openapi.body_plans import BodyPlan, free_name, plan_body
from operations.sources.openapi.documents import Documents, Node
from operations.sources.openapi.parameters import Parameter


class Field(msgspec.Struct, frozen=True):
    """A parameter with the schema of its value."""

    parameter: Parameter
    schema: Any
    required: bool
    description: str


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
        planned = plan_body(documents, body, frozenset(parameters), notes)
        plan = planned.plan
        properties |= {key: described(schema, planned.description) for key, schema in planned.properties.items()}
        required += planned.required
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
        key = free_name(name if times[name] == 1 else f"{field.parameter.location}_{name}", parameters)
        parameters[key] = field.parameter
        properties[key] = described(field.schema, field.description)
        if field.required:
            required.append(key)
    return parameters, properties, required


def described(schema: Any, description: str) -> Any:
    """A schema with a description, where it has none of its own."""
    if not description or not isinstance(schema, (Mapping, bool)) or schema is False:
        return schema
    if schema is True:
        return {"description": description}
    if "$ref" in schema:
        return {"allOf": [schema], "description": description}
    return schema if "description" in schema else {**schema, "description": description}
