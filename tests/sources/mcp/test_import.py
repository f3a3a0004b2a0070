"""The SDK is imported when a server is opened, because it is slow to import; a missing one is reported in one line."""

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_the_source_does_not_import_the_sdk() -> None:
    loaded = run("import sys, operations.sources.mcp; print(*sys.modules)").split()
    assert "operations.sources.mcp.client" in loaded
    assert not {"mcp", "mcp_types", "anyio", "httpx2", "pydantic", "operations.sources.mcp.session"} & set(loaded)


def test_a_missing_sdk_names_the_extra_to_install() -> None:
    code = """
import asyncio, sys
sys.modules["mcp"] = None
from operations.sources.mcp import MCPClientConfig, MCPClientLoader, create_mcp_client

async def main():
    try:
        await create_mcp_client("x", MCPClientConfig(command="x"))
    except ImportError as error:
        print(error)
    loader = MCPClientLoader()
    try:
        await loader.load({"x": MCPClientConfig(command="x"), "y": MCPClientConfig(command="y")})
    except ImportError as error:
        print(error, loader.errors)

asyncio.run(main())
"""
    message = 'MCP servers require the MCP SDK: pip install "operations[mcp]"'
    assert run(code) == f"{message}\n{message} {{}}\n"
