"""The pool shares clients, keeps few of them, and aborts the connections of cancelled requests."""

from __future__ import annotations

import asyncio
import socket

import pytest

from operations.http.pyreqwest import socket_abort
from operations.http.pyreqwest.client_pool import ClientPool, PooledClient
from operations.http.pyreqwest.socket_abort import SocketAborter

pytestmark = pytest.mark.skipif(not socket_abort.CAN_ABORT, reason="sockets are marked on Linux only")


class _Pair:
    """A marked connection, seen from both ends."""

    def __init__(self, mark: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        self.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, mark)
        self.far.setblocking(False)

    async def ended(self) -> bool:
        """Whether the other end notices that this end is shut down."""
        async with asyncio.timeout(30):
            return await asyncio.get_running_loop().sock_recv(self.far, 1) == b""

    def is_open(self) -> bool:
        try:
            return self.far.recv(1) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.near.close()
        self.far.close()


def _pool(capacity: int = 1, **limits: int | None) -> ClientPool[_Pair]:
    return ClientPool(lambda origin, mark: _Pair(mark), lambda origin: capacity, SocketAborter(), **limits)


def _taken(pool: ClientPool[_Pair], origin: str = "a") -> PooledClient[_Pair]:
    pooled = pool.take(origin)
    assert pooled is not None
    return pooled


async def test_a_client_is_reused_for_its_origin() -> None:
    pool = _pool()
    first, other = _taken(pool), _taken(pool, "b")
    pool.release(first)
    pool.release(other)
    assert _taken(pool) is first
    assert _taken(pool, "b") is other
    second = _taken(pool)
    assert second is not first
    for pooled in pool.clear():
        pooled.client.close()


async def test_cancelling_aborts_the_marked_connection_alone() -> None:
    pool = _pool()
    cancelled, kept = _taken(pool), _taken(pool)
    pool.release(cancelled, abort_seconds=5)
    assert await cancelled.client.ended()
    assert kept.client.is_open()
    pool.release(kept)
    assert _taken(pool) is kept
    assert _taken(pool) is not cancelled
    cancelled.client.close()
    for pooled in pool.clear():
        pooled.client.close()


async def test_a_shared_client_is_aborted_after_the_last_request_that_shares_it() -> None:
    pool = _pool(capacity=3)
    shared = [_taken(pool) for _ in range(3)]
    assert shared[0] is shared[2]
    pool.release(shared[0], abort_seconds=5)
    assert _taken(pool) is not shared[0]
    pool.release(shared[0])
    assert shared[0].client.is_open()
    pool.release(shared[0])
    assert await shared[0].client.ended()
    shared[0].client.close()
    for pooled in pool.clear():
        pooled.client.close()


async def test_a_connection_that_opens_after_its_request_was_cancelled_is_aborted_too() -> None:
    mark = socket_abort.new_mark()
    aborter = SocketAborter()
    aborter.abort(mark, abort_seconds=10)
    await asyncio.sleep(0)
    late = _Pair(mark)
    assert await late.ended()
    late.close()


async def test_idle_clients_are_few() -> None:
    pool = _pool(max_idle=2)
    taken = [_taken(pool) for _ in range(5)]
    for pooled in taken:
        pool.release(pooled)
    kept = pool.clear()
    assert len(kept) == 2
    for pooled in taken:
        pooled.client.close()


async def test_origins_are_few() -> None:
    pool = _pool()
    taken = [_taken(pool, str(number)) for number in range(200)]
    for pooled in taken:
        pool.release(pooled)
    assert len(pool.clear()) <= 64
    for pooled in taken:
        pooled.client.close()


async def test_queued_requests_get_clients_in_order() -> None:
    pool = _pool(max_requests=1)
    pooled = _taken(pool)
    assert pool.take("a") is None
    waiting = [asyncio.create_task(pool.wait("a")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    pool.release(pooled)
    assert await waiting[1] is pooled
    assert not waiting[2].done()
    pool.release(pooled)
    waiting[2].cancel()  # it got the client, and is cancelled before it takes it
    await asyncio.wait(waiting)
    assert _taken(pool) is pooled
    pooled.client.close()
