"""OperationManifest: the operations of scanned modules, and what was skipped and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec

from operations.function import FunctionOperation
from operations.schema import collect_errors, format_value_errors
from operations.spec import Operation, OperationSpec, OperationSpecSchema


class Skipped(msgspec.Struct, frozen=True):
    """Something that is not among the operations."""

    path: str
    """The file or, for one operation of a file, its id."""
    reason: str


class OperationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of a directory or package."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    """Specs without a handler, which is registered separately."""
    skipped: Sequence[Skipped] = ()
    origins: Mapping[str, str] = {}
    """The file of each operation and spec, by id."""
    files: Sequence[str] = ()
    """Every directory and module file that was read: a change to one of them may change the operations."""


class ManifestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two scans."""

    manifest: OperationManifest
    added: Sequence[str] = ()
    replaced: Sequence[str] = ()
    removed: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    """Changed files that could not be imported: their operations stay as they were."""


class Found(msgspec.Struct, frozen=True):
    """The operations and specs of one module."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()


def collect(module: ModuleType) -> Found:
    """Return the operations and specs that a module defines; imported ones only where `__all__` names them.

    Reads `vars()` and `type()` only: a module's `__getattr__` or a lazy object's `__class__` may raise.
    """
    exported = vars(module).get("__all__", ())
    operations: dict[int, Operation[Any]] = {}
    specs: dict[int, OperationSpec] = {}
    for name, value in list(vars(module).items()):
        if issubclass(type(value), Operation) and (name in exported or not _is_imported(value, module)):
            operations.setdefault(id(value), value)
        elif issubclass(type(value), OperationSpec):
            specs.setdefault(id(value), value)
    return Found(list(operations.values()), list(specs.values()))


def assemble(found: Mapping[str, Found], skipped: Iterable[Skipped], files: Sequence[str]) -> OperationManifest:
    """Return one manifest of all modules, by path; a duplicate id is skipped and names the first file."""
    left_out = list(skipped)
    operations: dict[str, Operation[Any]] = {}
    specs: dict[str, OperationSpec] = {}
    origins: dict[str, str] = {}
    for path, has in found.items():
        for operation in has.operations:
            _claim(operations, operation, path, origins, left_out)
    for path, has in found.items():
        for spec in has.specs:
            if spec.id in operations:
                if operations[spec.id].spec is not spec:
                    left_out.append(Skipped(path, f"{spec.id} is defined in {origins[spec.id]} already"))
                continue
            problems = collect_errors(OperationSpecSchema, spec.to_dict())
            if problems:
                left_out.append(Skipped(path, f"{spec.id} is not a valid spec: {format_value_errors(problems)}"))
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
        left_out.append(Skipped(path, f"{value.id} is defined in {origins[value.id]} already"))


def _is_imported(operation: Operation[Any], module: ModuleType) -> bool:
    """Whether a function's operation is defined in another module, under the function's name."""
    if not isinstance(operation, FunctionOperation):
        return False
    home = sys.modules.get(getattr(operation.function, "__module__", None) or "")
    if home is None or home is module:
        return False
    return vars(home).get(getattr(operation.function, "__name__", "")) is operation
