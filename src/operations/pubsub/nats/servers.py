"""The servers of a NATS cluster: those in the URL, and those that the cluster announces."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import msgspec

from operations.pubsub.nats.credentials import Credentials, read_credentials, read_seed
from operations.pubsub.urls import places, wrong_address


class Server(msgspec.Struct, frozen=True):
    """The address of one server."""

    host: str
    port: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a cluster, and as whom."""

    servers: tuple[Server, ...]
    credentials: Credentials
    tls: ssl.SSLContext | None
    tls_first: bool
    user: str | None
    """The name in the URL or the options, where there is one."""


class ServerPool:
    """The servers to try, one after the other."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self._named = list(servers)
        self._told: list[Server] = []
        self._next: list[Server] = []

    def learn(self, urls: Iterable[str]) -> None:
        """Remember the servers that the cluster announces."""
        told = [_read_server(url if "://" in url else f"nats://{url}") for url in urls]
        self._told = [server for server in told if server not in self._named]

    @property
    def size(self) -> int:
        """How many servers are known."""
        return len(self._named) + len(self._told)

    def next(self) -> Server:
        """Return the next server to try: all of them in random order, then all of them again."""
        if not self._next:
            self._next = [*self._named, *self._told]
            random.shuffle(self._next)
        return self._next.pop()

    @property
    def host(self) -> str:
        """The name to check certificates against, for servers that are announced by IP address."""
        return self._named[0].host


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
) -> Settings:
    """Read `nats://user:password@host:port,nats://…`; a user without a password is a token, as NATS has it."""
    urls = [part for part in (*url.split(","), *servers) if part]
    if not urls:
        raise wrong_address(url, "it names no NATS server, for example nats://127.0.0.1:4222")
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
    return Settings(
        servers=found,
        credentials=who,
        tls=tls,
        tls_first=tls_first,
        user=user,
    )


def _read_server(url: str) -> Server:
    url = url if "://" in url else f"nats://{url}"
    if url.partition("://")[0].lower() not in ("nats", "tls"):
        raise wrong_address(url, "the URL of a NATS server is nats://host:port or tls://host:port")
    return Server(*places(url)[0])
