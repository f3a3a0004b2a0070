"""Services of a registry: APIs added, removed and closed while a program runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.load import APIOperations, from_openapi, from_openapi_file, from_openapi_url


class HTTPServices:
    """The APIs whose operations a registry holds, by namespace; leaving its block closes them all."""

    def __init__(self, registry: OperationRegistry) -> None:
        self.registry = registry
        self._services: dict[str, APIOperations] = {}

    async def add(
        self, source: Mapping[str, Any] | str | Path, config: HTTPServiceConfig, *, replace: bool = False
    ) -> APIOperations:
        """Register the operations of a document: one at hand, a file's path, or a URL."""
        if config.namespace in self._services and not replace:
            message = f"the service {config.namespace!r} is there already; pass replace=True to replace it"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        operations = await _load(source, config)
        if config.namespace in self._services:
            await self.remove(config.namespace)
        self.registry.register_all(operations)
        self._services[config.namespace] = operations
        return operations

    async def remove(self, namespace: str) -> None:
        """Unregister a service's operations and close its connections."""
        operations = self._services.pop(namespace, None)
        if operations is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"there is no service {namespace!r}")
        for operation in operations:
            if self.registry.get_operation(operation.id) is operation:
                self.registry.unregister(operation.id)
        await operations.close()

    def get(self, namespace: str) -> APIOperations | None:
        """The operations of a service, or None."""
        return self._services.get(namespace)

    def list(self) -> list[str]:
        """The namespaces of all services, in order."""
        return sorted(self._services)

    async def close(self) -> None:
        """Remove every service."""
        for namespace in list(self._services):
            await self.remove(namespace)

    async def __aenter__(self) -> HTTPServices:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _load(source: Mapping[str, Any] | str | Path, config: HTTPServiceConfig) -> APIOperations:
    if isinstance(source, Mapping):
        return from_openapi(source, config)
    address = str(source)
    if address.startswith(("http://", "https://")):
        return await from_openapi_url(address, config)
    return await from_openapi_file(source, config)
