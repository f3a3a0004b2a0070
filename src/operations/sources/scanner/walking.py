"""Which files of a folder are modules to look at, and why others are not."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from operations.sources.scanner.files import FileEntry, LocalFS, ScannerFS
from operations.sources.scanner.manifest import Skipped
from operations.sources.scanner.modules import ModuleFile, ModuleTree

_PASSED_BY = frozenset({"__pycache__", "node_modules", "site-packages"})
_DEEPEST = 50
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")


class Place(msgspec.Struct, frozen=True):
    """What to scan: a folder, or one file of it, in a tree of modules."""

    tree: ModuleTree
    folder: str
    parts: tuple[str, ...]
    """The way from the tree's top to the folder."""
    only: str | None = None
    """The one file to look at."""


class Walk(msgspec.Struct, frozen=True):
    """What a walk through a place came by."""

    modules: dict[str, ModuleFile]
    """By path, in order."""
    folders: list[str]
    skipped: list[Skipped]


def walk(place: Place) -> Walk:
    """Every module of a place; a folder that cannot be listed is reported like a module that cannot be imported."""
    found = Walk({}, [], [])
    seen: set[str] = set()
    _walk_folder(place, place.folder, (), found, seen)
    return found


def top_of_package(folder: str, fs: ScannerFS) -> tuple[str, tuple[str, ...]]:
    """The folder of the outermost package that a folder is in, and the way down from there."""
    parts: tuple[str, ...] = ()
    while _has_init(folder, fs) and posixpath.dirname(folder) != folder and _has_init(posixpath.dirname(folder), fs):
        parts = (posixpath.basename(folder), *parts)
        folder = posixpath.dirname(folder)
    return folder, parts


def _walk_folder(place: Place, folder: str, below: tuple[str, ...], found: Walk, seen: set[str]) -> None:
    if isinstance(place.tree.fs, LocalFS):
        real = os.path.realpath(folder)
        if real in seen:
            return
        seen.add(real)
    try:
        entries = sorted(place.tree.fs.list(folder), key=lambda entry: entry.name)
    except OSError as error:
        found.skipped.append(Skipped(folder, f"the folder cannot be listed: {error.strerror or error}"))
        return
    if place.only is None:
        found.folders.append(folder)
    for entry in _relevant(entries, place, folder):
        path = posixpath.join(folder, entry.name)
        if not entry.is_folder:
            _add(place, path, below, entry, found)
        elif len(below) < _DEEPEST:
            _walk_folder(place, path, (*below, entry.name), found, seen)


def _relevant(entries: list[FileEntry], place: Place, folder: str) -> Iterator[FileEntry]:
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return  # a virtual environment: other people's modules
    for entry in entries:
        path = posixpath.join(folder, entry.name)
        hidden = entry.name.startswith(".") or entry.name in _PASSED_BY
        if hidden or (not entry.is_folder and not entry.name.endswith(".py")):
            continue
        if place.only is None or path == place.only:
            yield entry


def _add(place: Place, path: str, below: tuple[str, ...], entry: FileEntry, found: Walk) -> None:
    stem = entry.name.removesuffix(".py")
    if stem == "__main__":
        found.skipped.append(Skipped(path, "it is a program (__main__), not a module of operations"))
        return
    if "." in stem or any("." in part for part in below):
        found.skipped.append(Skipped(path, "its path has a dot in a name, so it cannot be imported"))
        return
    parts = below if stem == "__init__" else (*below, stem)
    is_top_module = path == place.tree.folder
    name = place.tree.root if is_top_module else place.tree.module_name((*place.parts, *parts))
    namespace = None
    if place.tree.is_isolated:
        namespace = ".".join(_UNUSABLE.sub("_", part) for part in parts or (Path(place.folder).name or "main",))
        place.tree.namespaces[name] = namespace
    found.modules[path] = ModuleFile(path, name, namespace, _stamp(place.tree.fs, path, entry))


def _stamp(fs: ScannerFS, path: str, entry: FileEntry) -> object:
    """What tells a file from itself after a change: its content, where the file system says nothing."""
    if entry.stamp is not None:
        return entry.stamp
    try:
        return fs.read(path)
    except OSError:
        return None


def _has_init(folder: str, fs: ScannerFS) -> bool:
    try:
        return any(entry.name == "__init__.py" for entry in fs.list(folder))
    except OSError:
        return False
