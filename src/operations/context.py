"""Identity and OperationContext: who calls, on whose behalf, and until when."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode

TRACE_FIELDS = ("traceparent", "tracestate")


Progress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Told how far a call has come: progress, total where it is known, a message where there is one."""


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """An authenticated caller: its id, what it may do, and the claims it came with."""

    id: str
    scopes: Sequence[str] = ()
    resources: Mapping[str, Sequence[str]] = {}
    """What may be done to single resources: `"type:id"` to a list of actions."""
    claims: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        for name, held in (("scopes", self.scopes), *(("resources", actions) for actions in self.resources.values())):
            # A text is a sequence too, of letters, and a search in it finds parts of words.
            if isinstance(held, str):
                message = f"the {name} of an identity are lists, not the text {held!r}: split it"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)


class Grant(msgspec.Struct, eq=False, kw_only=True):
    """The right of one request's handler to make nested calls for the request's caller.

    Every nested call, at any depth, is made with the grant of the request it belongs to. It is valid only on the
    transport that it came from, and ends with its request.
    """

    identity: Identity | None = None
    """The caller; None for an anonymous one."""
    token: str = ""
    """128 random bits that a hub accepts as proof; empty where the transport needs none."""
    signature: object = None
    """The signed request that it comes from, on a bus with signed requests."""
    origin: object = None
    """The end of the transport that the request came from; at a hub the id of the request."""
    deadline: int | None = None
    """Epoch milliseconds at which it ends at the latest."""
    ended: bool = False
    closing: float | None = None
    """At a hub: when it ends by the monotonic clock, once the request was aborted; None before that."""


current_grant: ContextVar[Grant | None] = ContextVar("current_grant", default=None)
"""The grant of the request that the current task works for; None outside of any request."""


@contextmanager
def outside_request() -> Iterator[None]:
    """Leave the request that the current task works for, within the block and in tasks that are started there.

    For a background task of a worker, which outlives the request that started it: it calls with `as_worker=True`.
    """
    entered = current_grant.set(None)
    try:
        yield
    finally:
        current_grant.reset(entered)


class Env(Protocol):
    """The operations a handler can reach: `env.github.get_repo(owner=…)`, `env["github"]["get_repo"]({…})`."""

    def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, name: str) -> Any: ...


class _NoEnv:
    """The env of a context that no registry has completed: whatever is asked of it, it says what it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        message = f"env.{name} was asked of a context without an env: execute makes one, or pass build_env(…)"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)


NO_ENV: Env = _NoEnv()


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds one call; a change makes a new one."""

    request_id: str = ""
    """Made by `execute` where it is empty."""
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: int | None = None
    """Epoch milliseconds after which nobody waits for the answer."""
    env: Env = NO_ENV
    """The operations within reach; made by `execute` where there is none."""
    metadata: Mapping[str, Any] = {}
    progress: Progress | None = None
    """Called with the progress that the source of a running call reports; a nested call does not inherit it."""
    grant: Grant | None = None
    """The grant of the request that this call belongs to; None for calls made by the program itself."""
    trusted: bool | None = None
    """Whether nested calls skip the access check; when not said, a context without an identity is trusted."""

    @property
    def is_trusted(self) -> bool:
        """Whether nested calls made from this context skip the access check."""
        return self.identity is None if self.trusted is None else self.trusted

    def child(self) -> OperationContext:
        """The context of a call nested in this one: same caller, deadline and trace, linked to its parent.

        Other metadata stays behind: it may hold credentials that were meant for this call alone.
        """
        metadata = self.metadata
        return OperationContext(
            request_id=new_request_id(),
            parent_request_id=self.request_id,
            identity=self.identity,
            deadline=self.deadline,
            metadata={key: metadata[key] for key in TRACE_FIELDS if key in metadata} if metadata else metadata,
            trusted=self.is_trusted,
            grant=self.grant,
        )


def new_request_id() -> str:
    """An id that no other call has: random for the process, counted within it."""
    return f"{_process_id}-{next(_counter):x}"


def _renew_process_id() -> None:
    global _process_id
    _process_id = os.urandom(16).hex()


_counter = itertools.count(1)
_process_id = ""
_renew_process_id()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_process_id)
