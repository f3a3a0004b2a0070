"""Transports by the scheme of their URL. Each library is imported when its URL is opened.

The table holds the schemes of this package. Other packages, `operations.calls` among them, register theirs in the
entry-point group `operations.transports`: the name is the scheme, the object is called with the URL and options.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any

from operations.pubsub.urls import PORTS, hosts_and_ports, wrong_address

GROUP = "operations.transports"
"""The entry-point group of the schemes of other packages."""
_MODULES = {
    "memory": "memory",
    "nats": "nats",
    "redis": "redis",
    "redis+cluster": "redis",
    "redis+sentinel": "redis",
    "rediss": "redis",
    "rediss+cluster": "redis",
    "rediss+sentinel": "redis",
    "tls": "nats",
    "unix": "redis",
}
"""The module of this package whose function `connect` opens the transport, by scheme."""


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """Open the transport that a URL names: `async with connect("nats://127.0.0.1:4222") as transport:`.

    The error for a missing library names the extra to install. The options are those of the transport:
    `operations.pubsub.memory|redis|nats.connect`, `operations.calls.hub.spoke.Spoke`.
    """
    check_address(url)
    scheme = scheme_of(url)
    if scheme in _MODULES:
        open_transport = import_module(f"operations.pubsub.{_MODULES[scheme]}").connect
    else:
        registered = _registered()
        if scheme not in registered:
            raise wrong_address(
                url, f"no installed package provides a transport for {scheme!r} (entry points: {GROUP})"
            )
        open_transport = registered[scheme].load()
    opened: AbstractAsyncContextManager[Any] = open_transport(url, **options)
    return opened


def check_address(url: str) -> None:
    """Raise a CallError for an invalid address of a transport, without importing its library."""
    scheme = scheme_of(url)
    if scheme not in _MODULES and scheme not in PORTS:
        known = {*_MODULES, *PORTS, *_registered()}
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
