"""Python types to JSON Schema and back: from_type, and codecs that load and dump values."""

from operations.schema.types.codecs import Field, RecordCodec, TypeCodec, codec_for, from_type, record_codec
from operations.schema.types.jsonable import jsonable

__all__ = ["Field", "RecordCodec", "TypeCodec", "codec_for", "from_type", "jsonable", "record_codec"]
