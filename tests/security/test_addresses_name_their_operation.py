"""A request is for the operation that its address names: permissions to send are by address."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from operations import ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub import Capabilities, Transport, TransportWrapper, Undelivered, nats
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests import nats_server, redis_servers

UNTRUSTED = Capabilities(knows_no_responders=True, tracks_peers=True, groups=True, ordered=True, identity="none")
Bus = Callable[[], Awaitable[Transport]]


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """Ends of one bus that trusts nobody."""
    ends: list[Any] = []
    first = MemoryTransport(direct=False, capabilities=UNTRUSTED)
    prefix = f"t{os.urandom(8).hex()}"

    async def end() -> Transport:
        if request.param == "memory":
            return first.join()
        if request.param == "redis":
            ends.append(RedisTransport(redis_servers.shared_server("redis").url, prefix=prefix))
        else:
            ends.append(nats.connect(nats_server.shared_server().url, prefix=prefix))
        transport: Transport = await ends[-1].__aenter__()
        return transport

    yield end
    for opened in ends:
        await opened.__aexit__(None, None, None)


class Misaddressed(TransportWrapper):
    """Sends every request to the address of one operation, which is all that its user may do."""

    def __init__(self, inner: Transport, namespace: str, name: str) -> None:
        super().__init__(inner)
        self._work = f"work.{namespace}/{name}" if inner.capabilities.addresses_operations else f"work.{namespace}"
        self._queue = f"queue.{namespace}"

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        super().send(self._work if address.startswith("work.") else address, message, undelivered)

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        super().store(self._queue, message, key=key, stored=stored, undelivered=undelivered)


class Shop:
    """A worker with two namespaces, and what ran there."""

    def __init__(self, transport: Transport) -> None:
        self.ran: list[str] = []

        @operation(id="shop.look", type="query")
        async def look() -> str:
            return "tea"

        @operation(id="shop.refund")
        async def refund() -> None:
            self.ran.append("refund")

        @operation(id="shop.keep", durable=True)
        async def keep() -> None: ...

        @operation(id="vault.open", durable=True)
        async def open_vault() -> None:
            self.ran.append("open")

        self.handler = CallHandler(OperationRegistry([look, refund, keep, open_vault]), transport)


@pytest.mark.parametrize(("called", "durable"), [("shop.refund", False), ("vault.open", False), ("vault.open", True)])
async def test_a_request_at_the_address_of_another_operation_is_refused(bus: Bus, called: str, durable: bool) -> None:
    shop = Shop(await bus())
    end = await bus()
    if durable and not end.capabilities.durable:
        pytest.skip("this transport stores nothing")
    allowed = PendingRequestMap(end)
    assert (await allowed.call("shop.look", wait=True)).data == "tea"
    other = PendingRequestMap(Misaddressed(end, "shop", "look"))
    if called == "shop.refund" and not end.capabilities.addresses_operations:
        await other.call(called)  # one address for the namespace: its operations are not told apart
        assert shop.ran == ["refund"]
    else:
        error = await error_of(other.call(called, durable=durable))
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "WRONG_ADDRESS")
        assert error.details["executed"] == "no"
        assert (shop.ran, shop.handler.counters.foreign) == ([], 1)
    await shop.handler.close()
