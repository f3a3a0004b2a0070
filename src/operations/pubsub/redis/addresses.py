"""Redis URLs, and the names of the Redis channels and keys for the addresses of a bus."""

from __future__ import annotations

import urllib.parse
from typing import Literal

import msgspec

from operations.pubsub.urls import hosts_and_ports, wrong_address

Arrangement = Literal["single", "sentinel", "cluster"]
_ARRANGEMENTS: dict[str, Arrangement] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_EXPECTED = (
    "expected redis://host:6379/0, rediss:// (TLS), unix:///path/to/redis.sock, "
    "redis+sentinel://host:26379,host:26379/service/0 or redis+cluster://host:6379,host:6379"
)
_MOST_CHANNELS = 65_536


class RedisNode(msgspec.Struct, frozen=True):
    """One server: a host and port, or the path of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a Redis URL."""

    nodes: tuple[RedisNode, ...]
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
    """Parse a Redis URL; raise a CallError that states the expected form."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise wrong_address(url, f"it is not a Redis URL: {_EXPECTED}")
    scheme = scheme.lower().replace("valkey", "redis")
    base, _, arranged = scheme.partition("+")
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
            raise wrong_address(url, "it has no socket path: expected unix:///path/to/redis.sock")
        socket = RedisNode(f"/{place.lstrip('/')}", 0)
        return msgspec.structs.replace(known, nodes=(socket,), database=_number(options.get("db", "0"), url))
    if base not in ("redis", "rediss") or arranged not in _ARRANGEMENTS:
        raise wrong_address(url, f"unknown scheme {scheme!r}: {_EXPECTED}")
    nodes = tuple(RedisNode(*each) for each in hosts_and_ports(f"{scheme}://{rest}"))
    known = msgspec.structs.replace(known, nodes=nodes, arrangement=_ARRANGEMENTS[arranged], tls=base == "rediss")
    return _read_path(known, place.partition("/")[2], options, url)


def _read_path(known: RedisAddress, rest: str, options: dict[str, str], url: str) -> RedisAddress:
    """Return the address with the service and the database that the path of its URL contains."""
    arrangement, path = known.arrangement, rest.split("/")
    service = path.pop(0) if arrangement == "sentinel" else ""
    if arrangement == "sentinel" and not service:
        raise wrong_address(url, "it has no service: expected redis+sentinel://host:26379/service")
    database = _number(path[0] if path and path[0] else options.get("db", "0"), url)
    if arrangement == "cluster" and database:
        raise wrong_address(url, "a Redis cluster has only the database 0")
    return msgspec.structs.replace(known, database=database, service=service)


def _number(text: str, url: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise wrong_address(url, f"the database {text!r} is not a number: {_EXPECTED}")
    return int(text)


class NamespaceKeys:
    """The keys and the channel of one namespace.

    Each key contains the namespace in braces. The keys are therefore on one server of a cluster, and one script can use
    several of them.
    """

    __slots__ = ("_start", "changes", "dead", "owners", "queue", "stored", "workers")

    def __init__(self, prefix: str, namespace: str) -> None:
        start = f"{prefix}:{{{namespace}}}"
        self.queue = f"{start}:queue".encode()
        """A list: the requests that wait for a worker."""
        self.workers = f"{start}:workers".encode()
        """A sorted set: the workers, by the time until which each counts as alive."""
        self.stored = f"{start}:stored".encode()
        """A stream: the requests that are kept until they are handled."""
        self.dead = f"{start}:dead".encode()
        """A stream: the dead letters."""
        self._start = start.encode()
        self.owners = f"{start}:owners".encode()
        """A set: the owners of records."""
        self.changes = f"{prefix}:records.{namespace}".encode()
        """Channel on which the key of a record is published when its message was removed."""

    def seen(self, key: str) -> bytes:
        """Return the key that marks a request as stored."""
        return self.stored + b":" + key.encode()

    def record(self, key: str) -> bytes:
        """Return the key of a record: a hash with `value` and `body`, and with `entry` while its message is stored."""
        return self._start + b":record:" + key.encode()

    def owned(self, owner: str) -> bytes:
        """Return the key of a sorted set: the keys of an owner's records, by the time at which each record expires."""
        return self._start + b":owned:" + owner.encode()


class RedisKeys:
    """The names of the Redis channel and keys for each address, cached."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._channels: dict[str, bytes] = {}
        self._namespaces: dict[str, NamespaceKeys] = {}

    def channel(self, address: str) -> bytes:
        """Return the channel of an address."""
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= _MOST_CHANNELS:
                self._channels.clear()  # most are inboxes of callers that are gone
            channel = self._channels[address] = f"{self._prefix}:{address}".encode()
        return channel

    def shared_key(self, key: str) -> bytes:
        """Return the key of a value that all workers share; callers need no access to it."""
        return f"{self._prefix}:once:{key}".encode()

    @property
    def record_namespaces(self) -> bytes:
        """A set: the namespaces that may have records, because requests were stored or taken there."""
        return f"{self._prefix}:record-namespaces".encode()

    def of_namespace(self, address: str) -> NamespaceKeys:
        """Return the keys of the namespace that an address contains, such as `work.<namespace>`."""
        keys = self._namespaces.get(address)
        if keys is None:
            keys = self._namespaces[address] = NamespaceKeys(self._prefix, address.partition(".")[2])
        return keys
