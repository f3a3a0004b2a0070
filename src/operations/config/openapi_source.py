"""OpenAPI sources: service configuration from settings, and loading a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from operations.config.settings import NO_CALLBACKS, AuthSettings, OpenAPISettings, Source, SourceCallbacks
from operations.config.validation import check_openapi
from operations.sources.openapi import (
    APIOperations,
    HTTPAuth,
    HTTPLimits,
    HTTPRetry,
    HTTPServiceConfig,
    from_openapi_file,
    from_openapi_url,
)
from operations.sources.openapi.load import read_file
from operations.sources.scanner.isolation import in_background
from operations.spec import Operation


async def open_openapi(
    source: Source, stack: AsyncExitStack, callbacks: SourceCallbacks
) -> tuple[APIOperations, tuple[str, ...]]:
    """Load the document of a source; return the operations, and the paths of the files that were read.

    `stack` closes the connections.
    """
    settings = source.settings
    assert isinstance(settings, OpenAPISettings)
    config = service_config(settings, source.namespace, callbacks)
    files: dict[str, None] = {}
    if settings.is_remote:
        loaded = await from_openapi_url(settings.openapi, config)
    else:
        document = settings.document_path(source.directory)
        # The user names a pipe such as `<(curl …)` on the command line.
        fs = _RecordingFS(document, files, may_be_pipe=source.is_direct)
        loaded = await from_openapi_file(document, config, fs)
    stack.push_async_callback(loaded.close)
    return loaded, tuple(files)


def service_config(
    settings: OpenAPISettings, namespace: str, callbacks: SourceCallbacks = NO_CALLBACKS
) -> HTTPServiceConfig:
    """Return the service configuration for an API; raise if settings contradict each other."""
    check_openapi(settings)
    security = {name: _http_auth(auth) for name, auth in settings.security.items()}
    return HTTPServiceConfig(
        namespace=namespace,
        base_url=settings.base_url,
        server_variables=settings.server_variables,
        headers=settings.headers,
        auth=security or (_http_auth(settings.auth) if settings.auth is not None else None),
        credential_origins=settings.credential_origins,
        timeout=settings.timeout,
        idle_timeout=settings.idle_timeout,
        retry=HTTPRetry(**msgspec.structs.asdict(settings.retry)),
        limits=HTTPLimits(**msgspec.structs.asdict(settings.limits)),
        proxy=settings.proxy,
        reconnect=settings.reconnect,
        cache=settings.cache,
        on_request=callbacks.on_request,
        on_response=callbacks.on_response,
    )


def credential_types(operations: Sequence[Operation[Any]]) -> dict[str, str]:
    """Return the credential type of each security scheme in an API's document, by name.

    The type of an unsupported scheme is an empty string.
    """
    schemes = operations.service.schemes if isinstance(operations, APIOperations) else {}
    return {name: _credential_type(scheme) for name, scheme in schemes.items()}


def takes_api_key(operations: Sequence[Operation[Any]]) -> bool:
    """Whether an API's document declares an API key, and no other type of credentials except basic."""
    types = set(credential_types(operations).values())
    return "api_key" in types and types <= {"api_key", "basic"}


def _credential_type(scheme: Mapping[str, Any]) -> str:
    kind = scheme.get("type")
    if kind == "apiKey":
        # Swagger 2.0 has no other way to declare a bearer token.
        return "bearer" if str(scheme.get("name")).lower() == "authorization" else "api_key"
    if kind == "http":
        name = str(scheme.get("scheme")).lower()
        return name if name in ("basic", "bearer") else ""
    if kind == "oauth2":
        flows = scheme.get("flows")
        return "oauth2" if isinstance(flows, Mapping) and "clientCredentials" in flows else "bearer"
    return "bearer" if kind == "openIdConnect" else ""


def _http_auth(auth: AuthSettings) -> HTTPAuth:
    return HTTPAuth(**msgspec.structs.asdict(auth))


class _RecordingFS:
    """Local file system that records in `names` the path of each file to read, even if the file is missing."""

    def __init__(self, document: Path, names: dict[str, None], *, may_be_pipe: bool) -> None:
        self._document = document
        self._names = names
        self._may_be_pipe = may_be_pipe

    async def read(self, path: str) -> bytes:
        """Return the content of the document, or of a file in its directory."""
        self._names[path] = None
        if path == str(self._document):
            return await in_background(read_file, path, may_be_pipe=self._may_be_pipe)
        return await in_background(read_file, path, self._document.parent)
