"""MCPClientLoader: many servers at once, each on its own: one that fails does not hold up the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.mcp.client import MCPClient
from operations.sources.mcp.config import MCPClientConfig, ServerRequestHandler, namespace_of, read_servers
from operations.sources.mcp.connection import MCPClientState
from operations.spec import Operation

_log = logging.getLogger("operations.mcp")

_GONE = (MCPClientState.FAILED, MCPClientState.CLOSED)


class MCPClientLoader:
    """Loads servers in parallel and keeps their clients; `async with` closes them all."""

    def __init__(
        self, *, elicitation: ServerRequestHandler | None = None, sampling: ServerRequestHandler | None = None
    ) -> None:
        self.errors: dict[str, CallError] = {}
        """Why each server that is not there could not be loaded."""
        self._handlers = {"elicitation": elicitation, "sampling": sampling}
        self._clients: dict[str, MCPClient] = {}

    async def load(self, configs: Mapping[str, Any]) -> list[MCPClient]:
        """Load every server of `{"name": config}` or `{"mcpServers": {…}}` at once; those that came up.

        A config is an `MCPClientConfig` or a mapping as editors write it. What fails is logged and kept in `errors`.
        """
        clients: list[MCPClient] = []
        for name, config in read_servers(configs).items():
            self.errors.pop(name, None)
            if isinstance(config, CallError):
                self._report(name, config)
            elif config is not None and self._admits(name):
                client = MCPClient(name, self._complete(config))
                self._clients[name] = client
                clients.append(client)
        await asyncio.gather(*(self._open(client) for client in clients))
        return [client for client in clients if client.name not in self.errors]

    def get_client(self, name: str) -> MCPClient | None:
        """The client of a server, one that failed included; None for a name that was not loaded."""
        return self._clients.get(name)

    def get_all_wrappers(self) -> list[MCPClient]:
        """Every client, those that failed included: `state` tells."""
        return list(self._clients.values())

    def get_all_operations(self) -> list[Operation[Any]]:
        """What all servers offer now."""
        return [operation for client in self._clients.values() for operation in client.operations]

    def register_all(self, registry: OperationRegistry) -> None:
        """Register what all servers offer, and keep the registry up to date with them."""
        for client in self._clients.values():
            client.register_all(registry)

    async def close_all(self) -> None:
        """Close every client; from any task."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def __aenter__(self) -> MCPClientLoader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_all()

    async def _open(self, client: MCPClient) -> None:
        try:
            await client.open()
        except CallError as error:
            self._report(client.name, error)

    def _admits(self, name: str) -> bool:
        """Whether a name is free; one of a server that is gone may be loaded again."""
        for known, client in self._clients.items():
            if client.state not in _GONE and client.namespace == namespace_of(name):
                message = f"MCP server {name!r}: the namespace {client.namespace!r} is taken by the server {known!r}"
                self._report(name, CallError(ErrorCode.VALIDATION_ERROR, message))
                return False
        return True

    def _complete(self, config: MCPClientConfig) -> MCPClientConfig:
        """The config with the loader's handlers where it has none of its own."""
        missing = {
            name: handler
            for name, handler in self._handlers.items()
            if handler is not None and getattr(config, name) is None
        }
        return msgspec.structs.replace(config, **missing) if missing else config

    def _report(self, name: str, error: CallError) -> None:
        self.errors[name] = error
        _log.error("%s: not loaded: %s", name, error.message)
