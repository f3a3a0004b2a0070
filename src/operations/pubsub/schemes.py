"""Transports by the scheme of their URL. Each library is imported when its URL is opened.

The table holds the schemes of this package. Other packages, `operations.calls` among them, register theirs in the
entry-point group `operations.transports`: the name is the scheme, the object is called with the URL and options.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from operations.pubsub.protocols import Transport
from operations.pubsub.urls import PORTS, hosts_and_ports, wrong_address

GROUP = "operations.transports"
"""The entry-point group of the schemes of other packages."""
Open = Callable[..., AbstractAsyncContextManager[Any]]


def _open_memory(url: str, **options: Any) -> AbstractAsyncContextManager[Transport]:
    from operations.pubsub.memory import connect

    return connect(url, **options)


def _open_nats(url: str, **options: Any) -> AbstractAsyncContextManager[Transport]:
    from operations.pubsub.nats import connect

    return connect(url, **options)


def _open_redis(url: str, **options: Any) -> AbstractAsyncContextManager[Transport]:
    from operations.pubsub.redis import connect

    return connect(url, **options)


_SCHEMES: dict[str, Open] = {
    "memory": _open_memory,
    "nats": _open_nats,
    "redis": _open_redis,
    "redis+cluster": _open_redis,
    "redis+sentinel": _open_redis,
    "rediss": _open_redis,
    "rediss+cluster": _open_redis,
    "rediss+sentinel": _open_redis,
    "tls": _open_nats,
    "unix": _open_redis,
}


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """Open the transport that a URL names: `async with connect("nats://127.0.0.1:4222") as transport:`.

    The error for a missing library names the extra to install. The options are those of the transport:
    `operations.pubsub.memory|redis|nats.connect`, `operations.calls.hub.spoke.Spoke`.
    """
    check_address(url)
    scheme = scheme_of(url)
    open_it = _SCHEMES.get(scheme)
    if open_it is None:
        registered = _registered()
        if scheme not in registered:
            raise wrong_address(
                url, f"no installed package provides a transport for {scheme!r} (entry points: {GROUP})"
            )
        open_it = registered[scheme].load()
    opened: AbstractAsyncContextManager[Any] = open_it(url, **options)
    return opened


def check_address(url: str) -> None:
    """Raise a CallError for an invalid address of a transport, without importing its library."""
    scheme = scheme_of(url)
    if scheme not in _SCHEMES and scheme not in PORTS:
        known = {*_SCHEMES, *PORTS, *_registered()}
        if scheme not in known:
            raise wrong_address(url, f"unknown scheme {scheme!r}: expected one of {', '.join(sorted(known))}")
    hosts_and_ports(url)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in lower case."""
    return url.partition(":")[0].lower()


def _registered() -> dict[str, Any]:
    """Return the entry points of other packages by scheme."""
    from importlib.metadata import entry_points  # slow to import, and needed for few URLs

    return {entry.name: entry for entry in entry_points(group=GROUP)}
