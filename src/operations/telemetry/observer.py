"""Observer: notified of every call that a registry runs. Observers do not change calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

from operations.context import Identity, OperationContext, with_request_id
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import Problem
from operations.spec import OperationSpec

_log = logging.getLogger("operations")
Kind = Literal["local", "served"]


class Call(msgspec.Struct, eq=False, kw_only=True):
    """One call, for observers."""

    operation_id: str
    spec: OperationSpec | None
    """The spec of the operation; None if the operation is unknown."""
    kind: Kind
    """`served` for a call from another process or client, `local` for a call of this process, also a nested one."""
    streaming: bool
    """Whether the call is a stream; always False while a request waits for a slot, and for a request that was refused.
    """
    request_id: str
    parent_request_id: str | None = None
    identity: Identity | None = None
    protocol: str = ""
    """Protocol of the request that the call belongs to; empty for the program's own calls.

    `http`, `mcp`, or `ws`: the call protocol, on any transport.
    """
    deadline: int | None = None
    metadata: Mapping[str, Any] = {}
    input: Any = None
    began: float = msgspec.field(default_factory=time.perf_counter)
    """Start time, by the clock of `time.perf_counter`."""
    items: int = 0
    """Number of items of a stream so far."""

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.began


class Observation:
    """The observation of one call: a base class whose methods do nothing."""

    __slots__ = ()

    def enter(self) -> Any:
        """Handle the start of a step: a call, or the part of a stream until its next item.

        `leave` is called in the same task, with the value that this method returns.
        """
        return None

    def leave(self, entered: Any) -> None:
        """Handle the end of a step; `entered` is the value that `enter` returned."""

    def item(self, envelope: ResponseEnvelope[Any]) -> None:
        """Handle an item of a stream."""

    def result(self, envelope: ResponseEnvelope[Any]) -> None:
        """Handle the result of a call that is not a stream, before its end."""

    def normalised(self, given: Any, data: Any, problems: Sequence[Problem]) -> None:
        """Handle a result or a stream item that normalising changed, or that still does not match the output schema."""

    def end(self, outcome: str, error: BaseException | None) -> None:
        """Handle the end: `outcome` is `ok`, `tool_error` for an MCP error result, or the code of the error."""


class CallQueued(msgspec.Struct, frozen=True):
    """An external call waits for a slot. It begins later, or is refused."""

    call: Call


class CallRetried(msgspec.Struct, frozen=True):
    """An attempt of a call failed, and another one follows."""

    request_id: str
    operation_id: str
    attempt: int
    """Number of the attempt that failed, from 1."""
    error: CallError
    delay: float
    """Seconds until the next attempt."""


class CallSized(msgspec.Struct, frozen=True):
    """The sizes of the request and the response of a call over HTTP."""

    request_id: str
    operation_id: str
    request_bytes: int
    response_bytes: int


class ConnectionChanged(msgspec.Struct, frozen=True):
    """A worker's connection to its hub or broker was lost or restored."""

    transport: str
    is_up: bool
    reason: str = ""
    """Why the connection was lost."""


Event = CallQueued | CallRetried | CallSized | ConnectionChanged


class EventObserver(Protocol):
    """An observer that is also notified of events other than the beginning and end of calls."""

    def note(self, event: Event) -> None:
        """Handle an event."""


class Observer(Protocol):
    """An object that is notified of calls. An exception that it raises is logged and does not affect the call."""

    def begin(self, call: Call) -> Observation | None:
        """Return the observation of a new call; None to ignore the rest of the call."""


class ObservedCall:
    """One call and its observers. An exception of an observer is logged."""

    __slots__ = ("_observations", "_observers", "call")

    def __init__(self, observers: Sequence[Observer], call: Call) -> None:
        self.call = call
        self._observers = observers
        begun = [_safely(_begin, observer, call) for observer in observers]
        self._observations: list[Observation] = [each for each in begun if each is not None]

    def enter(self) -> list[Any]:
        """Notify observers that a step of the call begins; return the value that `leave` needs."""
        return [*(_safely(observation.enter) for observation in self._observations), _current.set(self)]

    def leave(self, entered: list[Any]) -> None:
        """Notify the observers, in reverse order, that a step ends."""
        try:  # noqa: SIM105  # cheaper than `suppress`
            _current.reset(entered.pop())
        except ValueError:  # work that outlives its call ends in another context
            pass
        for observation in reversed(self._observations):
            _safely(observation.leave, entered.pop())

    def item(self, envelope: ResponseEnvelope[Any]) -> None:
        """Notify observers of an item."""
        self.call.items += 1
        for observation in self._observations:
            _safely(observation.item, envelope)

    def normalised(self, given: Any, data: Any, problems: Sequence[Problem]) -> None:
        """Notify observers of a result that normalising changed, or that still does not match the output schema."""
        for observation in self._observations:
            _safely(observation.normalised, given, data, problems)

    def end(self, error: BaseException | None, envelope: ResponseEnvelope[Any] | None = None) -> None:
        """Notify observers of the end."""
        outcome = outcome_of(self.call, error, envelope)
        for observation in self._observations:
            if envelope is not None:
                _safely(observation.result, envelope)
            _safely(observation.end, outcome, error)

    def retried(self, attempt: int, error: CallError, delay: float) -> None:
        """Notify observers that an attempt failed and another one follows."""
        call = self.call
        notify(self._observers, CallRetried(call.request_id, call.operation_id, attempt, error, delay))


