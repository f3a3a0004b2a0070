"""Callers of the MCP endpoint cannot reach each other's sessions and calls, which end with their credentials."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from operations import OperationContext, OperationRegistry, operation
from operations.context import Identity
from operations.identity import Principal
from operations.jobs import Jobs
from operations.serving import app
from operations.serving.app import ServedApp
from operations.serving.mcp.tasks import EXTENSION
from tests.asgi_server import serving_here
from tests.serving.mcp.examples import ELICITS, legacy_session
from tests.serving.mcp.wire import message, post

TASKS: dict[str, Any] = {
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}},
}


@operation("vault.ask", type="query")
async def ask(context: OperationContext) -> str:
    answer = await context.ask("sure?")
    return f"gold for {context.identity.id if context.identity else None}: {answer.action}"


@operation("vault.dig", annotations={"mcpTask": "optional"})
async def dig() -> str:
    return "gold"


class People:
    """Tokens that are names; one may be revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.changed = False
        self.expires: dict[str, float] = {}

    def authenticate(self, token: str | None) -> Principal:
        from operations import CallError, ErrorCode

        if not token or token in self.revoked:
            raise CallError(ErrorCode.ACCESS_DENIED, "unknown")
        return Principal(Identity(token), (), self.expires.get(token))

    def has_changed(self) -> bool:
        changed, self.changed = self.changed, False
        return changed


def shown(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@asynccontextmanager
async def served(people: People) -> AsyncIterator[tuple[ServedApp, str]]:
    registry = OperationRegistry([ask, dig])
    application = app(registry, hosts=["127.0.0.1"], authenticator=people, jobs=Jobs(registry))
    async with serving_here(application) as address:
        yield application, address.replace("ws:", "http:") + "mcp"


async def test_a_session_of_another_is_not_found() -> None:
    async with served(People()) as (_, url), legacy_session(url, **shown("alice")) as session:
        async with httpx2.AsyncClient(timeout=10) as client:
            for method in ("GET", "DELETE", "POST"):
                for more in ({}, {"last-event-id": "0000000000000000-1"}):
                    headers = {**session.headers, **shown("bob"), "mcp-session-id": session.id, **more}
                    body: Any = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"} if method == "POST" else None
                    answer = await client.request(method, url, headers=headers, json=body)
                    assert answer.status_code == 404
        assert "result" in await session("tools/list")


async def test_a_question_of_another_cannot_be_answered() -> None:
    async with served(People()) as (_, url):
        sent = message("tools/call", {"name": "vault.ask"}, meta=ELICITS)
        _, asked = await post(url, sent, **shown("alice"))
        given = {"answer": {"action": "accept", "content": {}}}
        state = asked["result"]["requestState"]
        params = {"name": "vault.ask", "inputResponses": given, "requestState": state}
        _, refused = await post(url, message("tools/call", params, meta=ELICITS), **shown("bob"))
        assert "gold" not in str(refused)
        assert "error" in refused
        _, answered = await post(url, message("tools/call", params, meta=ELICITS), **shown("alice"))
        assert answered["result"]["structuredContent"] == "gold for alice: accept"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_task_of_another_is_unknown(method: str) -> None:
    async with served(People()) as (_, url):
        sent = message("tools/call", {"name": "vault.dig"}, meta=TASKS)
        _, created = await post(url, sent, **shown("alice"))
        task = created["result"]["taskId"]
        asked = message(method, {"taskId": task}, meta=TASKS)
        _, unknown = await post(url, asked, **shown("bob"), **{"mcp-name": task})
        assert "error" in unknown
        assert "gold" not in str(unknown)
        own = message("tasks/get", {"taskId": task}, meta=TASKS)
        async with asyncio.timeout(10):
            while True:
                _, found = await post(url, own, **shown("alice"), **{"mcp-name": task})
                if found["result"]["status"] != "working":
                    break
        assert found["result"]["status"] == "completed"  # it was not cancelled


@asynccontextmanager
async def notified(url: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The stream of notifications of a session."""
    async with legacy_session(url, **shown(name)) as session, httpx2.AsyncClient(timeout=20) as client:
        headers = {**session.headers, "mcp-session-id": session.id}
        async with client.stream("GET", url, headers=headers) as stream:
            assert stream.status_code == 200
            yield stream.aiter_raw()


async def until_closed(chunks: AsyncIterator[bytes]) -> None:
    async with asyncio.timeout(20):
        try:
            async for _ in chunks:
                pass
        except httpx2.RemoteProtocolError:  # the response ends without its last chunk
            return


async def test_a_stream_of_notifications_ends_with_its_token() -> None:
    people = People()
    people.expires["alice"] = time.time() + 5
    async with served(people) as (_, url), notified(url, "alice") as chunks:
        await until_closed(chunks)
        assert time.time() >= people.expires["alice"]


async def test_a_revoked_token_ends_streams_of_notifications() -> None:
    people = People()
    async with served(people) as (application, url), notified(url, "alice") as chunks:
        people.revoked.add("alice")
        people.changed = True
        assert application.admission.refresh()
        await application.revoke()
        await until_closed(chunks)
        assert (await post(url, message("tools/list"), **shown("alice")))[0] == 401
        assert (await post(url, message("tools/list"), **shown("bob")))[0] == 200
