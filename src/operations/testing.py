"""What users need to test their own operations: stubs, sample envelopes, a record of what was called."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope, http_envelope, mcp_envelope
from operations.errors import CallError
from operations.interceptors import Invocation, Proceed
from operations.pubsub import (
    Arrival,
    Delivery,
    InProcess,
    Receive,
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


class RecordedCall(msgspec.Struct, frozen=True):
    """One call that a Recorder saw, with how it ended."""

    operation_id: str
    input: Any
    context: OperationContext
    streaming: bool
    result: ResponseEnvelope[Any] | None = None
    """The envelope; None for a stream or a failed call."""
    error: BaseException | None = None
    """What the call failed with; for a stream that its reader left, `GeneratorExit`."""
    events: list[ResponseEnvelope[Any]] = []
    """What a stream has given so far."""
    ended: bool = True
    """False while a stream goes on."""


class Recorder:
    """An interceptor that keeps every call: `OperationRegistry(interceptors=[recorder])`, then look at `calls`."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Let the call proceed and write down how it went."""
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
        """A stream as it is, with each event and the end written down in the call's record."""
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
        """The inputs of every call of one operation, in order."""
        return [call.input for call in self.calls if call.operation_id == operation_id]


class RecordedMessage(msgspec.Struct, frozen=True):
    """One message that passed a RecordingTransport."""

    direction: Literal["sent", "received"]
    address: str
    message: bytes


class RecordingTransport(TransportWrapper):
    """A transport that keeps every message that passes through it, around another one (in memory by default)."""

    def __init__(self, inner: Transport | None = None) -> None:
        super().__init__(MemoryTransport(direct=False) if inner is None else inner)
        self.messages: list[RecordedMessage] = []

    def optional(self, kind: type[Part]) -> Part | None:
        """The inner transport's parts, but for calls by reference: they send no messages that could be kept."""
        return None if kind is InProcess else super().optional(kind)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Write the message down and send it."""
        self.messages.append(RecordedMessage("sent", address, message))
        super().send(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive, and write down what comes."""

        def record(message: bytes, arrival: Arrival) -> None:
            self.messages.append(RecordedMessage("received", arrival.address or address, message))
            receive(message, arrival)

        return super().listen(address, record, group=group)

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Write the message down and store it."""
        self.messages.append(RecordedMessage("sent", address, message))
        super().store(address, message, key=key, stored=stored, undelivered=undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored messages, and write them down."""

        def record(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            self.messages.append(RecordedMessage("received", arrival.address, message))
            take(message, delivery, arrival)

        return super().take(address, record, limit=limit)


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
    """An operation that gives what it is told: a value (or what a function makes of the input), an error, a stream."""

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
    """A source of stubs: each name of `results` becomes an operation that gives its value, or raises it if an error."""
    return [
        stub_operation(f"{namespace}.{name}", raises=result)
        if isinstance(result, BaseException)
        else stub_operation(f"{namespace}.{name}", returns=result)
        for name, result in results.items()
    ]


def sample_http_envelope(
    data: Any, *, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> ResponseEnvelope[Any]:
    """An envelope as an HTTP source gives it for a JSON answer."""
    return http_envelope(data, status_code=status_code, headers={"content-type": "application/json", **(headers or {})})


def sample_mcp_envelope(data: Any, *, text: str | None = None, is_error: bool = False) -> ResponseEnvelope[Any]:
    """An envelope as an MCP source gives it: structured data, with the text a server sends beside it."""
    structured = data if isinstance(data, dict) else None
    content = [{"type": "text", "text": text if text is not None else msgspec.json.encode(data).decode()}]
    return mcp_envelope(data, is_error=is_error, content=content, structured_content=structured)


async def error_of(awaitable: Any) -> CallError:
    """The CallError that a call ends in; an AssertionError when it ends well."""
    try:
        result = await awaitable
    except CallError as error:
        return error
    raise AssertionError(f"the call was expected to fail and gave {result!r}")
