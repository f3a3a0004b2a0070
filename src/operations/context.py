"""Identity and OperationContext: caller, delegation and deadline of a call."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec

from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TRACE_FIELDS = ("traceparent", "tracestate")
MAX_TRACE_LENGTH = 512
"""Maximum number of characters of `traceparent` or `tracestate` in a served request; the rest is dropped."""
_MOST_SECONDS = 10.0 * 365 * 86_400


Progress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Callback for progress. Its arguments are the current value, the total (or None) and a message (or None)."""


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """An authenticated caller: id, scopes, resources and claims."""

    id: str
    scopes: Sequence[str] = ()
    resources: Mapping[str, Sequence[str]] = {}
    """Allowed actions on single resources: a list of actions for each `"type:id"`."""
    claims: Mapping[str, Any] = {}

    @property
    def has_rights(self) -> bool:
        """Whether the caller has any scope or resource."""
        return bool(self.scopes or self.resources)

    def __post_init__(self) -> None:
        if not isinstance(self.resources, Mapping):
            message = f"invalid resources {self.resources!r:.80}: expected a mapping, such as {{'account:7': ['read']}}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        for name, held in (("scopes", self.scopes), *(("resources", actions) for actions in self.resources.values())):
            # A string is also a sequence, but `in` would match substrings.
            if isinstance(held, str):
                message = f"invalid {name} {held!r}: expected a list; pass {held.split()!r}"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)


class Exposed(Protocol):
    """The operations that the callers of one server may call."""

    def serves(self, operation_id: str) -> bool:
        """Whether the server serves an operation, regardless of the caller."""

    def authorize(self, operation_id: str, identity: Identity | None) -> None:
        """Raise the CallError that a call of the operation would fail with; do nothing if the call is allowed."""


class Grant(msgspec.Struct, eq=False, kw_only=True):
    """The right of one request's handler to make nested calls for the request's caller.

    All nested calls of a request, at any depth, use the grant of the request. A grant is valid only on the transport
    that it came from, and only until its request ends.
    """

    identity: Identity | None = None
    """The caller; None for an anonymous caller."""
    token: str = ""
    """An unguessable string that proves the grant to a hub; empty on a transport that needs no such token."""
    signature: object = None
    """On a transport with signed requests: the first request of the chain of nested calls that led to the request.

    None if the request is not signed.
    """
    origin: object = None
    """The transport that the request came from; at a hub, the id of the request."""
    deadline: int | None = None
    """Time at which the grant ends at the latest, in epoch milliseconds."""
    protocol: str = ""
    """Protocol of the request: `http`, `mcp`, or `ws` for the call protocol on any transport; for observers only."""
    exposure: Exposed | None = None
    """The operations that the request's server exposes, for handlers that call operations by id; None for all."""
    ended: bool = False
    closing: float | None = None
    """At a hub: the monotonic time at which the grant ends after an abort of its request; None without an abort."""


current_grant: ContextVar[Grant | None] = ContextVar("current_grant", default=None)
"""Grant of the request that the current task works for; None outside a request."""


@contextmanager
def outside_request() -> Iterator[None]:
    """Detach the block, and tasks started in it, from the current request.

    Use it in a worker for background tasks that continue after the request has ended. Such a task calls over a
    transport with `as_worker=True`.
    """
    entered = current_grant.set(None)
    try:
        yield
    finally:
        current_grant.reset(entered)


ELICIT = "elicitation/create"
"""The MCP method that asks the user of the calling program a question."""


class Question(msgspec.Struct, frozen=True):
    """A request to the caller of a running operation, in MCP's form: a method and its parameters."""

    method: str
    params: Mapping[str, Any] = {}

    @classmethod
    def form(cls, message: str, schema: Mapping[str, Any] | None = None) -> Question:
        """Return a question to the user; `schema` is a JSON Schema of an object without nested objects."""
        wanted = {"type": "object", "properties": {}} if schema is None else schema
        return cls(ELICIT, {"message": message, "requestedSchema": wanted})


class Answer(msgspec.Struct, frozen=True):
    """A user's answer: accepted, declined or cancelled, with the values of the form."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] = {}

    @property
    def is_accepted(self) -> bool:
        """Whether the user accepted the question. Read `content` only in this case."""
        return self.action == "accept"


class Client(Protocol):
    """The calling program: it answers questions and receives notifications."""

    def supports(self, method: str) -> bool:
        """Whether the caller answers requests with this method."""

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Return the caller's result for each question; raise a CallError if a result is missing."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; it may be lost."""


