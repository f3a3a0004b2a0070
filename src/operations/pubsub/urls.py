"""URLs of transports: the transport that a scheme opens, and hosts and ports, which are checked before connecting.

`_SCHEMES` has the schemes of this project. The modules for `ws` and `wss`, and for the schemes of other packages, are
entry points in the group `operations.transports`. The name of an entry point is the scheme; its object is called with
the URL and options. The library of a transport is imported when its URL is opened.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, NamedTuple

from operations.errors import CallError, ErrorCode

GROUP = "operations.transports"
"""The entry-point group of `ws`, `wss` and the schemes of other packages."""


class _Scheme(NamedTuple):
    """A scheme of transports."""

    module: str
    """The module of `operations.pubsub` whose function `connect` opens the transport; empty for an entry point."""
    port: int | None = None
    """The default port; None for a transport without a network address."""


_SCHEMES = {
    "memory": _Scheme("memory"),
    "nats": _Scheme("nats", 4222),
    "redis": _Scheme("redis", 6379),
    "redis+cluster": _Scheme("redis", 6379),
    "redis+sentinel": _Scheme("redis", 26379),
    "rediss": _Scheme("redis", 6379),
    "rediss+cluster": _Scheme("redis", 6379),
    "rediss+sentinel": _Scheme("redis", 26379),
    "tls": _Scheme("nats", 4222),
    "unix": _Scheme("redis"),
    "ws": _Scheme("", 80),
    "wss": _Scheme("", 443),
}
_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f<>\"^`{|}\\\[\]]")


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """Open the transport that a URL names: `async with connect("nats://127.0.0.1:4222") as transport:`.

    The error for a missing library names the extra to install. The options are those of the transport:
    `operations.pubsub.memory|redis|nats.connect`, `operations.calls.hub.spoke.Spoke`.
    """
    check_address(url)
    scheme = _scheme_of(url)
    module = _SCHEMES[scheme].module if scheme in _SCHEMES else ""
    if module:
        open_transport = import_module(f"operations.pubsub.{module}").connect
    else:
        registered = _registered()
        if scheme not in registered:
            raise wrong_address(
                url, f"no installed package provides a transport for {scheme!r} (entry-point group: {GROUP})"
            )
        open_transport = registered[scheme].load()
    opened: AbstractAsyncContextManager[Any] = open_transport(url, **options)
    return opened


def check_address(url: str) -> None:
    """Raise a CallError for an invalid address of a transport, without importing its library."""
    scheme = _scheme_of(url)
    if scheme not in _SCHEMES:
        known = {*_SCHEMES, *_registered()}
        if scheme not in known:
            raise wrong_address(url, f"unknown scheme {scheme!r}: expected one of {', '.join(sorted(known))}")
    hosts_and_ports(url)


def hosts_and_ports(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a transport's URL; raise a CallError with the problem if it is invalid.

    The list is empty for a URL without a network address (`memory:`, `unix://…`) and for a scheme of another package.
    """
    scheme = _scheme_of(url)
    _, separator, rest = url.partition("://")
    default = _SCHEMES[scheme].port if scheme in _SCHEMES else None
    if default is None:
        if scheme == "unix" and not rest.strip("/"):
            raise wrong_address(url, "it has no socket path: expected unix:///path/to/redis.sock")
        return []
    if not separator:
        raise wrong_address(url, f"expected {scheme}://host:port")
    found = []
    for text in _parts(rest.partition("?")[0], scheme):
        host, port = _read_host_and_port(text, default, url)
        if not host and not scheme.startswith("redis"):
            raise wrong_address(url, f"it has no host: expected {scheme}://host:port")
        found.append((host or "127.0.0.1", port))
    return found


def _read_host_and_port(text: str, default: int, url: str) -> tuple[str, int]:
    """Return the host and port in `host:port`; `url` is the whole URL, for the error."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed:
            raise wrong_address(url, "its IPv6 address has no closing bracket: expected [::1]")
        if not _is_ipv6(host) or (port and not port.startswith(":")):
            raise wrong_address(url, "the text in brackets is not an IPv6 address")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        raise wrong_address(url, "it has more than one port; write an IPv6 address in brackets: [::1]")
    else:
        host, _, port = text.partition(":")
        if _NO_NAME.search(host) or not _is_valid_host_name(host):
            raise wrong_address(url, "the host name is not valid")
    if not port:
        return host, default
    if not (port.isascii() and port.isdigit()):
        # In a URL with credentials, a part of them may have been taken for the port.
        raise wrong_address(url, "its port is not a number" if "@" in url else f"the port {port!r} is not a number")
    if not 1 <= int(port[:9]) <= 65535:
        raise wrong_address(url, f"invalid port {port[:9]}: expected 1 to 65535")
    return host, int(port)


def wrong_address(url: str, reason: str) -> CallError:
    """Return the error for an invalid URL, without parts that may be secret."""
    scheme, separator, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if separator else url.rpartition("@")[2]
    return CallError(ErrorCode.VALIDATION_ERROR, f"{shown!r} is not a valid address: {reason}")


def _scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


def _registered() -> dict[str, Any]:
    """Return the entry points of other packages by scheme."""
    from importlib.metadata import entry_points  # slow to import, and needed for few URLs

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _parts(rest: str, scheme: str) -> list[str]:
    """Return each `host:port` of a URL without its user. A NATS URL may have a user for each host, a Redis URL one."""
    if scheme.startswith("redis"):  # a password may contain any character
        return rest.rpartition("@")[2].partition("/")[0].split(",")
    parts = [part.rpartition("://")[2] for part in rest.split(",")]
    return [re.split(r"[/#]", part, maxsplit=1)[0].rpartition("@")[2] for part in parts]


def _is_ipv6(text: str) -> bool:
    from ipaddress import IPv6Address  # slow to import, and needed for few URLs

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_valid_host_name(host: str) -> bool:
    """Whether a host name is valid for DNS; also true for an empty name."""
    try:
        labels = host.encode("ascii" if host.isascii() else "idna").removesuffix(b".").split(b".")
    except UnicodeError:
        return False
    return not host or all(0 < len(label) < 64 for label in labels)
