"""What travels in a request's `_meta`: trace context, and the fields of the caller's identity that were chosen."""

from __future__ import annotations

from typing import Any

from operations.context import TRACE_FIELDS, Identity, OperationContext
from operations.sources.mcp.config import MCPClientConfig

IDENTITY = "operations/identity"


def trace_of(config: MCPClientConfig, context: OperationContext) -> dict[str, str]:
    """The trace fields of a call's metadata, where they are to travel."""
    if not config.trace or not context.metadata:
        return {}
    found = {name: context.metadata.get(name) for name in TRACE_FIELDS}
    return {name: value for name, value in found.items() if isinstance(value, str) and _fits_a_header(value)}


def meta_of(config: MCPClientConfig, context: OperationContext) -> dict[str, Any]:
    """The `_meta` of a request made for `context`; empty where nothing is to be told."""
    meta: dict[str, Any] = trace_of(config, context)
    if config.identity_fields and context.identity is not None:
        meta[IDENTITY] = _chosen(context.identity, config.identity_fields)
    return meta


def _fits_a_header(value: str) -> bool:
    """Whether a value may be a header as well, which over HTTP it becomes: printable ASCII and nothing else."""
    return value.isascii() and value.isprintable()


def _chosen(identity: Identity, fields: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for field in fields:
        name, _, claim = field.partition(".")
        if name == "claims" and claim:
            if claim in identity.claims:
                chosen.setdefault("claims", {})[claim] = identity.claims[claim]
        elif name in Identity.__struct_fields__:
            value = getattr(identity, name)
            chosen[name] = list(value) if isinstance(value, tuple) else value
    return chosen
