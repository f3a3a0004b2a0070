"""FastMCP's client lists and calls, in a separate environment: `python fastmcp_client.py URL`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


async def main(url: str) -> dict[str, Any]:
    from fastmcp import Client

    async with Client(url) as client:
        tools = sorted(tool.name for tool in await client.list_tools())
        result = await client.call_tool("shop.quote", {"item": "tea", "count": 2})
        failed = await client.call_tool("shop.domain_failure", {}, raise_on_error=False)
        resources = [str(each.uri) for each in await client.list_resources()]
        prompts = [each.name for each in await client.list_prompts()]
        read = await client.read_resource("notes://today")
        return {
            "tools": tools,
            "structured": result.structured_content,
            "error": failed.content[0].text,
            "resources": resources,
            "prompts": prompts,
            "read": read[0].text,
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))))
