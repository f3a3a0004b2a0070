"""Exposure: which operations of a registry are served, and which of those a caller sees. It knows no protocol."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from operations.access import check_access
from operations.catalogue import unknown_operation
from operations.context import Identity
from operations.errors import CallError
from operations.registry import OperationRegistry
from operations.spec import OPEN, Operation, OperationType

_MOST_VIEWS = 1_000
"""Number of views kept; each is a mapping of the operations that one set of rights sees."""


class Rights(msgspec.Struct, frozen=True):
    """The part of an identity that decides which exposed operations it may call. Equal rights see equal lists."""

    scopes: frozenset[str] = frozenset()
    actions: frozenset[tuple[str, str]] = frozenset()
    """Kinds of resource with an action on them."""


NO_RIGHTS = Rights()


class Exposure:
    """The operations that are served: those that `allow` matches (all without one) and `deny` does not.

    Patterns are shell patterns on ids. `read_only` serves queries and subscriptions only. Changes of the registry are
    visible at once.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        read_only: bool = False,
    ) -> None:
        self.registry = registry
        self._allow = _patterns("allow", allow)
        self._deny = _patterns("deny", deny)
        self._read_only = read_only
        self._generation = -1
        self._operations: dict[str, Operation[Any]] = {}
        self._scopes: frozenset[str] = frozenset()
        self._resources: frozenset[tuple[str | None, str | None]] = frozenset()
        self._views: OrderedDict[Rights, Mapping[str, Operation[Any]]] = OrderedDict()

    @property
    def generation(self) -> int:
        """A number that grows with each change of the registry: the key of caches made from the lists."""
        return self.registry.generation

    @property
    def operations(self) -> Mapping[str, Operation[Any]]:
        """The exposed operations by id, in order of id, whoever asks."""
        if self._generation != self.registry.generation:
            self._refresh()
        return self._operations

    def rights(self, identity: Identity | None) -> Rights:
        """Return what an identity holds of what any exposed operation requires."""
        self.operations  # noqa: B018  # refreshes what the operations mention
        if identity is None or not (self._scopes or self._resources):
            return NO_RIGHTS
        actions = set()
        for resource, allowed in identity.resources.items():
            kind = resource.partition(":")[0]
            for wanted_kind, action in self._resources:
                if wanted_kind in (None, kind) and (action is None or action in allowed):
                    actions.add((wanted_kind or "", action or ""))
        return Rights(self._scopes.intersection(identity.scopes), frozenset(actions))

    def visible(self, identity: Identity | None) -> Mapping[str, Operation[Any]]:
        """Return the operations that an identity may call, by id, in order of id."""
        rights = self.rights(identity)
        view = self._views.get(rights)
        if view is None:
            view = {
                operation_id: operation
                for operation_id, operation in self.operations.items()
                if operation.spec.access_control == OPEN
                or check_access(operation.spec.access_control, identity).allowed
            }
            self._views[rights] = view
            if len(self._views) > _MOST_VIEWS:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(rights)
        return view

    def not_found(self, operation_id: str, identity: Identity | None) -> CallError:
        """Return the error for an id that is not served; it suggests only operations that the caller may call."""
        return unknown_operation(operation_id, self.visible(identity))

    def _refresh(self) -> None:
        """Read the registry again."""
        self._generation = self.registry.generation
        registered = self.registry.operations
        self._operations = {each: registered[each] for each in sorted(registered) if self._is_exposed(registered[each])}
        required = [operation.spec.access_control for operation in self._operations.values()]
        self._scopes = frozenset(
            scope for access in required for scope in (*access.required_scopes, *access.required_scopes_any)
        )
        self._resources = frozenset(
            (access.resource_type, access.resource_action)
            for access in required
            if access.resource_type is not None or access.resource_action is not None
        )
        self._views.clear()

    def _is_exposed(self, operation: Operation[Any]) -> bool:
        if operation.handler is None and operation.stream is None:
            return False
        if self._read_only and operation.spec.type == OperationType.MUTATION:
            return False
        operation_id = operation.id
        if self._allow and not any(fnmatchcase(operation_id, pattern) for pattern in self._allow):
            return False
        return not any(fnmatchcase(operation_id, pattern) for pattern in self._deny)


def _patterns(name: str, patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise ValueError(f"{name} is the text {patterns!r}: give a list of patterns, as [{patterns!r}]")
    return tuple(patterns)
