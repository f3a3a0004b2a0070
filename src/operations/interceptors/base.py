"""The seam of interceptors: the invocation they see, how they are composed and for which operations they run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import OperationSpec, OperationType


class Invocation(msgspec.Struct, frozen=True):
    """One call on its way to the handler; pass on a changed copy to change it."""

    spec: OperationSpec
    input: Any
    context: OperationContext
    streaming: bool
    """True for `subscribe`: what comes back is then an async iterator of envelopes, not an envelope."""


Proceed = Callable[[Invocation], Awaitable[Any]]
"""Continue the call: run the next interceptor or the operation itself."""
Interceptor = Callable[[Invocation, Proceed], Awaitable[Any]]
"""One that has a method `applies(spec) -> bool` runs only for operations for which that is true."""
Envelopes = AsyncGenerator[ResponseEnvelope[Any], None]
KeyPart = Literal["identity", "operation", "namespace"]
"""What an interceptor that counts keeps apart."""


class Only:
    """An interceptor for some operations: ids that a shell pattern of `operations` matches and none of `exclude`.

    `types` are the types of operation, all without it.
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

    def __call__(self, invocation: Invocation, proceed: Proceed) -> Awaitable[Any]:
        """Run the interceptor."""
        return self.interceptor(invocation, proceed)


def applies(interceptor: Interceptor, spec: OperationSpec) -> bool:
    """Return whether an interceptor runs for an operation."""
    condition = getattr(interceptor, "applies", None)
    return condition is None or bool(condition(spec))


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


def counts_of(interceptor: Interceptor) -> Iterator[tuple[str, str, int]]:
    """Return what an interceptor counts: its class, the event, how often it occurred."""
    if isinstance(interceptor, Only):
        interceptor = interceptor.interceptor
    counts = getattr(interceptor, "counts", None)
    if counts is not None:
        for event, count in counts().items():
            yield type(interceptor).__name__, event, count


@asynccontextmanager
async def opened(invocation: Invocation, proceed: Proceed) -> AsyncGenerator[Any, None]:
    """Open the stream of an invocation and close it afterwards.

    An interceptor returns a generator that uses this: the generator acquires nothing before its first item is asked
    for, so that one which is never iterated leaves nothing behind.
    """
    stream = await proceed(invocation)
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def key_of(invocation: Invocation, by: Sequence[KeyPart]) -> tuple[str | None, ...]:
    """Return what a call is counted under; callers without an identity are counted as one."""
    spec, identity = invocation.spec, invocation.context.identity
    parts = {
        "identity": None if identity is None else identity.id,
        "operation": spec.id,
        "namespace": spec.namespace,
    }
    return tuple(parts[part] for part in by)


def check_by(by: Iterable[KeyPart]) -> tuple[KeyPart, ...]:
    """Return the parts of a key; raise ValueError where one is unknown."""
    parts = _texts("by", by)
    for part in parts:
        if part not in ("identity", "operation", "namespace"):
            raise ValueError(f"invalid by {part!r}: expected identity, operation or namespace")
    return parts  # type: ignore[return-value]


def refused(operation_id: str, text: str, reason: str, retry_after: float | None = None) -> CallError:
    """Return the error of a call that an interceptor does not let through; it was not executed."""
    details: dict[str, Any] = {"operationId": operation_id, "executed": "no", "reason": reason}
    if retry_after is not None:
        details["retryAfter"] = round(retry_after, 3)
    return CallError(ErrorCode.UNAVAILABLE, f"{operation_id}: {text}", details)


def _texts(name: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise ValueError(f"invalid {name} {given!r}: expected a list; pass [{given!r}]")
    return tuple(given)
