"""OperationCatalogue: registration and lookup of operations; its subclass `OperationRegistry` also calls them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.spec import Handler, Operation, OperationSpec, OperationType, Stream, streams

if TYPE_CHECKING:
    from operations.search import SearchDocument, SearchIndex

_MAX_COMPARED = 200
"""Maximum number of ids that are compared for suggestions, because any caller can send unknown ids."""


class OperationCatalogue:
    """Registers, finds and lists operations by id."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation[Any]] = {}
        """Operations by id; change the dict only through methods such as `register`."""
        self.generation = 0
        """Counter of registrations, replacements and removals; a cache compares it to detect changes."""
        self._aliases: dict[str, list[str]] | None = None
        self._search_index: SearchIndex | None = None
        self._watchers: list[Callable[[], None]] = []

    def register(self, operation: Operation[Any], *, replace: bool = False) -> None:
        """Add an operation; a duplicate id is an error unless `replace`."""
        self.register_all([operation], replace=replace)

    def register_all(self, operations: Iterable[Operation[Any]], *, replace: bool = False) -> None:
        """Add all operations, or none of them if one is invalid, or a duplicate without `replace`."""
        added: dict[str, Operation[Any]] = {}
        for operation in operations:
            if not isinstance(operation, Operation):
                raise CallError(ErrorCode.VALIDATION_ERROR, explain_operation(operation))
            operation_id = operation.id
            if not replace and (operation_id in self.operations or operation_id in added):
                raise _duplicate_error(operation_id)
            added[operation_id] = operation
        self.operations.update(added)
        self._changed()

    def register_spec(self, spec: OperationSpec, *, replace: bool = False) -> None:
        """Register a spec without a handler; `register_handler` adds the handler later."""
        self.register(Operation(spec=spec), replace=replace)

    def register_handler(
        self, operation_id: str, handler: Handler | Stream, *, inline: bool = False, replace: bool = False
    ) -> None:
        """Add the handler of a registered spec; an async generator function becomes the stream of the operation.

        `inline` runs a plain function on the event loop instead of in a worker thread. A second handler or stream is an
        error unless `replace`.
        """
        operation = self._require(operation_id)
        is_stream = streams(handler)
        if not replace and (operation.stream if is_stream else operation.handler) is not None:
            raise _duplicate_error(operation_id, f"{operation_id} already has a {'stream' if is_stream else 'handler'}")
        change: dict[str, Any] = (
            {"stream": handler} if is_stream else {"handler": handler, "threaded": False if inline else None}
        )
        self.operations[operation_id] = msgspec.structs.replace(operation, **change)
        self._changed()

    def unregister(self, operation_id: str) -> Operation[Any]:
        """Remove an operation and return it; raise `OPERATION_NOT_FOUND` for an unknown id."""
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
        self._search_index = None
        self.generation += 1
        for changed in list(self._watchers):
            changed()

    def get_spec(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of an operation, or None."""
        operation = self.operations.get(operation_id)
        return None if operation is None else operation.spec

    def get_handler(self, operation_id: str) -> Handler | Stream | None:
        """Return an operation's handler, or its stream if it has no handler; None if it has neither."""
        operation = self.operations.get(operation_id)
        return None if operation is None else operation.handler or operation.stream

    def get_operation(self, operation_id: str) -> Operation[Any] | None:
        """Return an operation by id, or None."""
        return self.operations.get(operation_id)

    def list(
        self,
        *,
        namespace: str | None = None,
        type: OperationType | str | None = None,
        tag: str | None = None,
    ) -> list[OperationSpec]:
        """Return the specs, sorted by id.

        A spec is listed if it matches every given parameter: it is in or below `namespace`, and has the `type` and the
        `tag`.
        """
        return [
            operation.spec
            for operation_id, operation in sorted(self.operations.items())
            if (namespace is None or operation_id.startswith(f"{namespace}."))
            and (type is None or operation.spec.type == type)
            and (tag is None or tag in operation.spec.tags)
        ]

    def search(
        self,
        text: str,
        *,
        limit: int = 20,
        namespace: str | None = None,
        type: OperationType | str | None = None,
        tag: str | None = None,
    ) -> Sequence[OperationSpec]:
        """Return the specs that match a query, best match first; the other parameters filter as in `list`.

        The first search after a change of the operations rebuilds the index.
        """
        if self._search_index is None:
            from operations.search import SearchIndex  # imported lazily: most programs do not search

            self._search_index = SearchIndex(search_document(each.spec) for each in self.operations.values())
        found = self._search_index.search(text)
        selected = {spec.id: spec for spec in self.list(namespace=namespace, type=type, tag=tag)}
        return [selected[operation_id] for operation_id in found if operation_id in selected][:limit]

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self.operations

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the sorted ids."""
        return iter(sorted(self.operations))

    def __getitem__(self, operation_id: str) -> Operation[Any]:
        """Return the operation with an id; raise `OPERATION_NOT_FOUND` with similar ids."""
        return self._require(operation_id)

    def find(self, path: str) -> Operation[Any] | None:
        """Return the operation whose id matches `path`, where `_`, `-` and `/` match each other; None if no id matches.

        Raise `OPERATION_NOT_FOUND` if several ids match and none of them is exactly `path`.
        """
        operation = self.operations.get(path)
        if operation is not None:
            return operation
        if self._aliases is None:
            self._aliases = defaultdict(list)
            for operation_id in self.operations:
                self._aliases[attribute_path(operation_id)].append(operation_id)
        candidates = self._aliases.get(attribute_path(path), [])
        if len(candidates) > 1:
            ids = sorted(candidates)
            message = f"ambiguous name {path}: it matches {', '.join(ids)}; write the exact id, as in env[{ids[0]!r}]"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, message)
        return self.operations[candidates[0]] if candidates else None

    def find_under(self, namespace: str) -> Collection[str]:
        """Return the ids in or below a namespace, all ids if it is empty; `_`, `-` and `/` match each other."""
        prefix = f"{attribute_path(namespace)}." if namespace else ""
        return [operation_id for operation_id in self.operations if attribute_path(operation_id).startswith(prefix)]

    def not_found(self, operation_id: str) -> CallError:
        """Return the error for an unknown id, with similar ids."""
        return unknown_operation(operation_id, self.operations)

    def _require(self, operation_id: str) -> Operation[Any]:
        operation = self.operations.get(operation_id)
        if operation is None:
            raise self.not_found(operation_id)
        return operation


def attribute_path(path: str) -> str:
    """Return the attribute path of an id or a namespace in an env: `-` and `/` become `_`."""
    return path.replace("-", "_").replace("/", "_")


def search_document(spec: OperationSpec) -> SearchDocument:
    """Return the searchable text of a spec."""
    from operations.search import SearchDocument

    document = spec.input_schema.document
    properties = document.get("properties") if isinstance(document, dict) else None
    return SearchDocument(
        id=spec.id,
        title=spec.title or "",
        description=spec.description,
        type=spec.type.value,
        method=str(spec.annotations.get("method", "")),
        path=str(spec.annotations.get("path", "")),
        tags=spec.tags,
        fields=list(properties) if isinstance(properties, dict) else (),
    )


def _duplicate_error(operation_id: str, message: str | None = None) -> CallError:
    message = message or f"{operation_id} is already registered"
    return CallError(ErrorCode.VALIDATION_ERROR, f"{message}; pass replace=True to replace it")


def unknown_operation(operation_id: str, known: Iterable[str]) -> CallError:
    """Return the error for an unknown id, with similar known ids."""
    from difflib import get_close_matches  # imported only after an error: it is slow to import

    others = (each for each in known if each != operation_id)
    by_length = sorted(others, key=lambda each: abs(len(each) - len(operation_id)))
    nearest = [each for each in by_length if each.startswith(f"{operation_id}.")][:3]
    if not nearest:
        folded = {each.lower(): each for each in by_length[:_MAX_COMPARED]}
        nearest = [folded[each] for each in get_close_matches(operation_id.lower(), folded, n=3, cutoff=0.6)]
    if not nearest:
        last = f".{operation_id.rpartition('.')[2]}"
        nearest = [each for each in by_length if each.endswith(last)][:3]
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    details = {"operationId": operation_id, "nearest": nearest}
    return CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown operation {operation_id!r}{hint}", details)


def explain_operation(value: object) -> str:
    """Return the error message for a value that is not an operation."""
    if isinstance(value, OperationSpec):
        return f"{value.id} is a spec without a handler: use register_spec, or Operation(spec=…, handler=…)"
    if callable(value):
        return f"{getattr(value, '__qualname__', value)!s} is a plain function: decorate it with @operation first"
    return f"expected an Operation, not {type(value).__name__}"
