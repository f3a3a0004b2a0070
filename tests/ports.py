"""Free ports for servers that need a port before they are started."""

from __future__ import annotations

import secrets
import socket

_FIRST, _LAST = 10_000, 22_000
"""The ports to choose from: the system gives none of them to connections or to servers that listen on port 0."""


def free_ports(count: int, *, offset: int = 0) -> list[int]:
    """Return loopback ports that nothing listens on, such that `port + offset` is free as well."""
    found: set[int] = set()
    while len(found) < count:
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if _is_free(port) and _is_free(port + offset):
            found.add(port)
    return list(found)


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
