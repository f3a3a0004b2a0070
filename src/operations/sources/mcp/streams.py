"""What stands between the SDK's dispatcher and a transport; and how this client introduces itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from types import TracebackType
from typing import Any

import mcp_types as types


class WatchedStream:
    """A transport's incoming messages, which says that there will be no more before anybody else can notice."""

    def __init__(self, stream: Any, on_ended: Callable[[], None]) -> None:
        self.has_ended = False
        self._stream = stream
        self._on_ended = on_ended

    @property
    def last_context(self) -> Any:
        """The context variables of whoever sent the last message, where the transport knows them."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        return await self.__anext__()

    async def aclose(self) -> None:
        """Close the stream."""
        self._end()
        await self._stream.aclose()

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._end()
            raise

    async def __aenter__(self) -> WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        await self._stream.__aexit__(kind, error, trace)

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._on_ended()


def client_info() -> types.Implementation:
    """The name and version that servers are told."""
    try:
        version = metadata.version("operations")
    except metadata.PackageNotFoundError:
        version = "0"
    return types.Implementation(name="operations", version=version)


def plain(model: Any) -> dict[str, Any]:
    """One of the SDK's models as the protocol writes it."""
    data: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return data
