"""Approval over MCP: the caller is asked by an elicitation, in both protocol versions, and decides."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from mcp import Client
from operations import OperationRegistry, operation
from operations.interceptors import Approval, ApprovalRequest, Only
from operations.serving.app import app
from tests.asgi_server import serving_here

BOUGHT: list[str] = []


@operation("shop.buy")
async def buy(item: str, token: str = "") -> dict[str, str]:
    BOUGHT.append(item)
    return {"bought": item}


@operation("shop.look", type="query")
async def look(item: str) -> dict[str, str]:
    return {"seen": item}


async def call(approval: Any, mode: str, action: str | None, name: str = "shop.buy") -> tuple[Any, list[str]]:
    """The result of a call, and the questions that the client was asked; without `action` it cannot be asked."""
    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=action, content={} if action == "accept" else None)  # type: ignore[arg-type]

    BOUGHT.clear()
    registry = OperationRegistry([buy, look], interceptors=[approval])
    options: dict[str, Any] = {} if action is None else {"elicitation_callback": elicit}
    async with (
        serving_here(app(registry)) as url,
        Client(url.replace("ws:", "http:") + "mcp", mode=mode, **options) as client,
    ):
        token = {"token": "s3cret-value"} if name == "shop.buy" else {}
        return await client.call_tool(name, {"item": "tea", **token}), questions


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("approval", [Approval(mutations="ask"), Only(Approval({"*": "ask"}), ["shop.buy"])])
async def test_the_caller_approves(mode: str, approval: Any) -> None:
    result, questions = await call(approval, mode, "accept")
    assert result.structured_content == {"bought": "tea"}
    assert (BOUGHT, len(questions)) == (["tea"], 1)
    assert questions[0].startswith('Allow mutation shop.buy with the input {"item":"tea"')
    assert "s3cret" not in questions[0]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("action", ["decline", "cancel", None])
async def test_a_caller_who_refuses_or_cannot_be_asked_gets_an_error(mode: str, action: str | None) -> None:
    result, _ = await call(Approval(mutations="ask"), mode, action)
    assert result.is_error
    assert "ACCESS_DENIED" in result.content[0].text
    assert BOUGHT == []


async def test_other_calls_and_a_hook_do_not_ask() -> None:
    result, questions = await call(Approval(mutations="ask"), "auto", "accept", "shop.look")
    assert (result.structured_content, questions) == ({"seen": "tea"}, [])

    async def refuse(request: ApprovalRequest) -> bool:
        return False

    result, questions = await call(Approval(mutations="ask", ask=refuse), "auto", "accept")
    assert (result.is_error, questions, BOUGHT) == (True, [], [])
