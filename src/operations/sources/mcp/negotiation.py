"""Protocol version negotiation: the discovery request of newer versions, or the handshake of older ones."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from operations.errors import CallError, ErrorCode
from operations.sources.mcp.server_messages import ServerRequests, dump_model

MAX_DISCOVERY_SECONDS = 10.0
_LONGEST_LIST = 200


def client_info() -> types.Implementation:
    """Return the name and version that this client sends to servers."""
    try:
        version = metadata.version("operations")
    except metadata.PackageNotFoundError:
        version = "0"
    return types.Implementation(name="operations", version=version)


async def negotiate(
    client: ClientSession,
    dispatcher: JSONRPCDispatcher[Any],
    requests: ServerRequests,
    *,
    protocol: str,
    seconds: float,
) -> None:
    """Agree on a protocol version with the server.

    `auto` tries discovery first and falls back to the handshake; `legacy` uses only the handshake. Any
    other protocol is a version: raise `UNAVAILABLE` if the server does not support this version.
    """
    if protocol == "legacy":
        await client.initialize()
        return
    if protocol != "auto" and protocol not in MODERN_PROTOCOL_VERSIONS:
        allowed = ", ".join(("auto", "legacy", *MODERN_PROTOCOL_VERSIONS))
        raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid protocol {protocol!r}: expected one of {allowed}")
    discover = _Discovery(dispatcher, requests, min(MAX_DISCOVERY_SECONDS, seconds / 2))
    if protocol != "auto":
        found = await discover(protocol)
        if found is None or protocol not in found.supported_versions:
            # The message is for people, and the versions are a server's text.
            listed = "" if found is None else f": it supports {', '.join(found.supported_versions)[:_LONGEST_LIST]}"
            raise CallError(ErrorCode.UNAVAILABLE, f"the server does not support protocol version {protocol}{listed}")
        found.supported_versions = [protocol]
        client.adopt(found)
        return
    try:
        found = await discover(LATEST_MODERN_VERSION)
    except MCPError as error:
        common = _common_version(error)
        found = None if common is None else await discover(common)
    if found is not None:
        client.adopt(found)
        return
    try:
        await client.initialize()
    except MCPError as error:
        # A server that was slow to respond to discovery may have chosen the newer protocol meanwhile.
        common = _common_version(error)
        found = None if common is None else await discover(common)
        if found is None:
            raise
        client.adopt(found)


class _Discovery:
    """Sends `server/discover`, the request for a server's protocol versions."""

    def __init__(self, dispatcher: JSONRPCDispatcher[Any], requests: ServerRequests, seconds: float) -> None:
        self._dispatcher = dispatcher
        self._capabilities = dump_model(requests.capabilities)
        self._seconds = seconds

    async def __call__(self, version: str) -> types.DiscoverResult | None:
        """Return the server's response; None if it is invalid, or if all versions in it need a handshake."""
        meta = {
            types.PROTOCOL_VERSION_META_KEY: version,
            types.CLIENT_INFO_META_KEY: dump_model(client_info()),
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


def _common_version(error: MCPError) -> str | None:
    """Return the newest common version that needs no handshake, from the error with which a server rejects a version.

    Return None if the error has another cause, or lists no such version.
    """
    if error.code != types.UNSUPPORTED_PROTOCOL_VERSION or not isinstance(error.data, dict):
        return None
    supported = error.data.get("supported")
    common = [version for version in MODERN_PROTOCOL_VERSIONS if version in (supported or ())]
    return common[-1] if common else None
