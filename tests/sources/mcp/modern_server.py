"""A server of the 2026-07-28 protocol on the SDK: in the test's own loop over HTTP, or as a program over stdio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged

REGION = {"type": "string", "x-mcp-header": "Region"}
FORM = types.ElicitRequestFormParams(
    message="Who?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
)


class ModernServer:
    """Its tools, and a record of its calls."""

    def __init__(self) -> None:
        self.tools = {
            "echo": types.Tool(name="echo", input_schema={"type": "object"}),
            "numbers": types.Tool(
                name="numbers",
                input_schema={"type": "object"},
                output_schema={"type": "array", "items": {"type": "integer"}},
            ),
            "ask": types.Tool(name="ask", input_schema={"type": "object"}),
            "steps": types.Tool(name="steps", input_schema={"type": "object"}),
            "hold": types.Tool(name="hold", input_schema={"type": "object"}),
            "grow": types.Tool(name="grow", input_schema={"type": "object"}),
            "region": types.Tool(name="region", input_schema={"type": "object", "properties": {"region": {}}}),
        }
        self.calls: list[str] = []
        self.holding = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "modern",
            version="2.0.0",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._bus),
            get_tool_input_schema=lambda name: self.tools[name].input_schema,
        )

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(self.tools.values()))

    async def _call(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        self.calls.append(params.name)
        run = getattr(self, f"_run_{params.name}", None)
        if run is not None:
            result: types.CallToolResult | types.InputRequiredResult = await run(context, params)
            return result
        return _text(str(params.arguments))

    async def _run_numbers(self, context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content=[1, 2])

    async def _run_ask(self, context: Any, params: types.CallToolRequestParams) -> Any:
        answers = params.input_responses or {}
        if params.request_state != "asked":
            return types.InputRequiredResult(
                input_requests={"who": types.ElicitRequest(params=FORM)}, request_state="asked"
            )
        response = answers["who"]
        return _text(f"{getattr(response, 'action', response)} {getattr(response, 'content', None)}")

    async def _run_steps(self, context: Any, params: Any) -> types.CallToolResult:
        for step in (1, 2):
            await context.session.report_progress(step, 2, f"step {step}")
        return _text("done")

    async def _run_hold(self, context: Any, params: Any) -> types.CallToolResult:
        self.holding.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("never reached")

    async def _run_grow(self, context: Any, params: Any) -> types.CallToolResult:
        self.tools["grown"] = types.Tool(name="grown", input_schema={"type": "object"})
        await self._bus.publish(ToolsListChanged())
        return _text("grown")

    def want_region_as_header(self) -> None:
        """Change a tool's schema without a notification."""
        schema = {"type": "object", "properties": {"region": REGION}}
        self.tools["region"] = types.Tool(name="region", input_schema=schema)


def _text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


@contextlib.asynccontextmanager
async def modern_server(port: int) -> AsyncIterator[ModernServer]:
    """A modern server over HTTP at `/mcp`."""
    modern = ModernServer()
    app = modern.server.streamable_http_app(streamable_http_path="/mcp")
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.005)
        yield modern
    finally:
        server.should_exit = True
        await serving


async def main() -> None:
    async with stdio_server() as (read, write):
        modern = ModernServer()
        await modern.server.run(read, write, modern.server.create_initialization_options())


SCRIPT = str(Path(__file__))

if __name__ == "__main__":
    asyncio.run(main())
