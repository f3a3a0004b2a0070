"""Selection of the client, what it imports, and a custom httpx2 client."""

from __future__ import annotations

import subprocess
import sys

import httpx2
import pytest

from operations.http import ClientOptions, HTTPClient, HTTPRequest, default_client, read_body
from operations.http.httpx2_client import Httpx2Client
from operations.http.pyreqwest import PyreqwestClient
from tests.http.servers import answering, raw_server, response


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_the_seam_loads_no_client() -> None:
    loaded = _python("import sys, operations.http; print(*sorted(sys.modules))").split()
    assert "operations.http.client" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in ("pyreqwest", "httpx2", "httpcore2")]


def test_the_default_client_loads_no_other_client() -> None:
    code = "import sys, operations.http; operations.http.default_client(); print(*sorted(sys.modules))"
    loaded = _python(code).split()
    assert "pyreqwest" in loaded
    assert "httpx2" not in loaded


def test_a_missing_client_names_the_extra_to_install() -> None:
    code = (
        "import sys; sys.modules['pyreqwest'] = None\n"
        "import operations.http\n"
        "try:\n    operations.http.default_client()\nexcept ImportError as error:\n    print(error)\n"
    )
    assert _python(code) == 'HTTP requires pyreqwest: pip install "operations[openapi]"\n'
    code = (
        "import sys; sys.modules['httpx2'] = None\n"
        "try:\n    import operations.http.httpx2_client\nexcept ImportError as error:\n    print(error)\n"
    )
    assert _python(code) == 'Httpx2Client requires httpx2: pip install "operations[httpx2]"\n'


async def test_the_default_client_is_pyreqwest() -> None:
    client = default_client(ClientOptions(timeout=1))
    assert isinstance(client, PyreqwestClient)
    await client.close()


async def _get(client: HTTPClient, url: str) -> bytes:
    async with client.send(HTTPRequest(method="GET", url=url, headers=[("X-Mine", "1")])) as answer:
        return await read_body(answer, limit=100)


async def test_clients_open_and_close_with_a_block() -> None:
    async with raw_server(answering(response(b"ok"), keep=True)) as server:
        async with PyreqwestClient() as first, Httpx2Client() as second:
            assert await _get(first, server.url) == await _get(second, server.url) == b"ok"
        await server.until_open(0)


async def test_a_passed_client_provides_only_connections_and_hooks() -> None:
    seen: list[str] = []
    heads: list[bytes] = []

    async def hook(request: httpx2.Request) -> None:
        seen.append(request.url.path)

    async with (
        raw_server(answering(response(b"ok", headers=b"Set-Cookie: b=2\r\n"), heads=heads)) as server,
        httpx2.AsyncClient(
            headers={"X-Theirs": "1"},
            cookies={"a": "1"},
            auth=("user", "secret"),
            base_url="http://elsewhere.invalid/",
            event_hooks={"request": [hook]},
        ) as own,
    ):
        client = Httpx2Client(own)
        for _ in range(2):
            assert await _get(client, f"{server.url}/a") == b"ok"
        await client.close()
        assert not own.is_closed
    assert seen == ["/a", "/a"]
    for head in heads:
        assert b"x-mine: 1\r\n" in head.lower()
        for word in (b"x-theirs", b"cookie", b"authorization"):
            assert word not in head.lower()


@pytest.mark.parametrize("http2", [False, True])
async def test_http2_can_be_enabled_if_it_is_installed(http2: bool) -> None:
    async with raw_server(answering(response(b"ok"))) as server, PyreqwestClient(ClientOptions(http2=http2)) as client:
        assert await _get(client, server.url) == b"ok"
