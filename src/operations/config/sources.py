"""Opening a source: its operations, or a report of the failure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from operations.catalogue import OperationCatalogue
from operations.config.redaction import redact
from operations.config.settings import (
    NO_CALLBACKS,
    Config,
    EntryPointSettings,
    MCPSettings,
    OpenAPISettings,
    PythonSettings,
    Source,
    SourceCallbacks,
    SourceKind,
)
from operations.errors import CallError, ErrorCode
from operations.sources.scanner import OperationManifest, Scanner, Skipped
from operations.sources.scanner.isolation import in_background
from operations.spec import Operation


class OpenedSource(msgspec.Struct, frozen=True, kw_only=True):
    """The result of opening a source: its operations, and how to register them."""

    operations: Sequence[Operation[Any]]
    namespace: str | None = None
    """Namespace that the source gives to all its operations; None if the operations choose their namespaces."""
    prefix: str | None = None
    """Prefix for the ids of operations that choose their namespaces; None for no prefix."""
    files: Sequence[str] = ()
    """Files and directories that determine the operations; after a change to them, the cached operations are stale."""
    address: str | None = None
    """Base URL of the requests of an OpenAPI source; None for the other kinds of sources."""
    skipped: Sequence[Skipped] = ()
    follow: Callable[[OperationCatalogue], None] | None = None
    """Function that registers the operations and keeps them up to date; None if the operations do not change."""


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of opening one source."""

    name: str
    kind: SourceKind
    state: Literal["ready", "failed"]
    operations: int = 0
    """Number of the source's operations in the registry.

    A report to `on_progress` also counts operations that filters or duplicate ids remove afterwards.
    """
    seconds: float = 0.0
    problem: str | None = None
    hint: str | None = None
    fault: Literal["configuration", "installation", "source"] | None = None
    """Where the problem is: in the configuration file, in a missing extra, or in the source itself."""
    skipped: Sequence[Skipped] = ()
    """Skipped files and ids, with reasons."""
    notes: Sequence[str] = ()
    """Likely mistakes in the configuration, such as patterns that match nothing."""


async def open_source(source: Source, stack: AsyncExitStack, callbacks: SourceCallbacks = NO_CALLBACKS) -> OpenedSource:
    """Open a source; `stack` closes it. Raise on any failure."""
    if source.problem is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, source.problem)
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return await _open_python(source, settings)
    if isinstance(settings, EntryPointSettings):
        return await _open_entry_point(settings, stack)
    if isinstance(settings, MCPSettings):
        from operations.config.mcp_source import open_mcp

        client = await open_mcp(source, stack, callbacks)
        return OpenedSource(operations=client.operations, namespace=source.namespace, follow=client.register_all)
    from operations.config.openapi_source import open_openapi

    loaded, files = await open_openapi(source, stack, callbacks)
    return OpenedSource(operations=loaded, namespace=source.namespace, files=files, address=loaded.service.base_url)


def expected_file(source: Source) -> str | None:
    """Return the file or directory whose change may fix a source that failed to open; None if there is none."""
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return str(_python_path(source, settings))
    if isinstance(settings, OpenAPISettings) and not settings.is_remote:
        return str(settings.document_path(source.directory))
    return None


async def _open_python(source: Source, settings: PythonSettings) -> OpenedSource:
    found = await in_background(_scan, source, settings)
    without_handler: list[Operation[Any]] = [Operation(spec=spec) for spec in found.specs]
    return OpenedSource(
        operations=[*found.operations, *without_handler],
        prefix=settings.namespace,
        files=found.files,
        skipped=[_with_advice(skip, source.directory) for skip in found.skipped],
    )


def _scan(source: Source, settings: PythonSettings) -> OperationManifest:
    path = _python_path(source, settings)
    is_name = "/" not in settings.python and not settings.python.endswith(".py") and not path.exists()
    _extend_import_path(source, settings, module=settings.python if is_name else None)
    return Scanner(settings.python if is_name else path, timeout=settings.import_timeout).scan()


def _python_path(source: Source, settings: PythonSettings) -> Path:
    return (source.directory / Path(settings.python).expanduser()).absolute()


def _extend_import_path(source: Source, settings: PythonSettings, *, module: str | None) -> None:
    """Add the directories of `pythonpath` to `sys.path`.

    If `module` is still not found, append the directory of the configuration file to `sys.path`.
    """
    for directory in settings.pythonpath:
        place = str((source.directory / Path(directory).expanduser()).resolve())
        if place not in sys.path:
            sys.path.insert(0, place)
    own = str(source.directory.resolve())
    if module is not None and own not in sys.path and find_spec(module.partition(".")[0]) is None:
        sys.path.append(own)


