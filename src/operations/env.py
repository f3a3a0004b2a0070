"""build_env: the operations a handler can reach, as attributes, each call linked to the one it is made from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from operations.context import Env, OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation

Invoke = Callable[[str, Any, OperationContext], Awaitable[ResponseEnvelope[Any]]]
InvokeStream = Callable[[str, Any, OperationContext], AsyncIterator[ResponseEnvelope[Any]]]


class Catalogue(Protocol):
    """What an env needs of a registry: to find by path, and to call with the access rule applied."""

    def find(self, path: str) -> Operation[Any] | None:
        """The operation at a path, with `_` standing for `-` where that is unambiguous."""

    def find_under(self, namespace: str) -> Collection[str]:
        """The ids below a namespace; the empty one is above all."""

    def not_found(self, operation_id: str) -> CallError:
        """The error that names the nearest ids."""

    async def execute_nested(self, operation_id: str, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Execute for a context that may not be trusted."""

    def subscribe_nested(
        self, operation_id: str, input: Any, context: OperationContext
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe for a context that may not be trusted."""


class _Reach(msgspec.Struct, frozen=True):
    """What all nodes of one env share."""

    catalogue: Catalogue
    context: OperationContext
    namespaces: tuple[str, ...] | None
    invoke: Invoke | None
    stream: InvokeStream | None

    def resolve(self, path: str) -> tuple[str, Operation[Any] | None]:
        """The id that a path stands for, and its operation where the registry has it."""
        operation = self.catalogue.find(path)
        operation_id = path if operation is None else operation.id
        if not self.is_within(operation_id):
            reason = f"{operation_id} is not within reach: this env is limited to {', '.join(self.namespaces or ())}"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, reason)
        if operation is None and self.invoke is None:
            raise self.catalogue.not_found(path)
        return operation_id, operation

    def is_within(self, operation_id: str) -> bool:
        """Whether an id is in the namespaces that the env is limited to."""
        return self.namespaces is None or any(operation_id.startswith(f"{name}.") for name in self.namespaces)


class EnvNode:
    """A place in an env: a namespace to go on from, an operation to call, or both."""

    __slots__ = ("_path", "_reach")

    def __init__(self, reach: _Reach, path: str) -> None:
        self._reach = reach
        self._path = path

    def __getitem__(self, name: str) -> EnvNode:
        return EnvNode(self._reach, f"{self._path}.{name}" if self._path else name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        node = self[name]
        # An operation may itself be called `subscribe`; only where there is none is it the verb.
        if name == "subscribe" and not node._exists():
            return self._subscribe
        return node

    def __call__(self, input: Any = None, /, **members: Any) -> Any:
        """Call the operation: a coroutine of its envelope, or for a subscription an async iterator of envelopes."""
        operation_id, operation = self._reach.resolve(self._path)
        if operation is not None and operation.handler is None and operation.stream is not None:
            return self._subscribe(input, **members)
        invoke = self._reach.invoke or self._reach.catalogue.execute_nested
        return invoke(operation_id, _merge(input, members), self._reach.context.child())

    def _subscribe(self, input: Any = None, /, **members: Any) -> Any:
        operation_id, _ = self._reach.resolve(self._path)
        stream = self._reach.stream or self._reach.catalogue.subscribe_nested
        return stream(operation_id, _merge(input, members), self._reach.context.child())

    def _exists(self) -> bool:
        catalogue = self._reach.catalogue
        return catalogue.find(self._path) is not None or bool(catalogue.find_under(self._path))

    def __dir__(self) -> list[str]:
        depth = len(self._path) + 1 if self._path else 0
        below = [found for found in self._reach.catalogue.find_under(self._path) if self._reach.is_within(found)]
        return sorted({operation_id[depth:].split(".")[0].replace("-", "_") for operation_id in below})

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dir__())

    def __contains__(self, name: object) -> bool:
        return name in self.__dir__()

    def __repr__(self) -> str:
        return f"<env {self._path or '(all)'}>"


def build_env(
    registry: Catalogue,
    context: OperationContext,
    namespaces: Iterable[str] | None = None,
    invoke: Invoke | None = None,
    *,
    stream: InvokeStream | None = None,
) -> Env:
    """The operations of `registry` as `env.namespace.name(...)`, called on behalf of `context`.

    `namespaces` limits what is within reach. `invoke` and `stream` replace the registry's own way of calling: the call
    protocol passes its own, and then an id that this registry does not have is passed on as it is.
    """
    limited = None if namespaces is None else (namespaces,) if isinstance(namespaces, str) else tuple(namespaces)
    return EnvNode(_Reach(registry, context, limited, invoke, stream), "")


def _merge(input: Any, members: Mapping[str, Any]) -> Any:
    if input is None:
        return dict(members)
    if not members:
        return input
    if not isinstance(input, Mapping):
        message = f"members by name go with a mapping, not with {type(input).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return {**input, **members}
