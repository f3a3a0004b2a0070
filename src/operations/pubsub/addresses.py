"""Hosts and ports in the URLs of transports: read in one way, and refused before anything is dialled."""

from __future__ import annotations

import re

from operations.errors import CallError, ErrorCode

PORTS = {
    "nats": 4222,
    "redis": 6379,
    "redis+cluster": 6379,
    "redis+sentinel": 26379,
    "rediss": 6379,
    "rediss+cluster": 6379,
    "rediss+sentinel": 26379,
    "tls": 4222,
    "ws": 80,
    "wss": 443,
}
"""The port of an address that names none, by the scheme of its URL."""
_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f<>\"^`{|}\\\[\]]")


def places(url: str) -> list[tuple[str, int]]:
    """The hosts and ports that a transport's URL leads to; raises a CallError that says what is wrong with it.

    Nothing for a URL that leads nowhere by the network: `memory:`, `unix://…`.
    """
    scheme = url.partition(":")[0].lower()
    _, separator, rest = url.partition("://")
    if scheme not in PORTS:
        if scheme == "unix" and not rest.strip("/"):
            raise wrong_address(url, "it names no socket: unix:///path/to/redis.sock")
        return []
    if not separator:
        raise wrong_address(url, f"{scheme}://host:port is wanted")
    found = []
    for text in _parts(rest.partition("?")[0], scheme):
        host, port = read_place(text, PORTS[scheme], url)
        if not host and not scheme.startswith("redis"):
            raise wrong_address(url, f"it names no host: {scheme}://host:port")
        found.append((host or "127.0.0.1", port))
    return found


def read_place(text: str, default: int, url: str) -> tuple[str, int]:
    """The host and port in `host:port`; `url` is the address that the text is of, for the error."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed:
            raise wrong_address(url, "the bracket of its IPv6 address is not closed: [::1]")
        if not _is_ipv6(host) or (port and not port.startswith(":")):
            raise wrong_address(url, "what stands in its brackets is no IPv6 address")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        raise wrong_address(url, "it has more than one port; an IPv6 address stands in brackets: [::1]")
    else:
        host, _, port = text.partition(":")
        if _NO_NAME.search(host) or not _fits_dns(host):
            raise wrong_address(url, "what stands for its host is no name of one")
    if not port:
        return host, default
    if not (port.isascii() and port.isdigit()):
        # Of an address with credentials it may be a part of those that is taken for the port.
        raise wrong_address(url, "its port is no number" if "@" in url else f"the port {port!r} is no number")
    if not 1 <= int(port[:9]) <= 65535:
        raise wrong_address(url, f"the port {port[:9]} is not one of 1 to 65535")
    return host, int(port)


def wrong_address(url: str, reason: str) -> CallError:
    """The error for an address that cannot be one; what may be secret in it is left out."""
    scheme, separator, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if separator else url.rpartition("@")[2]
    return CallError(ErrorCode.VALIDATION_ERROR, f"{shown!r} is no address: {reason}")


def _parts(rest: str, scheme: str) -> list[str]:
    """Each `host:port` of a URL. Those of NATS may have schemes and users of their own, Redis has one user for all."""
    if scheme.startswith("redis"):  # whose password may have any sign in it
        return rest.rpartition("@")[2].partition("/")[0].split(",")
    parts = [part.rpartition("://")[2] for part in rest.split(",")]
    return [re.split(r"[/#]", part, maxsplit=1)[0].rpartition("@")[2] for part in parts]


def _is_ipv6(text: str) -> bool:
    from ipaddress import IPv6Address  # only worth its import where there is one

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _fits_dns(host: str) -> bool:
    """Whether a name can be asked for at all; an empty one is somebody else's matter."""
    try:
        labels = host.encode("ascii" if host.isascii() else "idna").removesuffix(b".").split(b".")
    except UnicodeError:
        return False
    return not host or all(0 < len(label) < 64 for label in labels)
