"""ScannerFS: the two verbs a scan needs of a file system, and the machine's own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec


class FileEntry(msgspec.Struct, frozen=True):
    """One name in a folder."""

    name: str
    is_folder: bool
    stamp: Any = None
    """Anything that differs when the file's content does; None where the file system does not know."""


class ScannerFS(Protocol):
    """Where modules are read from."""

    def list(self, path: str) -> Iterable[FileEntry]:
        """What is in a folder; raises `OSError` where there is none."""

    def read(self, path: str) -> bytes:
        """The content of a file; raises `OSError` where there is none."""


class LocalFS:
    """The machine's own files."""

    def list(self, path: str) -> Iterable[FileEntry]:
        """What is in a folder; a name that vanishes while it is looked at is left out."""
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
        """The content of a file; a pipe or a device is none: reading it would wait for whoever writes to it."""
        file = Path(path)
        if file.exists() and not file.is_file():
            raise OSError("it is not a regular file")
        return file.read_bytes()
