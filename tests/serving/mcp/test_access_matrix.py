"""The MCP endpoint, every kind of request and credential: the outcome follows from `check_access` alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import msgspec
import pytest

from operations import OperationContext, OperationRegistry, operation
from operations.access import check_access
from operations.context import Identity
from operations.identity import JWTTokens
from operations.serving import Limits, app
from operations.serving.mcp import prompt, resource
from operations.spec import AccessControl
from tests.asgi_server import serving_here
from tests.serving.mcp.examples import ELICITS, legacy_session
from tests.serving.mcp.wire import SDK_ONLY, message, post
from tests.serving.test_access_matrix import CREDENTIALS, SECRET, URL, Credential, token

READ = AccessControl(required_scopes=("read",))
SECRET_TEXT = "only for readers"


@operation("vault.look", type="query", access_control=READ)
async def look() -> str:
    return SECRET_TEXT


@operation("vault.watch", access_control=READ)
async def watch() -> AsyncIterator[str]:
    yield SECRET_TEXT


@operation("vault.ask", type="query", access_control=READ)
async def ask(context: OperationContext) -> str:
    await context.ask("sure?")
    return SECRET_TEXT


@resource("vault://look", id="vault.resource", access_control=READ)
async def guarded_resource() -> str:
    return SECRET_TEXT


@resource("vault://of/{day}", id="vault.template", access_control=READ)
async def guarded_template(day: str) -> str:
    return SECRET_TEXT


@prompt("vault_prompt", id="vault.prompt", access_control=READ)
async def guarded_prompt() -> str:
    return SECRET_TEXT


@prompt("open_prompt", id="shop.prompt", completions={"city": "vault.cities"})
async def open_prompt(city: str) -> str:
    return city


@operation("vault.cities", type="query", access_control=READ)
async def cities(value: str) -> list[str]:
    return [SECRET_TEXT]


REGISTRY = OperationRegistry(
    [look, watch, ask, guarded_resource, guarded_template, guarded_prompt, open_prompt, cities]
)
Headers = dict[str, str]


class Kind(msgspec.Struct, frozen=True):
    """A kind of request: how it is sent, and what only a permitted caller finds in the response."""

    name: str
    send: Callable[[str, Headers], Awaitable[Any]]
    finds: str = SECRET_TEXT


def sends(method: str, params: dict[str, Any] | None = None, meta: Any = None) -> Callable[[str, Headers], Any]:
    return lambda url, shown: post(url, message(method, params, meta=meta), **shown)


async def continued(url: str, shown: Headers) -> Any:
    """Ask, and answer."""
    status, asked = await post(url, message("tools/call", {"name": "vault.ask"}, meta=ELICITS), **shown)
    if "result" not in (asked or {}) or "requestState" not in asked["result"]:
        return status, asked
    given = {"answer": {"action": "accept", "content": {}}}
    params = {"name": "vault.ask", "inputResponses": given, "requestState": asked["result"]["requestState"]}
    return await post(url, message("tools/call", params, meta=ELICITS), **shown)


async def of_a_session(url: str, shown: Headers) -> Any:
    """Call in a session that a reader opened."""
    reader = {"authorization": f"Bearer {token('read')}"}
    async with legacy_session(url, **reader) as session:
        session.headers.pop("authorization")
        answer = await session("tools/call", {"name": "vault.look", "arguments": {}}, **shown)
        return (answer, None) if isinstance(answer, int) else (200, answer)


KINDS = [
    Kind("call", sends("tools/call", {"name": "vault.look"})),
    Kind("call by the SDK", sends("tools/call", {"name": "vault.look"}, SDK_ONLY)),
    Kind("stream", sends("tools/call", {"name": "vault.watch"})),
    Kind("list of tools", sends("tools/list"), "vault.look"),
    Kind("resource", sends("resources/read", {"uri": "vault://look"})),
    Kind("template", sends("resources/read", {"uri": "vault://of/monday"})),
    Kind("list of resources", sends("resources/list"), "vault://look"),
    Kind("list of templates", sends("resources/templates/list"), "vault://of/{day}"),
    Kind("prompt", sends("prompts/get", {"name": "vault_prompt"})),
    Kind("list of prompts", sends("prompts/list"), "vault_prompt"),
    Kind(
        "completion",
        sends(
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "open_prompt"}, "argument": {"name": "city", "value": ""}},
        ),
    ),
    Kind("suspended question", continued),
    Kind("session of the same identity", of_a_session),
]


def identity_at_mcp(credential: Credential) -> Identity | None:
    """Return the identity of a credential at this endpoint, which also accepts tokens for its own address."""
    return Identity("caller", ("read", "write")) if credential.name == "audience of MCP" else credential.identity


@pytest.mark.timeout(240)
async def test_access() -> None:
    served = app(
        REGISTRY,
        public_url=URL,
        hosts=["127.0.0.1"],
        authenticator=JWTTokens(SECRET, algorithms=["HS256"], audience=[URL, f"{URL}/mcp"]),
        limits=Limits(failures=1_000),
    )
    async with serving_here(served) as address:
        url = address.replace("ws:", "http:") + "mcp"
        for kind in KINDS:
            for credential in CREDENTIALS:
                shown = credential.token()
                headers = {} if shown is None else {"authorization": f"Bearer {shown}"}
                status, answer = await kind.send(url, headers)
                found = kind.finds in msgspec.json.encode(answer).decode()
                identity = identity_at_mcp(credential)
                allowed = identity is not None and check_access(READ, identity).allowed
                assert found is allowed, (kind.name, credential.name, answer)
                assert (status == 401) is (identity is None), (kind.name, credential.name, status)


async def test_a_rejection_names_the_token_endpoint() -> None:
    served = app(
        REGISTRY,
        public_url=URL,
        hosts=["127.0.0.1"],
        authorization_servers=["https://login.example.com"],
        authenticator=JWTTokens(SECRET, algorithms=["HS256"], audience=[URL]),
    )
    async with serving_here(served) as address, httpx2.AsyncClient(timeout=60) as client:
        base = address.replace("ws:", "http:")
        refused = await client.post(f"{base}mcp", json={})
        assert refused.status_code == 401
        assert "resource_metadata=" in refused.headers["www-authenticate"]
        metadata = (await client.get(f"{base}.well-known/oauth-protected-resource/mcp")).json()
        assert metadata["resource"] == f"{URL}/mcp"
