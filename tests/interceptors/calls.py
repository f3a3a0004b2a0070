"""Operations and callers for the tests of interceptors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from operations import CallError, ErrorCode, Identity, OperationContext, OperationRegistry
from operations.interceptors import Interceptor
from operations.spec import Operation, OperationSpec, OperationType

ANN = OperationContext(identity=Identity("ann", ("read",)))
BOB = OperationContext(identity=Identity("bob", ("read",)))


class Clock:
    """A simulated clock; `sleep` advances it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Upstream:
    """A handler that raises the errors in its list, one per call, and then returns the number of the call."""

    def __init__(self, errors: Iterable[Exception | None] = ()) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self, input: Any, context: OperationContext) -> Any:
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return {"call": self.calls}

    async def stream(self, input: Any, context: OperationContext) -> AsyncIterator[Any]:
        self.calls += 1
        for number in range(3):
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            yield number


def operation_of(handler: Any, type: str = "query", operation_id: str = "a.b") -> Operation[Any]:
    namespace, _, name = operation_id.rpartition(".")
    spec = OperationSpec(namespace=namespace, name=name, type=OperationType(type))
    return Operation(spec=spec, handler=handler, stream=getattr(handler, "stream", None), wants_context=True)


def registry_of(
    interceptors: list[Interceptor], handler: Any = None, type: str = "query", operation_id: str = "a.b"
) -> OperationRegistry:
    return OperationRegistry([operation_of(handler or Upstream(), type, operation_id)], interceptors=interceptors)


def unavailable(executed: str = "unknown", operation_id: str = "a.b") -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "gone", {"operationId": operation_id, "executed": executed})


async def outcomes(call: Callable[[], Any], count: int) -> list[str]:
    """How each of several calls ended: `ok`, or its reason or code."""
    ended = []
    for _ in range(count):
        try:
            await call()
        except CallError as error:
            ended.append(error.details.get("reason") or str(error.code))
        else:
            ended.append("ok")
    return ended