ASK_SECONDS = 300.0
"""Default time in seconds that a handler waits for an answer."""


class Env(Protocol):
    """The operations available to a handler: `env.github.get_repo(owner=…)`, `env["github"]["get_repo"]({…})`."""

    def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, name: Any) -> Any: ...


class TypedOperation(Protocol[P, R_co]):
    """An operation made from a function: the attributes that `OperationContext.call` needs."""

    @property
    def id(self) -> str:
        """The id: `namespace.name`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly."""

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call as the operation's input."""

    def rebuild(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[R_co]:
        """Return the envelope with its data converted to the function's return type."""


class _NoEnv:
    """Placeholder env: any access raises an explanatory error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: Any) -> Any:
        message = (
            f"env.{getattr(name, 'id', name)}: the context has no env; call through execute(), or pass build_env(…)"
        )
        raise CallError(ErrorCode.EXECUTION_ERROR, message)


NO_ENV: Env = _NoEnv()


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable state of one call: caller, deadline, trace, env."""

    request_id: str = ""
    """Id of the call; `execute` sets it if empty."""
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: int | None = None
    """Time at which the call fails with `TIMEOUT`, in epoch milliseconds."""
    env: Any = NO_ENV
    """Operations available to the handler; `execute` sets it if missing. A generated stub declares its type."""
    metadata: Mapping[str, Any] = {}
    progress: Progress | None = None
    """Callback for the progress of the call; handlers use `report_progress`. Nested calls do not inherit it."""
    client: Client | None = None
    """The calling program, if it answers questions; nested calls have the same client."""
    grant: Grant | None = None
    """Grant of the request that this call belongs to; None for calls of the program itself."""
    trusted: bool | None = None
    """Whether nested calls skip access control; by default (None), they do if the context has no identity."""

    @property
    def is_trusted(self) -> bool:
        """Whether nested calls from this context skip access control."""
        return self.identity is None if self.trusted is None else self.trusted

    @overload
    async def call(
        self, operation: TypedOperation[Concatenate[OperationContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ResponseEnvelope[R]: ...
    @overload
    async def call(
        self, operation: TypedOperation[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ResponseEnvelope[R]: ...
    async def call(self, operation: TypedOperation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an operation that was made from a function, with the arguments of the function.

        Type checkers verify the arguments. Access control is the same as for calls through `env`. If the first
        parameter of the function is a context, omit this argument. A plain `def` handler cannot await this method: it
        calls `env[operation](…)` instead.
        """
        if not hasattr(operation, "bind"):
            message = (
                f"context.call() takes a function with @operation, not {type(operation).__name__}: use context.env"
            )
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        called = self.env[operation](operation.bind(*args, **kwargs))
        if hasattr(called, "__aiter__"):
            message = f"{operation.id} is a subscription: use context.env[operation](…)"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return await called

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the caller; do nothing if the caller does not accept progress.

        A slow caller may miss older reports.
        """
        if self.progress is not None:
            returned = self.progress(progress, total, message)
            if returned is not None:
                await returned

    def can_ask(self, method: str = ELICIT) -> bool:
        """Whether the caller answers requests with this method; the default is the method of questions to its user."""
        return self.client is not None and self.client.supports(method)

    async def ask(
        self, message: str, schema: Mapping[str, Any] | None = None, *, timeout: float = ASK_SECONDS
    ) -> Answer:
        """Ask the user of the calling program, and return the answer.

        Raise `UNAVAILABLE` with reason `NO_ASK` if the program cannot ask its user.
        """
        answers = await self.ask_all({"answer": Question.form(message, schema)}, timeout=timeout)
        answer: Answer = answers["answer"]
        return answer

    async def ask_all(self, questions: Mapping[str, Question], *, timeout: float = ASK_SECONDS) -> dict[str, Any]:
        """Ask several questions together; return the answers by the keys of the questions.

        The answer to a form is an Answer; the answer to any other question is the client's result, unchanged.
        """
        client = self.client
        for question in questions.values():
            if client is None or not client.supports(question.method):
                raise _cannot_ask(question.method)
        results = {} if client is None else await client.ask(questions, timeout)
        return {
            key: read_answer(results[key]) if question.method == ELICIT else results[key]
            for key, question in questions.items()
        }

    async def ask_client(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float = ASK_SECONDS
    ) -> Any:
        """Send the calling program a request of its protocol, such as `roots/list`; return the program's result."""
        return (await self.ask_all({"answer": Question(method, params or {})}, timeout=timeout))["answer"]

    async def notify_client(self, method: str, params: Mapping[str, Any]) -> None:
        """Send the calling program a notification, such as `notifications/message`, unless it accepts none."""
        if self.client is not None:
            await self.client.notify(method, params)

    def child(self, parent_request_id: str = "") -> OperationContext:
        """Return the context of a nested call: same caller, deadline and trace, and the id of its parent call.

        The default of `parent_request_id` is the id of this context. Of the metadata, only the trace is copied: other
        metadata may contain credentials that are meant for the parent call alone.
        """
        metadata = self.metadata
        return OperationContext(
            request_id=new_request_id(),
            parent_request_id=parent_request_id or self.request_id,
            identity=self.identity,
            deadline=self.deadline,
            metadata={key: metadata[key] for key in TRACE_FIELDS if key in metadata} if metadata else {},
            trusted=self.is_trusted,
            grant=self.grant,
            client=self.client,
        )


def limit_context(context: object, timeout: object) -> OperationContext:
    """Return the context with a deadline at most `timeout` seconds away; unchanged without a `timeout`.

    If `context` is None, a new context is returned. An invalid argument raises `VALIDATION_ERROR`.
    """
    context = OperationContext() if context is None else require_context(context)
    if timeout is None:
        return context
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise CallError(
            ErrorCode.VALIDATION_ERROR, f"invalid timeout {timeout!r}: expected a number of seconds above 0"
        )
    deadline = int((time.time() + min(timeout, _MOST_SECONDS)) * 1000)
    if context.deadline is not None:
        deadline = min(deadline, context.deadline)
    return msgspec.structs.replace(context, deadline=deadline)


def require_context(context: object) -> OperationContext:
    """Return `context` if it is an OperationContext with valid fields; otherwise raise `VALIDATION_ERROR`."""
    if not isinstance(context, OperationContext):
        message = f"invalid context {context!r:.80}: expected an OperationContext(…)"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    if context.identity is not None:
        check_identity(context.identity)
    if type(context.metadata) is not dict and not isinstance(context.metadata, Mapping):
        message = f"invalid metadata of a context: expected a mapping, not {type(context.metadata).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return context


def check_identity(identity: object) -> None:
    """Raise `VALIDATION_ERROR` if `identity` is not an Identity; the message does not show the value."""
    if not isinstance(identity, Identity):
        message = f"invalid identity: expected an Identity(…), not {type(identity).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def read_answer(result: Any) -> Answer:
    """Return a client's result for a form as an Answer; raise VALIDATION_ERROR for an invalid result."""
    try:
        return msgspec.convert(
            {"action": result.get("action"), "content": result.get("content") or {}}, Answer, strict=True
        )
    except (msgspec.ValidationError, AttributeError):
        message = "invalid answer to a question: expected `action` (accept, decline or cancel), with `content`"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def _cannot_ask(method: str) -> CallError:
    what = "cannot ask its user" if method == ELICIT else f"does not answer {method}"
    details = {"reason": NO_ASK, "method": method}
    return CallError(ErrorCode.UNAVAILABLE, f"the caller of this operation {what}", details)


NO_ASK = "NO_ASK"
"""The `reason` in an error's details if no one can answer a question."""


def new_request_id() -> str:
    """Return a unique id: a random prefix of the process and a counter."""
    return _prefix + str(next(_counter))


def is_own_request_id(request_id: str) -> bool:
    """Whether an id has the prefix of this process. A peer that has seen such an id can make up others."""
    return request_id.startswith(_prefix)


def with_request_id(context: OperationContext | None) -> OperationContext:
    """Return the context with a request id; if `context` is None, a new context with a request id."""
    if context is None:
        return OperationContext(request_id=new_request_id())
    return context if context.request_id else msgspec.structs.replace(context, request_id=new_request_id())


def _renew_prefix() -> None:
    global _prefix
    _prefix = f"{os.urandom(16).hex()}-"


_counter = itertools.count(1)
_prefix = ""
_renew_prefix()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_prefix)
