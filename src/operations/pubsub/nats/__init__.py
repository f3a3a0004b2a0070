"""The NATS transport: calls between machines. Queue groups share the load, JetStream stores durable calls."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from operations.pubsub.nats.servers import read_settings
from operations.pubsub.nats.transport import NatsTransport

__all__ = ["NatsTransport", "connect"]


def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    servers: Iterable[str] = (),
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    nkey_seed: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    tls_first: bool = False,
    **options: Any,
) -> NatsTransport:
    """Return a transport on a NATS bus: `async with connect("nats://a,nats://b", user=…, password=…) as transport:`.

    `credentials` is a `.creds` file, `nkey_seed` a seed or a file that contains one. The options are NatsTransport's:
    `name` (this peer's token in subjects; the user's name by default), `prefix`, `trusted`, `heartbeat`,
    `timeout`, `shortest_delay`, `longest_delay`, `ack_wait`, `replicas`.
    """
    settings = read_settings(
        url,
        servers=servers,
        user=user,
        password=password,
        token=token,
        credentials=credentials,
        nkey_seed=nkey_seed,
        tls=tls,
        tls_first=tls_first,
    )
    return NatsTransport(settings, **options)
