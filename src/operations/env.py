"""build_env: the operations available to a handler, as attributes; calls through them are nested calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec

from operations.context import Env, OperationContext, require_context
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation

R = TypeVar("R")

Invoke = Callable[[str, Any, OperationContext], Awaitable[ResponseEnvelope[Any]]]
InvokeStream = Callable[[str, Any, OperationContext], AsyncIterator[ResponseEnvelope[Any]]]


class OperationLookup(Protocol):
    """The methods of a registry that an env needs: lookup by path, and calls with access control."""

    def find(self, path: str) -> Operation[Any] | None:
        """Return the operation whose id matches `path`, where `_`, `-` and `/` match each other; None if no id matches.

        Raise `OPERATION_NOT_FOUND` if several ids match and none of them is exactly `path`.
        """

    def find_under(self, namespace: str) -> Collection[str]:
        """Return the ids in or below a namespace; an empty string selects all ids."""

    def not_found(self, operation_id: str) -> CallError:
        """Return the error for an unknown id, with similar ids."""

    def rebuild(self, operation: Operation[R], envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[R]:
        """Return the envelope with its data as the operation's Python type; unchanged if the conversion fails."""

    async def execute_nested(self, operation_id: str, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Execute an operation, with access control unless the context is trusted."""

    def subscribe_nested(
        self, operation_id: str, input: Any, context: OperationContext
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Subscribe to an operation, with access control unless the context is trusted."""


class EnvScope(msgspec.Struct, frozen=True):
    """State that the envs of different calls share: the operations, and the functions that call them."""

    catalogue: OperationLookup
    namespaces: tuple[str, ...] | None = None
    invoke: Invoke | None = None
    stream: InvokeStream | None = None

    def resolve(self, path: str) -> tuple[str, Operation[Any] | None]:
        """Return the operation id that a path names, and the operation; None in place of an operation that is not
        registered.

        Raise `OPERATION_NOT_FOUND` for an id that this env cannot call.
        """
        operation = self.catalogue.find(path)
        operation_id = path if operation is None else operation.id
        if not self.is_within(operation_id):
            reason = f"{operation_id} is outside this env, which is limited to {', '.join(self.namespaces or ())}"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, reason)
        if operation is None and self.invoke is None:
            raise self.catalogue.not_found(path)
        return operation_id, operation

    def is_within(self, operation_id: str) -> bool:
        """Whether an id is in the namespaces of the env."""
        return self.namespaces is None or any(operation_id.startswith(f"{name}.") for name in self.namespaces)


class EnvNode(msgspec.Struct, frozen=True, eq=False):
    """A node of an env: a namespace, a callable operation, or both."""

    _scope: EnvScope
    _context: OperationContext
    """The context that nested calls inherit from."""
    _request_id: str
    """Request id of the call that makes the nested calls; the context may have no request id."""
    _path: str = ""
    _operation: Operation[Any] | None = None
    """The Operation that was passed to `env[operation]`; None for a lookup by name.

    Results are converted to the Python type of this Operation.
    """

    def __getitem__(self, name: str | Operation[Any]) -> EnvNode:
        if isinstance(name, Operation):
            return EnvNode(self._scope, self._context, self._request_id, name.id, name)
        path = f"{self._path}.{name}" if self._path else name
        return EnvNode(self._scope, self._context, self._request_id, path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        node = self[name]
        # `subscribe` is the method, unless an operation or a namespace has that name.
        if name == "subscribe" and not node._exists():
            return self._subscribe
        return node

    def __call__(self, input: Any = None, /, **members: Any) -> Any:
        """Call the operation: return a coroutine for its envelope, or an async iterator of envelopes if it has only a
        stream.
        """
        operation_id, found = self._scope.resolve(self._path)
        operation = found or self._operation  # a remote operation is not in the registry
        if operation is not None and operation.handler is None and operation.stream is not None:
            return self._subscribe(input, **members)
        invoke = self._scope.invoke or self._scope.catalogue.execute_nested
        context = self._context.child(self._request_id)
        called = invoke(operation_id, merge_input(operation_id, input, members), context)
        return called if self._operation is None else self._rebuild(called, self._operation)

    def _subscribe(self, input: Any = None, /, **members: Any) -> Any:
        operation_id, _ = self._scope.resolve(self._path)
        stream = self._scope.stream or self._scope.catalogue.subscribe_nested
        context = self._context.child(self._request_id)
        items = stream(operation_id, merge_input(operation_id, input, members), context)
        return items if self._operation is None else self._rebuild_items(items, self._operation)

    async def _rebuild(self, called: Awaitable[Any], operation: Operation[Any]) -> ResponseEnvelope[Any]:
        return self._scope.catalogue.rebuild(operation, await called)

    async def _rebuild_items(self, items: Any, operation: Operation[Any]) -> AsyncIterator[ResponseEnvelope[Any]]:
        async with aclosing(items):
            async for envelope in items:
                yield self._scope.catalogue.rebuild(operation, envelope)

    def _exists(self) -> bool:
        catalogue = self._scope.catalogue
        return catalogue.find(self._path) is not None or bool(catalogue.find_under(self._path))

    def __dir__(self) -> list[str]:
        depth = len(self._path) + 1 if self._path else 0
        below = [found for found in self._scope.catalogue.find_under(self._path) if self._scope.is_within(found)]
        names = {operation_id[depth:].split(".")[0] for operation_id in below}
        return sorted({name.replace("-", "_").replace("/", "_") for name in names})

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dir__())

    def __contains__(self, name: object) -> bool:
        return name in self.__dir__()

    def __repr__(self) -> str:
        return f"<env {self._path or '(all)'}>"


