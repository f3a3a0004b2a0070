"""The client that the conformance suite drives: everything it does goes through our MCP source.

Run by the suite as `conformance_client.py URL`, with the scenario in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

import httpx2

from operations import CallError, OperationRegistry, OperationSpec
from operations.sources.mcp import MCPClientConfig, MCPOAuth, MCPServerRequest, create_mcp_client

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
SAMPLES: Mapping[str, Any] = {"string": "text", "integer": 3, "number": 5, "boolean": True, "array": [], "object": {}}


class Browser:
    """A user who consents immediately: opens the authorisation URL and keeps the redirect."""

    def __init__(self) -> None:
        self._redirect = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(url, follow_redirects=False)
        self._redirect = urljoin(url, response.headers["location"])

    async def wait(self) -> str:
        return self._redirect


async def accept_defaults(request: MCPServerRequest) -> Mapping[str, Any]:
    """Accept a form with the defaults that its schema names."""
    properties = request.params.get("requestedSchema", {}).get("properties", {})
    content = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    return {"action": "accept", "content": content or {name: _sample(each) for name, each in properties.items()}}


async def say_something(request: MCPServerRequest) -> Mapping[str, Any]:
    return {"role": "assistant", "model": "sample", "content": {"type": "text", "text": "Paris"}}


def issuer_of(url: str) -> str | None:
    """The authorisation server that the suite gives to its user, who has a client secret: the one the server names."""
    if "client_secret" not in CONTEXT:
        return None
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        response = httpx2.get(urljoin(url, path))
        if response.status_code == 200:
            return str(response.json()["authorization_servers"][0])
    return None


def config(url: str, tokens: str) -> MCPClientConfig:
    browser = Browser()
    is_user = "client-credentials" not in SCENARIO
    oauth = MCPOAuth(
        storage=tokens,
        client_id=CONTEXT.get("client_id"),
        client_secret=CONTEXT.get("client_secret"),
        issuer=issuer_of(url),
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        open_url=browser.open if is_user else None,
        wait_for_redirect=browser.wait if is_user else None,
    )
    return MCPClientConfig(
        url=url,
        oauth=oauth if SCENARIO.startswith("auth/") else None,
        protocol=VERSION if VERSION >= "2026" else "auto" if not VERSION else "legacy",
        elicitation=accept_defaults,
        sampling=say_something,
        timeout=20,
        connect_timeout=10,
    )


def arguments(spec: OperationSpec) -> dict[str, Any]:
    """An input that matches the schema: its required properties, each with a sample of its type."""
    document = spec.input_schema.document
    if not isinstance(document, dict):
        return {}
    properties: dict[str, Any] = document.get("properties", {})
    required: list[str] = document.get("required", list(properties))
    return {name: _sample(properties.get(name, {})) for name in required}


def _sample(schema: Any) -> Any:
    for member in ("default", "const"):
        if member in schema:
            return schema[member]
    return schema["enum"][0] if "enum" in schema else SAMPLES.get(schema.get("type"), "text")


def calls(registry: OperationRegistry) -> list[tuple[str, Any]]:
    """The calls of a scenario, and one of every other tool."""
    wanted = [(f"suite.{call['name']}", _given(call.get("arguments"))) for call in CONTEXT.get("toolCalls", [])]
    tools = {spec.id: arguments(spec) for spec in registry.list() if spec.namespace == "suite"}
    focal = registry.get_spec("suite.json_schema_2020_12_tool")
    if focal is not None:
        tools["suite.json_schema_echo"] = {"schema": focal.input_schema.document}
    named = {operation_id for operation_id, _ in wanted}
    return wanted + [(operation_id, input) for operation_id, input in tools.items() if operation_id not in named]


def _given(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments without nulls, which our input validation would reject; omitting them means the same."""
    return {name: value for name, value in (arguments or {}).items() if value is not None}


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as tokens:
        async with await create_mcp_client("suite", config(url, tokens)) as client:
            registry = OperationRegistry()
            client.register_all(registry)
            for operation_id, input in calls(registry):
                try:
                    await registry.execute(operation_id, input)
                except CallError as error:
                    sys.stderr.write(f"{operation_id}: {error}\n")
            for spec in registry.list():
                if spec.namespace != "suite" and spec.name == "list":
                    await registry.execute(spec.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
