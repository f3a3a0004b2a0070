"""Calls of what a hub does not list: it lists what its caller may call, and says itself why the rest is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from operations.calls import PendingRequestMap
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.pubsub import Transport
from operations.spec import Operation, OperationSpec, OperationType


def unlisted_operation(transport: Transport, operation_id: str, missing: CallError) -> Operation[Any]:
    """An operation that is asked of the hub by its id alone; `missing` is the error where there is none of that id."""
    pending = PendingRequestMap(transport)
    namespace, _, name = operation_id.rpartition(".")

    def explained(error: CallError) -> CallError:
        details = error.details if isinstance(error.details, dict) else {}
        nobody = error.code == ErrorCode.UNAVAILABLE and details.get("executed") == "no"
        return missing if nobody or error.code == ErrorCode.OPERATION_NOT_FOUND else error

    async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        try:
            return await pending.call_for(context, operation_id, input)
        except CallError as error:
            raise explained(error) from None

    async def follow(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        try:
            async for envelope in pending.subscribe_for(context, operation_id, input):
                yield envelope
        except CallError as error:
            raise explained(error) from None

    spec = OperationSpec(name=name, namespace=namespace, type=OperationType.MUTATION)
    return Operation(spec=spec, handler=call, stream=follow, dump=None)
