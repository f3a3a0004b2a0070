"""MCPClientLoader: connect to several servers in parallel; a failing server does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.mcp.client import MCPClient
from operations.sources.mcp.config import MCPClientConfig, ServerRequestHandler, namespace_of, read_servers
from operations.sources.mcp.connection import MCPClientState
from operations.spec import Operation

_log = logging.getLogger("operations.mcp")

_ENDED = (MCPClientState.FAILED, MCPClientState.CLOSED)


class MCPClientLoader:
    """Connects to servers in parallel and owns their clients; `async with` closes them all."""

    def __init__(
        self, *, elicitation: ServerRequestHandler | None = None, sampling: ServerRequestHandler | None = None
    ) -> None:
        self.errors: dict[str, CallError] = {}
        """The errors of the servers that failed, by server name."""
        self._handlers = {"elicitation": elicitation, "sampling": sampling}
        self._clients: dict[str, MCPClient] = {}

    async def load(self, configs: Mapping[str, Any]) -> list[MCPClient]:
        """Connect to every server of `{"name": config}` or `{"mcpServers": {…}}`; return the connected clients.

        A config is an `MCPClientConfig`, or a mapping with the fields that editors use in `mcpServers`. Failures are
        logged and stored in `errors`.
        """
        clients: list[MCPClient] = []
        for name, config in read_servers(configs).items():
            self.errors.pop(name, None)
            if isinstance(config, CallError):
                self._report(name, config)
            elif config is not None and self._is_free(name):
                client = MCPClient(name, self._with_handlers(config))
                self._clients[name] = client
                clients.append(client)
        await asyncio.gather(*(self._open(client) for client in clients))
        return [client for client in clients if client.name not in self.errors]

    def get_client(self, name: str) -> MCPClient | None:
        """Return the client of a server, also a failed one; None for an unknown name."""
        return self._clients.get(name)

    def get_all_wrappers(self) -> list[MCPClient]:
        """Return every client, also failed ones (see `state`)."""
        return list(self._clients.values())

    def get_all_operations(self) -> list[Operation[Any]]:
        """Return the current operations of all servers."""
        return [operation for client in self._clients.values() for operation in client.operations]

    def register_all(self, registry: OperationRegistry) -> None:
        """Register the operations of all servers; keep the registry up to date until the clients are closed."""
        for client in self._clients.values():
            client.register_all(registry)

    async def close_all(self) -> None:
        """Close every client; callable from any task."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def __aenter__(self) -> MCPClientLoader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_all()

    async def _open(self, client: MCPClient) -> None:
        try:
            await client.open()
        except CallError as error:
            self._report(client.name, error)

    def _is_free(self, name: str) -> bool:
        """Whether no open client uses the namespace of the server `name`; report an error if one does.

        The namespace of a closed or failed client may be reused.
        """
        for known, client in self._clients.items():
            if client.state not in _ENDED and client.namespace == namespace_of(name):
                message = f"MCP server {name!r}: namespace {client.namespace!r} is used by server {known!r}"
                self._report(name, CallError(ErrorCode.VALIDATION_ERROR, message))
                return False
        return True

    def _with_handlers(self, config: MCPClientConfig) -> MCPClientConfig:
        """Return the config, with the loader's handlers as defaults."""
        missing = {
            name: handler
            for name, handler in self._handlers.items()
            if handler is not None and getattr(config, name) is None
        }
        return msgspec.structs.replace(config, **missing) if missing else config

    def _report(self, name: str, error: CallError) -> None:
        self.errors[name] = error
        _log.error("%s: not loaded: %s", name, error.message)
