"""What servers ask of us: elicitation and sampling, answered by the user's handlers or refused at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.client.session import ClientRequestContext, ElicitationFnT, SamplingFnT
from pydantic import BaseModel, ValidationError

from operations.sources.mcp.config import MCPClientConfig, MCPServerRequest, ServerRequestHandler
from operations.sources.mcp.failures import RequestFailedError, explain

_log = logging.getLogger("operations.mcp")

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"


class Questions:
    """Answers the questions of one server, in whichever way its protocol version puts them."""

    def __init__(self, server: str, config: MCPClientConfig) -> None:
        self._server = server
        self._handlers: dict[str, ServerRequestHandler] = {}
        if config.elicitation is not None:
            self._handlers[ELICIT] = config.elicitation
        if config.sampling is not None:
            self._handlers[SAMPLE] = config.sampling

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result for a question; raises `RequestFailedError` where nobody answers it."""
        handler = self._handlers.get(method)
        if handler is None:
            raise RequestFailedError(types.INVALID_REQUEST, f"{method} is not supported by this client")
        try:
            answer = await handler(MCPServerRequest(self._server, method, params))
        except Exception as error:
            _log.warning("%s: the handler for %s failed: %s", self._server, method, explain(error), exc_info=error)
            raise RequestFailedError(types.INTERNAL_ERROR, f"the client could not answer {method}") from error
        if answer is not None:
            return dict(answer)
        if method == ELICIT:
            return {"action": "decline"}
        raise RequestFailedError(types.INVALID_REQUEST, "the client declined")

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """What this client tells servers it can be asked."""
        elicitation = types.ElicitationCapability(
            form=types.FormElicitationCapability(), url=types.UrlElicitationCapability()
        )
        return types.ClientCapabilities(
            elicitation=elicitation if ELICIT in self._handlers else None,
            sampling=types.SamplingCapability() if SAMPLE in self._handlers else None,
        )

    @property
    def elicitation_callback(self) -> ElicitationFnT | None:
        """The callback for an SDK session; None advertises nothing and refuses."""
        return self._elicit if ELICIT in self._handlers else None

    @property
    def sampling_callback(self) -> SamplingFnT | None:
        """The callback for an SDK session; None advertises nothing and refuses."""
        return self._sample if SAMPLE in self._handlers else None

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        answer = await self._answer_typed(ELICIT, params, (types.ElicitResult,))
        assert isinstance(answer, types.ElicitResult | types.ErrorData)
        return answer

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        kinds = (types.CreateMessageResult, types.CreateMessageResultWithTools)
        answer = await self._answer_typed(SAMPLE, params, kinds)
        assert isinstance(answer, (*kinds, types.ErrorData))
        return answer

    async def _answer_typed(self, method: str, params: BaseModel, kinds: tuple[type[BaseModel], ...]) -> BaseModel:
        plain = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            answer = await self.answer(method, plain)
        except RequestFailedError as error:
            return types.ErrorData(code=error.code, message=error.message)
        for kind in kinds:
            try:
                return kind.model_validate(answer)
            except ValidationError as error:
                reason = explain(error)
        _log.warning("%s: the handler for %s gave what the protocol does not allow: %s", self._server, method, reason)
        return types.ErrorData(code=types.INTERNAL_ERROR, message=f"the client could not answer {method}")
