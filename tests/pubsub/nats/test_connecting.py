"""Connecting: every kind of credentials, TLS, clusters, and servers that are not running."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.pubsub import connect as connect_any
from operations.pubsub.connection_errors import UNTRUSTED
from operations.pubsub.nats import NatsTransport, connect
from operations.pubsub.nats.credentials import NKey, read_credentials, read_seed
from operations.pubsub.nats.servers import NatsServer, NatsServers, read_settings
from tests.nats_server import nats_cluster, nats_server, shared_server
from tests.ports import free_ports
from tests.pubsub.nats.security import Certificates, Signer, write_credentials
from tests.receiving import into
from tests.waiting import until


async def works(transport: NatsTransport) -> bool:
    got: list[bytes] = []
    async with asyncio.timeout(30), transport:
        transport.listen("control.x", into(got.append))
        transport.send("control.x", b"m")
        await until(lambda: bool(got))
    return got == [b"m"]


async def refusal(transport: NatsTransport) -> CallError:
    with pytest.raises(CallError) as caught:
        async with asyncio.timeout(30), transport:
            pass
    return caught.value


async def test_user_and_password() -> None:
    with nats_server('authorization { user: ada, password: "s3cret/&" }') as server:
        assert await works(connect(server.url, user="ada", password="s3cret/&"))
        assert await works(connect(f"nats://ada:s3cret%2F%26@127.0.0.1:{server.port}"))
        assert connect(f"nats://ada:x@127.0.0.1:{server.port}").peer.startswith("ada.")
        for wrong in (connect(server.url), connect(server.url, user="ada", password="wrong")):
            error = await refusal(wrong)
            assert error.code is ErrorCode.ACCESS_DENIED
            assert "Authorization Violation" in error.message


async def test_a_token() -> None:
    with nats_server('authorization { token: "t0ken" }') as server:
        assert await works(connect(f"nats://t0ken@127.0.0.1:{server.port}"))
        assert await works(connect(server.url, token="t0ken"))
        assert (await refusal(connect(server.url, token="x"))).code is ErrorCode.ACCESS_DENIED


async def test_an_nkey_as_text_and_as_a_file(tmp_path: Path) -> None:
    user = Signer("user")
    assert NKey(user.seed).public == user.public
    file = tmp_path / "user.nk"
    file.write_text(user.seed + "\n")
    with nats_server(f"authorization {{ users: [ {{ nkey: {user.public} }} ] }}") as server:
        assert await works(connect(server.url, nkey_seed=user.seed))
        assert await works(connect(server.url, nkey_seed=file))
        assert (await refusal(connect(server.url, nkey_seed=Signer("user").seed))).code is ErrorCode.ACCESS_DENIED


async def test_a_credentials_file(tmp_path: Path) -> None:
    operator, account, user = Signer("operator"), Signer("account"), Signer("user")
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "imports": -1, "exports": -1, "wildcards": True}
    config = (
        f"operator: {operator.sign(operator)}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {operator.sign(account, limits=limits)} }}"
    )
    token = account.sign(user, subs=-1, data=-1, payload=-1)
    path = write_credentials(tmp_path / "user.creds", token, user.seed)
    with nats_server(config, jetstream=False) as server:
        assert await works(connect(server.url, credentials=path))
        stranger = write_credentials(tmp_path / "stranger.creds", token, Signer("user").seed)
        assert (await refusal(connect(server.url, credentials=stranger))).code is ErrorCode.ACCESS_DENIED


def test_files_that_hold_no_credentials_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("nothing")
    with pytest.raises(ValueError, match="not a NATS credentials file: it has no NATS USER JWT block"):
        read_credentials(empty)
    with pytest.raises(ValueError, match="invalid nkey seed"):
        NKey(read_seed(empty))
    seed = Signer("user").seed
    with pytest.raises(ValueError, match="checksum"):
        NKey(seed[:-1] + ("A" if seed[-1] != "A" else "E"))


def test_the_repr_of_credentials_shows_no_secret() -> None:
    settings = read_settings("nats://ada:s3cret@127.0.0.1")
    assert "s3cret" not in repr(settings.credentials)


@pytest.mark.parametrize("first", [False, True])
async def test_tls(tmp_path: Path, first: bool) -> None:
    certificates = Certificates(tmp_path)
    handshake = ", handshake_first: true" if first else ""
    with nats_server(f"tls {{ {certificates.config}{handshake} }}") as server:
        url = f"tls://127.0.0.1:{server.port}"
        assert await works(connect(url, tls=certificates.context, tls_first=first))
        error = await refusal(connect(url, tls_first=first))
        assert (error.code, error.details["reason"]) == (ErrorCode.UNAVAILABLE, UNTRUSTED)
        assert f"127.0.0.1:{server.port}" in error.message


async def test_the_first_connection_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    transport = connect(f"nats://127.0.0.1:{port}", shortest_delay=0.01, longest_delay=0.05)
    entering = asyncio.create_task(transport.__aenter__())
    await until(lambda: transport.failures > 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert str(port) in warnings[0]
    with nats_server(port=port):
        async with asyncio.timeout(30):
            await entering
        assert transport.is_up
        await transport.close()


async def test_a_server_that_is_not_nats() -> None:
    async def answer(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    transport = connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", shortest_delay=0.01)
    entering = asyncio.create_task(transport.__aenter__())
    await until(lambda: transport.failures > 0)
    assert "does not use the NATS protocol" in transport._why_down
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    await transport.close()
    server.close()


async def test_the_other_servers_of_a_cluster_are_used_when_one_dies() -> None:
    with nats_cluster() as servers:
        async with connect(servers[0].url, shortest_delay=0.02) as transport, connect(servers[1].url) as other:
            await until(lambda: transport._servers.size == 3)
            got: list[bytes] = []
            transport.listen("control.x", into(got.append))
            servers[0].kill()
            await until(lambda: transport.is_up and transport.reconnects == 1)

            def is_heard() -> bool:
                other.send("control.x", b"m")
                return bool(got)

            await until(is_heard)
            assert set(got) == {b"m"}


def test_urls() -> None:
    settings = read_settings("nats://a:1,b:2,nats://c", servers=["tls://d:4"])
    assert settings.servers == (NatsServer("a", 1), NatsServer("b", 2), NatsServer("c", 4222), NatsServer("d", 4))
    assert read_settings("tls://a").tls is not None
    for wrong in ("http://a", "", "nats://"):
        with pytest.raises(CallError, match="is not a valid address"):
            read_settings(wrong)
    pool = NatsServers(settings, name="ada", timeout=1.0)
    pool.learn(["a:1", "10.0.0.9:4222"])
    assert {pool.next() for _ in range(5)} == {*settings.servers, NatsServer("10.0.0.9", 4222)}


async def test_connect_opens_a_nats_url() -> None:
    async with connect_any(shared_server().url, name="ada") as transport:
        assert isinstance(transport, NatsTransport)
        assert transport.capabilities.max_payload == 16 << 20


def test_a_missing_library_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None; "
        "from operations.pubsub.nats.credentials import NKey; NKey('SU')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: cryptography is not installed: pip install 'operations[nats]'"
