"""Directories of modules to scan."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from operations.sources.scanner import FileEntry


def write(directory: Path, files: Mapping[str, str]) -> Path:
    """Write dedented files below a directory; return the directory."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return directory


def greeting(word: str = "hello", name: str = "greet") -> str:
    """The text of a module with one operation."""
    return f"""
from operations import operation

@operation(type="query")
def {name}(who: str) -> str:
    return "{word} " + who
"""


class MemoryFS:
    """Files in a mapping."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.raw: dict[str, bytes] = {}

    def list(self, path: str) -> Iterable[FileEntry]:
        below = {name.removeprefix(f"{path}/") for name in (*self.files, *self.raw) if name.startswith(f"{path}/")}
        if not below:
            raise FileNotFoundError(path)
        for name in {name.partition("/")[0] for name in below}:
            yield FileEntry(name, is_directory=name not in below)

    def read(self, path: str) -> bytes:
        return self.raw[path] if path in self.raw else self.files[path].encode()
