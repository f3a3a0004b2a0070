"""ResponseLimit: refuses large results."""

from __future__ import annotations

from typing import Any

from operations.envelope import ResponseEnvelope
from operations.failures import too_large
from operations.interceptors.base import Envelopes, Invocation, Proceed, open_stream


class ResponseLimit:
    """Refuses results of more than `max_bytes`, written as JSON with their meta.

    The error is `EXECUTION_ERROR` with `reason` `PAYLOAD_TOO_LARGE`: the operation was executed. Each item of
    a stream has the same limit; `stream_bytes` limits all items together.
    """

    def __init__(self, max_bytes: int, *, stream_bytes: int | None = None) -> None:
        if max_bytes < 1 or (stream_bytes is not None and stream_bytes < 1):
            raise ValueError("invalid response limit: expected positive max_bytes and stream_bytes")
        self._max_bytes = max_bytes
        self._stream_bytes = stream_bytes

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call; raise an error if its result is too large."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        envelope = await proceed(invocation)
        self._measure(invocation, envelope)
        return envelope

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        total = 0
        async with open_stream(invocation, proceed) as stream:
            async for envelope in stream:
                total += self._measure(invocation, envelope)
                if self._stream_bytes is not None and total > self._stream_bytes:
                    raise too_large(invocation.spec.id, "stream", total, self._stream_bytes, "yes")
                yield envelope

    def _measure(self, invocation: Invocation, envelope: ResponseEnvelope[Any]) -> int:
        size = len(envelope.to_json())
        if size > self._max_bytes:
            raise too_large(invocation.spec.id, "result", size, self._max_bytes, "yes")
        return size
