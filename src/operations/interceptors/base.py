"""The interface of interceptors: Invocation, composition, and the choice of operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import translate
from operations.spec import OperationSpec, OperationType

_MAX_CHOSEN = 100_000


class Invocation(msgspec.Struct, frozen=True):
    """One call before its handler runs. To change the call, pass a changed copy to `proceed`."""

    spec: OperationSpec
    input: Any
    context: OperationContext
    streaming: bool
    """Whether the call is a `subscribe`: the result is an async iterator of envelopes, not an envelope."""
    retried: Callable[[int, CallError, float], None] | None = None
    """Reports a failed attempt to observers.

    The arguments are the number of the attempt, its error, and the seconds until the next attempt.
    """


Proceed = Callable[[Invocation], Awaitable[Any]]
"""Continues the call: runs the next interceptor or the operation itself."""
Interceptor = Callable[[Invocation, Proceed], Awaitable[Any]]
"""Wraps a call: it receives the invocation, and a function that continues the call.

An interceptor with a method `applies(spec) -> bool` runs only for operations for which that method returns true.
"""
Envelopes = AsyncGenerator[ResponseEnvelope[Any], None]
KeyPart = Literal["identity", "operation", "namespace"]
"""A part of the key under which an interceptor counts calls."""


class Only:
    """An interceptor for some operations: those whose id matches a shell pattern in `operations` and none in `exclude`.

    If `types` is not empty, the operation must also have one of these types.
    """

    def __init__(
        self,
        interceptor: Interceptor,
        operations: Iterable[str] = ("*",),
        *,
        exclude: Iterable[str] = (),
        types: Iterable[OperationType | str] = (),
    ) -> None:
        self.interceptor = interceptor
        self.operations = _texts("operations", operations)
        self.exclude = _texts("exclude", exclude)
        self.types = frozenset(OperationType(kind) for kind in _texts("types", types))

    def applies(self, spec: OperationSpec) -> bool:
        """Whether the interceptor runs for an operation."""
        if self.types and spec.type not in self.types:
            return False
        if not any(fnmatchcase(spec.id, pattern) for pattern in self.operations):
            return False
        return not any(fnmatchcase(spec.id, pattern) for pattern in self.exclude) and applies(self.interceptor, spec)

    def asks(self, spec: OperationSpec) -> bool:
        """Whether the interceptor may ask the caller of an operation a question."""
        return self.applies(spec) and asks(self.interceptor, spec)

    def __call__(self, invocation: Invocation, proceed: Proceed) -> Awaitable[Any]:
        """Run the interceptor."""
        return self.interceptor(invocation, proceed)


def applies(interceptor: Interceptor, spec: OperationSpec) -> bool:
    """Return whether an interceptor runs for an operation."""
    condition = getattr(interceptor, "applies", None)
    return condition is None or bool(condition(spec))


def asks(interceptor: Interceptor, spec: OperationSpec) -> bool:
    """Return whether an interceptor may ask the caller a question by `context.ask`.

    The interceptor's method `asks` decides; without such a method, the result is False.
    """
    condition = getattr(interceptor, "asks", None)
    return condition is not None and bool(condition(spec))


def choose(interceptors: Sequence[Interceptor], spec: OperationSpec) -> tuple[Interceptor, ...]:
    """Return the interceptors that run for an operation, in their order."""
    return tuple(interceptor for interceptor in interceptors if applies(interceptor, spec))


def compose(interceptors: Sequence[Interceptor], innermost: Proceed) -> Proceed:
    """Return one callable that runs the interceptors, the first outermost, around `innermost`."""
    proceed = innermost
    for interceptor in reversed(interceptors):
        proceed = _around(interceptor, proceed)
    return proceed


def _around(interceptor: Interceptor, proceed: Proceed) -> Proceed:
    return lambda invocation: interceptor(invocation, proceed)


def require_instances(interceptors: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Return the interceptors; raise `VALIDATION_ERROR` for a class in place of an instance."""
    checked = tuple(interceptors)
    for each in checked:
        if isinstance(each, type):
            message = f"invalid interceptor {each.__name__}: expected an instance, such as {each.__name__}(…)"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return checked


