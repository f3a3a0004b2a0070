"""The JSON Schema engine: checks and casts values, and lists errors, by JSON Schema documents or Python types."""

from operations.schema.problems import (
    Found,
    Problem,
    collect_errors,
    format_value_errors,
    validate_or_throw,
    validation_error,
)
from operations.schema.schema import UNKNOWN, Policy, Schema, deferred_schema, from_schema, record_schema
from operations.schema.types import Field, RecordCodec, TypeCodec, codec_for, from_type, jsonable, record_codec

__all__ = [
    "UNKNOWN",
    "Field",
    "Found",
    "Policy",
    "Problem",
    "RecordCodec",
    "Schema",
    "TypeCodec",
    "codec_for",
    "collect_errors",
    "deferred_schema",
    "format_value_errors",
    "from_schema",
    "from_type",
    "jsonable",
    "record_codec",
    "record_schema",
    "validate_or_throw",
    "validation_error",
]
