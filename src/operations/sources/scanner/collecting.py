"""The operations and specs that a module defines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec

from operations.function import FunctionOperation
from operations.schema import collect_errors, format_value_errors
from operations.sources.scanner.manifest import OperationManifest, Skipped
from operations.spec import Operation, OperationSpec, OperationSpecSchema


class Found(msgspec.Struct, frozen=True):
    """What one module has."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()


def collect(module: ModuleType) -> Found:
    """The operations and specs among a module's names, but those it only imported; `__all__` brings these back.

    No code of the module is asked what its names are: its `__getattr__` or a lazy object's `__class__` may raise.
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
    """One manifest of what all modules have, by path: an id that is there already is reported with where it is."""
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
    """Whether an operation of a function is at home in another module, where it has the function's name."""
    if not isinstance(operation, FunctionOperation):
        return False
    home = sys.modules.get(getattr(operation.function, "__module__", None) or "")
    if home is None or home is module:
        return False
    return vars(home).get(getattr(operation.function, "__name__", "")) is operation
