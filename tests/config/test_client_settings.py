"""Settings converted to client settings, and their effect on requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from operations.config import load_config, open_workspace
from operations.config.mcp_source import mcp_config
from operations.config.openapi_source import service_config
from operations.config.settings import MCPSettings, OpenAPISettings
from operations.sources.mcp import MCPClientConfig
from operations.sources.openapi import HTTPServiceConfig
from tests.asgi_server import serving
from tests.config.files import load, problems, write


def mcp(directory: Path, text: str) -> MCPClientConfig:
    settings = load(directory, f"[sources.a]\n{text}").sources["a"].settings
    assert isinstance(settings, MCPSettings)
    return mcp_config(settings, directory)


def service(directory: Path, text: str) -> HTTPServiceConfig:
    settings = load(directory, f"[sources.a]\nopenapi = 'x'\n{text}").sources["a"].settings
    assert isinstance(settings, OpenAPISettings)
    return service_config(settings, "a")


@pytest.mark.parametrize(
    ("auth", "headers"),
    [
        ("type = 'bearer', token = 't'", {"Authorization": "Bearer t"}),
        ("type = 'bearer', token = 't', prefix = 'Token'", {"Authorization": "Token t"}),
        ("type = 'basic', username = 'ada', password = 'p'", {"Authorization": "Basic YWRhOnA="}),
        ("type = 'basic', username = 'ada', password = 'p', header_name = 'K'", {"K": "Basic YWRhOnA="}),
        ("type = 'api_key', token = 't'", {"X-API-Key": "t"}),
        ("type = 'api_key', token = 't', header_name = 'K', prefix = 'P'", {"K": "P t"}),
    ],
)
def test_credentials_of_an_mcp_server_are_headers(tmp_path: Path, auth: str, headers: dict[str, str]) -> None:
    config = mcp(tmp_path, f"url = 'http://x'\nauth = {{ {auth} }}\nheaders = {{ X-Other = 'o' }}")
    assert config.headers == {**headers, "X-Other": "o"}
    assert config.oauth is None


def test_oauth_of_an_mcp_server(tmp_path: Path) -> None:
    short = mcp(
        tmp_path, "url='http://x'\nauth={type='oauth2', client_id='i', client_secret='s', scopes=['a','b']}"
    ).oauth
    assert short is not None
    assert (short.client_id, short.client_secret, short.scope) == ("i", "s", "a b")
    text = "url='http://x'\noauth={client_id='i', client_secret='s', issuer='http://y', storage='tokens'}"
    full = mcp(tmp_path, text).oauth
    assert full is not None
    assert (full.issuer, full.storage) == ("http://y", tmp_path / "tokens")


def test_a_command_and_its_working_directory(tmp_path: Path) -> None:
    write(tmp_path, "A=from file\nB=from file", "vars.env")
    text = "command='bin/run'\ncwd='sub'\nenv_file='vars.env'\nenv={B='own'}\n"
    text += "timeout=5\nconnect_timeout=2\nprotocol='legacy'"
    config = mcp(tmp_path, text)
    assert (config.command, config.cwd) == (str(tmp_path / "bin/run"), tmp_path / "sub")
    assert config.env == {"A": "from file", "B": "own"}
    assert (config.timeout, config.connect_timeout, config.protocol) == (5.0, 2.0, "legacy")
    assert mcp(tmp_path, "command='npx'").command == "npx"
    assert mcp(tmp_path, "command='npx'").cwd == tmp_path
    path = write(tmp_path, "[sources.a]\ncommand = 'x'\nenv_file = 'nothere.env'")
    assert problems(path) == [
        "operations.toml:1: sources.a: env_file: cannot read nothere.env: No such file or directory"
    ]


def test_how_an_api_is_called(tmp_path: Path) -> None:
    config = service(
        tmp_path,
        """base_url = 'http://x'
        server_variables = { region = 'eu' }
        headers = { A = 'b' }
        timeout = 3
        idle_timeout = 9
        retry = { attempts = 7, mutations = true }
        limits = { response_bytes = 10 }
        proxy = 'http://p'
        reconnect = 2
        cache = true
        security.one = { type = 'bearer', token = 't' }
        security.two = { type = 'api_key', token = 'k', location = 'cookie' }
        """,
    )
    assert (config.base_url, config.server_variables, config.headers) == ("http://x", {"region": "eu"}, {"A": "b"})
    assert (config.timeout, config.idle_timeout, config.proxy, config.reconnect) == (3.0, 9.0, "http://p", 2)
    assert (config.retry.attempts, config.retry.mutations, config.retry.statuses) == (7, True, (429, 502, 503, 504))
    assert (config.limits.response_bytes, config.limits.redirects, config.cache) == (10, 5, True)
    assert isinstance(config.auth, dict)
    assert {name: auth.type for name, auth in config.auth.items()} == {"one": "bearer", "two": "api_key"}
    path = write(
        tmp_path,
        "[sources.a]\nopenapi='x'\nauth={type='bearer',token='t'}\nsecurity={a={type='bearer',token='t'}}",
    )
    assert "auth and security are both set" in problems(path)[0]


async def echo(request: Request) -> Response:
    return JSONResponse({"headers": dict(request.headers), "query": dict(request.query_params)})


async def token(request: Request) -> Response:
    form = (await request.body()).decode()
    return JSONResponse({"access_token": "fetched", "expires_in": 60, "seen": form})


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "x", "version": "1"},
    "paths": {"/echo": {"get": {"operationId": "echo", "responses": {"200": {}}}}},
}


@pytest.mark.parametrize(
    ("auth", "place", "name", "value"),
    [
        ("type='bearer', token='t'", "headers", "authorization", "Bearer t"),
        ("type='basic', username='ada', password='p'", "headers", "authorization", "Basic YWRhOnA="),
        ("type='basic', username='ada', password='p', header_name='X-K'", "headers", "x-k", "Basic YWRhOnA="),
        ("type='api_key', token='k', header_name='X-K'", "headers", "x-k", "k"),
        ("type='api_key', token='k', header_name='key', location='query'", "query", "key", "k"),
        (
            "type='oauth2', token_url='URL/token', client_id='i', client_secret='s'",
            "headers",
            "authorization",
            "Bearer fetched",
        ),
    ],
)
async def test_credentials_arrive_at_an_api(tmp_path: Path, auth: str, place: str, name: str, value: str) -> None:
    write(tmp_path, json.dumps(DOCUMENT), "api.json")
    with serving(Starlette(routes=[Route("/echo", echo), Route("/token", token, methods=["POST"])])) as url:
        text = f"[sources.api]\nopenapi='api.json'\nbase_url='{url}'\nauth={{ {auth.replace('URL', url)} }}"
        async with open_workspace(load_config(write(tmp_path, text), environ={})) as workspace:
            data: Any = (await workspace.registry.execute("api.echo")).data
            assert data[place][name] == value


def test_a_missing_extra_is_reported_with_the_install_command(tmp_path: Path) -> None:
    write(tmp_path, json.dumps(DOCUMENT), "api.json")
    write(
        tmp_path,
        "[sources.m]\ncommand='x'\n[sources.u]\nopenapi='http://127.0.0.1:9/x'\n[sources.f]\nopenapi='api.json'",
    )
    program = f"""
import asyncio, sys
for missing in ("mcp", "pyreqwest", "httpx2", "pydantic", "yaml", "fast_yaml"):
    sys.modules[missing] = None
from operations.config import load_config, open_workspace

async def main():
    async with open_workspace(load_config({str(tmp_path)!r})) as workspace:
        for report in workspace.reports:
            print(report.state, report.problem)

asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    first, second, third = run.stdout.splitlines()
    assert 'pip install "operations[mcp]"' in first
    assert 'pip install "operations[openapi]"' in second
    assert third == "ready None"
