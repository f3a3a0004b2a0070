"""A real API with its own OpenAPI document, for the tests to call."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": {"type": "string"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "required": ["id", "name", "price"],
}


def response(schema: Any, media: str = "application/json") -> dict[str, Any]:
    return {"200": {"description": "fine", "content": {media: {"schema": schema}}}}


def query(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, **more}


ANY_ITEM = {"$ref": "#/components/schemas/Item"}
ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Shop", "version": "1.2.3"},
    "servers": [{"url": "/"}],
    "components": {
        "schemas": {"Item": ITEM},
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "query", "name": "api_key"},
            "machine": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "TOKEN_URL", "scopes": {}}}},
        },
    },
    "paths": {
        "/items": {
            "get": {
                "operationId": "list items",
                "summary": "List items",
                "tags": ["items"],
                "parameters": [query("page", {"type": "integer"}), query("cursor", {"type": "string"})],
                "responses": response({"type": "array", "items": ANY_ITEM}),
            },
            "post": {
                "operationId": "createItem",
                "requestBody": {"required": True, "content": {"application/json": {"schema": ANY_ITEM}}},
                "responses": {"201": response(ANY_ITEM)["200"]},
            },
        },
        "/items/{id}": {
            "parameters": [ID],
            "get": {
                "operationId": "getItem",
                "responses": {**response(ANY_ITEM), "404": {"description": "none"}},
            },
            "delete": {"operationId": "deleteItem", "responses": {"204": {"description": "gone"}}},
            "put": {
                "operationId": "putItem",
                "parameters": [query("id", {"type": "string"})],
                "requestBody": {"content": {"application/json": {"schema": {**ANY_ITEM}}}},
                "responses": response({}),
            },
        },
        "/echo/{name}": {
            "post": {
                "operationId": "echo",
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                    query("filter", {"type": "object"}, style="deepObject"),
                ],
                "requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}},
                "responses": response({}),
            }
        },
        "/upload": {
            "post": {
                "operationId": "upload",
                "requestBody": {
                    "required": True,
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "file": {"type": "string", "format": "binary"},
                                    "note": {"type": "string"},
                                },
                                "required": ["file"],
                            }
                        }
                    },
                },
                "responses": response({}),
            }
        },
        "/blob": {"get": {"operationId": "blob", "responses": response({}, "application/octet-stream")}},
        "/text": {"get": {"operationId": "text", "responses": response({"type": "string"}, "text/plain")}},
        "/broken-json": {"get": {"operationId": "brokenJson", "responses": response({})}},
        "/violates": {"get": {"operationId": "violates", "responses": response(ANY_ITEM)}},
        "/accepted": {"get": {"operationId": "accepted", "responses": response(ANY_ITEM)}},
        "/problem": {"post": {"operationId": "problem", "responses": response({})}},
        "/flaky/{key}": {
            "parameters": [{**ID, "name": "key", "schema": {"type": "string"}}],
            "get": {"operationId": "flaky", "responses": response({})},
            "post": {"operationId": "flakyPost", "responses": response({})},
        },
        "/tagged": {"get": {"operationId": "tagged", "responses": response({})}},
        "/whoami": {
            "get": {
                "operationId": "whoami",
                "security": [{"token": []}, {"key": []}, {"machine": []}],
                "responses": response({}),
            }
        },
        "/moved": {"get": {"operationId": "moved", "responses": response({})}},
        "/abroad": {"get": {"operationId": "abroad", "responses": response({})}},
        "/events": {
            "get": {
                "operationId": "events",
                "parameters": [query("drop", {"type": "integer"})],
                "responses": response({}, "text/event-stream"),
            }
        },
        "/chat": {
            "post": {
                "operationId": "chat",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "properties": {"stream": {"type": "boolean"}}}
                        }
                    }
                },
                "responses": {
                    "200": {
                        "description": "both",
                        "content": {"application/json": {"schema": {}}, "text/event-stream": {"schema": {}}},
                    }
                },
            }
        },
        "/slow": {"get": {"operationId": "slow", "responses": response({})}},
        "/lost": {"get": {"operationId": "lost", "parameters": [{"$ref": "#/components/parameters/Nowhere"}]}},
    },
}


class Shop:
    """The API's state and received requests."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.abroad = "http://localhost:1/"
        self.tokens = 0
        self.waiting = asyncio.Event()
        self.document = json.loads(json.dumps(DOCUMENT))
        self.dropped = 0
        self.streams_closed = 0

    def _note(self, request: Request) -> dict[str, Any]:
        noted = {
            "method": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "headers": dict(request.headers),
        }
        self.requests.append(noted)
        return noted

    async def items(self, request: Request) -> Response:
        self._note(request)
        if request.method == "POST":
            sent = await request.json()
            return JSONResponse({**sent, "id": 7, "internal": True}, status_code=201, headers={"location": "/items/7"})
        page = int(request.query_params.get("page", request.query_params.get("cursor") or 1))
        rows = [{"id": page * 10 + n, "name": f"item {n}", "price": "1.50"} for n in range(2)]
        link = {"link": f'</items?page={page + 1}>; rel="next"'} if page < 3 else {}
        more = {"x-next-cursor": str(page + 1)} if page < 3 else {}
        return JSONResponse(rows if page <= 3 else [], headers={**link, **more})

    async def item(self, request: Request) -> Response:
        noted = self._note(request)
        if request.method == "DELETE":
            return Response(status_code=204)
        if request.method == "PUT":
            return JSONResponse({**noted, "body": await request.json()})
        number = int(request.path_params["id"])
        if number == 404:
            return JSONResponse({"message": "no such item", "id": number}, status_code=404, headers={"x-why": "gone"})
        return JSONResponse({"id": number, "name": "tea", "price": "2.50", "internal": True})

    async def echo(self, request: Request) -> Response:
        noted = self._note(request)
        return JSONResponse({**noted, "cookies": request.cookies, "body": (await request.body()).decode()})

    async def upload(self, request: Request) -> Response:
        self._note(request)
        async with request.form() as form:
            file: Any = form["file"]
            content = await file.read()
            digest = hashlib.sha256(content).hexdigest()
            return JSONResponse(
                {"filename": file.filename, "size": len(content), "sha256": digest, "note": form.get("note")}
            )

    async def blob(self, request: Request) -> Response:
        return Response(bytes(range(256)) * 4_000, media_type="application/octet-stream")

    async def text(self, request: Request) -> Response:
        return Response("grün".encode("latin-1"), media_type="text/plain; charset=iso-8859-1")

    async def broken_json(self, request: Request) -> Response:
        return Response(b'{"a": ', media_type="application/json")

    async def violates(self, request: Request) -> Response:
        return JSONResponse({"id": "seven", "name": "tea", "price": 1, "extra": 1})

    async def accepted(self, request: Request) -> Response:
        return JSONResponse({"job": 1}, status_code=202)

    async def problem(self, request: Request) -> Response:
        return JSONResponse(
            {"title": "out of tea", "detail": "none left"}, status_code=422, media_type="application/problem+json"
        )

    async def flaky(self, request: Request) -> Response:
        key = request.path_params["key"]
        self.seen[key] += 1
        if self.seen[key] < 3:
            return PlainTextResponse("later", status_code=503, headers={"retry-after": "0"})
        return JSONResponse({"attempts": self.seen[key]})

    async def tagged(self, request: Request) -> Response:
        self._note(request)
        if request.headers.get("if-none-match") == '"v1"':
            return Response(status_code=304, headers={"etag": '"v1"', "x-fresh": "1"})
        return JSONResponse({"who": request.headers.get("authorization")}, headers={"etag": '"v1"'})

    async def whoami(self, request: Request) -> Response:
        noted = self._note(request)
        authorization = request.headers.get("authorization")
        if authorization == "Bearer token-1":
            return JSONResponse({"message": "expired"}, status_code=401)
        return JSONResponse({"authorization": authorization, "query": noted["query"], "headers": noted["headers"]})

    async def token(self, request: Request) -> Response:
        self.tokens += 1
        form = await request.form()
        return JSONResponse({"access_token": f"token-{self.tokens}", "expires_in": 3600, "grant": form["grant_type"]})

    async def moved(self, request: Request) -> Response:
        return RedirectResponse("/whoami", status_code=302)

    async def leave(self, request: Request) -> Response:
        return RedirectResponse(f"{self.abroad}/whoami", status_code=302)

    async def events(self, request: Request) -> Response:
        noted = self._note(request)
        start = int(noted["headers"].get("last-event-id", 0))
        drop = int(request.query_params.get("drop", 0))

        async def lines() -> AsyncIterator[bytes]:
            try:
                for number in range(start + 1, 7):
                    yield b'id: %d\nevent: tick\ndata: {"n": %d}\n\n' % (number, number)
                    if drop and number % drop == 0 and number < 6:
                        self.dropped += 1
                        raise ConnectionError("dropped on purpose")
                yield b"data: plain text\n\n"
                if drop == 0:
                    await asyncio.sleep(0)
            finally:
                self.streams_closed += 1

        return StreamingResponse(lines(), media_type="text/event-stream", headers={"x-stream": "1"})

    async def chat(self, request: Request) -> Response:
        sent = await request.json()
        if sent.get("stream"):
            return Response(b'data: {"t": "a"}\n\ndata: [DONE]\n\n', media_type="text/event-stream")
        return JSONResponse({"text": "whole", "accept": request.headers["accept"]})

    async def slow(self, request: Request) -> Response:
        await asyncio.sleep(30)
        return JSONResponse({})

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self.document)

    def application(self) -> Starlette:
        """The API as an ASGI application."""
        return Starlette(
            routes=[
                Route("/openapi.json", self.openapi),
                Route("/items", self.items, methods=["GET", "POST"]),
                Route("/items/{id}", self.item, methods=["GET", "PUT", "DELETE"]),
                Route("/echo/{name:path}", self.echo, methods=["POST"]),
                Route("/upload", self.upload, methods=["POST"]),
                Route("/blob", self.blob),
                Route("/text", self.text),
                Route("/broken-json", self.broken_json),
                Route("/violates", self.violates),
                Route("/accepted", self.accepted),
                Route("/problem", self.problem, methods=["POST"]),
                Route("/flaky/{key}", self.flaky, methods=["GET", "POST"]),
                Route("/tagged", self.tagged),
                Route("/whoami", self.whoami),
                Route("/token", self.token, methods=["POST"]),
                Route("/moved", self.moved),
                Route("/abroad", self.leave),
                Route("/events", self.events),
                Route("/chat", self.chat, methods=["POST"]),
                Route("/slow", self.slow),
            ]
        )
