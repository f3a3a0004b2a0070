"""OperationRegistry: registration and execution of operations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from functools import cached_property, partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

import msgspec

from operations.access import require_access
from operations.catalogue import OperationCatalogue, explain_operation
from operations.context import NO_ENV, OperationContext, limit_context, new_request_id, with_request_id
from operations.deadlines import Deadline, StreamDeadline, TimerWheel, check_deadline
from operations.env import EnvNode, EnvScope, blocking_context
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import timed_out, translate
from operations.function import FunctionOperation
from operations.input_validation import validate_input
from operations.interceptors.base import (
    ChosenInterceptors,
    Interceptor,
    Invocation,
    Proceed,
    counts_of,
    intercept,
    intercept_stream,
    require_instances,
)
from operations.pipeline import Mismatches, check_declared_error, finish
from operations.schema import Policy, Problem
from operations.spec import Operation, OperationSpec, require_policy
from operations.telemetry.tracing import SDK, active_observers, modules
from operations.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from operations.batch import BatchCall
    from operations.exports.tools import ToolOptions, ToolSet
    from operations.telemetry.metrics import Measure
    from operations.telemetry.observer import Kind, ObservedCall, Observer

P = ParamSpec("P")
R = TypeVar("R")

_NO_CONTEXT = OperationContext()
_INTERNAL = {
    *("abandon", "execute_nested", "find_under", "generation", "measures", "not_found"),
    *("rebuild", "run", "run_stream", "subscribe_nested", "wheel"),
}
"""Names that `dir()` leaves out: they are for the dispatcher, `env`, metrics and serving."""


class OperationRegistry(OperationCatalogue):
    """Operations from every source, and the steps of a call: validate, run, wrap, normalise.

    `execute` and `subscribe` trust their direct caller and do not check its rights. A `Dispatcher` checks the rights of
    external callers.
    """

    def __init__(
        self,
        operations: Iterable[Operation[Any]] = (),
        *,
        output_policy: Policy = "cast",
        interceptors: Sequence[Interceptor] = (),
        observers: Sequence[Observer] = (),
        threads: int = 32,
        raise_on_error: bool = False,
    ) -> None:
        super().__init__()
        self.raise_on_error = raise_on_error
        """Whether an MCP error result is raised as a CallError, as an HTTP error is."""
        self.output_policy: Policy = require_policy(output_policy)
        self.mismatches = Mismatches()
        self.mismatches.normalised = self._report_normalised
        self.interceptors = require_instances(interceptors) if interceptors else ()
        """Interceptors of every call, the first outermost.

        An interceptor's optional method `applies` selects its operations.
        """
        self.observers = tuple(observers)
        """Observers of every call; they run around the interceptors.

        OpenTelemetry's observer is added if the SDK of OpenTelemetry is configured.
        """
        if threads < 1:
            raise ValueError(f"threads is {threads}: expected a whole number of at least 1")
        self._threads = threads
        self._wheel: TimerWheel | None = None
        self._scope = EnvScope(self)
        self.register_all(operations)

    # Created on first use: a registry without interceptors, deadlines and plain functions does not need these.

    @property
    def wheel(self) -> TimerWheel:
        """The timer wheel of the registry's deadlines."""
        if self._wheel is None:
            self._wheel = TimerWheel()
        return self._wheel

    @cached_property
    def _chosen(self) -> ChosenInterceptors:
        return ChosenInterceptors()

    @cached_property
    def _worker_threads(self) -> WorkerThreads:
        return WorkerThreads(threads=self._threads)

    @overload
    async def execute(
        self,
        operation: Operation[R],
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
        raise_on_error: bool | None = None,
    ) -> ResponseEnvelope[R]: ...
    @overload
    async def execute(
        self,
        operation: str,
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
        raise_on_error: bool | None = None,
    ) -> ResponseEnvelope[Any]: ...
    async def execute(
        self,
        operation: str | Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
        raise_on_error: bool | None = None,
    ) -> ResponseEnvelope[Any]:
        """Call an operation by id, or by its Operation; with an Operation, `data` has the declared Python type.

        `timeout` is in seconds; if the context has a deadline too, the earlier one counts. The default of
        `raise_on_error` is the registry's setting.
        """
        registered = self.operations.get(operation) if isinstance(operation, str) else None
        if registered is None:  # an Operation, or an id that is not registered
            registered = self._resolve(operation)
        if context is not None or timeout is not None:
            context = limit_context(context, timeout)
        if context is None or context.deadline is None:
            envelope = await self.run(registered, input, context)
        else:
            envelope = await self._run_until(context.deadline, registered, self.run(registered, input, context))
        if self.raise_on_error if raise_on_error is None else raise_on_error:
            envelope.raise_for_error()
        return envelope if isinstance(operation, str) else self.rebuild(operation, envelope)

    @overload
    async def call(
        self,
        operation: FunctionOperation[Concatenate[OperationContext, P], R, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ResponseEnvelope[R]: ...
    @overload
    async def call(
        self, operation: FunctionOperation[P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> ResponseEnvelope[R]: ...
    async def call(self, operation: FunctionOperation[..., Any, Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the operation of a function with the function's arguments, which type checkers verify.

        If the first parameter is a context, leave it out: the call creates one.
        """
        if not isinstance(operation, FunctionOperation):
            message = f"registry.call() takes a function with @operation, not {type(operation).__name__}: use execute"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return await self.execute(operation, operation.bind(*args, **kwargs))

    @overload
    def subscribe(
        self,
        operation: Operation[R],
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[R], None]: ...
    @overload
    def subscribe(
        self,
        operation: str,
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]: ...
    async def subscribe(
        self,
        operation: str | Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Yield an operation's stream; closing the iterator closes the handler's generator.

        `timeout` is in seconds and for the whole stream.
        """
        registered = self._resolve(operation)
        if context is not None or timeout is not None:
            context = limit_context(context, timeout)
        stream = self.run_stream(registered, input, context)
        deadline = None
        if context is not None and context.deadline is not None:
            until = check_deadline(context.deadline)
            if until <= time.time():
                raise timed_out(registered.id, "no", "before the stream began")
            deadline = StreamDeadline(self, registered.id, until=until)
        try:
            while True:
                try:
                    envelope = await (anext(stream) if deadline is None else deadline.next(stream))
                except StopAsyncIteration:
                    break
                if self.raise_on_error:
                    envelope.raise_for_error()
                yield envelope if isinstance(operation, str) else self.rebuild(operation, envelope)
        finally:
            if not getattr(stream, "ag_running", False):  # a generator still running was abandoned at its deadline
                await (stream.aclose() if deadline is None else deadline.close(stream.aclose))

    async def execute_many(
        self,
        calls: Iterable[BatchCall],
        *,
        concurrency: int = 64,
        context: OperationContext | None = None,
        timeout: float | None = None,
    ) -> list[ResponseEnvelope[Any] | CallError]:
        """Run a batch with at most `concurrency` concurrent calls; return each call's envelope or error, in order.

        A call is an id, `(id, input)` or `(id, input, context)`. The parameter `context` is for calls without a
        context. `timeout` is in seconds and for the whole batch.
        """
        if context is not None or timeout is not None:
            context = limit_context(context, timeout)
        deadline = None if timeout is None else limit_context(None, timeout).deadline
        from operations.batch import run_batch  # imported lazily: most programs run no batches

        return await run_batch(self.execute, calls, concurrency=concurrency, context=context, deadline=deadline)

    async def execute_nested(self, operation_id: str, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Execute a nested call, with access control unless the context is trusted."""
        self._check_access(operation_id, context)
        return await self.execute(operation_id, input, context)

    async def subscribe_nested(
        self, operation_id: str, input: Any, context: OperationContext
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Yield a nested stream, with access control unless the context is trusted."""
        self._check_access(operation_id, context)
        async with contextlib.aclosing(self.subscribe(operation_id, input, context)) as stream:
            async for envelope in stream:
                yield envelope

    def tools(self, **options: Unpack[ToolOptions]) -> ToolSet:
        """Return operations as tools of a language model: `registry.tools(allow=["shop.*"], read_only=True)`.

        `ToolOptions` describes the options.
        """
        from operations.exports.tools import ToolSet  # imported lazily: most programs make no tools

        return ToolSet(self, **options)

    async def run(
        self,
        operation: Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        kind: Kind = "local",
        observed: bool = False,
        intercepted: bool = False,
    ) -> ResponseEnvelope[Any]:
        """Run a registered operation: observers → interceptors → input → handler → result.

        The caller (`execute` or the dispatcher) looks up the operation, checks access and enforces the deadline.
        With `observed`, the observers have already been called; with `intercepted`, the interceptors have.
        """
        if not observed and (self.observers or SDK in modules) and (observers := active_observers(self.observers)):
            from operations.telemetry.observer import observe_call  # lazy: most programs have no observers

            return await observe_call(
                observers,
                operation.spec,
                input,
                context,
                kind,
                partial(self.run, operation, input, observed=True),  # a closure would slow down every call
            )
        if self.interceptors and not intercepted and (chosen := self._chosen.of(self.interceptors, operation.spec)):
            return await self._intercept(chosen, operation, input, context)
        handler = operation.handler
        if handler is None:
            raise _explain_missing(operation, streaming=False)
        if type(input) is dict and operation.split_files is None and operation.spec.input_schema.check(input):
            value: Any = input  # fast path: most inputs are dicts that already validate
        else:
            value = validate_input(operation, input)
        context = self._complete(context) if operation.wants_context else context or _NO_CONTEXT
        try:
            if operation.threaded:
                if operation.wants_context:
                    context = blocking_context(context)
                result = await self._worker_threads.in_thread(handler, value, context)
            else:
                result = handler(value, context)
            if type(result) is CoroutineType or hasattr(result, "__await__"):
                result = await result
            return finish(operation, operation.spec.output_policy or self.output_policy, result, self.mismatches)
        except BaseException as error:  # noqa: BLE001  # every way a handler can end is translated in one place
            raise self._translate(operation, error)  # noqa: B904  # its cause is already set

    def run_stream(
        self,
        operation: Operation[Any],
        input: Any = None,
        context: OperationContext | None = None,
        kind: Kind = "local",
        *,
        observed: bool = False,
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run the stream of a registered operation, like `run`."""
        if not observed and (self.observers or SDK in modules) and (observers := active_observers(self.observers)):
            from operations.telemetry.observer import observe_stream

            return observe_stream(
                observers,
                operation.spec,
                input,
                context,
                kind,
                partial(self.run_stream, operation, input, observed=True),
            )
        if self.interceptors and (chosen := self._chosen.of(self.interceptors, operation.spec)):
            completed = self._complete(context)
            invocation = Invocation(operation.spec, {} if input is None else input, completed, streaming=True)
            return intercept_stream(chosen, invocation, self._innermost(operation, completed, streaming=True))
        return self._stream(operation, input, context)

    @property
    def abandoned(self) -> int:
        """Number of handlers still running after their call ended."""
        return self._worker_threads.abandoned

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Count a handler that ignored its cancellation, until its task ends."""
        self._worker_threads.abandon(task)

    def measures(self) -> Iterator[Measure]:
        """Return the metrics of the registry, its observers and its interceptors."""
        from operations.telemetry.metrics import Measure, measures_of  # lazy: most programs read no metrics

        yield from measures_of(self.observers)
        yield Measure("operations_handlers_abandoned", self.abandoned)
        for (operation_id, _), count in self.mismatches.counts().items():
            yield Measure("operations_result_mismatches_total", count, {"operation": operation_id})
        for operation_id, count in self.mismatches.removed_by_operation().items():
            yield Measure("operations_result_removed_total", count, {"operation": operation_id})
        for interceptor in self.interceptors:
            for name, event, count in counts_of(interceptor):
                labels = {"interceptor": name, "event": event}
                yield Measure("operations_interceptor_events_total", count, labels)

    async def close(self) -> None:
        """Let the worker threads end once they are idle; a later call starts new ones."""
        if "_worker_threads" in vars(self):
            self._worker_threads.close()

    def __dir__(self) -> list[str]:
        """Return the names that completion offers, without methods for other parts of this library."""
        return [name for name in super().__dir__() if name not in _INTERNAL]

    async def __aenter__(self) -> OperationRegistry:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _run_until(
        self, deadline: int, operation: Operation[Any], work: Coroutine[Any, Any, ResponseEnvelope[Any]]
    ) -> Any:
        try:
            until = check_deadline(deadline)
            if until <= time.time():
                raise timed_out(operation.id, "no", "before the call began")
        except CallError:
            work.close()
            raise
        ending = Deadline(host=self, operation_id=operation.id, until=until)
        return ending.run(work)

    async def _stream(
        self, operation: Operation[Any], input: Any, context: OperationContext | None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run the steps of a subscription: input → the handler's generator → result pipeline for each item."""
        if operation.stream is None:
            raise _explain_missing(operation, streaming=True)
        value = validate_input(operation, input)
        context = self._complete(context)
        policy = operation.spec.output_policy or self.output_policy
        source: Any = None
        try:
            source = operation.stream(value, context)
            if hasattr(source, "__await__"):
                source = await source
            async for item in source:
                yield finish(operation, policy, item, self.mismatches)
        except BaseException as error:  # noqa: BLE001  # every way a handler can end is translated in one place
            raise self._translate(operation, error)  # noqa: B904  # its cause is already set
        finally:
            await self._close_source(operation, source)

    async def _close_source(self, operation: Operation[Any], source: Any) -> None:
        close = getattr(source, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except BaseException as error:  # noqa: BLE001  # what a handler's clean-up raises is translated as well
            raise self._translate(operation, error)  # noqa: B904  # its cause is already set

    async def _intercept(
        self, chosen: Sequence[Interceptor], operation: Operation[Any], input: Any, context: OperationContext | None
    ) -> ResponseEnvelope[Any]:
        completed = self._complete(context)
        observed = _observed_call() if self.observers else None
        retried = None if observed is None else observed.retried
        invocation = Invocation(operation.spec, {} if input is None else input, completed, False, retried)
        innermost = self._innermost(operation, completed, streaming=False)
        envelope: ResponseEnvelope[Any] = await intercept(chosen, invocation, innermost)
        return envelope

    def _innermost(self, operation: Operation[Any], completed: OperationContext, *, streaming: bool) -> Proceed:
        """Return the function that the innermost interceptor calls: the steps of the call itself."""

        async def innermost(invocation: Invocation) -> Any:
            given = invocation.context
            if given is not completed and given.env is completed.env:
                # An env is bound to one context: rebuild it when the context changed.
                given = msgspec.structs.replace(given, env=NO_ENV)
            if streaming:
                return self._stream(operation, invocation.input, given)
            work = self.run(operation, invocation.input, given, observed=True, intercepted=True)
            if given.deadline is None or given.deadline == completed.deadline:
                return await work
            return await self._run_until(given.deadline, operation, work)

        return innermost

    def _resolve(self, operation: str | Operation[Any]) -> Operation[Any]:
        if isinstance(operation, str):
            operation_id = operation
        elif isinstance(operation, Operation):
            operation_id = operation.id
        else:
            raise CallError(ErrorCode.VALIDATION_ERROR, explain_operation(operation))
        registered = self.operations.get(operation_id)
        if registered is None:
            raise self.not_found(operation_id)
        return registered

    def _complete(self, context: OperationContext | None) -> OperationContext:
        """Return the context with a request id and an env."""
        if context is None:
            request_id = new_request_id()
            return OperationContext(request_id=request_id, env=EnvNode(self._scope, _NO_CONTEXT, request_id))
        if context.env is not None and context.env is not NO_ENV:
            return with_request_id(context)
        request_id = context.request_id or new_request_id()
        env = EnvNode(self._scope, context, request_id)
        return msgspec.structs.replace(context, request_id=request_id, env=env)

    def _report_normalised(self, spec: OperationSpec, given: Any, data: Any, problems: Sequence[Problem]) -> None:
        observed = _observed_call() if self.observers else None
        if observed is not None and observed.call.operation_id == spec.id:
            observed.normalised(given, data, problems)

    def _check_access(self, operation_id: str, context: OperationContext) -> None:
        operation = self._resolve(operation_id)
        if not context.is_trusted:
            require_access(operation.spec, context.identity)

    def _translate(self, operation: Operation[Any], error: BaseException) -> BaseException:
        if isinstance(error, CallError):
            check_declared_error(operation, error, self.mismatches)
        return translate(error, operation.id)

    def rebuild(self, operation: Operation[R], envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[R]:
        """Return the envelope with its data as the operation's Python type; unchanged if the conversion fails."""
        try:
            return operation.rebuild(envelope)
        except Exception as error:  # noqa: BLE001  # the type's own code may raise anything
            reason = error.message if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
            message = f"cannot convert result to the return type: {reason}"
            self.mismatches.report(operation.id, [Problem(path="", schema_path="", message=message)])
            return envelope


@overload
def subscribe(
    registry: OperationRegistry,
    operation: Operation[R],
    input: Any = None,
    context: OperationContext | None = None,
    *,
    timeout: float | None = None,
) -> AsyncGenerator[ResponseEnvelope[R], None]: ...
@overload
def subscribe(
    registry: OperationRegistry,
    operation: str,
    input: Any = None,
    context: OperationContext | None = None,
    *,
    timeout: float | None = None,
) -> AsyncGenerator[ResponseEnvelope[Any], None]: ...
def subscribe(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Any = None,
    context: OperationContext | None = None,
    *,
    timeout: float | None = None,
) -> AsyncGenerator[ResponseEnvelope[Any], None]:
    """Yield an operation's stream: `registry.subscribe` as a function."""
    return registry.subscribe(operation, input, context, timeout=timeout)


def _observed_call() -> ObservedCall | None:
    """Return the observed call that runs in this task, or None."""
    from operations.telemetry.observer import current_observed_call  # lazy: few programs have observers

    return current_observed_call()


def _explain_missing(operation: Operation[Any], *, streaming: bool) -> CallError:
    if operation.handler is None and operation.stream is None:
        message = f"{operation.id} has no handler: add one with register_handler"
        return CallError(ErrorCode.OPERATION_NOT_FOUND, message, {"operationId": operation.id})
    hint = "does not stream: use execute" if streaming else "is a subscription: use subscribe"
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation.id} {hint}", {"operationId": operation.id})
