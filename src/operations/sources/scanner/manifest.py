"""OperationManifest: the operations of scanned modules, and what was skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec

from operations.function import FunctionOperation
from operations.schema import collect_errors, format_value_errors
from operations.spec import Operation, OperationSpec, OperationSpecSchema

_SPEC_KEYS = frozenset({"name", "namespace", "type", "inputSchema"})
"""Keys of a mapping that is meant to be a spec."""


class Skipped(msgspec.Struct, frozen=True):
    """A skipped file or operation, with the reason."""

    path: str
    """The file or, for one operation of a file, its id."""
    reason: str


class OperationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of a directory or package."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    """Specs without handlers, which are registered separately."""
    skipped: Sequence[Skipped] = ()
    origins: Mapping[str, str] = {}
    """The file of each operation and spec, by id."""
    files: Sequence[str] = ()
    """Every directory and module file read: a change to one may change the operations."""

    def __iter__(self) -> Iterator[Operation[Any]]:
        """The operations, so that `OperationRegistry(manifest)` registers them."""
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)


class ManifestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two scans."""

    manifest: OperationManifest
    added: Sequence[str] = ()
    replaced: Sequence[str] = ()
    removed: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    """Changed files that cannot be imported: their previous operations stay."""


class ModuleDefinitions(msgspec.Struct, frozen=True):
    """The operations and specs of one module."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    invalid: Sequence[str] = ()
    """Reasons why mappings that look like specs are invalid."""


def collect(module: ModuleType) -> ModuleDefinitions:
    """Return the operations and specs that a module defines, and imported ones that `__all__` names.

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


def assemble(
    found: Mapping[str, ModuleDefinitions], skipped: Iterable[Skipped], files: Sequence[str]
) -> OperationManifest:
    """Merge all modules into one manifest, by path; a duplicate id is skipped."""
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
    """Whether a function's operation was defined in another module, under the function's name."""
    if not isinstance(operation, FunctionOperation):
        return False
    home = sys.modules.get(getattr(operation.function, "__module__", None) or "")
    if home is None or home is module:
        return False
    return vars(home).get(getattr(operation.function, "__name__", "")) is operation
