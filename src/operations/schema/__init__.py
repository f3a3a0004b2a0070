"""The JSON Schema engine: check, list the errors, cast; from documents and from Python types."""

from operations.schema.dialects.one_way import lift_required
from operations.schema.problems import Found, Problem, collect_errors, format_value_errors, misfit, validate_or_throw
from operations.schema.schema import UNKNOWN, Policy, Schema, deferred_schema, from_schema
from operations.schema.types import Field, TypeCodec, codec_for, from_type, jsonable, record_codec

__all__ = [
    "UNKNOWN",
    "Field",
    "Found",
    "Policy",
    "Problem",
    "Schema",
    "TypeCodec",
    "codec_for",
    "collect_errors",
    "deferred_schema",
    "format_value_errors",
    "from_schema",
    "from_type",
    "jsonable",
    "lift_required",
    "misfit",
    "record_codec",
    "validate_or_throw",
]
