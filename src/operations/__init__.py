"""One registry of typed operations: local functions, MCP tools and HTTP APIs called the same way."""

from operations.content import MCPContentBlock, MCPContentBlockSchema
from operations.context import Identity, OperationContext
from operations.env import build_env
from operations.envelope import (
    Event,
    HTTPResponseMeta,
    HTTPResponseMetaSchema,
    LocalResponseMeta,
    LocalResponseMetaSchema,
    MCPResponseMeta,
    MCPResponseMetaSchema,
    ResponseEnvelope,
    ResponseEnvelopeSchema,
    ResponseMeta,
    ResponseMetaSchema,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    unwrap,
)
from operations.errors import CallError, ErrorCode
from operations.function import operation
from operations.registry import OperationRegistry, subscribe
from operations.schema import (
    UNKNOWN,
    Schema,
    collect_errors,
    format_value_errors,
    from_schema,
    from_type,
    validate_or_throw,
)
from operations.spec import AccessControl, Operation, OperationSpec, OperationSpecSchema, OperationType

__version__ = "0.1.0"

__all__ = [
    "UNKNOWN",
    "AccessControl",
    "CallError",
    "ErrorCode",
    "Event",
    "HTTPResponseMeta",
    "HTTPResponseMetaSchema",
    "Identity",
    "LocalResponseMeta",
    "LocalResponseMetaSchema",
    "MCPContentBlock",
    "MCPContentBlockSchema",
    "MCPResponseMeta",
    "MCPResponseMetaSchema",
    "Operation",
    "OperationContext",
    "OperationRegistry",
    "OperationSpec",
    "OperationSpecSchema",
    "OperationType",
    "ResponseEnvelope",
    "ResponseEnvelopeSchema",
    "ResponseMeta",
    "ResponseMetaSchema",
    "Schema",
    "build_env",
    "collect_errors",
    "format_value_errors",
    "from_schema",
    "from_type",
    "http_envelope",
    "is_response_envelope",
    "local_envelope",
    "mcp_envelope",
    "operation",
    "subscribe",
    "unwrap",
    "validate_or_throw",
]
