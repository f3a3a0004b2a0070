"""SDKClient: questions, progress and log messages to the client of a request, through the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from operations.context import ELICIT, Question
from operations.dispatch import Slots
from operations.errors import CallError, ErrorCode
from operations.serving.asking_client import has_capability, is_usable
from operations.serving.mcp.sdk.change_notifications import ChangeNotifications

_log = logging.getLogger("operations.mcp")
_REQUESTS: dict[str, tuple[type[Any], tuple[type[BaseModel], ...]]] = {
    ELICIT: (types.ElicitRequest, (types.ElicitResult,)),
    "sampling/createMessage": (
        types.CreateMessageRequest,
        (types.CreateMessageResult, types.CreateMessageResultWithTools),
    ),
    "roots/list": (types.ListRootsRequest, (types.ListRootsResult,)),
}


class SDKClient:
    """The client of one request. Before 2026-07-28 it can be asked while the request runs."""

    def __init__(self, context: ServerRequestContext[Any, Any], slots: Slots, changes: ChangeNotifications) -> None:
        self._context = context
        self._slots = slots
        self._changes = changes

    def supports(self, method: str) -> bool:
        """Whether the client declared the capability that a request needs."""
        declared = self._context.session.client_capabilities
        if declared is None or method not in _REQUESTS:
            return False
        return has_capability(declared.model_dump(by_alias=True, exclude_none=True), method)

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Send each question as a request on the stream of the call."""
        async with self._slots.released():
            results = await asyncio.gather(*(self._ask(question, timeout) for question in questions.values()))
        return dict(zip(questions, results, strict=True))

    async def _ask(self, question: Question, timeout: float) -> Any:
        kind, answers = _REQUESTS[question.method]
        try:
            request = kind.model_validate({"method": question.method, "params": dict(question.params)})
        except ValidationError:
            message = f"invalid parameters for {question.method}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "BAD_QUESTION"}) from None
        result = await self._send(request, answers, timeout)
        if not is_usable(question, result):
            message = "invalid answer: it does not match the question"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "BAD_ANSWER"})
        return result

    async def _send(self, request: Any, answers: tuple[type[BaseModel], ...], timeout: float) -> Any:
        related = ServerMessageMetadata(related_request_id=self._context.request_id)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                answer = await self._context.session.send_request(request, _Anything, metadata=related)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallError(ErrorCode.TIMEOUT, f"no answer within {timeout:g} s", {"reason": "NO_ANSWER"}) from None
        except (MCPError, ValidationError) as error:
            _log.debug("the client did not answer %s: %s", request.method, error)
            message = f"the client did not answer {request.method}"
            raise CallError(ErrorCode.UNAVAILABLE, message, {"reason": "NO_ANSWER"}) from None
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a log message on the stream of the call, or notify subscribers of a changed resource."""
        if method == "notifications/resources/updated":
            await self._changes.resource_updated(str(params.get("uri")))
        elif method == "notifications/message" and self._changes.wants_log(self._context, str(params.get("level"))):
            with contextlib.suppress(ValidationError):
                message = types.LoggingMessageNotification.model_validate({"method": method, "params": dict(params)})
                await self._send_quietly(message)

    async def _send_quietly(self, message: Any) -> None:
        try:
            await self._context.session.send_notification(message, self._context.request_id)
        except Exception as error:  # noqa: BLE001  # a notification may be lost; the call goes on
            _log.debug("a notification was lost: %r", error)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send the progress of the call."""
        if not math.isfinite(progress) or (total is not None and not math.isfinite(total)):
            return
        try:
            await self._context.session.report_progress(progress, total, message)
        except Exception as error:  # noqa: BLE001  # progress may be lost; the call goes on
            _log.debug("progress was lost: %r", error)


class _Anything(BaseModel, extra="allow"):
    """A result of any form; `is_usable` checks it."""
