"""OperationCatalogue: the registry's memory of which operations there are; it calls none of them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.spec import Handler, Operation, OperationSpec, OperationType, Stream

_MOST_COMPARED = 2_000
"""How many ids are compared to suggest the nearest ones: more would let a stranger's typing errors cost too much."""


class OperationCatalogue:
    """Register, find and list operations by id."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation[Any]] = {}
        """The operations by id; change them by `register` and `unregister` only."""
        self.generation = 0
        """Grows with each registration, replacement and removal: the key of caches made from the operations."""
        self._aliases: dict[str, list[str]] | None = None
        self._watchers: list[Callable[[], None]] = []

    def register(self, operation: Operation[Any], *, replace: bool = False) -> None:
        """Add an operation; an id that is there already is an error unless `replace`."""
        self.register_all([operation], replace=replace)

    def register_all(self, operations: Iterable[Operation[Any]], *, replace: bool = False) -> None:
        """Add operations, all of them or, where one cannot be, none."""
        added: dict[str, Operation[Any]] = {}
        for operation in operations:
            if not isinstance(operation, Operation):
                raise TypeError(explain_operation(operation))
            operation_id = operation.id
            if not replace and (operation_id in self.operations or operation_id in added):
                raise _already(operation_id)
            added[operation_id] = operation
        self.operations.update(added)
        self._changed()

    def register_spec(self, spec: OperationSpec, *, replace: bool = False) -> None:
        """Add an operation without what runs it, which `register_handler` adds."""
        self.register(Operation(spec=spec), replace=replace)

    def register_handler(
        self, operation_id: str, handler: Handler | Stream, *, inline: bool = False, replace: bool = False
    ) -> None:
        """Give a registered spec what runs it; an async generator becomes its stream, anything else its handler."""
        operation = self._require(operation_id)
        streams = inspect.isasyncgenfunction(handler) or inspect.isasyncgenfunction(type(handler).__call__)
        if not replace and (operation.stream if streams else operation.handler) is not None:
            raise _already(operation_id, f"{operation_id} has a {'stream' if streams else 'handler'} already")
        change: dict[str, Any] = (
            {"stream": handler} if streams else {"handler": handler, "threaded": False if inline else None}
        )
        self.operations[operation_id] = msgspec.structs.replace(operation, **change)
        self._changed()

    def unregister(self, operation_id: str) -> Operation[Any]:
        """Remove an operation and return it."""
        operation = self._require(operation_id)
        del self.operations[operation_id]
        self._changed()
        return operation

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each registration, replacement and removal, until the returned function is called."""
        self._watchers.append(changed)

        def stop() -> None:
            if changed in self._watchers:
                self._watchers.remove(changed)

        return stop

    def _changed(self) -> None:
        self._aliases = None
        self.generation += 1
        for changed in list(self._watchers):
            changed()

    def get_spec(self, operation_id: str) -> OperationSpec | None:
        """The spec of an operation, or None."""
        operation = self.operations.get(operation_id)
        return None if operation is None else operation.spec

    def get_handler(self, operation_id: str) -> Handler | Stream | None:
        """What runs an operation: its handler, or its stream where it has only that; None without either."""
        operation = self.operations.get(operation_id)
        return None if operation is None else operation.handler or operation.stream

    def get_operation(self, operation_id: str) -> Operation[Any] | None:
        """The operation with an id, or None."""
        return self.operations.get(operation_id)

    def list(
        self,
        *,
        namespace: str | None = None,
        type: OperationType | str | None = None,
        tag: str | None = None,
    ) -> list[OperationSpec]:
        """The specs in order of id: those in a namespace and below it, of a type, with a tag."""
        return [
            operation.spec
            for operation_id, operation in sorted(self.operations.items())
            if (namespace is None or operation_id.startswith(f"{namespace}."))
            and (type is None or operation.spec.type == type)
            and (tag is None or tag in operation.spec.tags)
        ]

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self.operations

    def __len__(self) -> int:
        return len(self.operations)

    def find(self, path: str) -> Operation[Any] | None:
        """The operation at a path, with `_` standing for `-` where that is unambiguous."""
        operation = self.operations.get(path)
        if operation is not None:
            return operation
        if self._aliases is None:
            self._aliases = defaultdict(list)
            for operation_id in self.operations:
                self._aliases[operation_id.replace("-", "_")].append(operation_id)
        candidates = self._aliases.get(path.replace("-", "_"), [])
        if len(candidates) > 1:
            message = f"{path} may be any of {', '.join(sorted(candidates))}: name it in full, env['namespace']['name']"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, message)
        return self.operations[candidates[0]] if candidates else None

    def find_under(self, namespace: str) -> Collection[str]:
        """The ids below a namespace, with `_` standing for `-`; the empty one is above all."""
        prefix = f"{namespace.replace('-', '_')}." if namespace else ""
        return [operation_id for operation_id in self.operations if operation_id.replace("-", "_").startswith(prefix)]

    def not_found(self, operation_id: str) -> CallError:
        """The error for an id that nobody registered; it names the nearest ones."""
        return unknown_operation(operation_id, self.operations)

    def _require(self, operation_id: str) -> Operation[Any]:
        operation = self.operations.get(operation_id)
        if operation is None:
            raise self.not_found(operation_id)
        return operation


def _already(operation_id: str, message: str | None = None) -> CallError:
    message = message or f"{operation_id} is registered already"
    return CallError(ErrorCode.VALIDATION_ERROR, f"{message}; pass replace=True to replace it")


def unknown_operation(operation_id: str, known: Iterable[str]) -> CallError:
    """The error for an id that is none of the known ones; it names the nearest, which it never is itself."""
    from difflib import get_close_matches  # only worth its import when something went wrong

    others = (each for each in known if each != operation_id)
    candidates = sorted(others, key=lambda each: abs(len(each) - len(operation_id)))[:_MOST_COMPARED]
    below = [each for each in candidates if each.startswith(f"{operation_id}.")][:3]
    folded = {each.lower(): each for each in candidates}
    nearest = below or [folded[each] for each in get_close_matches(operation_id.lower(), folded, n=3, cutoff=0.6)]
    if not nearest:
        nearest = [each for each in candidates if each.rpartition(".")[2] == operation_id.rpartition(".")[2]][:3]
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    details = {"operationId": operation_id, "nearest": nearest}
    return CallError(ErrorCode.OPERATION_NOT_FOUND, f"no operation {operation_id!r} is registered{hint}", details)


def explain_operation(value: object) -> str:
    """What to do about something that was given in place of an operation."""
    if isinstance(value, OperationSpec):
        return f"{value.id} is a spec without a handler: use register_spec, or Operation(spec=…, handler=…)"
    if callable(value):
        return f"{getattr(value, '__qualname__', value)!s} is a plain function: decorate it with @operation first"
    return f"an Operation is wanted here, not {type(value).__name__}"