class ChosenInterceptors:
    """The interceptors of each operation, chosen when the operation is first called."""

    def __init__(self) -> None:
        self._chosen: dict[str, tuple[OperationSpec, object, tuple[Interceptor, ...]]] = {}

    def of(self, interceptors: Sequence[Interceptor], spec: OperationSpec) -> tuple[Interceptor, ...]:
        """Return the interceptors that run for an operation; they are chosen again if the spec or the list changed."""
        known = self._chosen.get(spec.id)
        if known is not None and known[0] is spec and known[1] is interceptors:
            return known[2]
        if len(self._chosen) >= _MAX_CHOSEN:
            self._chosen.clear()
        chosen = choose(interceptors, spec)
        self._chosen[spec.id] = spec, interceptors, chosen
        return chosen


async def intercept(interceptors: Sequence[Interceptor], invocation: Invocation, innermost: Proceed) -> Any:
    """Run a call within its interceptors; return an envelope, or an async iterator of envelopes for a stream."""
    operation_id, streaming = invocation.spec.id, invocation.streaming
    try:
        result = await compose(interceptors, innermost)(invocation)
    except BaseException as error:  # noqa: BLE001  # an interceptor's failure is translated like a handler's
        raise translate(error, operation_id)  # noqa: B904  # its cause is already set
    if not (hasattr(result, "__aiter__") if streaming else isinstance(result, ResponseEnvelope)):
        expected = "an async iterator of envelopes" if streaming else "an envelope"
        message = f"{operation_id}: an interceptor returned {type(result).__name__}, not {expected}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)
    return result


async def intercept_stream(
    interceptors: Sequence[Interceptor], invocation: Invocation, innermost: Proceed
) -> Envelopes:
    """Yield the items of a stream that runs within its interceptors."""
    stream = await intercept(interceptors, invocation, innermost)
    try:
        async for envelope in stream:
            yield envelope
    except BaseException as error:  # noqa: BLE001  # an interceptor may run only when the first item is requested
        raise translate(error, invocation.spec.id)  # noqa: B904  # its cause is already set
    finally:
        # An interceptor may return any iterator; aclose() is optional.
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def counts_of(interceptor: Interceptor) -> Iterator[tuple[str, str, int]]:
    """Yield the counters of an interceptor as triples of class name, event and count."""
    while isinstance(interceptor, Only):
        interceptor = interceptor.interceptor
    counts = getattr(interceptor, "counts", None)
    if counts is not None:
        for event, count in counts().items():
            yield type(interceptor).__name__, event, count


@asynccontextmanager
async def open_stream(invocation: Invocation, proceed: Proceed) -> AsyncGenerator[Any, None]:
    """Open the stream of an invocation and close it afterwards.

    Use this function inside the async generator that an interceptor returns for a stream. Such a generator acquires
    nothing before its first item is requested, so a generator that is never iterated has nothing to release.
    """
    stream = await proceed(invocation)
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def key_of(invocation: Invocation, by: Sequence[KeyPart]) -> tuple[str | None, ...]:
    """Return the key that a call is counted under; callers without an identity share one key."""
    spec, identity = invocation.spec, invocation.context.identity
    parts = {
        "identity": None if identity is None else identity.id,
        "operation": spec.id,
        "namespace": spec.namespace,
    }
    return tuple(parts[part] for part in by)


def check_by(by: Iterable[KeyPart]) -> tuple[KeyPart, ...]:
    """Return the parts of a key; raise ValueError for an unknown part."""
    parts = _texts("by", by)
    for part in parts:
        if part not in ("identity", "operation", "namespace"):
            raise ValueError(f"invalid by={part!r}: expected identity, operation or namespace")
    return parts  # type: ignore[return-value]


def refusal(operation_id: str, text: str, reason: str, retry_after: float | None = None) -> CallError:
    """Return the error of a call that an interceptor refused; the call was not executed."""
    details: dict[str, Any] = {"operationId": operation_id, "executed": "no", "reason": reason}
    if retry_after is not None:
        details["retryAfter"] = round(retry_after, 3)
    return CallError(ErrorCode.UNAVAILABLE, f"{operation_id}: {text}", details)


def _texts(name: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise ValueError(f"invalid {name} {given!r}: expected a list; pass [{given!r}]")
    return tuple(given)
