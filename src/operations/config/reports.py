"""SourceReport: how opening a source went and, where it did not open, what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from operations.config.models import Config, Source, SourceKind
from operations.config.redaction import redact
from operations.config.settings import MCPSettings, OpenAPISettings, PythonSettings
from operations.errors import CallError, ErrorCode
from operations.sources.scanner import Skipped


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """How opening one source went."""

    name: str
    kind: SourceKind
    state: Literal["ready", "failed"]
    operations: int = 0
    """How many of its operations are in the registry; while the sources open, how many it offers."""
    seconds: float = 0.0
    problem: str | None = None
    hint: str | None = None
    fault: Literal["configuration", "installation", "source"] | None = None
    """Where the problem is: in what the file says, in an extra that is not installed, or in the source itself."""
    skipped: Sequence[Skipped] = ()
    """What of it is not in the registry, and why: files that do not import, names that are taken."""
    notes: Sequence[str] = ()
    """What is likely a mistake in the configuration: patterns that match nothing."""


def failure_report(config: Config, source: Source, failure: BaseException, seconds: float) -> SourceReport:
    """The report on a source that did not open."""
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
    """The problem in one line and, where there is something to do, a hint."""
    if isinstance(failure, CallError):
        return _line(failure.message or str(failure.code)), _hint(source, failure)
    if isinstance(failure, ImportError):
        # An extra that is missing says what to install.
        return _line(str(failure)), None
    return f"{type(failure).__name__}: {_line(str(failure))}", None


def _hint(source: Source, failure: CallError) -> str | None:
    settings = source.settings
    if source.problem is not None:
        return f"see {source.file}:{source.line}"
    if isinstance(settings, MCPSettings):
        return _mcp_hint(settings, failure)
    if isinstance(settings, OpenAPISettings) and not settings.openapi.startswith(("http://", "https://")):
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
