"""Module trees: a folder of modules under a name of its own, so that equal file names never meet in `sys.modules`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import posixpath
import sys
from collections.abc import Sequence
from types import ModuleType

import msgspec

from operations.function import NAMESPACE_VARIABLE
from operations.sources.scanner.files import ScannerFS

_numbers = itertools.count(1)


class ModuleFile(msgspec.Struct, frozen=True):
    """One module that a scan looks at."""

    path: str
    name: str
    """Its name in `sys.modules`."""
    namespace: str | None
    """The namespace of functions that do not say their own; None where the module's name is the namespace."""
    stamp: object = None


class ModuleTree:
    """A top folder and the name its modules are imported under.

    With `real`, the name of a package or module that can be imported anyway; without, a new one for each tree.
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
        """Import the modules of this tree by reading its files, from now on.

        For good: a function may import its neighbours only when it is called.
        """
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _finder.trees[self.root] = self

    def module_name(self, parts: Sequence[str]) -> str:
        """The name in `sys.modules` of the module at a path below the top folder."""
        return ".".join((self.root, *parts))

    def locate(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module by its name in `sys.modules`; None where no file is there for it."""
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
    """Reads a module through the scan's file system; compiled files are neither read nor written."""

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
    """Finds the modules of trees, and of nothing else."""

    def __init__(self) -> None:
        self.trees: dict[str, ModuleTree] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tree = self.trees.get(fullname.partition(".")[0])
        return None if tree is None else tree.locate(fullname)


_finder = _Finder()
