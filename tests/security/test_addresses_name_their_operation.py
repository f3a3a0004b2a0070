"""A request is for the operation that its address names: permissions to send are by address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from operations import ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub import Record, Transport, TransportWrapper, Undelivered
from operations.testing import error_of
from tests.security.untrusted_bus import Bus, untrusted_bus


@pytest.fixture(params=["memory", "redis", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """A bus on which no peer is trusted."""
    async with untrusted_bus(request.param) as bus:
        yield bus


class Misaddressed(TransportWrapper):
    """Sends every request to the address of one operation, the only one that its user may send to."""

    def __init__(self, inner: Transport, namespace: str, name: str) -> None:
        super().__init__(inner)
        self._work = f"work.{namespace}/{name}" if inner.capabilities.addresses_operations else f"work.{namespace}"
        self._queue = f"queue.{namespace}"

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        super().send(self._work if address.startswith("work.") else address, message, undelivered)

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        super().store(self._queue, message, key=key, stored=stored, undelivered=undelivered, record=record)


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
        await other.call(called)  # one address for the namespace: operations are not distinguished
        assert shop.ran == ["refund"]
    else:
        error = await error_of(other.call(called, durable=durable))
        assert (error.code, error.details["reason"]) == (ErrorCode.ACCESS_DENIED, "WRONG_ADDRESS")
        assert error.details["executed"] == "no"
        assert (shop.ran, shop.handler.counters.foreign) == ([], 1)
    await shop.handler.close()
