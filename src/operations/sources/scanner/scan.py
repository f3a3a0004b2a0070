"""scan_operations: find modules, import them and collect their operations in a manifest.

`Scanner` repeats the scan for changed modules.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.function import FunctionOperation
from operations.schema import collect_errors, format_value_errors
from operations.sources.scanner.isolation import import_isolated
from operations.sources.scanner.modules import (
    LocalFS,
    ModuleFile,
    ModuleTree,
    ScannerFS,
    ScanTarget,
    Skipped,
    Walk,
    top_of_package,
    walk,
)
from operations.spec import Operation, OperationSpec, OperationSpecSchema

_log = logging.getLogger("operations")
_PACKAGE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_SPEC_KEYS = frozenset({"name", "namespace", "type", "inputSchema"})
"""A dict with these keys is treated as a spec."""


class OperationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of a directory or package."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    """Specs without handlers; a program registers their handlers separately."""
    skipped: Sequence[Skipped] = ()
    origins: Mapping[str, str] = {}
    """The file of each operation and spec, by id."""
    files: Sequence[str] = ()
    """Every directory and module file that was read: a change to one may change the operations."""

    def __iter__(self) -> Iterator[Operation[Any]]:
        """Iterate over the operations, so that `OperationRegistry(manifest)` registers them."""
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def by_id(self) -> dict[str, Operation[Any] | OperationSpec]:
        """The operations, and the specs without handlers, by id."""
        operations: dict[str, Operation[Any] | OperationSpec] = {each.id: each for each in self.operations}
        return operations | {spec.id: spec for spec in self.specs}


class ManifestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two scans."""

    manifest: OperationManifest
    added: Sequence[str] = ()
    replaced: Sequence[str] = ()
    removed: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    """Skipped files and operations of the modules that were imported again.

    A module that cannot be imported keeps its previous operations.
    """