class BlockingEnv:
    """The env of a plain `def` handler, which runs in a worker thread: calls block and return the envelope.

    A subscription is a synchronous iterator of envelopes. The calls run on the event loop of the handler's registry.
    """

    __slots__ = ("_loop", "_node")

    def __init__(self, node: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._loop = loop

    def __getitem__(self, name: str | Operation[Any]) -> BlockingEnv:
        return BlockingEnv(self._node[name], self._loop)

    def __getattr__(self, name: str) -> Any:
        return BlockingEnv(getattr(self._node, name), self._loop)

    def __call__(self, input: Any = None, /, **members: Any) -> Any:
        """Call the operation and wait; return its envelope, or for a subscription an iterator of envelopes."""

        async def start() -> Any:
            called = self._node(input, **members)  # a remote stream needs a running loop
            return called if hasattr(called, "__anext__") else await called

        result = self._wait(start())
        return self._iterate(result) if hasattr(result, "__anext__") else result

    def _iterate(self, stream: Any) -> Iterator[ResponseEnvelope[Any]]:
        try:
            while True:
                try:
                    yield self._wait(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._wait(stream.aclose())

    def _wait(self, called: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await called

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def __dir__(self) -> list[str]:
        return dir(self._node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._node)

    def __contains__(self, name: object) -> bool:
        return name in self._node

    def __repr__(self) -> str:
        return repr(self._node)


def build_env(
    registry: OperationLookup,
    context: OperationContext,
    namespaces: Iterable[str] | None = None,
    invoke: Invoke | None = None,
    *,
    stream: InvokeStream | None = None,
) -> Env:
    """Return the env of `context`: the operations of `registry` as `env.namespace.name(...)`.

    `namespaces` limits the available operations. `invoke` and `stream` replace the registry's `execute_nested` and
    `subscribe_nested`. The call protocol passes them, to call operations that the registry does not have.
    """
    require_context(context)
    limited = None if namespaces is None else (namespaces,) if isinstance(namespaces, str) else tuple(namespaces)
    return EnvNode(EnvScope(registry, limited, invoke, stream), context, context.request_id)


def merge_input(operation_id: str, input: Any, members: Mapping[str, Any]) -> Any:
    """Return the input of a call: the positional argument is the whole input, keyword arguments are its properties."""
    if input is None:
        return dict(members)
    if not members:
        return input
    if not isinstance(input, Mapping):
        message = (
            f"{operation_id}: the positional argument is the whole input, and a value of type "
            f"{type(input).__name__} cannot be combined with keyword arguments: pass every property by keyword"
        )
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return {**input, **members}


def blocking_context(context: OperationContext) -> OperationContext:
    """Return the context of a plain function in a worker thread: calls in `env` block, `progress` is thread-safe."""
    loop = asyncio.get_running_loop()
    env = BlockingEnv(context.env, loop)
    if context.progress is None:
        return msgspec.structs.replace(context, env=env)
    from operations.progress import ProgressReporter  # imported lazily: few handlers report progress

    in_loop = ProgressReporter(context.progress).report

    def report(progress: float, total: float | None = None, message: str | None = None) -> None:
        loop.call_soon_threadsafe(in_loop, progress, total, message)

    return msgspec.structs.replace(context, env=env, progress=report)