_current: ContextVar[ObservedCall | None] = ContextVar("current_observed_call", default=None)


def current_observed_call() -> ObservedCall | None:
    """Return the call that the current task runs; None without observers."""
    return _current.get()


def notify(observers: Sequence[Observer], event: Event) -> None:
    """Notify those observers that handle events."""
    for observer in observers:
        note = getattr(observer, "note", None)
        if note is not None:
            _safely(note, event)


def _begin(observer: Observer, call: Call) -> Observation | None:
    observation = observer.begin(call)
    if observation is not None and not isinstance(observation, Observation):
        got = type(observation).__name__
        raise TypeError(f"{type(observer).__name__}.begin returned {got}: expected an Observation or None")
    return observation


def _safely(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception:  # noqa: BLE001  # an observer must not end the call that it observes
        _log.exception("an observer failed")
        return None


Run = Callable[[OperationContext], Awaitable[ResponseEnvelope[Any]]]
RunStream = Callable[[OperationContext], AsyncGenerator[ResponseEnvelope[Any], None]]


async def observe_call(
    observers: Sequence[Observer],
    spec: OperationSpec,
    input: Any,
    context: OperationContext | None,
    kind: Kind,
    run: Run,
) -> ResponseEnvelope[Any]:
    """Run a call and notify observers; `run` gets the context with a request id."""
    context = with_request_id(context)
    observed = ObservedCall(observers, _call(spec, input, context, kind, streaming=False))
    entered = observed.enter()
    try:
        envelope = await run(context)
    except BaseException as error:
        observed.leave(entered)
        observed.end(error)
        raise
    observed.leave(entered)
    observed.end(None, envelope)
    return envelope


async def observe_stream(
    observers: Sequence[Observer],
    spec: OperationSpec,
    input: Any,
    context: OperationContext | None,
    kind: Kind,
    run: RunStream,
) -> AsyncGenerator[ResponseEnvelope[Any], None]:
    """Run a stream and notify observers; the call begins with the first item that is requested."""
    context = with_request_id(context)
    observed = ObservedCall(observers, _call(spec, input, context, kind, streaming=True))
    try:
        async with contextlib.aclosing(_observe_steps(observed, run(context))) as steps:
            async for envelope in steps:
                observed.item(envelope)
                yield envelope
    except BaseException as error:
        observed.end(error)
        raise
    observed.end(None)


async def _observe_steps(
    observed: ObservedCall, stream: AsyncGenerator[ResponseEnvelope[Any], None]
) -> AsyncGenerator[ResponseEnvelope[Any], None]:
    """Yield the items of a stream; observers enter and leave each step in the task that requests the item."""
    try:
        while True:
            entered = observed.enter()
            try:
                envelope = await anext(stream)
            except StopAsyncIteration:
                return
            finally:
                observed.leave(entered)
            yield envelope
    finally:
        entered = observed.enter()
        try:
            await stream.aclose()
        finally:
            observed.leave(entered)


def _call(spec: OperationSpec, input: Any, context: OperationContext, kind: Kind, *, streaming: bool) -> Call:
    return Call(
        operation_id=spec.id,
        spec=spec,
        kind=kind,
        streaming=streaming,
        request_id=context.request_id,
        parent_request_id=context.parent_request_id,
        identity=context.identity,
        protocol="" if context.grant is None else context.grant.protocol,
        deadline=context.deadline,
        metadata=context.metadata,
        input=input,
    )


def outcome_of(call: Call, error: BaseException | None, envelope: ResponseEnvelope[Any] | None = None) -> str:
    """Return the outcome of a call: `ok`, `tool_error`, or an error code."""
    if error is None:
        meta = None if envelope is None else envelope.meta
        return "tool_error" if isinstance(meta, MCPResponseMeta) and meta.is_error else "ok"
    if isinstance(error, CallError):
        return str(error.code)
    if isinstance(error, GeneratorExit):
        return "ok"  # the consumer has read enough
    if isinstance(error, asyncio.CancelledError):
        is_late = call.deadline is not None and call.deadline / 1000 <= time.time()
        return str(ErrorCode.TIMEOUT if is_late else ErrorCode.ABORTED)
    return str(ErrorCode.EXECUTION_ERROR)
