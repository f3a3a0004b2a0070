"""An operation with every kind of field, for the form of the console: it returns its input."""

from __future__ import annotations

from typing import Any

from operations import Operation, OperationContext
from operations.spec import OperationSpec, OperationType

_INNER = {"type": "object", "properties": {"x": {"type": "string"}}}
_TREE = {"type": "object", "properties": {"name": {"type": "string"}, "below": {"$ref": "#/$defs/tree"}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"tree": _TREE},
    "required": ["flag", "fixed", "point", "tree"],
    "properties": {
        "name": {"type": "string"},
        "body": {"type": "string"},
        "day": {"type": "string", "format": "date"},
        "moment": {"type": "string", "format": "date-time"},
        "time": {"type": "string", "format": "time"},
        "mail": {"type": "string", "format": "email"},
        "page": {"type": "string", "format": "uri"},
        "key": {"type": "string", "format": "uuid"},
        "secret": {"type": "string", "format": "password"},
        "amount": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"type": "boolean"},
        "few": {"enum": ["a", "b", "c"]},
        "some": {"enum": [f"some {number}" for number in range(8)]},
        "many": {"enum": [f"many {number}" for number in range(40)]},
        "fixed": {"const": "always"},
        "deep": {
            "type": "object",
            "properties": {"inner": {"type": "object", "properties": {"x": {"type": "string"}}}},
        },
        "words": {"type": "array", "items": {"type": "string"}},
        "picks": {"type": "array", "items": {"enum": ["red", "green"]}},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "point": {"type": "array", "prefixItems": [{"type": "number", "title": "x"}, {"type": "number", "title": "y"}]},
        "choice": {"oneOf": [{"title": "Text", "type": "string"}, {"title": "Number", "type": "integer"}]},
        "both": {
            "allOf": [
                {"type": "object", "properties": {"left": {"type": "string"}}},
                {"type": "object", "properties": {"right": {"type": "string"}}},
            ]
        },
        "nullable": {"type": ["string", "null"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "file": {"type": "string", "contentEncoding": "base64"},
        "tree": {"$ref": "#/$defs/tree"},
        "anything": {},
        "shown": {"type": "string", "readOnly": True},
        "old": {"type": "string", "deprecated": True},
    },
}


async def _handler(input: Any, context: OperationContext) -> Any:
    return input


CONTROLS: Operation[Any] = Operation(
    spec=OperationSpec(
        name="controls",
        namespace="shop",
        type=OperationType.QUERY,
        description="Return the input: one field of each kind.",
        input_schema=SCHEMA,  # type: ignore[arg-type]
    ),
    handler=_handler,
)
