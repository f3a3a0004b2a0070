"""One call to a server: sent with a time limit, followed through questions and losses, never sent twice by mistake."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from operations.context import OperationContext
from operations.errors import CallError, ErrorCode
from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.connection import Connection
from operations.sources.mcp.failures import (
    HEADER_MISMATCH,
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    call_error,
)
from operations.sources.mcp.metadata import meta_of, trace_of
from operations.sources.mcp.server import OnProgress, ServerSession

MOST_ROUNDS = 10
"""How often a server may ask for more before it answers a call."""
RECONNECT_SECONDS = 0.25
GRACE_SECONDS = 0.25


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as an operation makes it."""

    method: str
    params: Mapping[str, Any]
    what: str
    """What it is about, for messages: `tool 'add'`."""
    repeatable: bool = False
    """Whether it only reads, so that it may be sent again where it is not known to have run."""


class ToolList(Protocol):
    """The list of a server's tools, as it was last read."""

    async def refresh(self) -> None:
        """Read it again."""

    def has_tool(self, name: str) -> bool:
        """Whether it has a tool of that name."""


class Caller:
    """Makes requests over a connection on behalf of operations."""

    def __init__(self, connection: Connection, config: MCPClientConfig, tools: ToolList) -> None:
        self._connection = connection
        self._config = config
        self._tools = tools

    async def call(
        self, request: Request, context: OperationContext, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """The server's result; every way there is none is a `CallError`."""
        clock = asyncio.get_running_loop().time
        seconds = self._seconds(context)
        until = None if seconds is None else clock() + seconds
        meta = meta_of(self._config, context)
        params = as_json({**request.params, "_meta": meta} if meta else request.params)
        sending = _Sending(request, params, trace_of(self._config, context), until, on_progress)
        try:
            result = await self._send(sending)
            if result.get("resultType") == "input_required":
                result = await self._answer_questions(sending, result)
            return result
        except (RequestFailedError, RequestLostError, RequestTimeoutError) as error:
            failure = call_error(error, self._connection.name, request.what)
            if failure.code is ErrorCode.VALIDATION_ERROR and await self._has_vanished(request):
                failure = CallError(ErrorCode.OPERATION_NOT_FOUND, failure.message, failure.details)
            raise failure from error

    async def _send(self, sending: _Sending) -> dict[str, Any]:
        """Send, and send once more where that is safe."""
        try:
            return await self._send_once(sending)
        except RequestLostError as lost:
            if lost.sent and not sending.request.repeatable:
                raise
            if self._connection.session is not None:
                await asyncio.sleep(RECONNECT_SECONDS)
        except RequestFailedError as failed:
            if failed.code != HEADER_MISMATCH:
                raise
            # The server refused the headers we took from an outdated list of its tools.
            await self._tools.refresh()
        return await self._send_once(sending)

    async def _send_once(self, sending: _Sending) -> dict[str, Any]:
        session = self._connection.session or await self._wait_for_session(sending)
        try:
            return await session.request(
                sending.request.method,
                sending.params,
                timeout=sending.remaining(),
                on_progress=sending.on_progress,
                headers=sending.headers,
            )
        except RequestLostError as lost:
            if lost.renew:
                self._connection.renew(session)
            raise

    async def _wait_for_session(self, sending: _Sending) -> ServerSession:
        limit = asyncio.timeout(sending.remaining())
        try:
            async with limit:
                return await self._connection.get_session()
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError from None

    async def _answer_questions(self, sending: _Sending, result: dict[str, Any]) -> dict[str, Any]:
        """Answer what the server asks before it can give its result, and ask again with the answers."""
        pause = 0.05
        for _ in range(MOST_ROUNDS):
            asked = result.get("inputRequests")
            more: dict[str, Any] = {}
            if isinstance(asked, Mapping) and asked:
                more["inputResponses"] = await self._answers(asked)
            else:
                await asyncio.sleep(pause)
                pause = min(0.25, pause * 2)
            if "requestState" in result:
                more["requestState"] = result["requestState"]
            result = await self._send(sending.with_params(more))
            if result.get("resultType") != "input_required":
                return result
        raise RequestFailedError(-32603, f"the server asked more than {MOST_ROUNDS} times before it answered")

    async def _answers(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        session = await self._connection.get_session()
        answers: dict[str, Any] = {}
        for key, question in asked.items():
            if not isinstance(question, Mapping):
                raise RequestFailedError(-32603, "the server asked something that makes no sense")
            params = question.get("params")
            answers[key] = as_json(await session.answer(str(question.get("method")), params or {}))
        return answers

    async def _has_vanished(self, request: Request) -> bool:
        """Whether the tool is not there any more: for that, servers have no other code than for bad arguments."""
        if request.method != "tools/call":
            return False
        with contextlib.suppress(CallError):
            await self._tools.refresh()
            return not self._tools.has_tool(request.params["name"])
        return False

    def _seconds(self, context: OperationContext) -> float | None:
        """The time a call has: its deadline's, or the config's where it has none.

        Whoever runs operations ends them at their deadline. The limit here is a little later, for it is there for
        handlers that are called by somebody else, and two cancellations at once would interrupt each other.
        """
        if context.deadline is None:
            return self._config.timeout
        remaining = context.deadline / 1000 - time.time()
        if remaining <= 0:
            raise CallError(ErrorCode.TIMEOUT, "the deadline had passed before the call began", {"executed": "no"})
        return remaining + GRACE_SECONDS


class _Sending(msgspec.Struct, frozen=True):
    """A request on its way: parameters as they are now, and until when there is time."""

    request: Request
    params: Mapping[str, Any]
    headers: Mapping[str, str]
    until: float | None
    on_progress: OnProgress | None

    def remaining(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self.until is None else self.until - asyncio.get_running_loop().time()

    def with_params(self, more: Mapping[str, Any]) -> _Sending:
        """The same with further parameters."""
        return msgspec.structs.replace(self, params={**self.params, **more})


def progress_callback(context: OperationContext) -> OnProgress | None:
    """The context's progress callback as a coroutine function; None where it has none."""
    report = context.progress
    if report is None:
        return None

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        outcome = report(progress, total, message)
        if outcome is not None:
            await outcome

    return on_progress


def as_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as JSON carries them to a server; raises `VALIDATION_ERROR` for what it cannot.

    Found out only when it is written, a value that is not JSON would end the session for everybody.
    """
    with contextlib.suppress(TypeError, ValueError, RecursionError, OverflowError):
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(params))
        return plain
    raise CallError(ErrorCode.VALIDATION_ERROR, "what is to be sent cannot be written as JSON")
