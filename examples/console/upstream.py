"""A small HTTP API in place of GitHub's, so that its operations run without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


def _issue(path: str, sent: dict[str, Any]) -> dict[str, Any]:
    """Return an issue that differs from its schema: a number is a string, and two properties are not declared."""
    url = f"https://api.example.com{path}/1347"
    named = [each if isinstance(each, dict) else {"name": each} for each in sent.get("labels", [])]
    return {
        "id": 3081427766,
        "number": 1347,
        "state": "open",
        "title": sent.get("title"),
        "body": sent.get("body"),
        "labels": [{"id": 208045946 + number, "color": "d73a4a", **each} for number, each in enumerate(named)],
        "assignees": [],
        "assignee": None,
        "milestone": None,
        "user": None,
        "locked": False,
        "comments": 0,
        "created_at": "2026-11-16T09:42:07Z",
        "updated_at": "2026-11-16T09:42:07Z",
        "closed_at": None,
        "node_id": "I_kwDO",
        "url": url,
        **{f"{name}_url": f"{url}/{name}" for name in ("repository", "labels", "comments", "events", "html")},
        "sub_issues_summary": {"total": 0, "completed": 0, "percent_completed": "0"},
        "received_at": "demo",
        "received": sent,
    }


def answer(method: str, path: str, body: bytes) -> tuple[int, Any]:
    """Return the status and the body of a request."""
    parts = path.partition("?")[0].strip("/").split("/")
    if "nobody" in parts:
        return 404, {"message": "Not Found", "documentation_url": "https://docs.example.com", "status": "404"}
    if method == "DELETE":
        return 204, None
    if method in ("POST", "PUT", "PATCH"):
        sent = json.loads(body) if body else {}
        if parts[-1] == "issues":
            return 201, _issue(path, sent)
        return 201, {"id": 1, "number": 1, "path": path, "received": sent}
    return 200, {"id": 1, "name": parts[-1], "path": path, "private": False, "topics": ["demo"]}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
            length = next(
                (
                    int(line.partition(":")[2])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length")
                ),
                0,
            )
            status, data = answer(method, path, await reader.readexactly(length))
            body = b"" if data is None else json.dumps(data).encode()
            lines = f"HTTP/1.1 {status} Demo\r\nContent-Type: application/json\r\nX-RateLimit-Remaining: 59\r\n"
            lines += "" if status == 204 else f"Content-Length: {len(body)}\r\n"
            writer.write(lines.encode() + b"\r\n" + body)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError, ValueError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def running() -> AsyncIterator[str]:
    """Serve the API within the block; yield its URL."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
