"""MCPClient: the operations of one server over one connection, updated when the server's list of tools changes.

`MCPClientLoader` connects to several servers in parallel; a failing server does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from operations.awaitable_context import AwaitableContext
from operations.catalogue import OperationCatalogue
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.mcp.calls import MCPCaller
from operations.sources.mcp.config import MCPClientConfig, ServerRequestHandler, namespace_of, read_config, read_servers
from operations.sources.mcp.connection import MCPClientState, MCPConnection
from operations.sources.mcp.limits import MAX_DEPTH, MAX_TOOL_LIST_BYTES, MAX_TOOLS, TOO_DEEP, list_all
from operations.sources.mcp.own_fields import OWN
from operations.sources.mcp.own_servers import is_own, own_operations
from operations.sources.mcp.protocol import (
    MCPServerInfo,
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    ServerSession,
    call_error,
    explain,
)
from operations.sources.mcp.resources import prompt_operations, resource_operations
from operations.sources.mcp.tools import ServerOrigin, is_tool, tool_operations
from operations.spec import Operation

_log = logging.getLogger("operations.mcp")


class MCPClient:
    """One server as a source of operations: `async with create_mcp_client(…) as client`."""

    def __init__(self, name: str, config: MCPClientConfig) -> None:
        self.name = name
        self.namespace = namespace_of(name)
        self.error: CallError | None = None
        """Why `open` failed; None if it did not."""
        self._config = config
        self._connection = MCPConnection(name, config, self._on_changed)
        self._calls = MCPCaller(self._connection, config, self)
        self._operations: dict[str, Operation[Any]] = {}
        self._tools: frozenset[str] = frozenset()
        self._registries: list[OperationCatalogue] = []
        self._info: MCPServerInfo | None = None
        self._listing = asyncio.Lock()

    @property
    def operations(self) -> list[Operation[Any]]:
        """The current operations: one for each tool, and those that list and read resources and prompts."""
        return list(self._operations.values())

    @property
    def server_info(self) -> MCPServerInfo | None:
        """The server's name, version and capabilities; None before the first connection."""
        return self._info

    @property
    def state(self) -> MCPClientState:
        """The state of the connection."""
        return self._connection.state

    async def open(self) -> None:
        """Connect and list the tools. On failure, store the `CallError` in `error` and raise it.

        Raise `ImportError` if the extra `mcp` is not installed.
        """
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
        """Close the connection and end the server process; callable from any task."""
        self._registries.clear()
        failed = self.error is not None
        await self._connection.close()
        if failed:
            self._connection.state = MCPClientState.FAILED

    async def refresh(self) -> None:
        """List the tools again, and update the registries that were passed to `register_all`."""
        await self._list_from(await self._connection.get_session())

    def has_tool(self, name: str) -> bool:
        """Whether the most recent list has a tool of that name."""
        return name in self._tools

    def register_all(self, registry: OperationCatalogue) -> None:
        """Register every operation; keep the registry up to date until the client is closed."""
        registry.register_all(self._operations.values())
        self._registries.append(registry)

    async def __aenter__(self) -> MCPClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _list_from(self, session: ServerSession) -> None:
        async with self._listing:
            self._info = session.info
            try:
                async with asyncio.timeout(self._config.connect_timeout):
                    listed = await self._list_tools(session)
            except TimeoutError:
                raise call_error(RequestTimeoutError(), self.name, "tools/list") from None
            except (RequestFailedError, RequestLostError, RequestTimeoutError) as error:
                raise call_error(error, self.name, "tools/list") from error
            self._tools = frozenset(tool["name"] for tool in listed)
            self._replace(self._to_operations(session.info, listed))

    async def _list_tools(self, session: ServerSession) -> list[Any]:
        if "tools" not in session.info.capabilities:
            return []

        async def fetch(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            # A server of this library lists all of its tools to a client that identifies itself.
            return await session.request(method, {**params, "_meta": {OWN: 1}}, timeout=self._config.connect_timeout)

        limits = {"max_items": MAX_TOOLS, "max_bytes": MAX_TOOL_LIST_BYTES}
        listed = await list_all(fetch, "tools/list", "tools", server=self.name, **limits)
        tools = [tool for tool in listed if is_tool(tool)]
        if len(tools) < len(listed):
            _log.warning("%s: skipped %d tools without a name", self.name, len(listed) - len(tools))
        refused = {tool["name"]: f"nested deeper than {MAX_DEPTH} levels" for tool in tools if TOO_DEEP in tool}
        schemas = {tool["name"]: tool.get("inputSchema") for tool in tools if tool["name"] not in refused}
        refused.update(session.set_tools(schemas))
        for name, reason in refused.items():
            _log.warning("%s: skipped tool %r: %s", self.name, name, reason)
        return [tool for tool in tools if tool["name"] not in refused]

    def _to_operations(self, info: MCPServerInfo, listed: Iterable[Any]) -> list[Operation[Any]]:
        origin = ServerOrigin(
            server=self.name,
            namespace=self.namespace,
            version=info.version or "1.0.0",
            calls=self._calls,
            output_policy=self._config.output_policy,
        )
        tools = list(listed)
        operations = own_operations(origin, filter(is_own, tools))
        operations += tool_operations(origin, (tool for tool in tools if not is_own(tool)))
        if "resources" in info.capabilities:
            operations += resource_operations(origin)
        if "prompts" in info.capabilities:
            operations += prompt_operations(origin)
        return operations

    def _replace(self, operations: Iterable[Operation[Any]]) -> None:
        """Replace the operations, also in the registries; an operation with an unchanged spec stays the same object."""
        before = self._operations
        after: dict[str, Operation[Any]] = {}
        for operation in operations:
            known = before.get(operation.id)
            after[operation.id] = known if known is not None and known.spec == operation.spec else operation
        self._operations = after
        for registry in self._registries:
            try:
                _update(registry, before, after, self.name)
            except Exception as error:  # noqa: BLE001  # a failing registry must not block the others
                _log.warning("%s: cannot update a registry: %s", self.name, explain(error), exc_info=error)

    async def _on_changed(self, session: ServerSession) -> None:
        """List the tools again after a change or a reconnect; a failure leaves the operations unchanged.

        The connection's owner task runs this method. Only that task can open a session, so the method must not
        wait for a new one.
        """
        try:
            await self._list_from(session)
        except CallError as error:
            _log.warning("%s: cannot list the tools again: %s", self.name, explain(error))


def create_mcp_client(name: str, config: MCPClientConfig | Mapping[str, Any]) -> AwaitableContext[MCPClient]:
    """Connect to a server and list its tools.

    Raise `CallError` if that fails, and `ImportError` if the extra `mcp` is not installed. Await the result, or use it
    with `async with`, which closes the client. `config` may also be a mapping with the fields that editors use in
    `mcpServers`.
    """
    return AwaitableContext(_open_client(name, config))


async def _open_client(name: str, config: MCPClientConfig | Mapping[str, Any]) -> MCPClient:
    read = read_config(name, config)
    if read is None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"MCP server {name!r} is disabled: remove `disabled`")
    client = MCPClient(name, read)
    await client.open()
    return client


async def close_mcp_client(client: MCPClient) -> None:
    """Close a client; callable from any task, any number of times."""
    await client.close()


def _update(
    registry: OperationCatalogue, before: Mapping[str, Operation[Any]], after: Mapping[str, Operation[Any]], server: str
) -> None:
    """Register the new and changed operations of `after`, and unregister those that only `before` has.

    Operations of other sources stay registered.
    """
    for operation_id, operation in before.items():
        if operation_id not in after and registry.get_operation(operation_id) is operation:
            registry.unregister(operation_id)
    changed = [operation for operation_id, operation in after.items() if operation is not before.get(operation_id)]
    free: list[Operation[Any]] = []
    for operation in changed:
        registered = registry.get_operation(operation.id)
        if registered is None or registered is before.get(operation.id):
            free.append(operation)
        elif registered is not operation:
            _log.warning("%s: skipped %s, which another source has registered", server, operation.id)
    registry.register_all(free, replace=True)


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
        logged and stored in `errors`. Raise `ImportError` if the extra `mcp` is not installed.
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
