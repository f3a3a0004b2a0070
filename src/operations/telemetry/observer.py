"""Observer: told of every call that a registry runs. It sees calls and changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from operations.context import Identity, OperationContext
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import OperationSpec

_log = logging.getLogger("operations")
Kind = Literal["local", "served"]


class Call(msgspec.Struct, eq=False, kw_only=True):
    """One call as observers see it."""

    operation_id: str
    spec: OperationSpec | None
    """None where there is no such operation."""
    kind: Kind
    """`served` for a call from elsewhere, `local` for one of this process, nested ones included."""
    streaming: bool
    request_id: str
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: int | None = None
    metadata: Mapping[str, Any] = {}
    input: Any = None
    began: float = msgspec.field(default_factory=time.perf_counter)
    """By the clock of `time.perf_counter`."""
    items: int = 0
    """Items of a stream so far."""

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.began


class Observation:
    """What an observer does during one call: a base with methods that do nothing."""

    __slots__ = ()

    def enter(self) -> Any:
        """Begin a step of the call in the current task; `leave` gets what this returns, in the same task."""
        return None

    def leave(self, entered: Any) -> None:
        """End a step of the call."""

    def item(self, envelope: ResponseEnvelope[Any]) -> None:
        """Note an item of a stream."""

    def end(self, outcome: str, error: BaseException | None) -> None:
        """Note the end: `ok`, `tool_error` for an MCP error result, else the code of the error."""


class Observer(Protocol):
    """Told of calls. What it raises is logged and affects no call."""

    def begin(self, call: Call) -> Observation | None:
        """Note that a call begins; None where the rest of it does not matter."""


class Watch:
    """One call and the observers that are told of it."""

    __slots__ = ("_observations", "call")

    def __init__(self, observers: Sequence[Observer], call: Call) -> None:
        self.call = call
        begun = [_safely(observer.begin, call) for observer in observers]
        self._observations: list[Observation] = [each for each in begun if each is not None]

    def enter(self) -> list[Any]:
        """Begin a step."""
        return [_safely(observation.enter) for observation in self._observations]

    def leave(self, entered: list[Any]) -> None:
        """End a step; the innermost observer leaves first."""
        for observation, token in zip(reversed(self._observations), reversed(entered), strict=True):
            _safely(observation.leave, token)

    def item(self, envelope: ResponseEnvelope[Any]) -> None:
        """Note an item."""
        self.call.items += 1
        for observation in self._observations:
            _safely(observation.item, envelope)

    def end(self, error: BaseException | None, envelope: ResponseEnvelope[Any] | None = None) -> None:
        """Note the end."""
        outcome = outcome_of(self.call, error, envelope)
        for observation in self._observations:
            _safely(observation.end, outcome, error)


def _safely(tell: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return tell(*arguments)
    except Exception:  # noqa: BLE001  # an observer must not end the call that it observes
        _log.exception("an observer failed")
        return None


def watch(
    observers: Sequence[Observer],
    spec: OperationSpec,
    input: Any,
    context: OperationContext,
    *,
    kind: Kind,
    streaming: bool,
) -> Watch:
    """Tell observers that a call begins."""
    call = Call(
        operation_id=spec.id,
        spec=spec,
        kind=kind,
        streaming=streaming,
        request_id=context.request_id,
        parent_request_id=context.parent_request_id,
        identity=context.identity,
        deadline=context.deadline,
        metadata=context.metadata,
        input=input,
    )
    return Watch(observers, call)


def outcome_of(call: Call, error: BaseException | None, envelope: ResponseEnvelope[Any] | None = None) -> str:
    """Return how a call ended in one word: `ok`, `tool_error`, or a code."""
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
