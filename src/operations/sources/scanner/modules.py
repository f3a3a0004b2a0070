"""The modules of a directory: the file system that they are read from, and their names in `sys.modules`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec

from operations.function import NAMESPACE_VARIABLE

_numbers = itertools.count(1)
_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages"})
_MAX_DEPTH = 50
_UNUSABLE = r"[^A-Za-z0-9_-]+"


class FileEntry(msgspec.Struct, frozen=True):
    """One entry of a directory."""

    name: str
    is_directory: bool
    stamp: Any = None
    """A value that changes with the file's content; None if the file system has no such value."""


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
        """Return the content of a regular file; raise `OSError` for a pipe or device, because reading could block."""
        file = Path(path)
        if file.exists() and not file.is_file():
            raise OSError("not a regular file")
        return file.read_bytes()


class Skipped(msgspec.Struct, frozen=True):
    """A skipped file or operation, with the reason."""

    path: str
    """The path of a skipped file, or the id of a skipped operation."""
    reason: str


class ModuleFile(msgspec.Struct, frozen=True):
    """One module of a scan."""

    path: str
    name: str
    """The name of the module in `sys.modules`."""
    namespace: str | None
    """Default namespace of the module's functions; None if the module's name is the namespace."""
    stamp: object = None


class ModuleTree:
    """A top directory and the package name of its modules.

    `real` is the name of an importable package or module. Without `real`, each tree gets a unique name, so that equal
    file names never collide in `sys.modules`.
    """

    def __init__(self, directory: str, fs: ScannerFS, *, real: str | None = None) -> None:
        self.directory = directory
        self.fs = fs
        self.is_isolated = real is None
        self.root = real or f"scanned_{next(_numbers)}"
        self.namespaces: dict[str, str] = {}
        """The namespace of each module, by the module's name."""
        if self.is_isolated:
            self.install()

    def install(self) -> None:
        """Register the tree permanently with the import system: functions may import sibling modules when called."""
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _finder.trees[self.root] = self

    def module_name(self, parts: Sequence[str]) -> str:
        """Return the name in `sys.modules` of the module at a path below the top directory."""
        return ".".join((self.root, *parts))

    def locate(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """Return the import spec of a module or package by its name in `sys.modules`; None if it does not exist."""
        directory = self.directory
        parts = name.split(".")[1:]
        if not parts and directory.endswith(".py"):
            return self._spec(name, directory, package=None)
        if parts:
            directory = posixpath.join(directory, *parts[:-1])
            names = self._names(directory)
            if parts[-1] not in names and f"{parts[-1]}.py" in names:
                return self._spec(name, posixpath.join(directory, f"{parts[-1]}.py"), package=None)
            if parts[-1] not in names:
                return None
            directory = posixpath.join(directory, parts[-1])
        if "__init__.py" in self._names(directory):
            return self._spec(name, posixpath.join(directory, "__init__.py"), package=directory)
        if parts and f"{parts[-1]}.py" in self._names(posixpath.dirname(directory)):
            return self._spec(name, f"{directory}.py", package=None)
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [directory]
        return spec

    def _spec(self, name: str, path: str, *, package: str | None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(
            name, path, loader=_Loader(self, path), submodule_search_locations=None if package is None else [package]
        )

    def _names(self, directory: str) -> set[str]:
        try:
            return {entry.name for entry in self.fs.list(directory)}
        except OSError:
            return set()


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module through the scan's file system, without bytecode files.

    It does not use the abstract base classes of `importlib.abc`, because importing them takes three milliseconds.
    """

    def __init__(self, tree: ModuleTree, path: str) -> None:
        super().__init__("", path)
        self._tree = tree
        self._path = path

    def get_filename(self, name: str | None = None) -> str:
        return self._path

    def path_stats(self, path: Any) -> Any:  # because it raises, the base class neither reads nor writes bytecode
        raise OSError(f"{path!r} has no bytecode")

    def get_data(self, path: Any) -> bytes:
        if path != self._path:
            raise OSError(f"{path!r} is not read")
        return self._tree.fs.read(self._path)

    def exec_module(self, module: ModuleType) -> None:
        namespace = self._tree.namespaces.get(module.__name__)
        if namespace is not None:
            setattr(module, NAMESPACE_VARIABLE, namespace)
        super().exec_module(module)


class _Finder:
    """Finds the modules of registered trees only."""

    def __init__(self) -> None:
        self.trees: dict[str, ModuleTree] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tree = self.trees.get(fullname.partition(".")[0])
        return None if tree is None else tree.locate(fullname)


_finder = _Finder()


class ScanTarget(msgspec.Struct, frozen=True):
    """The target of a scan: a directory of a module tree, or one of its files."""

    tree: ModuleTree
    directory: str
    parts: tuple[str, ...]
    """Path from the tree's top to the directory."""
    only: str | None = None
    """The only file to scan; None for all."""


class Walk(msgspec.Struct, frozen=True):
    """The modules of a scan target."""

    modules: dict[str, ModuleFile]
    """The modules by file path, in the order in which they are imported."""
    directories: list[str]
    skipped: list[Skipped]


def walk(scan_target: ScanTarget) -> Walk:
    """Return every module of a scan target; a directory that cannot be listed is reported in `skipped`."""
    found = Walk({}, [], [])
    seen: set[str] = set()
    _walk_directory(scan_target, scan_target.directory, (), found, seen)
    return found


def top_of_package(directory: str, fs: ScannerFS) -> tuple[str, tuple[str, ...]]:
    """Return the top directory of the package that contains `directory`, and the path from there to `directory`.

    If `directory` is not in a package, return `directory` itself and an empty path.
    """
    parts: tuple[str, ...] = ()
    while (
        _has_init(directory, fs)
        and posixpath.dirname(directory) != directory
        and _has_init(posixpath.dirname(directory), fs)
    ):
        parts = (posixpath.basename(directory), *parts)
        directory = posixpath.dirname(directory)
    return directory, parts


def _walk_directory(
    scan_target: ScanTarget, directory: str, below: tuple[str, ...], found: Walk, seen: set[str]
) -> None:
    if isinstance(scan_target.tree.fs, LocalFS):
        real = os.path.realpath(directory)
        if real in seen:
            return
        seen.add(real)
    try:
        entries = sorted(scan_target.tree.fs.list(directory), key=lambda entry: entry.name)
    except OSError as error:
        found.skipped.append(Skipped(directory, f"cannot list the directory: {error.strerror or error}"))
        return
    if scan_target.only is None:
        found.directories.append(directory)
    for entry in _relevant(entries, scan_target, directory):
        path = posixpath.join(directory, entry.name)
        if not entry.is_directory:
            _add(scan_target, path, below, entry, found)
        elif len(below) < _MAX_DEPTH:
            _walk_directory(scan_target, path, (*below, entry.name), found, seen)


def _relevant(entries: list[FileEntry], scan_target: ScanTarget, directory: str) -> Iterator[FileEntry]:
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return  # a virtual environment
    for entry in entries:
        path = posixpath.join(directory, entry.name)
        hidden = entry.name.startswith(".") or entry.name in _IGNORED
        if hidden or (not entry.is_directory and not entry.name.endswith(".py")):
            continue
        if scan_target.only is None or path == scan_target.only:
            yield entry


def _add(scan_target: ScanTarget, path: str, below: tuple[str, ...], entry: FileEntry, found: Walk) -> None:
    stem = entry.name.removesuffix(".py")
    if stem == "__main__":
        found.skipped.append(Skipped(path, "a program (__main__), not a module"))
        return
    if "." in stem or any("." in part for part in below):
        found.skipped.append(Skipped(path, "cannot be imported: its path has a name with a dot"))
        return
    parts = below if stem == "__init__" else (*below, stem)
    is_top_module = path == scan_target.tree.directory
    name = scan_target.tree.root if is_top_module else scan_target.tree.module_name((*scan_target.parts, *parts))
    namespace = None
    if scan_target.tree.is_isolated:
        namespace = ".".join(
            re.sub(_UNUSABLE, "_", part) for part in parts or (Path(scan_target.directory).name or "main",)
        )
        scan_target.tree.namespaces[name] = namespace
    found.modules[path] = ModuleFile(path, name, namespace, _stamp(scan_target.tree.fs, path, entry))


def _stamp(fs: ScannerFS, path: str, entry: FileEntry) -> object:
    """Return a value that changes with the file: its stamp, else its content; None if it cannot be read."""
    if entry.stamp is not None:
        return entry.stamp
    try:
        return fs.read(path)
    except OSError:
        return None


def _has_init(directory: str, fs: ScannerFS) -> bool:
    try:
        return any(entry.name == "__init__.py" for entry in fs.list(directory))
    except OSError:
        return False
