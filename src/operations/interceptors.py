"""Interceptors: async callables around every `execute` and `subscribe` of a registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.spec import OperationSpec


class Invocation(msgspec.Struct, frozen=True):
    """One call on its way to the handler; pass on a changed copy to change it."""

    spec: OperationSpec
    input: Any
    context: OperationContext
    streaming: bool
    """True for `subscribe`: what comes back is then an async iterator of envelopes, not an envelope."""


Proceed = Callable[[Invocation], Awaitable[Any]]
Interceptor = Callable[[Invocation, Proceed], Awaitable[Any]]


def compose(interceptors: Sequence[Interceptor], innermost: Proceed) -> Proceed:
    """One callable that runs the interceptors, the first outermost, around `innermost`."""
    proceed = innermost
    for interceptor in reversed(interceptors):
        proceed = _around(interceptor, proceed)
    return proceed


def _around(interceptor: Interceptor, proceed: Proceed) -> Proceed:
    return lambda invocation: interceptor(invocation, proceed)