def _with_advice(skip: Skipped, directory: Path) -> Skipped:
    """Suggest `pythonpath` if a module failed because it imports another module of the project."""
    missing = skip.reason.partition("cannot find module '")[2].partition("'")[0].partition(".")[0]
    if not missing or not ((directory / missing).is_dir() or (directory / f"{missing}.py").is_file()):
        return skip
    return Skipped(skip.path, f'{skip.reason}; set pythonpath = ["."] for this source to import from {directory}')


async def _open_entry_point(settings: EntryPointSettings, stack: AsyncExitStack) -> OpenedSource:
    from operations.sources import entry_points

    function = await in_background(entry_points.find_source, settings.entry_point)
    operations = await stack.enter_async_context(entry_points.open_source(function, settings.options))
    return OpenedSource(operations=operations, prefix=settings.namespace)


def failure_report(config: Config, source: Source, failure: BaseException, seconds: float) -> SourceReport:
    """Return the report of a source that failed to open."""
    problem, hint = _explain(source, failure)
    return SourceReport(
        name=source.name,
        kind=source.kind,
        state="failed",
        seconds=seconds,
        problem=redact(problem, config),
        hint=None if hint is None else redact(hint, config),
        fault=_fault(source, failure),
    )


def _fault(source: Source, failure: BaseException) -> Literal["configuration", "installation", "source"]:
    if isinstance(failure, ImportError):
        return "installation"
    is_wrong = isinstance(failure, CallError) and failure.code == ErrorCode.VALIDATION_ERROR
    return "configuration" if is_wrong or source.problem is not None else "source"


def _explain(source: Source, failure: BaseException) -> tuple[str, str | None]:
    """Return the problem in one line, and a hint if there is one."""
    if isinstance(failure, CallError):
        return _line(failure.message or str(failure.code)), _hint(source, failure)
    if isinstance(failure, ImportError):
        # The message of a missing extra has the install command.
        return _line(str(failure)), None
    return f"{type(failure).__name__}: {_line(str(failure))}", None


def _hint(source: Source, failure: CallError) -> str | None:
    settings = source.settings
    if source.problem is not None:
        return None if source.is_direct or str(source.file) in source.problem else f"see {source.file}:{source.line}"
    if isinstance(settings, MCPSettings):
        return _mcp_hint(source, settings, failure)
    if isinstance(settings, OpenAPISettings) and not settings.is_remote:
        return f"relative paths start at {source.directory}"
    if isinstance(settings, OpenAPISettings) and _is_refused(failure):
        return _credentials_hint(source, "auth or headers")
    if isinstance(settings, OpenAPISettings):
        return "check the URL, and that the API is running"
    if isinstance(settings, PythonSettings):
        return f"set `python` to a directory or file, relative to {source.directory}, or to an importable package"
    return None


def _is_refused(failure: CallError) -> bool:
    """Whether opening a source failed because its server requires credentials or refuses the given ones."""
    return failure.code is ErrorCode.ACCESS_DENIED or re.search(r"\b(401|403)\b", failure.message) is not None


def _credentials_hint(source: Source, kinds: str) -> str:
    """Return a hint about missing or refused credentials; `kinds` names the settings in which they can be set."""
    given = [key for key in ("auth", "security", "oauth", "headers") if source.written.get(key)]
    if source.is_direct:
        return "check --header" if given else "pass a token with --header 'Authorization: Bearer ${TOKEN}'"
    if given:
        return f"the credentials of the source were refused: check its {kinds}"
    return f"the source has no credentials: set its {kinds}"


def _mcp_hint(source: Source, settings: MCPSettings, failure: CallError) -> str | None:
    if settings.command is None:
        if not _is_refused(failure):
            return "check the URL, and that the server is running"
        return _credentials_hint(source, "auth, oauth or headers")
    import shutil  # only after a failure: it is slow to import

    if "/" not in settings.command and shutil.which(settings.command) is None:
        return f"{settings.command} is not in PATH: install it"
    if "/" in settings.command and not Path(settings.command).expanduser().exists():
        return f"file not found: {settings.command}"
    return "run the command in a terminal to see its output"


def _line(text: str) -> str:
    return " ".join(text.split())