class ModuleDefinitions(msgspec.Struct, frozen=True):
    """The operations and specs of one module."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    invalid: Sequence[str] = ()
    """Reasons why mappings that look like specs are invalid."""


def scan_operations(path: str | Path, fs: ScannerFS | None = None, *, timeout: float = 30.0) -> OperationManifest:
    """Return the operations in a directory, a file or an importable package, and what was skipped.

    Each module is imported in isolation. A module that raises, exits, hangs for `timeout` seconds or cannot be read is
    reported in `skipped` and logged as a warning. `fs` is the file system to read from, by default the local one.
    """
    manifest = Scanner(path, fs, timeout=timeout).scan()
    for skipped in manifest.skipped:
        _log.warning("%s is not used: %s", skipped.path, skipped.reason)
    return manifest


class Scanner:
    """A scan that can be repeated for changed modules."""

    def __init__(self, path: str | Path, fs: ScannerFS | None = None, *, timeout: float = 30.0) -> None:
        self._scan_target = _find_target(path, fs, timeout)
        self._timeout = timeout
        self._found: dict[str, ModuleDefinitions] = {}
        self._failed: dict[str, str] = {}
        self._walked = Walk({}, [], [])
        self._manifest = OperationManifest()

    def scan(self) -> OperationManifest:
        """Import every module and return the manifest."""
        self._walked = walk(self._scan_target)
        for module in self._walked.modules.values():
            self._import(module)
        return self._assemble()

    def rescan(self) -> ManifestChange | None:
        """Import changed modules and their importers again; return the change, or None if nothing changed.

        A module that can no longer be imported keeps its operations.
        """
        before, after = self._walked, walk(self._scan_target)
        changed = {path for path, module in after.modules.items() if before.modules.get(path) != module}
        gone = before.modules.keys() - after.modules.keys()
        if not changed and not gone and before.directories == after.directories:
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

    def _import(self, module: ModuleFile) -> bool:
        """Import a module and store its definitions. On failure, keep the previous ones and return False."""
        outcome = import_isolated(module.name, module.path, _collect, timeout=self._timeout)
        if isinstance(outcome, str):
            self._failed[module.path] = outcome
            return False
        self._failed.pop(module.path, None)
        self._found[module.path] = outcome
        return True

    def _reload(self, modules: Iterable[ModuleFile]) -> None:
        self._scan_target.tree.install()
        importlib.invalidate_caches()
        unloaded = {module.name: sys.modules.pop(module.name, None) for module in modules}
        for module in modules:
            earlier = unloaded[module.name]
            if not self._import(module) and earlier is not None:
                sys.modules[module.name] = earlier
            elif earlier is not None:
                _adopt_children(module.name, earlier)

    def _affected(self, before: Walk, after: Walk, paths: set[str]) -> set[str]:
        known = {**before.modules, **after.modules}
        imports = {}
        for path, module in after.modules.items():
            try:
                source = self._scan_target.tree.fs.read(path)
            except OSError:
                continue
            is_package = posixpath.basename(path) == "__init__.py"
            imports[module.name] = imported_names(source, module.name, is_package=is_package)
        return affected((known[path].name for path in paths), imports)

    def _assemble(self) -> OperationManifest:
        walked = self._walked
        found = {path: self._found[path] for path in walked.modules if path in self._found}
        failed = [Skipped(path, self._failed[path]) for path in walked.modules if path in self._failed]
        self._manifest = _assemble(found, [*walked.skipped, *failed], [*walked.directories, *walked.modules])
        return self._manifest


def _collect(module: ModuleType) -> ModuleDefinitions:
    """Return the specs in a module, the operations that it defines, and imported operations in its `__all__`.

    Reads `vars()` and `type()` only: a module's `__getattr__` or a lazy object's `__class__` may raise.
    """
    exported = vars(module).get("__all__", ())
    operations: dict[int, Operation[Any]] = {}
    specs: dict[int, OperationSpec] = {}
    invalid: list[str] = []
    for name, value in list(vars(module).items()):
        if issubclass(type(value), Operation) and (name in exported or not _is_imported(value, module)):
            operations.setdefault(id(value), value)
        elif issubclass(type(value), OperationSpec):
            specs.setdefault(id(value), value)
        elif type(value) is dict and value.keys() >= _SPEC_KEYS:
            problems = collect_errors(OperationSpecSchema, value)
            if problems:
                invalid.append(f"{name} is not an operation spec: {format_value_errors(problems)}")
            else:
                specs.setdefault(id(value), OperationSpec.from_dict(value))
    return ModuleDefinitions(list(operations.values()), list(specs.values()), invalid)


def _assemble(
    found: Mapping[str, ModuleDefinitions], skipped: Iterable[Skipped], files: Sequence[str]
) -> OperationManifest:
    """Merge the definitions of all modules into one manifest, in the order of `found`; skip a duplicate id."""
    left_out = list(skipped)
    operations: dict[str, Operation[Any]] = {}
    specs: dict[str, OperationSpec] = {}
    origins: dict[str, str] = {}
    left_out += [Skipped(path, reason) for path, has in found.items() for reason in has.invalid]
    for path, has in found.items():
        for operation in has.operations:
            _claim(operations, operation, path, origins, left_out)
    for path, has in found.items():
        for spec in has.specs:
            if spec.id in operations:
                if operations[spec.id].spec is not spec:
                    left_out.append(Skipped(path, f"duplicate id {spec.id}: already defined in {origins[spec.id]}"))
                continue
            problems = collect_errors(OperationSpecSchema, spec.to_dict())
            if problems:
                left_out.append(Skipped(path, f"invalid spec {spec.id}: {format_value_errors(problems)}"))
                continue
            _claim(specs, spec, path, origins, left_out)
    return OperationManifest(
        operations=list(operations.values()),
        specs=list(specs.values()),
        skipped=left_out,
        origins=origins,
        files=files,
    )


def _claim(taken: dict[str, Any], value: Any, path: str, origins: dict[str, str], left_out: list[Skipped]) -> None:
    if value.id not in taken:
        taken[value.id] = value
        origins[value.id] = path
    elif taken[value.id] is not value:
        left_out.append(Skipped(path, f"duplicate id {value.id}: already defined in {origins[value.id]}"))


def _is_imported(operation: Operation[Any], module: ModuleType) -> bool:
    """Whether another module defines the operation: its function's module has it under the function's name."""
    if not isinstance(operation, FunctionOperation):
        return False
    home = sys.modules.get(getattr(operation.function, "__module__", None) or "")
    if home is None or home is module:
        return False
    return vars(home).get(getattr(operation.function, "__name__", "")) is operation


def _find_target(path: str | Path, fs: ScannerFS | None, timeout: float) -> ScanTarget:
    """Return the scan target for a path or a package's name."""
    text = str(path)
    if fs is not None:
        return _directory_target(text, fs, is_file=text.endswith(".py"))
    local = LocalFS()
    location = os.path.abspath(os.path.expanduser(text))
    if os.path.isdir(location):
        return _directory_target(location, local, is_file=False)
    if os.path.isfile(location):
        if not location.endswith(".py"):
            raise CallError(
                ErrorCode.VALIDATION_ERROR, f"{text} is not a Python module: expected a name that ends in .py"
            )
        return _directory_target(location, local, is_file=True)
    if isinstance(path, str) and re.fullmatch(_PACKAGE, text) and not text.endswith(".py"):
        return _package_target(text, local, timeout)
    raise CallError(ErrorCode.VALIDATION_ERROR, f"no such directory or file: {text}")


