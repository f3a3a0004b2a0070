"""Opening one source: what it offers, or a report on why it does not open."""

from __future__ import annotations

import shutil
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
    Config,
    EntryPointSettings,
    MCPSettings,
    OpenAPISettings,
    PythonSettings,
    ShowConsent,
    Source,
    SourceKind,
)
from operations.errors import CallError, ErrorCode
from operations.sources.scanner import OperationManifest, Skipped, scan_operations
from operations.sources.scanner.isolation import in_background
from operations.spec import Operation


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An open source."""

    operations: Sequence[Operation[Any]]
    namespace: str | None = None
    """The namespace of all its operations, where the source itself sets it."""
    prefix: str | None = None
    """Put before the ids of operations that have their own namespace."""
    files: Sequence[str] = ()
    """The files and directories that determine what it offers."""
    address: str | None = None
    """Where its calls go, for a source with one address."""
    skipped: Sequence[Skipped] = ()
    follow: Callable[[OperationCatalogue], None] | None = None
    """Registers its operations and keeps them up to date, for a source whose operations change."""


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of opening one source."""

    name: str
    kind: SourceKind
    state: Literal["ready", "failed"]
    operations: int = 0
    """Number of its operations in the registry; while the sources open, the number it offers."""
    seconds: float = 0.0
    problem: str | None = None
    hint: str | None = None
    fault: Literal["configuration", "installation", "source"] | None = None
    """Where the problem is: in the file, in an extra that is not installed, or in the source itself."""
    skipped: Sequence[Skipped] = ()
    """What is not in the registry, and why: files that do not import, ids that are taken."""
    notes: Sequence[str] = ()
    """Likely mistakes in the configuration: patterns that match nothing."""


async def open_source(source: Source, stack: AsyncExitStack, show_consent: ShowConsent | None = None) -> Opened:
    """Open a source; `stack` closes it. Raise whatever went wrong."""
    if source.problem is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, source.problem)
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return await _open_python(source, settings)
    if isinstance(settings, EntryPointSettings):
        return await _open_entry_point(settings, stack)
    if isinstance(settings, MCPSettings):
        from operations.config.mcp_source import open_mcp

        client = await open_mcp(source, stack, show_consent)
        return Opened(operations=client.operations, namespace=source.namespace, follow=client.register_all)
    from operations.config.openapi_source import open_openapi

    loaded, files = await open_openapi(source, stack)
    return Opened(operations=loaded, namespace=source.namespace, files=files, address=loaded.service.base_url)


def expected_file(source: Source) -> str | None:
    """Return the file or directory that a source needs: where opening failed, a change to it may fix that."""
    settings = source.settings
    if isinstance(settings, PythonSettings):
        return str(_python_path(source, settings))
    if isinstance(settings, OpenAPISettings) and not settings.is_remote:
        return str(settings.document_path(source.folder))
    return None


async def _open_python(source: Source, settings: PythonSettings) -> Opened:
    found = await in_background(_scan, source, settings)
    without_handler: list[Operation[Any]] = [Operation(spec=spec) for spec in found.specs]
    return Opened(
        operations=[*found.operations, *without_handler],
        prefix=settings.namespace,
        files=found.files,
        skipped=[_with_advice(skip, source.folder) for skip in found.skipped],
    )


def _scan(source: Source, settings: PythonSettings) -> OperationManifest:
    path = _python_path(source, settings)
    is_name = "/" not in settings.python and not settings.python.endswith(".py") and not path.exists()
    _extend_import_path(source, settings, module=settings.python if is_name else None)
    return scan_operations(settings.python if is_name else path, timeout=settings.import_timeout)


def _python_path(source: Source, settings: PythonSettings) -> Path:
    return (source.folder / Path(settings.python).expanduser()).absolute()


def _extend_import_path(source: Source, settings: PythonSettings, *, module: str | None) -> None:
    """Put the directories of `pythonpath` on `sys.path`; for a module that is not installed, the file's own last."""
    for folder in settings.pythonpath:
        place = str((source.folder / Path(folder).expanduser()).resolve())
        if place not in sys.path:
            sys.path.insert(0, place)
    own = str(source.folder.resolve())
    if module is not None and own not in sys.path and find_spec(module.partition(".")[0]) is None:
        sys.path.append(own)


def _with_advice(skip: Skipped, folder: Path) -> Skipped:
    """Name `pythonpath` where a module imports another one of the project."""
    missing = skip.reason.partition("it imports '")[2].partition("'")[0].partition(".")[0]
    if not missing or not ((folder / missing).is_dir() or (folder / f"{missing}.py").is_file()):
        return skip
    return Skipped(skip.path, f'{skip.reason}; pythonpath = ["."] in its source imports from {folder}')


async def _open_entry_point(settings: EntryPointSettings, stack: AsyncExitStack) -> Opened:
    from operations.sources import entry_points

    function = await in_background(entry_points.find_source, settings.entry_point)
    operations = await stack.enter_async_context(entry_points.open_source(function, settings.options))
    return Opened(operations=operations, prefix=settings.namespace)


def failure_report(config: Config, source: Source, failure: BaseException, seconds: float) -> SourceReport:
    """Return the report on a source that did not open."""
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
    """Return the problem in one line and, where there is one, a hint."""
    if isinstance(failure, CallError):
        return _line(failure.message or str(failure.code)), _hint(source, failure)
    if isinstance(failure, ImportError):
        # The message of a missing extra names what to install.
        return _line(str(failure)), None
    return f"{type(failure).__name__}: {_line(str(failure))}", None


def _hint(source: Source, failure: CallError) -> str | None:
    settings = source.settings
    if source.problem is not None:
        return None if str(source.file) in source.problem else f"see {source.file}:{source.line}"
    if isinstance(settings, MCPSettings):
        return _mcp_hint(settings, failure)
    if isinstance(settings, OpenAPISettings) and not settings.is_remote:
        return f"relative paths begin at {source.folder}"
    if isinstance(settings, OpenAPISettings):
        return "is the address right, and the API up?"
    if isinstance(settings, PythonSettings):
        return f"`python` is a folder, a file (relative to {source.folder}) or an importable package"
    return None


def _mcp_hint(settings: MCPSettings, failure: CallError) -> str | None:
    if settings.command is None:
        denied = failure.code is ErrorCode.ACCESS_DENIED or "401" in failure.message or "403" in failure.message
        return "check its auth, oauth or headers" if denied else "is the address right, and the server up?"
    if "/" not in settings.command and shutil.which(settings.command) is None:
        return f"{settings.command} is not on the PATH: is it installed?"
    if "/" in settings.command and not Path(settings.command).expanduser().exists():
        return f"there is no program {settings.command}"
    return "run the command by itself to see what it says"


def _line(text: str) -> str:
    return " ".join(text.split())
