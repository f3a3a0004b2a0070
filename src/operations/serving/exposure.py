"""Exposure: the served operations of a registry, and which of them a caller may call.

The module does not depend on a protocol.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from operations.access import check_access, require_access
from operations.catalogue import unknown_operation
from operations.context import Identity
from operations.errors import CallError
from operations.registry import OperationRegistry
from operations.selection import Selection
from operations.spec import OPEN, Operation

_MAX_VIEWS = 1_000
"""Maximum number of cached views. A view holds the operations that one set of rights may call."""


T = TypeVar("T")


class Rights(msgspec.Struct, frozen=True):
    """The scopes and actions of an identity that exposed operations require.

    Callers with equal rights see equal lists of operations.
    """

    scopes: frozenset[str] = frozenset()
    actions: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a resource type and an action."""


NO_RIGHTS = Rights()


class Exposure:
    """The served operations: those that match `allow` (all if it is empty) and do not match `deny`.

    Patterns are shell patterns for ids. `read_only` leaves mutations out. Changes of the registry take effect
    immediately.
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
        self._selection = Selection(allow=allow, deny=deny, read_only=read_only)
        self._generation = -1
        self._operations: dict[str, Operation[Any]] = {}
        self._scopes: frozenset[str] = frozenset()
        self._resources: frozenset[tuple[str | None, str | None]] = frozenset()
        self._views = PerRights(self, self._visible, _MAX_VIEWS)

    @property
    def generation(self) -> int:
        """A number that increases with each change of the registry; caches of lists use it as a key."""
        return self.registry.generation

    @property
    def operations(self) -> Mapping[str, Operation[Any]]:
        """All exposed operations by id, in the order of ids."""
        if self._generation != self.registry.generation:
            self._refresh()
        return self._operations

    def rights(self, identity: Identity | None) -> Rights:
        """Return those scopes and actions of an identity that exposed operations require."""
        self.operations  # noqa: B018  # refreshes the scopes and actions
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
        """Return the operations that an identity may call, by id, in the order of ids."""
        return self._views.of(identity)

    def serves(self, operation_id: str) -> bool:
        """Whether an operation is exposed."""
        return operation_id in self.operations

    def authorize(self, operation_id: str, identity: Identity | None) -> None:
        """Raise an error if an operation is not served, or if the identity may not call it.

        An operation that is not in the registry may be run by another process, for example a spoke of the hub. For such
        an operation, only the patterns `allow` and `deny` are checked.
        """
        operation = self.registry.operations.get(operation_id)
        if operation is None:
            if not self._selection.matches(operation_id):
                raise self.not_found(operation_id, identity)
        elif operation_id not in self.operations:
            raise self.not_found(operation_id, identity)
        else:
            require_access(operation.spec, identity)

    def not_found(self, operation_id: str, identity: Identity | None) -> CallError:
        """Return the error for an unknown id. The error suggests only operations that the caller may call."""
        return unknown_operation(operation_id, self.visible(identity))

    def _refresh(self) -> None:
        """Read the registry again."""
        self._generation = self.registry.generation
        registered = self.registry.operations
        self._operations = {
            each: registered[each] for each in sorted(registered) if self._selection.includes(registered[each])
        }
        required = [operation.spec.access_control for operation in self._operations.values()]
        self._scopes = frozenset(
            scope for access in required for scope in (*access.required_scopes, *access.required_scopes_any)
        )
        self._resources = frozenset(
            (access.resource_type, access.resource_action)
            for access in required
            if access.resource_type is not None or access.resource_action is not None
        )

    def _visible(self, identity: Identity | None) -> Mapping[str, Operation[Any]]:
        return {
            operation_id: operation
            for operation_id, operation in self.operations.items()
            if operation.spec.access_control == OPEN or check_access(operation.spec.access_control, identity).allowed
        }


class PerRights(Generic[T]):
    """Cache of one object for each set of rights, until the registry changes; the least recently used are dropped.

    `make` creates the object for the rights of a caller.
    """

    def __init__(self, exposure: Exposure, make: Callable[[Identity | None], T], most: int) -> None:
        self._exposure = exposure
        self._make = make
        self._most = most
        self._generation = -1
        self._kept: OrderedDict[Rights, T] = OrderedDict()

    def of(self, identity: Identity | None) -> T:
        """Return the object for the rights of a caller; create it at the first request."""
        if self._generation != self._exposure.generation:
            self._generation = self._exposure.generation
            self._kept.clear()
        rights = self._exposure.rights(identity)
        if rights in self._kept:
            self._kept.move_to_end(rights)
            return self._kept[rights]
        made = self._kept[rights] = self._make(identity)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return made