def _directory_target(location: str, fs: ScannerFS, *, is_file: bool) -> ScanTarget:
    directory = posixpath.dirname(location) if is_file else location.rstrip("/") or "/"
    top, parts = top_of_package(directory, fs)
    return ScanTarget(ModuleTree(top, fs), directory, parts, location if is_file else None)


def _package_target(name: str, fs: ScannerFS, timeout: float) -> ScanTarget:
    """Return the scan target for an importable package or module."""
    root, *parts = name.split(".")
    if parts:
        # Finding a module imports its parent packages, which may run any code.
        outcome = import_isolated(".".join((root, *parts[:-1])), "", lambda module: module, timeout=timeout)
        if isinstance(outcome, str):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot import package {name!r}: {outcome}")
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        message = f"no such directory, file or importable package: {name!r}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    for directory in spec.submodule_search_locations or ():
        top = posixpath.normpath(posixpath.join(directory, *[".."] * len(parts)))
        return ScanTarget(ModuleTree(top, fs, real=root), directory, tuple(parts))
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name} is not a package of Python files")
    directory = posixpath.dirname(spec.origin)
    if not parts:
        return ScanTarget(ModuleTree(spec.origin, fs, real=root), directory, (), spec.origin)
    top = posixpath.normpath(posixpath.join(directory, *[".."] * (len(parts) - 1)))
    return ScanTarget(ModuleTree(top, fs, real=root), directory, tuple(parts[:-1]), spec.origin)


def _adopt_children(name: str, earlier: ModuleType) -> None:
    """Attach the submodules that were not reloaded to a reloaded package."""
    package = sys.modules[name]
    for attribute, value in vars(earlier).items():
        if issubclass(type(value), ModuleType) and sys.modules.get(f"{name}.{attribute}") is value:
            vars(package).setdefault(attribute, value)


def _compare(before: OperationManifest, after: OperationManifest, skipped: list[Skipped]) -> ManifestChange:
    old, new = before.by_id, after.by_id
    return ManifestChange(
        manifest=after,
        added=sorted(new.keys() - old.keys()),
        replaced=sorted(each for each in new.keys() & old.keys() if _differs(new[each], old[each])),
        removed=sorted(old.keys() - new.keys()),
        skipped=skipped,
    )


def _differs(new: Operation[Any] | OperationSpec, old: Operation[Any] | OperationSpec) -> bool:
    return new is not old if isinstance(new, Operation) else new != old


def imported_names(source: bytes, module: str, *, is_package: bool) -> frozenset[str]:
    """Return the full names that a module's source may import; for `from a import b`, both `a` and `a.b`."""
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
