"""AwaitableContext: a coroutine that opens a source, for `await` and for `async with`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class AwaitableContext(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that returns an open source: `source = await open(…)`, or `async with open(…) as source`."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._opened: T | None = None

    def send(self, value: Any) -> Any:
        """Resume the coroutine."""
        return self._coroutine.send(value)

    def throw(self, *exc_info: Any) -> Any:
        """Raise an exception in the coroutine."""
        return self._coroutine.throw(*exc_info)

    def close(self) -> None:
        """Close the coroutine; a source that it has opened stays open."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._coroutine
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()
