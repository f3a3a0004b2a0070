"""The kinds of sources: which one a table describes, and whether its settings fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from operations.config.checking import Checker
from operations.config.clients import mcp_config, namespace_for, service_config
from operations.config.documents import Document
from operations.config.models import Source
from operations.config.problems import ConfigProblem, Key, nearest
from operations.config.settings import (
    AnySource,
    EntryPointSettings,
    MCPSettings,
    OpenAPISettings,
    PythonSettings,
    SourceSettings,
)
from operations.errors import CallError, ErrorCode
from operations.spec import NAME_PATTERN, NAMESPACE_PATTERN


class SourceTable(msgspec.Struct, frozen=True):
    """What a file says of one source, not looked at yet."""

    name: str
    key: Key
    table: Any
    folder: Path
    problem: str | None = None
    """Why it cannot be opened, where the file itself tells."""


KINDS: dict[str, type[AnySource]] = {
    "python": PythonSettings,
    "command": MCPSettings,
    "url": MCPSettings,
    "openapi": OpenAPISettings,
    "entry_point": EntryPointSettings,
}
"""The key that tells what kind of source a table is."""


def choose_kind(checker: Checker, table: Any, key: Key) -> type[AnySource] | None:
    """The struct for a table of `[sources]`; None, and a problem, where it is not one kind and only one."""
    if not isinstance(table, Mapping):
        checker.report(key, "a source is a table")
        return None
    named = [name for name in KINDS if name in table]
    if len({KINDS[name] for name in named}) == 1:
        return KINDS[named[0]]
    if named:
        checker.report(key, f"{' and '.join(named)} are of different kinds of sources: give one of them")
        return None
    common = {*SourceSettings.__struct_fields__, *MCPSettings.__struct_fields__}
    strange = [name for name in table if name not in common]
    advice = nearest(strange[0], KINDS) if strange else ""
    if advice.startswith("; did"):
        checker.report((*key, strange[0]), f"the key is not known{advice}")
    else:
        checker.report(key, f"no key says what kind of source it is: one of {', '.join(KINDS)} is wanted")
    return None


def explain_misfit(source: Source) -> str | None:
    """What in a source's settings does not fit together; None where all does."""
    settings = source.settings
    if settings.namespace is not None and not re.fullmatch(NAMESPACE_PATTERN, settings.namespace):
        return "namespace is segments of letters, digits, _ and - joined by dots"
    for new in settings.rename.values():
        segments = new.replace("*", "x").split(".")
        if not all(re.fullmatch(NAME_PATTERN, segment) for segment in segments):
            return f"rename: {new!r} cannot be a name: it is made of letters, digits, _, / and -"
    if source.problem is not None:
        return None
    try:
        if isinstance(settings, MCPSettings):
            _check_type(settings)
            mcp_config(settings, source.folder)
        elif isinstance(settings, OpenAPISettings):
            service_config(settings, namespace_for(source))
    except CallError as error:
        return error.message
    return None


def _check_type(settings: MCPSettings) -> None:
    fits = settings.type is None or (settings.type == "stdio") == (settings.command is not None)
    if not fits:
        message = f"type {settings.type} does not go with {'a command' if settings.command else 'a url'}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def check_source(document: Document, given: SourceTable) -> None:
    """Raise what is wrong with a table that is not in the file yet."""
    problems: list[ConfigProblem] = []
    checker = Checker(document, problems)
    kind = choose_kind(checker, given.table, given.key)
    settings = None if kind is None else checker.read(kind, given.table, given.key)
    if settings is not None:
        source = Source(
            name=given.name, settings=settings, folder=given.folder, file=document.path, line=0, written=given.table
        )
        misfit = explain_misfit(source)
        if misfit is not None:
            checker.report(given.key, misfit)
    if problems:
        # They are on no line of the file.
        message = "\n".join(f"{problem.key}: {problem.message}" for problem in problems)
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
