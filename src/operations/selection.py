"""Selection: the operations of a registry that are exported as tools or served."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from operations.spec import Operation, OperationType


class Selection:
    """The operations that match a shell pattern in `allow` (all if it is empty) and no pattern in `deny`.

    If `tags` is not empty, an operation needs at least one of these tags. `read_only` leaves out mutations.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        tags: Iterable[str] = (),
        read_only: bool = False,
    ) -> None:
        self._allow = _strings("allow", allow)
        self._deny = _strings("deny", deny)
        self._tags = frozenset(_strings("tags", tags))
        if not isinstance(read_only, bool):
            raise ValueError(f"invalid read_only {read_only!r}: expected True or False")
        self._read_only = read_only

    def includes(self, operation: Operation[Any]) -> bool:
        """Whether an operation is selected; false for an operation that has neither handler nor stream."""
        spec = operation.spec
        if operation.handler is None and operation.stream is None:
            return False
        if self._read_only and spec.type is OperationType.MUTATION:
            return False
        if self._tags and self._tags.isdisjoint(spec.tags):
            return False
        return self.matches(spec.id)

    def matches(self, operation_id: str) -> bool:
        """Whether `allow` and `deny` permit an id."""
        if self._allow and not any(fnmatchcase(operation_id, pattern) for pattern in self._allow):
            return False
        return not any(fnmatchcase(operation_id, pattern) for pattern in self._deny)


def _strings(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError(f"invalid {name} {values!r}: expected a list; pass [{values!r}]")
    return tuple(values)
