"""Sources that other packages bring: functions that yield operations, in the entry-point group `operations.sources`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.spec import Operation

GROUP = "operations.sources"

SourceFunction = Callable[..., Any]
"""Takes the source's options as keyword arguments and gives operations: as an iterable or an asynchronous one, awaited
or not, or as what a context manager, asynchronous or not, gives for as long as the source is open."""


def list_sources() -> list[str]:
    """The names of the sources that installed packages bring."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_source(name: str) -> SourceFunction:
    """The function of a source by its name; raises where it is not installed or cannot be imported."""
    entries: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not entries:
        known = ", ".join(list_sources()) or "none"
        message = f"no installed package brings a source {name!r} (entry-point group {GROUP}); there are: {known}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    try:
        function = entries[0].load()
    except Exception as error:
        message = f"the source {name!r} ({entries[0].value}) cannot be imported: {type(error).__name__}: {error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
    if not callable(function):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the source {name!r} ({entries[0].value}) is not a function")
    found: SourceFunction = function
    return found


@contextlib.asynccontextmanager
async def open_source(
    function: SourceFunction, options: Mapping[str, Any] | None = None
) -> AsyncIterator[list[Operation[Any]]]:
    """The operations of a source, which stays open as long as the block lasts."""
    given = function(**(options or {}))
    if inspect.isawaitable(given):
        given = await given
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(given, "__aenter__"):
            given = await stack.enter_async_context(given)
        elif hasattr(given, "__enter__"):
            given = stack.enter_context(given)
        yield await _gather(given)


async def _gather(given: Any) -> list[Operation[Any]]:
    """The operations, if they are; anything else among them is an error that says what it is."""
    if isinstance(given, AsyncIterable):
        found = [item async for item in given]
    elif isinstance(given, Iterable):
        found = list(given)
    else:
        message = f"a source gives operations, not {type(given).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    for item in found:
        if not isinstance(item, Operation):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"a source gives operations; {type(item).__name__} is none")
    return found
