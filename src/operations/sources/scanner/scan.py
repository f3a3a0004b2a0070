"""scan_operations: find modules, import them, collect operations; Scanner repeats it for changed modules."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from operations.errors import CallError, ErrorCode
from operations.sources.scanner.files import LocalFS, ScannerFS
from operations.sources.scanner.isolation import import_isolated
from operations.sources.scanner.manifest import (
    Found,
    ManifestChange,
    OperationManifest,
    Skipped,
    assemble,
    collect,
)
from operations.sources.scanner.modules import ModuleFile, ModuleTree, Place, Walk, top_of_package, walk

_PACKAGE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def scan_operations(path: str | Path, fs: ScannerFS | None = None, *, timeout: float = 30.0) -> OperationManifest:
    """Return the operations in a directory, a file or an importable package, and what was skipped and why.

    Each module is imported on its own: one that raises, exits, hangs for `timeout` seconds or cannot be read is
    reported in `skipped` and stops nothing. `fs` is where the modules are read from: the machine's files if not given.
    """
    return Scanner(path, fs, timeout=timeout).scan()


class Scanner:
    """A scan that can be repeated for changed modules."""

    def __init__(self, path: str | Path, fs: ScannerFS | None = None, *, timeout: float = 30.0) -> None:
        self._place = _find_place(path, fs, timeout)
        self._timeout = timeout
        self._found: dict[str, Found] = {}
        self._failed: dict[str, str] = {}
        self._walked = Walk({}, [], [])
        self._manifest = OperationManifest()

    def scan(self) -> OperationManifest:
        """Import every module."""
        self._walked = walk(self._place)
        for module in self._walked.modules.values():
            self._take(module)
        return self._assemble()

    def rescan(self) -> ManifestChange | None:
        """Import changed modules and their importers again; None where nothing changed.

        A module that cannot be imported any more keeps the operations it had.
        """
        before, after = self._walked, walk(self._place)
        changed = {path for path, module in after.modules.items() if before.modules.get(path) != module}
        gone = before.modules.keys() - after.modules.keys()
        if not changed and not gone and before.folders == after.folders:
            return None
        names = self._affected(before, after, changed | gone)
        self._walked = after
        for path in gone:
            self._found.pop(path, None)
            self._failed.pop(path, None)
            sys.modules.pop(before.modules[path].name, None)
        again = [module for module in after.modules.values() if module.name in names]
        self._reload(again)
        old, new = self._manifest, self._assemble()
        paths = {module.path for module in again}
        return _compare(old, new, [skip for skip in new.skipped if skip.path in paths])

    def _take(self, module: ModuleFile) -> bool:
        """Import a module and store what it defines; after a failure the previous definitions stay."""
        outcome = import_isolated(module.name, module.path, collect, timeout=self._timeout)
        if isinstance(outcome, str):
            self._failed[module.path] = outcome
            return False
        self._failed.pop(module.path, None)
        self._found[module.path] = outcome
        return True

    def _reload(self, modules: Iterable[ModuleFile]) -> None:
        self._place.tree.install()
        importlib.invalidate_caches()
        set_aside = {module.name: sys.modules.pop(module.name, None) for module in modules}
        for module in modules:
            earlier = set_aside[module.name]
            if not self._take(module) and earlier is not None:
                sys.modules[module.name] = earlier
            elif earlier is not None:
                _adopt_children(module.name, earlier)

    def _affected(self, before: Walk, after: Walk, paths: set[str]) -> set[str]:
        known = {**before.modules, **after.modules}
        imports = {}
        for path, module in after.modules.items():
            try:
                source = self._place.tree.fs.read(path)
            except OSError:
                continue
            is_package = posixpath.basename(path) == "__init__.py"
            imports[module.name] = imported_names(source, module.name, is_package=is_package)
        return affected((known[path].name for path in paths), imports)

    def _assemble(self) -> OperationManifest:
        walked = self._walked
        found = {path: self._found[path] for path in walked.modules if path in self._found}
        failed = [Skipped(path, self._failed[path]) for path in walked.modules if path in self._failed]
        self._manifest = assemble(found, [*walked.skipped, *failed], [*walked.folders, *walked.modules])
        return self._manifest


def _find_place(path: str | Path, fs: ScannerFS | None, timeout: float) -> Place:
    """Return the place of a path or of a package's name."""
    text = str(path)
    if fs is not None:
        return _folder_place(text, fs, is_file=text.endswith(".py"))
    local = LocalFS()
    location = os.path.abspath(os.path.expanduser(text))
    if os.path.isdir(location):
        return _folder_place(location, local, is_file=False)
    if os.path.isfile(location):
        if not location.endswith(".py"):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{text} is not a Python module: its name does not end in .py")
        return _folder_place(location, local, is_file=True)
    if isinstance(path, str) and _PACKAGE.fullmatch(text) and not text.endswith(".py"):
        return _package_place(text, local, timeout)
    raise CallError(ErrorCode.VALIDATION_ERROR, f"there is no folder or file {text}")


