"""A registry of typed operations that calls local functions, MCP tools and HTTP APIs in the same way.

Names are imported on first use, so that `ops --help` and shell completion load neither asyncio nor msgspec.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.content import (
        MCPAnnotations,
        MCPAudioContent,
        MCPContentBlock,
        MCPContentBlockSchema,
        MCPEmbeddedResource,
        MCPImageContent,
        MCPResourceContent,
        MCPResourceLink,
        MCPTextContent,
    )
    from operations.context import Identity, OperationContext
    from operations.env import build_env
    from operations.envelope import (
        RESPONSE_SOURCES,
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
        ResponseSource,
        SSEEvent,
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
    "RESPONSE_SOURCES",
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
    "MCPAnnotations",
    "MCPAudioContent",
    "MCPContentBlock",
    "MCPContentBlockSchema",
    "MCPEmbeddedResource",
    "MCPImageContent",
    "MCPResourceContent",
    "MCPResourceLink",
    "MCPResponseMeta",
    "MCPResponseMetaSchema",
    "MCPTextContent",
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
    "ResponseSource",
    "SSEEvent",
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

_HOMES = {
    "content": (
        "MCPAnnotations",
        "MCPAudioContent",
        "MCPContentBlock",
        "MCPContentBlockSchema",
        "MCPEmbeddedResource",
        "MCPImageContent",
        "MCPResourceContent",
        "MCPResourceLink",
        "MCPTextContent",
    ),
    "context": (
        "Identity",
        "OperationContext",
    ),
    "env": ("build_env",),
    "envelope": (
        "RESPONSE_SOURCES",
        "Event",
        "HTTPResponseMeta",
        "HTTPResponseMetaSchema",
        "LocalResponseMeta",
        "LocalResponseMetaSchema",
        "MCPResponseMeta",
        "MCPResponseMetaSchema",
        "ResponseEnvelope",
        "ResponseEnvelopeSchema",
        "ResponseMeta",
        "ResponseMetaSchema",
        "ResponseSource",
        "SSEEvent",
        "http_envelope",
        "is_response_envelope",
        "local_envelope",
        "mcp_envelope",
        "unwrap",
    ),
    "errors": (
        "CallError",
        "ErrorCode",
    ),
    "function": ("operation",),
    "registry": (
        "OperationRegistry",
        "subscribe",
    ),
    "schema": (
        "UNKNOWN",
        "Schema",
        "collect_errors",
        "format_value_errors",
        "from_schema",
        "from_type",
        "validate_or_throw",
    ),
    "spec": (
        "AccessControl",
        "Operation",
        "OperationSpec",
        "OperationSpecSchema",
        "OperationType",
    ),
}
"""The public names of each module."""


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    try:
        module = importlib.import_module(f"operations.{home or name}")
    except ModuleNotFoundError as error:
        if home is None and error.name == f"operations.{name}":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        raise
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
