"""The operations that the tests of serving call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from operations import (
    AccessControl,
    CallError,
    Event,
    Operation,
    OperationContext,
    OperationRegistry,
    http_envelope,
    mcp_envelope,
    operation,
)
from operations.context import Identity
from operations.identity import Principal, StaticTokens
from operations.schema import from_schema
from operations.spec import OperationSpec, OperationType

TOKENS = {
    "reader-token": Principal(Identity("reader", ("read",))),
    "writer-token": Principal(Identity("writer", ("read", "write"))),
    "nobody-token": Principal(Identity("nobody")),
}


def tokens() -> StaticTokens:
    return StaticTokens(TOKENS)


class Shop:
    """A registry whose handlers tests can delay and inspect."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.closed = asyncio.Event()
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.resumed_after: list[Any] = []
        self.registry = OperationRegistry(
            [*_queries(), *_reporting(), *self._mutations(), *self._streams(), *self._guarded(), *_foreign()]
        )

    def _mutations(self) -> list[Operation[Any]]:
        @operation(namespace="shop", type="mutation")
        async def order(item: str) -> dict[str, Any]:
            """Order an item."""
            self.sent.append(item)
            return {"number": len(self.sent), "item": item}

        @operation(namespace="shop", type="mutation")
        async def slow(item: str = "x") -> str:
            """Wait for the test."""
            self.started.set()
            self.sent.append(item)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        return [order, slow]

    def _streams(self) -> list[Operation[Any]]:
        @operation(namespace="shop")
        async def watch(first: int = 0) -> AsyncIterator[Any]:
            """Follow what the test puts."""
            self.started.set()
            try:
                while (item := await self.items.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
            finally:
                self.closed.set()

        @operation(namespace="shop", annotations={"resumable": True})
        async def ticks(context: OperationContext, until: int = 3) -> AsyncIterator[Event[int]]:
            """Count, from where the client was."""
            last = context.metadata.get("lastEventId")
            self.resumed_after.append(last)
            for number in range(int(last) + 1 if last else 0, until):
                yield Event(number, id=str(number), type="tick")

        return [watch, ticks]

    def _guarded(self) -> list[Operation[Any]]:
        read = AccessControl(required_scopes=("read",))
        write = AccessControl(required_scopes=("write",))

        @operation(namespace="vault", type="query", access_control=read)
        async def look() -> str:
            """Look."""
            return "gold"

        @operation(namespace="vault", type="mutation", access_control=write)
        async def put(item: str = "coin") -> str:
            """Put."""
            self.sent.append(item)
            return item

        @operation(namespace="vault", access_control=read)
        async def follow() -> AsyncIterator[int]:
            """Follow."""
            yield 1
            yield 2

        return [look, put, follow]


def _reporting() -> list[Operation[Any]]:
    """Operations that report progress."""

    @operation(namespace="shop", type="mutation")
    async def bake(context: OperationContext, steps: int = 2, fails: bool = False) -> str:
        """Report progress and return."""
        for step in range(1, steps + 1):
            if context.progress is not None:
                reported = context.progress(step, steps, f"step {step}")
                if reported is not None:
                    await reported
        if fails:
            raise CallError("BURNT", "black")
        return "bread"

    @operation(namespace="shop", type="mutation")
    async def flood(context: OperationContext) -> str:
        """Report progress without waiting for anything."""
        for step in range(100_000):
            if context.progress is not None:
                context.progress(step, None, None)
        return "done"

    return [bake, flood]


def _foreign() -> list[Operation[Any]]:
    """Operations whose results look like those of other sources."""

    def upstream(input: Any, context: Any) -> Any:
        status = input.get("status", 201)
        if status >= 300:
            details = {"statusCode": status, "headers": {"set-cookie": "a=1"}, "body": {"message": "no"}}
            raise CallError("EXECUTION_ERROR", f"GET /x answered {status}", details)
        headers = [("ETag", '"1"'), ("Set-Cookie", "a=1"), ("X-RateLimit-Left", "3"), ("Server", "x")]
        if input.get("text"):
            return http_envelope("hello", status_code=status, headers=[*headers, ("Content-Type", "text/csv")])
        return http_envelope({"a": 1}, status_code=status, headers=headers)

    async def tool(input: Any, context: Any) -> Any:
        return mcp_envelope({"n": 1}, is_error=bool(input.get("fails")), content=[{"type": "text", "text": "it broke"}])

    anything = from_schema({"type": "object"})
    query = OperationType.QUERY
    described = {"method": "GET", "path": "/x"}
    api = OperationSpec(name="users/get", namespace="api", type=query, annotations=described, input_schema=anything)
    outer = OperationSpec(name="outer", namespace="api", type=query, input_schema=anything)
    mcp = OperationSpec(name="tool", namespace="mcp", type=query, input_schema=anything)
    scalar = OperationSpec(name="double", namespace="math", type=query, input_schema=from_schema({"type": "integer"}))
    return [
        Operation(spec=api, handler=upstream),
        Operation(spec=outer, handler=upstream),
        Operation(spec=mcp, handler=tool),
        Operation(spec=scalar, handler=lambda input, context: input * 2),
    ]


def _queries() -> list[Operation[Any]]:
    @operation(namespace="shop", type="query")
    async def quote(
        item: str,
        count: int = 1,
        tags: Sequence[str] = (),
        express: bool | None = None,
        extra: dict[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return a price."""
        return {"item": item, "count": count, "tags": tags, "express": express, "extra": extra}

    @operation(namespace="shop", type="query")
    async def fail(how: Literal["text", "domain", "declared", "denied", "nested"]) -> None:
        """Fail in some way."""
        if how == "text":
            raise ValueError("the password is hunter2")
        if how == "denied":
            raise CallError("ACCESS_DENIED", "the upstream says no")
        raise CallError("SOLD_OUT" if how == "domain" else "GONE", "no tea left", {"item": "tea"})

    @operation(namespace="shop", type="query")
    async def digest(content: bytes) -> int:
        """Count bytes."""
        return len(content)

    @operation(namespace="shop", type="query")
    async def label(content: bytes, name: str, copies: int = 1) -> str:
        """Name bytes."""
        return f"{name}:{len(content)}:{copies}"

    @operation(namespace="shop", type="query")
    async def picture() -> bytes:
        """Return bytes."""
        return b"\x89PNG"

    @operation(namespace="shop", type="query")
    async def whoami(context: OperationContext) -> dict[str, Any]:
        """Say who calls."""
        return {"id": context.identity.id if context.identity else None, "request": context.request_id}

    return [quote, fail, digest, label, picture, whoami]
