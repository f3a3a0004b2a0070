"""Redis URLs: where the servers are, how they are arranged, and who connects."""

from __future__ import annotations

import urllib.parse
from typing import Literal

import msgspec

Arrangement = Literal["single", "sentinel", "cluster"]
_ARRANGEMENTS: dict[str, Arrangement] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_EXPECTED = (
    "expected redis://host:6379/0, rediss:// (TLS), unix:///path/to/redis.sock, "
    "redis+sentinel://host:26379,host:26379/service/0 or redis+cluster://host:6379,host:6379"
)


class Node(msgspec.Struct, frozen=True):
    """One server: a host and port, or the path of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says."""

    nodes: tuple[Node, ...]
    arrangement: Arrangement = "single"
    tls: bool = False
    username: str | None = None
    password: str | None = None
    database: int = 0
    service: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    def __str__(self) -> str:
        return ",".join(map(str, self.nodes))

    def __repr__(self) -> str:
        return f"<RedisAddress {self.arrangement} {self}>"


def parse_address(url: str) -> RedisAddress:
    """Read a Redis URL; raises ValueError with what was expected."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"no Redis URL: {_EXPECTED}")
    base, _, arranged = scheme.lower().partition("+")
    rest, _, query = rest.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    login, _, place = rest.rpartition("@")
    username, _, password = login.partition(":")
    known = RedisAddress(
        nodes=(),
        username=urllib.parse.unquote(username) or None,
        password=urllib.parse.unquote(password) or None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )
    if "unix" in (base, arranged):
        socket = Node(f"/{place.lstrip('/')}", 0)
        return msgspec.structs.replace(known, nodes=(socket,), database=_number(options.get("db", "0")))
    if base not in ("redis", "rediss", "valkey", "valkeys") or arranged not in _ARRANGEMENTS:
        raise ValueError(f"the scheme {scheme!r} is not known: {_EXPECTED}")
    return _arrange(known, _ARRANGEMENTS[arranged], place, options, tls=base in ("rediss", "valkeys"))


def _arrange(
    known: RedisAddress, arrangement: Arrangement, place: str, options: dict[str, str], *, tls: bool
) -> RedisAddress:
    hosts, *path = place.split("/")
    service = path.pop(0) if arrangement == "sentinel" and path else ""
    if arrangement == "sentinel" and not service:
        raise ValueError("a sentinel URL names the service: redis+sentinel://host:26379/service")
    database = _number(path[0] if path and path[0] else options.get("db", "0"))
    if arrangement == "cluster" and database:
        raise ValueError("a Redis cluster has only the database 0")
    port = 26379 if arrangement == "sentinel" else 6379
    return msgspec.structs.replace(
        known,
        nodes=tuple(_node(host, port) for host in hosts.split(",")),
        arrangement=arrangement,
        tls=tls,
        database=database,
        service=service,
    )


def _node(text: str, default: int) -> Node:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return Node(host, _number(port.lstrip(":") or str(default)))
    host, _, port = text.partition(":")
    return Node(host or "127.0.0.1", _number(port or str(default)))


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text!r} is no number: {_EXPECTED}")
    return int(text)
