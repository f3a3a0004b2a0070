"""Hosts and ports in the URLs of transports, checked before anything connects."""

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
"""The default port by the scheme of the URL."""
_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f<>\"^`{|}\\\[\]]")


def hosts_and_ports(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a transport's URL; raise a CallError with the problem if it is invalid.

    The list is empty for a URL without a network address (`memory:`, `unix://…`).
    """
    scheme = url.partition(":")[0].lower()
    _, separator, rest = url.partition("://")
    if scheme not in PORTS:
        if scheme == "unix" and not rest.strip("/"):
            raise wrong_address(url, "it has no socket path: expected unix:///path/to/redis.sock")
        return []
    if not separator:
        raise wrong_address(url, f"expected {scheme}://host:port")
    found = []
    for text in _parts(rest.partition("?")[0], scheme):
        host, port = _read_host_and_port(text, PORTS[scheme], url)
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
    """Whether a host name is valid for DNS; the caller handles an empty one."""
    try:
        labels = host.encode("ascii" if host.isascii() else "idna").removesuffix(b".").split(b".")
    except UnicodeError:
        return False
    return not host or all(0 < len(label) < 64 for label in labels)
