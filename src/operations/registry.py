"""OperationRegistry: registration and execution of operations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, overload

import msgspec

from operations.access import require_access
from operations.batch import BatchCall, run_batch
from operations.catalogue import OperationCatalogue, explain_operation
from operations.context import NO_ENV, OperationContext, new_request_id
from operations.deadlines import Deadline, StreamDeadline, TimerWheel, check_deadline
from operations.env import build_env
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.execution import Execution
from operations.failures import timed_out, translate
from operations.interceptors import Interceptor, Invocation, Proceed, compose
from operations.pipeline import Mismatches, check_declared_error, finish, is_described
from operations.schema import Policy, Problem, Schema, jsonable, misfit
from operations.spec import Operation, require_policy

R = TypeVar("R")

_NO_CONTEXT = OperationContext()


class OperationRegistry(OperationCatalogue):
    """Operations from every source, and the steps of a call: validate, run, wrap, normalise.

    `execute` and `subscribe` trust their direct caller and check no scopes. A `Dispatcher` checks those of a caller
    from elsewhere.
    """

    def __init__(
        self,
        operations: Iterable[Operation[Any]] = (),
        *,
        output_policy: Policy = "cast",
        interceptors: Sequence[Interceptor] = (),
        threads: int = 32,
    ) -> None:
        super().__init__()
        self.output_policy: Policy = require_policy(output_policy)
        self.mismatches = Mismatches()
        self.interceptors = tuple(interceptors)
        """The interceptors around every call, the first outermost."""
        self.wheel = TimerWheel()
        self._execution = Execution(threads=threads)
        self.register_all(operations)

    @overload
    async def execute(
        self, operation: Operation[R], input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[R]: ...
    @overload
    async def execute(
        self, operation: str, input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[Any]: ...
    async def execute(
        self, operation: str | Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[Any]:
        """Call an operation by id, or by its Operation to get its Python type back as `data`."""
        registered = self._resolve(operation)
        if context is None or context.deadline is None:
            envelope = await self.run(registered, input, context)
        else:
            envelope = await self._run_until(context.deadline, registered, self.run(registered, input, context))
        return envelope if isinstance(operation, str) else self._rebuild(operation, envelope)

    @overload
    def subscribe(
        self, operation: Operation[R], input: Any = None, context: OperationContext | None = None
    ) -> AsyncGenerator[ResponseEnvelope[R], None]: ...
    @overload
    def subscribe(
        self, operation: str, input: Any = None, context: OperationContext | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]: ...
    async def subscribe(
        self, operation: str | Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Follow an operation's stream; closing the iterator closes the handler's generator."""
        registered = self._resolve(operation)
        stream = self.run_stream(registered, input, context)
        deadline = None
        if context is not None and context.deadline is not None:
            until = check_deadline(context.deadline)
            if until <= time.time():
                raise timed_out(registered.id, "no", "before the stream began")
            deadline = StreamDeadline(self.wheel, registered.id, self.abandon, until=until)
        try:
            while True:
                try:
                    envelope = await (anext(stream) if deadline is None else deadline.next(stream))
                except StopAsyncIteration:
                    break
                yield envelope if isinstance(operation, str) else self._rebuild(operation, envelope)
        finally:
            if not getattr(stream, "ag_running", False):  # one that still runs was abandoned at its deadline
                await (stream.aclose() if deadline is None else deadline.close(stream.aclose))

    async def execute_many(
        self, calls: Iterable[BatchCall], *, concurrency: int = 64, context: OperationContext | None = None
    ) -> list[ResponseEnvelope[Any] | CallError]:
        """Run a batch, at most `concurrency` calls at a time: each call's envelope or error, in the order of the calls.

        A call is an id, `(id, input)` or `(id, input, context)`; `context` is for those that bring none.
        """
        return await run_batch(self.execute, calls, concurrency=concurrency, context=context)

    async def execute_nested(self, operation_id: str, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Execute a nested call, with access control unless the context is trusted."""
        self._admit_caller(operation_id, context)
        return await self.execute(operation_id, input, context)

    async def subscribe_nested(
        self, operation_id: str, input: Any, context: OperationContext
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Follow a nested stream, with access control unless the context is trusted."""
        self._admit_caller(operation_id, context)
        async with contextlib.aclosing(self.subscribe(operation_id, input, context)) as stream:
            async for envelope in stream:
                yield envelope

    def run(
        self, operation: Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Run a registered operation through interceptors, handler and result pipeline.

        The caller looks the operation up, checks access and enforces the deadline: `execute` and the dispatcher do.
        """
        if self.interceptors:
            return self._intercept(operation, input, context, streaming=False)
        return self._perform(operation, input, context)

    def run_stream(
        self, operation: Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run the stream of a registered operation, as `run` does a call."""
        if self.interceptors:
            return self._intercept_stream(operation, input, context)
        return self._stream(operation, input, context)

    @property
    def abandoned(self) -> int:
        """Number of handlers still running after their call ended."""
        return self._execution.abandoned

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Count a handler that ignored its cancellation, until its task ends."""
        self._execution.abandon(task)

    def close(self) -> None:
        """Let idle worker threads end; a later call starts new ones."""
        self._execution.close()

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
        ending = Deadline(wheel=self.wheel, operation_id=operation.id, until=until, abandoned=self.abandon)
        return ending.run(work)

    async def _perform(
        self, operation: Operation[Any], input: Any, context: OperationContext | None
    ) -> ResponseEnvelope[Any]:
        """One call as a list of steps: input → handler → result pipeline."""
        handler = operation.handler
        if handler is None:
            raise _explain_missing(operation, streaming=False)
        if type(input) is dict and operation.set_aside is None and operation.spec.input_schema.check(input):
            value: Any = input  # fast path: most inputs are dicts that already validate
        else:
            value = _admit_input(operation, input)
        context = self._complete(context) if operation.wants_context else context or _NO_CONTEXT
        try:
            if operation.threaded:
                result = await self._execution.in_thread(handler, value, context)
            else:
                result = handler(value, context)
            if hasattr(result, "__await__"):
                result = await result
            return finish(operation, operation.spec.output_policy or self.output_policy, result, self.mismatches)
        except BaseException as error:  # noqa: BLE001  # every way a handler can end is translated in one place
            raise self._translate(operation, error)  # noqa: B904  # it has its cause

    async def _stream(
        self, operation: Operation[Any], input: Any, context: OperationContext | None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """One subscription as a list of steps: input → the handler's generator → result pipeline for each item."""
        if operation.stream is None:
            raise _explain_missing(operation, streaming=True)
        value = _admit_input(operation, input)
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
            raise self._translate(operation, error)  # noqa: B904  # it has its cause
        finally:
            await self._close_source(operation, source)

    async def _close_source(self, operation: Operation[Any], source: Any) -> None:
        close = getattr(source, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except BaseException as error:  # noqa: BLE001  # what a handler's clean-up raises is translated as well
            raise self._translate(operation, error)  # noqa: B904  # it has its cause

    async def _intercept_stream(
        self, operation: Operation[Any], input: Any, context: OperationContext | None
    ) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        stream = await self._intercept(operation, input, context, streaming=True)
        try:
            async for envelope in stream:
                yield envelope
        finally:
            # An interceptor may return any iterator; aclose() is optional.
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _intercept(
        self, operation: Operation[Any], input: Any, context: OperationContext | None, *, streaming: bool
    ) -> Any:
        completed = self._complete(context)

        async def innermost(invocation: Invocation) -> Any:
            given = invocation.context
            if given is not completed and given.env is completed.env:
                # An env is bound to one context: rebuild it when the context changed.
                given = msgspec.structs.replace(given, env=NO_ENV)
            if streaming:
                return self._stream(operation, invocation.input, given)
            work = self._perform(operation, invocation.input, given)
            if given.deadline is None or given.deadline == completed.deadline:
                return await work
            return await self._run_until(given.deadline, operation, work)

        proceed: Proceed = compose(self.interceptors, innermost)
        value = {} if input is None else input
        try:
            result = await proceed(Invocation(operation.spec, value, completed, streaming))
        except BaseException as error:  # noqa: BLE001  # an interceptor's failure is translated like a handler's
            raise translate(error, operation.id)  # noqa: B904  # it has its cause
        if not (hasattr(result, "__aiter__") if streaming else isinstance(result, ResponseEnvelope)):
            wanted = "an async iterator of envelopes" if streaming else "an envelope"
            message = f"{operation.id}: an interceptor returned {type(result).__name__}, not {wanted}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        return result

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
            base = OperationContext(request_id=new_request_id())
        elif not context.request_id:
            base = msgspec.structs.replace(context, request_id=new_request_id())
        else:
            base = context
        if base.env not in (None, NO_ENV):
            return base
        return msgspec.structs.replace(base, env=build_env(self, base))

    def _admit_caller(self, operation_id: str, context: OperationContext) -> None:
        operation = self._resolve(operation_id)
        if not context.is_trusted:
            require_access(operation.spec, context.identity)

    def _translate(self, operation: Operation[Any], error: BaseException) -> BaseException:
        if isinstance(error, CallError):
            check_declared_error(operation, error, self.mismatches)
        return translate(error, operation.id)

    def _rebuild(self, operation: Operation[R], envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[R]:
        """Return the envelope with its data as the operation's Python type, or unchanged where that fails."""
        if operation.load is None or not is_described(operation, envelope):
            return envelope
        try:
            return ResponseEnvelope(operation.load(envelope.data), envelope.meta)
        except Exception as error:  # noqa: BLE001  # the type's own code may raise anything
            reason = error.message if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
            message = f"cannot convert result to the return type: {reason}"
            self.mismatches.report(operation.id, [Problem(path="", schema_path="", message=message)])
            return envelope


@overload
def subscribe(
    registry: OperationRegistry, operation: Operation[R], input: Any = None, context: OperationContext | None = None
) -> AsyncGenerator[ResponseEnvelope[R], None]: ...
@overload
def subscribe(
    registry: OperationRegistry, operation: str, input: Any = None, context: OperationContext | None = None
) -> AsyncGenerator[ResponseEnvelope[Any], None]: ...
def subscribe(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Any = None,
    context: OperationContext | None = None,
) -> AsyncGenerator[ResponseEnvelope[Any], None]:
    """Follow an operation's stream: the registry's method as a function."""
    return registry.subscribe(operation, input, context)


def _admit_input(operation: Operation[Any], input: Any) -> Any:
    """Return the input as the handler gets it, or raise one `VALIDATION_ERROR` that lists every problem."""
    value = {} if input is None else input
    if operation.set_aside is None:
        if operation.spec.input_schema.check(value):
            return value
    elif (parts := operation.set_aside(value)) is not None:
        return parts.put_back(_admit_data(operation, parts.shown, given=True))
    return _admit_data(operation, value, given=input is not None)


def _admit_data(operation: Operation[Any], value: Any, *, given: bool) -> Any:
    schema = operation.spec.input_schema
    if schema.check(value):
        return value
    if not given and _takes_null(schema):
        return None
    # Values that are not JSON (a model, a datetime, a tuple) are welcome where their JSON form fits.
    try:
        value = jsonable(value)
    except CallError as error:
        message = f"invalid input for {operation.id}: {error.message}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, error.details) from error
    if schema.check(value):
        return value
    found = operation.misfits(value) if operation.misfits is not None else ()
    raise misfit(schema.errors(value, found), f"invalid input for {operation.id}")


def _takes_null(schema: Schema) -> bool:
    document = schema.document
    kind = document.get("type") if isinstance(document, dict) else None
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


def _explain_missing(operation: Operation[Any], *, streaming: bool) -> CallError:
    if operation.handler is None and operation.stream is None:
        message = f"{operation.id} has a spec but no handler; add one with register_handler"
        return CallError(ErrorCode.OPERATION_NOT_FOUND, message, {"operationId": operation.id})
    hint = "does not stream: use execute" if streaming else "is a subscription: use subscribe"
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation.id} {hint}", {"operationId": operation.id})
