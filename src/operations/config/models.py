"""Config and Source: a configuration that was read, checked and filled in; nothing of it is open yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from operations.config.settings import (
    AccessRule,
    AnySource,
    EntryPointSettings,
    HubSettings,
    OpenAPISettings,
    PythonSettings,
    TransportSettings,
)
from operations.schema import Policy

SourceKind = Literal["python", "mcp", "openapi", "entry-point"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One source: its name, what the file says of it, and where that stands."""

    name: str
    settings: AnySource
    folder: Path
    """Where its relative paths begin."""
    file: Path
    line: int
    written: Mapping[str, Any]
    """The table as it stands in the file, `${…}` not filled in."""
    problem: str | None = None
    """Why it cannot be opened, where that is known without trying."""

    @property
    def kind(self) -> SourceKind:
        """What kind of source it is."""
        if isinstance(self.settings, PythonSettings):
            return "python"
        if isinstance(self.settings, OpenAPISettings):
            return "openapi"
        return "entry-point" if isinstance(self.settings, EntryPointSettings) else "mcp"

    def __repr__(self) -> str:
        return f"Source(name={self.name!r}, kind={self.kind!r})"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration: sources, access rules, transports, the hub. Its text shows names and no values."""

    path: Path
    sources: Mapping[str, Source] = {}
    access: Mapping[str, AccessRule] = {}
    transports: Mapping[str, TransportSettings] = {}
    hub: HubSettings | None = None
    policy: Policy | None = None
    files: tuple[Path, ...] = ()
    """Every file that was read for it: itself, those it includes, and files of variables."""
    variables: Mapping[str, str] = {}
    """The variables that `${…}` took from the environment or a file, which may be secret."""
    written: Mapping[str, Any] = {}
    """The file's other tables as they stand there, `${…}` not filled in."""

    def __repr__(self) -> str:
        return f"Config(path={str(self.path)!r}, sources={list(self.sources)!r})"
