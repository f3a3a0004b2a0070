"""A server as this package sees it: what it said of itself, and what a session with it can do; no SDK here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Told of progress: how far, of how much, and a message."""


class MCPServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server said of itself when it was greeted."""

    name: str = ""
    version: str = ""
    title: str | None = None
    protocol_version: str
    instructions: str | None = None
    capabilities: Mapping[str, Any] = {}


class ServerSession(Protocol):
    """A greeted session; its verbs may be used from any task."""

    @property
    def info(self) -> MCPServerInfo:
        """What the server said of itself."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The result as the server sent it; raises RequestFailedError, RequestLostError or RequestTimeoutError."""

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer to a question of the server; raises RequestFailedError where there is none."""

    def admit_tool(self, name: str, input_schema: Any) -> str | None:
        """Take note of a listed tool; the reason where the protocol forbids it."""
