"""Operations of every kind, and clients by hand, for tests of the MCP endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from operations import Operation, OperationContext, operation
from operations.envelope import http_envelope, mcp_envelope
from operations.errors import CallError
from operations.spec import AccessControl
from tests.serving.mcp.wire import message, post

NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ELICITS: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}


@operation("shop.quote", type="query")
async def quote(item: str, count: int = 1) -> dict[str, Any]:
    """Price an item."""
    return {"item": item, "price": 2.5 * count}


@operation("shop.number", type="query")
async def number() -> int:
    return 5


@operation("shop.maybe", type="query")
async def maybe(value: int | None = None) -> int | None:
    return value


@operation("shop.binary", type="query")
async def binary() -> dict[str, bytes]:
    return {"a": b"\x00\xff"}


@operation("shop.image", type="query")
async def image() -> Any:
    return http_envelope(b"\x89PNG", status_code=200, headers=[("content-type", "image/png")])


@operation("shop.blocks", type="query")
async def blocks() -> Any:
    block = {"type": "text", "text": "hi", "annotations": {"priority": 0.5}, "_meta": {"a": 1}}
    return mcp_envelope([1, 2], content=[block], extensions={"x/y": 1}, is_error=True)


@operation("shop.secret_failure")
async def secret_failure() -> int:
    raise ValueError("the password is hunter2")


@operation("shop.domain_failure")
async def domain_failure() -> int:
    raise CallError("OUT_OF_STOCK", "no tea left", {"left": 0})


@operation("shop.not_a_number", type="query")
async def not_a_number() -> float:
    return float("nan")


@operation("shop.ticks")
async def ticks() -> AsyncIterator[int]:
    for tick in range(3):
        yield tick


@operation("admin.stop", access_control=AccessControl(required_scopes=("admin",)))
async def stop() -> str:
    return "stopped"


@operation("shop.greet", type="query")
async def greet(context: OperationContext) -> str:
    answer = await context.ask("Who are you?", NAME_FORM)
    return f"hello {answer.content['name']}" if answer.is_accepted else answer.action


OPERATIONS: list[Operation[Any]] = [
    quote,
    number,
    maybe,
    binary,
    image,
    blocks,
    secret_failure,
    domain_failure,
    not_a_number,
    ticks,
    stop,
    greet,
]


class legacy_session:
    """A 2025-11-25 session by hand, so that its headers can be chosen."""

    def __init__(self, url: str, **headers: str) -> None:
        self._url = url
        self.headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
            **headers,
        }
        self._client = httpx2.AsyncClient(timeout=60)
        self.id = ""

    async def __aenter__(self) -> legacy_session:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
        answer = await self._client.post(self._url, json=body, headers=self.headers)
        self.id = answer.headers["mcp-session-id"]
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._client.post(self._url, json=done, headers={**self.headers, "mcp-session-id": self.id})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def __call__(self, method: str, params: Any = None, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        sent = {**self.headers, "mcp-session-id": self.id, **headers}
        answer = await self._client.post(self._url, json=body, headers=sent)
        if answer.status_code != 200:
            return answer.status_code
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.loads(data[-1])


async def ask_over(url: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    params = {"name": "shop.greet", "arguments": arguments or {}, **more}
    return (await post(url, message("tools/call", params, meta=ELICITS)))[1]
