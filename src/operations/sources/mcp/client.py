"""MCPClient: one server's operations, kept as the server lists them, over one warm connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from operations.catalogue import OperationCatalogue
from operations.errors import CallError
from operations.sources.mcp.calls import Caller
from operations.sources.mcp.config import MCPClientConfig, namespace_of
from operations.sources.mcp.connection import Connection, MCPClientState
from operations.sources.mcp.failures import (
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    call_error,
    explain,
)
from operations.sources.mcp.listing import list_all
from operations.sources.mcp.offers import prompt_operations, resource_operations
from operations.sources.mcp.server import MCPServerInfo, ServerSession
from operations.sources.mcp.tools import Origin, is_tool, tool_operations
from operations.spec import Operation

_log = logging.getLogger("operations.mcp")


class MCPClient:
    """A server as a source of operations: `async with await create_mcp_client(…) as client`."""

    def __init__(self, name: str, config: MCPClientConfig) -> None:
        self.name = name
        self.namespace = namespace_of(name)
        self.error: CallError | None = None
        """Why there is no connection, after the first attempt failed."""
        self._config = config
        self._connection = Connection(name, config, self._follow_change)
        self._calls = Caller(self._connection, config, self)
        self._operations: dict[str, Operation[Any]] = {}
        self._tools: frozenset[str] = frozenset()
        self._registries: list[OperationCatalogue] = []
        self._info: MCPServerInfo | None = None
        self._listing = asyncio.Lock()

    @property
    def operations(self) -> list[Operation[Any]]:
        """What the server offers now: its tools, and the operations on its resources and prompts."""
        return list(self._operations.values())

    @property
    def server_info(self) -> MCPServerInfo | None:
        """What the server said of itself; None before it was reached."""
        return self._info

    @property
    def state(self) -> MCPClientState:
        """Where this client stands with its server."""
        return self._connection.state

    async def open(self) -> None:
        """Connect and list what there is; raises the `CallError` that is then in `error` too."""
        try:
            await self._connection.open()
            await self.refresh()
        except CallError as error:
            self.error = error
            await self.close()
            raise
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and the process behind it; from any task."""
        self._registries.clear()
        failed = self.error is not None
        await self._connection.close()
        if failed:
            self._connection.state = MCPClientState.FAILED

    async def refresh(self) -> None:
        """List again what the server offers, and bring the registries up to date."""
        await self._read_from(await self._connection.get_session())

    def has_tool(self, name: str) -> bool:
        """Whether the server listed a tool of that name, its own name, when it was last asked."""
        return name in self._tools

    def register_all(self, registry: OperationCatalogue) -> None:
        """Register every operation, and keep the registry up to date for as long as the client is open."""
        registry.register_all(self._operations.values())
        self._registries.append(registry)

    async def __aenter__(self) -> MCPClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _read_from(self, session: ServerSession) -> None:
        async with self._listing:
            self._info = session.info
            try:
                async with asyncio.timeout(self._config.connect_timeout):
                    listed = await self._list_tools(session)
            except TimeoutError:
                raise call_error(RequestTimeoutError(), self.name, "tools/list") from None
            except (RequestFailedError, RequestLostError, RequestTimeoutError) as error:
                raise call_error(error, self.name, "tools/list") from error
            self._tools = frozenset(tool["name"] for tool in listed if is_tool(tool))
            self._replace(self._offered(session.info, listed))

    async def _list_tools(self, session: ServerSession) -> list[Any]:
        if "tools" not in session.info.capabilities:
            return []

        async def fetch(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            return await session.request(method, params, timeout=self._config.connect_timeout)

        listed = await list_all(fetch, "tools/list", "tools", server=self.name)
        return [tool for tool in listed if self._is_allowed(session, tool)]

    def _is_allowed(self, session: ServerSession, tool: Any) -> bool:
        if not is_tool(tool):
            _log.warning("%s: a tool without a name is left out", self.name)
            return False
        reason = session.admit_tool(tool["name"], tool.get("inputSchema"))
        if reason is not None:
            _log.warning("%s: tool %r is left out: %s", self.name, tool["name"], reason)
        return reason is None

    def _offered(self, info: MCPServerInfo, listed: Iterable[Any]) -> list[Operation[Any]]:
        origin = Origin(
            server=self.name,
            namespace=self.namespace,
            version=info.version or "1.0.0",
            calls=self._calls,
            output_policy=self._config.output_policy,
        )
        offered = tool_operations(origin, listed)
        if "resources" in info.capabilities:
            offered += resource_operations(origin)
        if "prompts" in info.capabilities:
            offered += prompt_operations(origin)
        return offered

    def _replace(self, offered: Iterable[Operation[Any]]) -> None:
        """Take over a new listing; an operation whose spec is as before stays the same object."""
        before = self._operations
        after: dict[str, Operation[Any]] = {}
        for operation in offered:
            known = before.get(operation.id)
            after[operation.id] = known if known is not None and known.spec == operation.spec else operation
        self._operations = after
        for registry in self._registries:
            _update(registry, before, after, self.name)

    async def _follow_change(self, session: ServerSession) -> None:
        """List again after the server changed or came back; a failure leaves the operations as they were.

        The connection's own task runs this: it must not wait for another session, which only that task can open.
        """
        try:
            await self._read_from(session)
        except CallError as error:
            _log.warning("%s: cannot list again: %s", self.name, explain(error))


async def create_mcp_client(name: str, config: MCPClientConfig) -> MCPClient:
    """Connect to a server and list what it offers; raises `CallError` where it cannot be reached."""
    client = MCPClient(name, config)
    await client.open()
    return client


async def close_mcp_client(client: MCPClient) -> None:
    """Close a client; from any task, any number of times."""
    await client.close()


def _update(
    registry: OperationCatalogue, before: Mapping[str, Operation[Any]], after: Mapping[str, Operation[Any]], server: str
) -> None:
    """Remove, replace and add in a registry what changed between two listings; what others registered stays."""
    for operation_id, operation in before.items():
        if operation_id not in after and registry.get_operation(operation_id) is operation:
            registry.unregister(operation_id)
    for operation_id, operation in after.items():
        registered = registry.get_operation(operation_id)
        if registered is operation:
            continue
        if registered is None or registered is before.get(operation_id):
            registry.register(operation, replace=True)
        else:
            _log.warning("%s: %s is registered by another source and stays as it is", server, operation_id)
