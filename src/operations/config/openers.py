"""How a source of each kind is opened: what it offers, which files that depends on, and how it is closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from operations.catalogue import OperationCatalogue
from operations.config.clients import mcp_config, namespace_for, service_config
from operations.config.consent import ShowConsent
from operations.config.models import Source
from operations.config.settings import EntryPointSettings, MCPSettings, OpenAPISettings, PythonSettings
from operations.errors import CallError, ErrorCode
from operations.sources.scanner import OperationManifest, Skipped, scan_operations
from operations.sources.scanner.background import in_background
from operations.spec import Operation


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An open source."""

    operations: Sequence[Operation[Any]]
    namespace: str | None = None
    """The namespace that all its operations are in, where the source itself puts them there."""
    prefix: str | None = None
    """What is put before the ids of operations that bring their own."""
    files: Sequence[str] = ()
    """The files and folders that say what it offers."""
    address: str | None = None
    """Where its calls go, for a source that has one address."""
    skipped: Sequence[Skipped] = ()
    follow: Callable[[OperationCatalogue], None] | None = None
    """Registers what it offers and keeps that up to date, for a source whose operations come and go."""


async def open_source(source: Source, stack: AsyncExitStack, show_consent: ShowConsent | None = None) -> Opened:
    """Open a source; what closes it goes on the stack. Raises whatever went wrong."""
    if source.problem is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, source.problem)
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return await _open_python(source, settings)
    if isinstance(settings, MCPSettings):
        return await _open_mcp(source, settings, stack, show_consent)
    if isinstance(settings, OpenAPISettings):
        return await _open_api(source, settings, stack)
    return await _open_entry_point(source, settings, stack)


async def _open_python(source: Source, settings: PythonSettings) -> Opened:
    found = await in_background(_scan, source, settings)
    unanswered: list[Operation[Any]] = [Operation(spec=spec) for spec in found.specs]
    return Opened(
        operations=[*found.operations, *unanswered],
        prefix=settings.namespace,
        files=found.files,
        skipped=found.skipped,
    )


def _scan(source: Source, settings: PythonSettings) -> OperationManifest:
    for folder in settings.pythonpath:
        place = str((source.folder / Path(folder).expanduser()).resolve())
        if place not in sys.path:
            sys.path.insert(0, place)
    return scan_operations(python_place(source.folder, settings), timeout=settings.import_timeout)


def python_place(folder: Path, settings: PythonSettings) -> str | Path:
    """What a python source scans: a path below the file's folder or, where there is none, a package by its name."""
    path = (folder / Path(settings.python).expanduser()).absolute()
    is_name = "/" not in settings.python and not settings.python.endswith(".py") and not path.exists()
    return settings.python if is_name else path


def expected_file(source: Source) -> str | None:
    """The file or folder without which a source cannot be opened: where one failed, a change to it may mend it."""
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return str((source.folder / Path(settings.python).expanduser()).absolute())
    if isinstance(settings, OpenAPISettings) and not settings.openapi.startswith(("http://", "https://")):
        return str(document_path(source.folder, settings))
    return None


async def _open_mcp(
    source: Source, settings: MCPSettings, stack: AsyncExitStack, show_consent: ShowConsent | None
) -> Opened:
    from operations.sources.mcp.client import MCPClient

    namespace = namespace_for(source)
    config = mcp_config(settings, source.folder, name=source.name, show_consent=show_consent)
    client = MCPClient(namespace, config)
    stack.push_async_callback(client.close)
    await client.open()
    return Opened(operations=client.operations, namespace=namespace, follow=client.register_all)


async def _open_api(source: Source, settings: OpenAPISettings, stack: AsyncExitStack) -> Opened:
    from operations.sources.openapi.load import from_openapi_file, from_openapi_url

    namespace = namespace_for(source)
    config = service_config(settings, namespace)
    files = _FilesRead()
    if settings.openapi.startswith(("http://", "https://")):
        loaded = await from_openapi_url(settings.openapi, config)
    else:
        loaded = await from_openapi_file(document_path(source.folder, settings), config, files)
    stack.push_async_callback(loaded.close)
    return Opened(operations=loaded, namespace=namespace, files=tuple(files.names), address=loaded.service.base_url)


class _FilesRead:
    """The machine's files, and which of them a document led to: those that are not there yet as well."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    async def read(self, path: str) -> bytes:
        """The content of a file."""
        self.names[path] = None
        return await in_background(Path(path).read_bytes)


def document_path(folder: Path, settings: OpenAPISettings) -> Path:
    """The file of an API's document, relative to the configuration's folder."""
    return Path(os.path.abspath(folder / Path(settings.openapi.removeprefix("file://")).expanduser()))


async def _open_entry_point(source: Source, settings: EntryPointSettings, stack: AsyncExitStack) -> Opened:
    from operations.sources import third_party

    function = await in_background(third_party.find_source, settings.entry_point)
    operations = await stack.enter_async_context(third_party.open_source(function, settings.options))
    return Opened(operations=operations, prefix=settings.namespace)