def _folder_place(location: str, fs: ScannerFS, *, is_file: bool) -> Place:
    folder = posixpath.dirname(location) if is_file else location.rstrip("/") or "/"
    top, parts = top_of_package(folder, fs)
    return Place(ModuleTree(top, fs), folder, parts, location if is_file else None)


def _package_place(name: str, fs: ScannerFS, timeout: float) -> Place:
    """Return the place of an importable package or module."""
    root, *parts = name.split(".")
    if parts:
        # Finding a module imports its parent packages, which may run any code.
        outcome = import_isolated(".".join((root, *parts[:-1])), "", lambda module: module, timeout=timeout)
        if isinstance(outcome, str):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the package {name!r} cannot be imported: {outcome}")
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        message = f"there is no folder, file or importable package {name!r}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    for folder in spec.submodule_search_locations or ():
        top = posixpath.normpath(posixpath.join(folder, *[".."] * len(parts)))
        return Place(ModuleTree(top, fs, real=root), folder, tuple(parts))
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not a package of Python files")
    folder = posixpath.dirname(spec.origin)
    if not parts:
        return Place(ModuleTree(spec.origin, fs, real=root), folder, (), spec.origin)
    top = posixpath.normpath(posixpath.join(folder, *[".."] * (len(parts) - 1)))
    return Place(ModuleTree(top, fs, real=root), folder, tuple(parts[:-1]), spec.origin)


def _adopt_children(name: str, earlier: ModuleType) -> None:
    """Attach the submodules that were not reloaded to a package that was."""
    package = sys.modules[name]
    for attribute, value in vars(earlier).items():
        if issubclass(type(value), ModuleType) and sys.modules.get(f"{name}.{attribute}") is value:
            vars(package).setdefault(attribute, value)


def _compare(before: OperationManifest, after: OperationManifest, skipped: list[Skipped]) -> ManifestChange:
    old = {operation.id: operation for operation in before.operations}
    new = {operation.id: operation for operation in after.operations}
    old_specs = {spec.id: spec for spec in before.specs}
    new_specs = {spec.id: spec for spec in after.specs}
    return ManifestChange(
        manifest=after,
        added=sorted((new.keys() | new_specs.keys()) - old.keys() - old_specs.keys()),
        replaced=sorted(
            [id for id in new.keys() & (old.keys() | old_specs.keys()) if new[id] is not old.get(id)]
            + [id for id in new_specs.keys() & (old.keys() | old_specs.keys()) if new_specs[id] != old_specs.get(id)]
        ),
        removed=sorted((old.keys() | old_specs.keys()) - new.keys() - new_specs.keys()),
        skipped=skipped,
    )


def imported_names(source: bytes, module: str, *, is_package: bool) -> frozenset[str]:
    """Return the full names that a module's source may import: modules, and `module.name` of from-imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(names)


def affected(changed: Iterable[str], imports: Mapping[str, frozenset[str]]) -> set[str]:
    """Return the changed modules and all their direct and indirect importers."""
    reached = set(changed)
    waiting = list(reached)
    while waiting:
        name = waiting.pop()
        for module, imported in imports.items():
            if module not in reached and name in imported:
                reached.add(module)
                waiting.append(module)
    return reached


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    above = node.level - (1 if is_package else 0)
    kept = parts[: len(parts) - above] if above else parts
    return ".".join((*kept, node.module)) if node.module else ".".join(kept)
