"""Redis URLs: where the servers are, how they are arranged, and who connects."""

from __future__ import annotations

import urllib.parse
from typing import Literal

import msgspec

from operations.pubsub.addresses import PORTS, read_place, wrong_address

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
    """Read a Redis URL; raises a CallError with what was expected."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise wrong_address(url, f"no Redis URL: {_EXPECTED}")
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
        if not place.strip("/"):
            raise wrong_address(url, "it names no socket: unix:///path/to/redis.sock")
        socket = Node(f"/{place.lstrip('/')}", 0)
        return msgspec.structs.replace(known, nodes=(socket,), database=_number(options.get("db", "0"), url))
    if base not in ("redis", "rediss", "valkey", "valkeys") or arranged not in _ARRANGEMENTS:
        raise wrong_address(url, f"the scheme {scheme!r} is not known: {_EXPECTED}")
    known = msgspec.structs.replace(known, arrangement=_ARRANGEMENTS[arranged], tls=base in ("rediss", "valkeys"))
    return _arrange(known, place, options, url)


def _arrange(known: RedisAddress, place: str, options: dict[str, str], url: str) -> RedisAddress:
    arrangement = known.arrangement
    hosts, *path = place.split("/")
    service = path.pop(0) if arrangement == "sentinel" and path else ""
    if arrangement == "sentinel" and not service:
        raise wrong_address(url, "a sentinel URL names the service: redis+sentinel://host:26379/service")
    database = _number(path[0] if path and path[0] else options.get("db", "0"), url)
    if arrangement == "cluster" and database:
        raise wrong_address(url, "a Redis cluster has only the database 0")
    port = PORTS["redis+sentinel" if arrangement == "sentinel" else "redis"]
    return msgspec.structs.replace(
        known,
        nodes=tuple(_node(host, port, url) for host in hosts.split(",")),
        database=database,
        service=service,
    )


def _node(text: str, default: int, url: str) -> Node:
    host, port = read_place(text, default, url)
    return Node(host or "127.0.0.1", port)


def _number(text: str, url: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise wrong_address(url, f"the database {text!r} is no number: {_EXPECTED}")
    return int(text)
