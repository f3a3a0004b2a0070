"""The servers of a NATS cluster (those in the URL and those that a server announces), and connecting to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.connection_errors import (
    has_no_tls,
    is_reachable,
    plain_reply,
    reason_of,
    untrusted,
    uses_tls,
    wrong_protocol,
)
from operations.pubsub.nats.connection import NatsConnection
from operations.pubsub.nats.credentials import Credentials, read_credentials, read_seed
from operations.pubsub.urls import hosts_and_ports, wrong_address


class NatsServer(msgspec.Struct, frozen=True):
    """The address of one server."""

    host: str
    port: int


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a cluster and the credentials for them."""

    servers: tuple[NatsServer, ...]
    credentials: Credentials
    tls: ssl.SSLContext | None
    tls_first: bool
    user: str | None
    """The user name in the URL or the options, if any."""


class NatsServers:
    """Connects to the servers of a cluster, one after the other."""

    def __init__(self, settings: NatsSettings, *, name: str, timeout: float) -> None:
        self._settings = settings
        self._name = name
        self._timeout = timeout
        self._named = list(settings.servers)
        self._tried = self._named[0]
        """The server at which connecting was tried last."""
        self._announced: list[NatsServer] = []
        self._next: list[NatsServer] = []

    def learn(self, urls: Iterable[str]) -> None:
        """Replace the announced servers; the servers of the URL are kept."""
        announced = [_read_server(url) for url in urls]
        self._announced = [server for server in announced if server not in self._named]

    @property
    def size(self) -> int:
        """How many servers are known."""
        return len(self._named) + len(self._announced)

    def next(self) -> NatsServer:
        """Return the next server to try; each round consists of all servers in random order."""
        if not self._next:
            self._next = [*self._named, *self._announced]
            random.shuffle(self._next)
        return self._next.pop()

    async def connect(self, connection: NatsConnection) -> None:
        """Connect to the next server.

        Raise `ACCESS_DENIED` if the server refuses the credentials, `UNAVAILABLE` if there is no usable connection.
        """
        self._tried = server = self.next()
        settings, where = self._settings, f"nats://{server.host}:{server.port}"
        # The host name to check certificates against, also for servers that the cluster announces by IP address.
        host = self._named[0].host
        first: dict[str, Any] = {}
        if settings.tls_first:
            first = {"ssl": settings.tls or ssl.create_default_context(), "server_hostname": host}
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, server.host, server.port, **first
                )
                await self._shake_hands(connection, host)
        except CallError:
            connection.abort("the handshake failed")
            raise
        except ssl.SSLCertVerificationError as error:
            connection.abort("the handshake failed")
            raise untrusted(where, error) from error
        except (OSError, TimeoutError) as error:
            connection.abort("the handshake failed")
            reason = reason_of(error) if str(error) else f"no response within {self._timeout:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, f"no connection to {where}: {reason}", {"executed": "no"}) from error
        except BaseException:
            with contextlib.suppress(Exception):
                connection.abort("cancelled")
            raise

    async def _shake_hands(self, connection: NatsConnection, host: str) -> None:
        """Upgrade to TLS if required, send the credentials, and wait until the server has accepted them."""
        info, settings = await connection.informed, self._settings
        if not settings.tls_first and (settings.tls is not None or info.tls_required):
            await connection.start_tls(settings.tls or ssl.create_default_context(), host)
        fields = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "echo": True,
            "lang": "python",
            "version": "1",
            "name": self._name,
            "tls_required": settings.tls is not None,
            **settings.credentials.answer(info.nonce),
        }
        connection.buffer.send(b"CONNECT %b\r\n" % msgspec.json.encode(fields))
        await connection.processed()
        if not info.headers:
            problem = f"NATS {info.version} does not support headers: 2.2 or later is needed"
            raise CallError(ErrorCode.UNAVAILABLE, problem)

    async def diagnose(self, error: Exception) -> CallError | None:
        """Return the permanent error behind a failed connection; None if there is no such error.

        The permanent errors are that the server does not use TLS, or that it starts TLS at another time.
        """
        if not is_reachable(error) or not has_no_tls(error):
            return None
        server, settings = self._tried, self._settings
        where = f"nats://{server.host}:{server.port}"
        said = await plain_reply(server.host, server.port)
        if said.startswith(b"INFO "):
            if settings.tls is None and not settings.tls_first:
                return None
            if b'"tls_required":true' in said or b'"tls_available":true' in said:
                sooner = "the server starts TLS after its first message: remove tls_first"
                return wrong_protocol(where, sooner) if settings.tls_first else None
            return wrong_protocol(where, "the server does not use TLS: use a nats:// address instead of tls://")
        if not settings.tls_first and not said and await uses_tls(server.host, server.port):
            return wrong_protocol(where, "the server expects TLS before its first message: pass tls_first=True")
        return None


def read_settings(
    url: str,
    *,
    servers: Iterable[str] = (),
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    nkey_seed: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    tls_first: bool = False,
) -> NatsSettings:
    """Read `nats://user:password@host:port,nats://…`; a user without a password is a token, as in NATS."""
    urls = [part for part in (*url.split(","), *servers) if part]
    if not urls:
        raise wrong_address(url, "it has no server: expected an address such as nats://127.0.0.1:4222")
    found = tuple(_read_server(each) for each in urls)
    scheme, _, rest = urls[0].rpartition("://")
    name, has_password, secret = rest.rpartition("@")[0].partition(":")
    if name and user is None and token is None:
        if not has_password:
            token = unquote(name)
        else:
            user, password = unquote(name), unquote(secret)
    if credentials is not None:
        who = read_credentials(credentials)
    elif nkey_seed is not None:
        who = Credentials(seed=read_seed(nkey_seed))
    else:
        who = Credentials(user=user, password=password, token=token)
    if tls is None and scheme.lower() == "tls":
        tls = ssl.create_default_context()
    return NatsSettings(
        servers=found,
        credentials=who,
        tls=tls,
        tls_first=tls_first,
        user=user,
    )


def _read_server(url: str) -> NatsServer:
    url = url if "://" in url else f"nats://{url}"
    if url.partition("://")[0].lower() not in ("nats", "tls"):
        raise wrong_address(url, "expected nats://host:port or tls://host:port")
    return NatsServer(*hosts_and_ports(url)[0])
