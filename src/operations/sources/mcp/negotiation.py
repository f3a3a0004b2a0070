"""Agreeing with a server on a protocol version: asking it what it speaks, or the handshake of older ones."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from operations.errors import CallError, ErrorCode
from operations.sources.mcp.questions import Questions
from operations.sources.mcp.streams import client_info, plain

MOST_PROBE_SECONDS = 10.0


async def negotiate(
    client: ClientSession, dispatcher: JSONRPCDispatcher[Any], questions: Questions, *, protocol: str, seconds: float
) -> None:
    """Agree on a version; `auto` asks first, and whoever does not understand the question gets the handshake."""
    if protocol == "legacy":
        await client.initialize()
        return
    if protocol != "auto" and protocol not in MODERN_PROTOCOL_VERSIONS:
        allowed = ", ".join(("auto", "legacy", *MODERN_PROTOCOL_VERSIONS))
        raise CallError(ErrorCode.VALIDATION_ERROR, f"protocol {protocol!r} is not one of {allowed}")
    ask = _Question(dispatcher, questions, min(MOST_PROBE_SECONDS, seconds / 2))
    version = LATEST_MODERN_VERSION if protocol == "auto" else protocol
    try:
        found = await ask(version)
    except MCPError as error:
        mutual = _mutual(error)
        if mutual is None and protocol != "auto":
            raise
        found = None if mutual is None else await ask(mutual)
    if found is not None:
        client.adopt(found)
        return
    try:
        await client.initialize()
    except MCPError as error:
        # A server that was slow to answer the question may have settled on the newer protocol meanwhile.
        mutual = _mutual(error)
        found = None if mutual is None else await ask(mutual)
        if found is None:
            raise
        client.adopt(found)


class _Question:
    """Asks a server what it speaks."""

    def __init__(self, dispatcher: JSONRPCDispatcher[Any], questions: Questions, seconds: float) -> None:
        self._dispatcher = dispatcher
        self._capabilities = plain(questions.capabilities)
        self._seconds = seconds

    async def __call__(self, version: str) -> types.DiscoverResult | None:
        """The server's answer; None where it makes no sense, or names no version without a handshake."""
        meta = {
            types.PROTOCOL_VERSION_META_KEY: version,
            types.CLIENT_INFO_META_KEY: plain(client_info()),
            types.CLIENT_CAPABILITIES_META_KEY: self._capabilities,
        }
        raw = await self._dispatcher.send_raw_request(
            "server/discover",
            {"_meta": meta},
            {
                "timeout": self._seconds,
                "cancel_on_abandon": False,
                "headers": {"mcp-protocol-version": version, "mcp-method": "server/discover"},
            },
        )
        ttl = raw.get("ttlMs")
        if isinstance(ttl, int | float) and ttl < 0:
            raw = {**raw, "ttlMs": 0}
        try:
            found = types.DiscoverResult.model_validate(raw)
        except ValidationError:
            return None
        return found if set(found.supported_versions) & set(MODERN_PROTOCOL_VERSIONS) else None


def _mutual(error: MCPError) -> str | None:
    """The newest version without a handshake that a server names when it refuses another one."""
    if error.code != types.UNSUPPORTED_PROTOCOL_VERSION or not isinstance(error.data, dict):
        return None
    supported = error.data.get("supported")
    mutual = [version for version in MODERN_PROTOCOL_VERSIONS if version in (supported or ())]
    return mutual[-1] if mutual else None
