"""Python types to JSON Schema and back: from_type, and codecs that load and dump values."""

from operations.schema.types.codecs import TypeCodec, codec_for, from_type
from operations.schema.types.jsonable import jsonable
from operations.schema.types.records import Field, RecordCodec, record_codec

__all__ = ["Field", "RecordCodec", "TypeCodec", "codec_for", "from_type", "jsonable", "record_codec"]
