"""A caller cannot delay or avoid the audit record of its call by not reading the response."""

from __future__ import annotations

import asyncio
from typing import Any

from operations.serving import Limits, app
from operations.serving.audit import AuditRecord
from tests.serving.asgi_client import exchange
from tests.serving.http_server import connected, post_bytes, running
from tests.serving.shop import Shop
from tests.waiting import until


async def test_a_call_is_recorded_although_its_response_is_not_read() -> None:
    shop, records = Shop(), list[AuditRecord]()
    served = app(shop.registry, mcp=False, audit=records.append)
    async with exchange(served, "POST", "/shop/order", json_body={"item": "tea"}) as call:
        call.paused.clear()
        await until(lambda: shop.sent == ["tea"])
        await until(lambda: [each.operation_id for each in records] == ["shop.order"])
        assert (records[0].code, records[0].status) == ("OK", 200)
        call.paused.set()


async def test_a_call_that_the_server_ends_is_recorded() -> None:
    shop, records = Shop(), list[AuditRecord]()
    served = app(shop.registry, mcp=False, audit=records.append)
    scope: dict[str, Any] = exchange(served, "POST", "/shop/slow")._scope

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        raise AssertionError

    task = asyncio.create_task(served(scope, receive, send))
    await shop.started.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert [(each.operation_id, each.code, each.status) for each in records] == [("shop.slow", "ABORTED", None)]


async def test_results_and_errors_are_not_read_as_scripts() -> None:
    async with running(app(Shop().registry, mcp=False, limits=Limits())) as place:
        for path, body in (("/shop/quote", b'{"item":"tea"}'), ("/shop/quote", b"{}"), ("/shop/picture", b"{}")):
            async with connected(place) as connection:
                connection.write(post_bytes(path, body))
                _, headers, _ = await connection.response()
                assert headers["x-content-type-options"] == "nosniff"
