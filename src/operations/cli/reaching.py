"""Whether anybody listens where a transport leads: it would wait for its server for ever, and a command should not."""

from __future__ import annotations

import asyncio
import os
import socket

from operations.config.settings import TransportSettings
from operations.pubsub.addresses import places

_EVERY = 0.2


async def until_refused(settings: TransportSettings, patience: float = 1.0) -> str:
    """Return, with the reason, once every address of a transport has refused for `patience` seconds.

    A server that restarts refuses for a moment: that is waited for. Where one connects, or does not answer at all, this
    never returns.
    """
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        await asyncio.sleep(_EVERY)
        known = addresses(settings)
        reasons = await asyncio.gather(*(_refusal(host, port) for host, port in known))
        if not known or None in reasons:
            since = loop.time()
        elif loop.time() - since >= patience:
            return str(reasons[0])


def addresses(settings: TransportSettings) -> list[tuple[str, int]]:
    """The hosts and ports in a transport's URL; nothing where there may be more of them than it names."""
    return [] if "servers" in settings.options else places(settings.url)


async def _refusal(host: str, port: int) -> str | None:
    """Why nobody can be reached at an address; None where somebody can be, or it is not known."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (TimeoutError, UnicodeError):
        return None
    except socket.gaierror:
        return f"there is no host {host}"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else "it cannot be reached"
    writer.close()
    return None
