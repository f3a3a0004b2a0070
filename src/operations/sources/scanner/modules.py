"""The modules of a directory: which files they are, and the names in `sys.modules` that they are imported under."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from operations.function import NAMESPACE_VARIABLE
from operations.sources.scanner.files import FileEntry, LocalFS, ScannerFS
from operations.sources.scanner.manifest import Skipped

_numbers = itertools.count(1)
_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages"})
_MAX_DEPTH = 50
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")


class ModuleFile(msgspec.Struct, frozen=True):
    """One module of a scan."""

    path: str
    name: str
    """Its name in `sys.modules`."""
    namespace: str | None
    """The default namespace of its functions; None where the module's name is the namespace."""
    stamp: object = None


class ModuleTree:
    """A top directory and the name that its modules are imported under.

    `real` is the name of an importable package or module; without it, each tree gets a unique name, so that equal file
    names never collide in `sys.modules`.
    """

    def __init__(self, folder: str, fs: ScannerFS, *, real: str | None = None) -> None:
        self.folder = folder
        self.fs = fs
        self.is_isolated = real is None
        self.root = real or f"scanned_{next(_numbers)}"
        self.namespaces: dict[str, str] = {}
        """The namespace of each module, by the module's name."""
        if self.is_isolated:
            self.install()

    def install(self) -> None:
        """Register the tree with the import system, permanently.

        A function may import a sibling module only when it is called.
        """
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _finder.trees[self.root] = self

    def module_name(self, parts: Sequence[str]) -> str:
        """Return the name in `sys.modules` of the module at a path below the top directory."""
        return ".".join((self.root, *parts))

    def locate(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module by its name in `sys.modules`; None where there is no file for it."""
        folder = self.folder
        parts = name.split(".")[1:]
        if not parts and folder.endswith(".py"):
            return self._spec(name, folder, package=None)
        if parts:
            folder = posixpath.join(folder, *parts[:-1])
            names = self._names(folder)
            if parts[-1] not in names and f"{parts[-1]}.py" in names:
                return self._spec(name, posixpath.join(folder, f"{parts[-1]}.py"), package=None)
            if parts[-1] not in names:
                return None
            folder = posixpath.join(folder, parts[-1])
        if "__init__.py" in self._names(folder):
            return self._spec(name, posixpath.join(folder, "__init__.py"), package=folder)
        if parts and f"{parts[-1]}.py" in self._names(posixpath.dirname(folder)):
            return self._spec(name, f"{folder}.py", package=None)
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec

    def _spec(self, name: str, path: str, *, package: str | None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(
            name, path, loader=_Loader(self, path), submodule_search_locations=None if package is None else [package]
        )

    def _names(self, folder: str) -> set[str]:
        try:
            return {entry.name for entry in self.fs.list(folder)}
        except OSError:
            return set()


class _Loader(importlib.abc.SourceLoader):
    """Loads a module through the scan's file system, without bytecode files."""

    def __init__(self, tree: ModuleTree, path: str) -> None:
        self._tree = tree
        self._path = path

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:  # the base class asks for compiled files too
        if path != self._path:
            raise OSError(f"{path!r} is not read")
        return self._tree.fs.read(self._path)

    def exec_module(self, module: ModuleType) -> None:
        namespace = self._tree.namespaces.get(module.__name__)
        if namespace is not None:
            setattr(module, NAMESPACE_VARIABLE, namespace)
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of registered trees only."""

    def __init__(self) -> None:
        self.trees: dict[str, ModuleTree] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tree = self.trees.get(fullname.partition(".")[0])
        return None if tree is None else tree.locate(fullname)


_finder = _Finder()


class Place(msgspec.Struct, frozen=True):
    """What to scan: a directory of a module tree, or one file of it."""

    tree: ModuleTree
    folder: str
    parts: tuple[str, ...]
    """The path from the tree's top to the directory."""
    only: str | None = None
    """The one file to scan; None for all."""


class Walk(msgspec.Struct, frozen=True):
    """The modules of a place."""

    modules: dict[str, ModuleFile]
    """By path, in order."""
    folders: list[str]
    skipped: list[Skipped]


def walk(place: Place) -> Walk:
    """Return every module of a place; a directory that cannot be listed is reported in `skipped`."""
    found = Walk({}, [], [])
    seen: set[str] = set()
    _walk_folder(place, place.folder, (), found, seen)
    return found


def top_of_package(folder: str, fs: ScannerFS) -> tuple[str, tuple[str, ...]]:
    """Return the outermost package directory that contains a directory, and the path down from there."""
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
        elif len(below) < _MAX_DEPTH:
            _walk_folder(place, path, (*below, entry.name), found, seen)


def _relevant(entries: list[FileEntry], place: Place, folder: str) -> Iterator[FileEntry]:
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return  # a virtual environment
    for entry in entries:
        path = posixpath.join(folder, entry.name)
        hidden = entry.name.startswith(".") or entry.name in _IGNORED
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
    """Return a value that changes with the file: its content, where the file system has no stamp."""
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
