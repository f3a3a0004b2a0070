"""Sources from other packages: functions in the entry-point group `operations.sources` that return operations."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.spec import Operation

GROUP = "operations.sources"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

SourceFunction = Callable[..., Any]
"""Function that takes a source's options as keyword arguments and returns its operations.

The result is an iterable or async iterable of operations, or an awaitable that returns one of these. It may also be a
sync or async context manager that yields such an iterable while the source is open.
"""


def list_sources() -> list[str]:
    """Return the names of the installed entry-point sources."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_source(name: str) -> SourceFunction:
    """Return the function of a source; raise `VALIDATION_ERROR` if the source is not installed or not usable."""
    entries: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not entries:
        known = ", ".join(list_sources()) or "no source"
        message = f"unknown source {name!r}: installed packages declare {known} in the entry-point group {GROUP}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    try:
        function = entries[0].load()
    except Exception as error:
        message = f"cannot import source {name!r} ({entries[0].value}): {type(error).__name__}: {error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
    if not callable(function):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"source {name!r} ({entries[0].value}) is not a function")
    found: SourceFunction = function
    return found


@contextlib.asynccontextmanager
async def open_source(
    function: SourceFunction, options: Mapping[str, Any] | None = None
) -> AsyncIterator[list[Operation[Any]]]:
    """Open a source for the duration of the block and yield its operations.

    Raise `VALIDATION_ERROR` if the function does not accept an option or requires a missing one.
    """
    _check_options(function, options or {})
    given = function(**(options or {}))
    if inspect.isawaitable(given):
        given = await given
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(given, "__aenter__"):
            given = await stack.enter_async_context(given)
        elif hasattr(given, "__enter__"):
            given = stack.enter_context(given)
        yield await _gather(given)


def _check_options(function: SourceFunction, options: Mapping[str, Any]) -> None:
    """Raise `VALIDATION_ERROR`, with the accepted options, if the function cannot be called with these options."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions written in C have none: the call itself fails
    named = [each for each in signature.parameters.values() if each.kind in _BY_NAME]
    missing = [
        f"missing option {each.name!r}" for each in named if each.default is each.empty if each.name not in options
    ]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    known = {each.name for each in named}
    unknown = [] if takes_any else [f"unknown option {name!r}" for name in options if name not in known]
    if problems := [*unknown, *missing]:
        name = getattr(function, "__qualname__", type(function).__name__)
        accepted = ", ".join(f"{each.name} (required)" if each.default is each.empty else each.name for each in named)
        message = f"invalid options of {name}: {'; '.join(problems)}; accepted: {accepted or 'none'}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


async def _gather(given: Any) -> list[Operation[Any]]:
    """Return the operations in the result of a source function; raise `VALIDATION_ERROR` for any other result."""
    if isinstance(given, AsyncIterable):
        found = [item async for item in given]
    elif isinstance(given, Iterable):
        found = list(given)
    else:
        message = f"invalid source: expected operations, not {type(given).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    for item in found:
        if not isinstance(item, Operation):
            raise CallError(
                ErrorCode.VALIDATION_ERROR, f"invalid source: expected operations, not {type(item).__name__}"
            )
    return found
