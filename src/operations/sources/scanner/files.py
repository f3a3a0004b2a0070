"""ScannerFS: the file system interface of a scan, and the local implementation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec


class FileEntry(msgspec.Struct, frozen=True):
    """One entry of a directory."""

    name: str
    is_directory: bool
    stamp: Any = None
    """A value that changes with the file's content; None if the file system has none."""


class ScannerFS(Protocol):
    """File system that modules are read from."""

    def list(self, path: str) -> Iterable[FileEntry]:
        """Return the entries of a directory; raise `OSError` if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file; raise `OSError` if it does not exist."""


class LocalFS:
    """The local file system."""

    def list(self, path: str) -> Iterable[FileEntry]:
        """Return the entries of a directory, without files that vanish meanwhile."""
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                try:
                    state = entry.stat()
                    entries.append(FileEntry(entry.name, entry.is_dir(), (state.st_mtime_ns, state.st_size)))
                except OSError:
                    continue
        return entries

    def read(self, path: str) -> bytes:
        """Return the content of a regular file; reading a pipe or a device could block."""
        file = Path(path)
        if file.exists() and not file.is_file():
            raise OSError("not a regular file")
        return file.read_bytes()
