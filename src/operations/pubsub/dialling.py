"""Dialling with a library that opens connections: one that is given up while it is made leaves no socket behind.

picows keeps a socket whose opening was cancelled until the peer answers or its own time is over. So the socket is ours:
where nobody waits for the connection any more its stream is ended, which any library notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Place(Protocol):
    """Where a library wants its socket connected to."""

    @property
    def host(self) -> str:
        """Its name or number."""

    @property
    def port(self) -> int:
        """The port there."""


Reach = Callable[[Place], Awaitable[socket.socket]]


async def dial(make: Callable[[Reach], Coroutine[Any, Any, T]]) -> T:
    """The connection that `make` makes of the socket that it is to get by what it is called with."""
    reached: list[socket.socket] = []

    async def reach(place: Place) -> socket.socket:
        found = await _connect(place.host, place.port)
        reached.append(found)
        return found

    making = asyncio.ensure_future(make(reach))
    making.add_done_callback(look_at)
    try:
        await asyncio.wait((making,))
    except asyncio.CancelledError:
        if not reached:
            making.cancel()
        for each in reached:
            with contextlib.suppress(OSError):  # it has ended already
                each.shutdown(socket.SHUT_RDWR)
        await asyncio.wait((making,))
        raise
    try:
        return making.result()
    finally:
        del making  # or an error would hold itself, by way of its traceback


def look_at(future: asyncio.Future[Any]) -> None:
    """Look at an error which perhaps nobody waits for any more, or asyncio would complain of it."""
    if not future.cancelled():
        future.exception()


async def _connect(host: str, port: int) -> socket.socket:
    """A socket connected to the first of a host's addresses that takes it."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await _resolve(host, port):
        found = socket.socket(family, kind, protocol)
        try:
            found.setblocking(False)
            await loop.sock_connect(found, address)
        except OSError as error:
            found.close()
            problem = error
        except BaseException:
            found.close()
            raise
        else:
            return found
    try:
        raise problem
    finally:
        del problem  # or it would hold itself, by way of its traceback


async def _resolve(host: str, port: int) -> list[Any]:
    try:  # a number needs no thread to be looked up in
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
