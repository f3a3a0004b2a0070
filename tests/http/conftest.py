"""The clients and servers that every HTTP test can ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from operations.http import ClientOptions, HTTPClient
from operations.http.httpx2_client import Httpx2Client
from operations.http.pyreqwest import PyreqwestClient, socket_abort
from tests.http.servers import starlette_server

MakeClient = Callable[[ClientOptions], HTTPClient]

BACKENDS: dict[str, MakeClient] = {
    "pyreqwest": PyreqwestClient,
    "httpx2": lambda options: Httpx2Client(options=options),
}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    """The name of the client under test: every test that uses it runs once for each."""
    return str(request.param)


@pytest.fixture
def aborted(backend: str) -> None:
    """For tests of connections that are closed in the middle of a request."""
    if backend == "pyreqwest" and not socket_abort.CAN_ABORT:
        pytest.skip("sockets are marked on Linux only: here pyreqwest keeps them until the request's time is up")


@pytest.fixture
async def make_client(backend: str) -> AsyncIterator[MakeClient]:
    """Make a client with the given options; it is closed after the test."""
    made: list[HTTPClient] = []

    def make(options: ClientOptions) -> HTTPClient:
        made.append(BACKENDS[backend](options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(make_client: MakeClient) -> HTTPClient:
    """A client with default options."""
    return make_client(ClientOptions())


@pytest.fixture(scope="session")
def api() -> Iterator[str]:
    """The base URL of the Starlette application."""
    with starlette_server() as url:
        yield url
