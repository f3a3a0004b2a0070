"""Helpers for tests of operations: stubs, sample envelopes, and recorders of calls and messages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope, http_envelope, mcp_envelope
from operations.errors import CallError
from operations.interceptors.base import Invocation, Proceed
from operations.pubsub import (
    Arrival,
    Delivery,
    InProcess,
    Receive,
    Record,
    Stop,
    Take,
    Transport,
    TransportWrapper,
    Undelivered,
)
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.protocols import Part
from operations.schema import UNKNOWN
from operations.spec import Operation, OperationSpec, OperationType, SchemaLike, as_schema

__all__ = [
    "RecordedCall",
    "RecordedMessage",
    "Recorder",
    "RecordingTransport",
    "error_of",
    "sample_http_envelope",
    "sample_mcp_envelope",
    "stub_operation",
    "stub_source",
]


class RecordedCall(msgspec.Struct, frozen=True):
    """A recorded call and its outcome."""

    operation_id: str
    input: Any
    context: OperationContext
    streaming: bool
    result: ResponseEnvelope[Any] | None = None
    """The envelope; None for a stream or a failed call."""
    error: BaseException | None = None
    """The error of the call; for a stream that its reader closed, `GeneratorExit`."""
    events: list[ResponseEnvelope[Any]] = []
    """Events of a stream so far."""
    ended: bool = True
    """Whether the call has ended; False while a stream is open."""


class Recorder:
    """Interceptor that records every call: `OperationRegistry(interceptors=[recorder])`, then read `calls`."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call and record its outcome."""
        call = RecordedCall(invocation.spec.id, invocation.input, invocation.context, invocation.streaming)
        try:
            result = await proceed(invocation)
        except BaseException as error:
            self.calls.append(msgspec.structs.replace(call, error=error))
            raise
        if invocation.streaming:
            self.calls.append(msgspec.structs.replace(call, ended=False))
            return self._follow(result, len(self.calls) - 1)
        self.calls.append(msgspec.structs.replace(call, result=result))
        return result

    async def _follow(self, stream: AsyncGenerator[ResponseEnvelope[Any], None], index: int) -> AsyncIterator[Any]:
        """Yield the stream's events, and record each event and the end."""
        error: BaseException | None = None
        try:
            async with contextlib.aclosing(stream):
                async for envelope in stream:
                    self.calls[index].events.append(envelope)
                    yield envelope
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.calls[index] = msgspec.structs.replace(self.calls[index], ended=True, error=error)

    def inputs(self, operation_id: str) -> list[Any]:
        """Return the inputs of every call of one operation, in order."""
        return [call.input for call in self.calls if call.operation_id == operation_id]


class RecordedMessage(msgspec.Struct, frozen=True):
    """A message recorded by a RecordingTransport."""

    direction: Literal["sent", "received"]
    address: str
    """The address that the message was sent to; empty for a message from a hub, whose transport has no addresses."""
    message: bytes


class RecordingTransport(TransportWrapper):
    """Wrapper that records every message of a transport (by default one in memory)."""

    def __init__(self, inner: Transport | None = None) -> None:
        super().__init__(MemoryTransport(direct=False) if inner is None else inner)
        self.messages: list[RecordedMessage] = []

    def optional(self, kind: type[Part]) -> Part | None:
        """Return a part of the inner transport, or None; always None for `InProcess`: its calls send no messages."""
        return None if kind is InProcess else super().optional(kind)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Record and send a message."""
        self.messages.append(RecordedMessage("sent", address, message))
        super().send(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive the messages of an address; each is recorded, then passed to `receive`."""
        return super().listen(address, _RecordingListener(self, receive), group=group)

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        """Record and store a message."""
        self.messages.append(RecordedMessage("sent", address, message))
        super().store(address, message, key=key, stored=stored, undelivered=undelivered, record=record)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored messages of an address; each is recorded, then passed to `take`."""

        def record(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            self.messages.append(RecordedMessage("received", arrival.address, message))
            take(message, delivery, arrival)

        return super().take(address, record, limit=limit)


class _RecordingListener(msgspec.Struct, frozen=True):
    """A listener that records each message.

    Listeners of the same function are equal, because a hub's transport passes a message once to each listener.
    """

    recorder: RecordingTransport
    receive: Receive

    def __call__(self, message: bytes, arrival: Arrival) -> None:
        """Record and receive a message."""
        self.recorder.messages.append(RecordedMessage("received", arrival.address, message))
        self.receive(message, arrival)


def stub_operation(
    operation_id: str,
    *,
    returns: Any = None,
    raises: BaseException | None = None,
    yields: Iterable[Any] | None = None,
    input_schema: SchemaLike = UNKNOWN,
    output_schema: SchemaLike = UNKNOWN,
    **declared: Any,
) -> Operation[Any]:
    """Return an operation that returns a value, raises an error, or yields a stream of items.

    If `returns` is a function, it is called with the input, and the operation returns its result. An operation with
    `yields` and `raises` yields the items and then raises the error. `declared` are further fields of its spec.
    """

    async def handler(input: Any, context: OperationContext) -> Any:
        if raises is not None:
            raise raises
        return returns(input) if callable(returns) else returns

    async def stream(input: Any, context: OperationContext) -> Any:
        for item in yields or ():
            yield item
        if raises is not None:
            raise raises

    namespace, _, name = operation_id.rpartition(".")
    declared.setdefault("type", OperationType.QUERY if yields is None else OperationType.SUBSCRIPTION)
    spec = OperationSpec(
        namespace=namespace,
        name=name,
        input_schema=as_schema(input_schema),
        output_schema=as_schema(output_schema),
        **declared,
    )
    return Operation(spec=spec, handler=handler) if yields is None else Operation(spec=spec, stream=stream)


def stub_source(namespace: str, results: Mapping[str, Any]) -> list[Operation[Any]]:
    """Return a stub operation for each name in `results`.

    The operation returns the value of that name, or raises the value if it is an exception.
    """
    return [
        stub_operation(f"{namespace}.{name}", raises=result)
        if isinstance(result, BaseException)
        else stub_operation(f"{namespace}.{name}", returns=result)
        for name, result in results.items()
    ]


def sample_http_envelope(
    data: Any, *, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> ResponseEnvelope[Any]:
    """Return an envelope like those that an HTTP source returns for a JSON response."""
    return http_envelope(data, status_code=status_code, headers={"content-type": "application/json", **(headers or {})})


def sample_mcp_envelope(data: Any, *, text: str | None = None, is_error: bool = False) -> ResponseEnvelope[Any]:
    """Return an envelope like those that an MCP source returns.

    The envelope has a text block, by default with the JSON of `data`. If `data` is a dict, `data` is also the
    structured content.
    """
    structured = data if isinstance(data, dict) else None
    content = [{"type": "text", "text": text if text is not None else msgspec.json.encode(data).decode()}]
    return mcp_envelope(data, is_error=is_error, content=content, structured_content=structured)


async def error_of(awaitable: Any) -> CallError:
    """Return the CallError of a call; raise AssertionError if it succeeds."""
    try:
        result = await awaitable
    except CallError as error:
        return error
    raise AssertionError(f"expected the call to fail; it returned {result!r}")
