"""Only its caller aborts a call or grants it credit, even where other peers receive control messages."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.control_messages import control_id, has_valid_proof, write_abort, write_credit
from operations.calls.events import CallAborted, CallCredit
from operations.calls.streams import WINDOW_ITEMS
from operations.pubsub.redis import RedisTransport
from tests.calls.test_redis_permissions import rules
from tests.redis_servers import Server, own_server
from tests.waiting import stays, until


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with own_server("redis") as server:
        users = rules()
        users["mallory"] = [rule.replace("ada", "mallory") for rule in users["ada"]]
        for name, given in users.items():
            assert server.command("ACL", "SETUSER", name, *given) == b"OK"
        yield server


class Eavesdropper:
    """A hostile user with exactly the recommended permissions, who receives the control messages of other calls."""

    def __init__(self, bus: RedisTransport, worker: RedisTransport) -> None:
        self.heard: list[dict[str, Any]] = []
        self._bus = bus
        self._addresses = ("control.stock", f"peer.{worker.peer}")
        for address in self._addresses:
            bus.listen(address, lambda message, arrival: self.heard.append(json.loads(message)))

    def send(self, event: dict[str, Any]) -> None:
        for address in self._addresses:
            self._bus.send(address, json.dumps(event).encode())

    def forge(self, event: dict[str, Any]) -> int:
        """Send a message again, and variants of it; return the number of messages."""
        proof = event["payload"].get("proof", "")
        for kind, proven in itertools.product(("call.aborted", "call.credit"), (proof, "", "0" * 64)):
            for number in (0, 1, 2, 10**6):
                payload = {"requestId": event["id"], "number": number, "items": 1_000, "bytes": 10**6, "proof": proven}
                self.send(event | {"type": kind, "payload": payload})
        self.send(event)
        return (2 * 3 * 4 + 1) * len(self._addresses)


async def test_a_redis_user_cannot_use_the_control_messages_that_it_receives(server: Server) -> None:
    sent = 0

    @operation(id="stock.count")
    async def count() -> AsyncIterator[int]:
        nonlocal sent
        for sent in itertools.count(1):
            yield sent

    def end(login: str) -> RedisTransport:
        return RedisTransport(f"redis://{login}@127.0.0.1:{server.port}")

    async with end("worker:w0rker") as worker, end("ada:s3cret") as ada, end("mallory:s3cret") as bus:
        handler = CallHandler(OperationRegistry([count]), worker)
        mallory = Eavesdropper(bus, worker)
        await bus.flush()
        async with asyncio.timeout(30):
            stream = PendingRequestMap(ada).subscribe("stock.count")
            while not mallory.heard:
                await anext(stream)
            await until(lambda: sent >= WINDOW_ITEMS and handler.in_flight == 1)
            # The worker waits for credit once it has sent a window more than was read.
            await stays(lambda: handler.in_flight == 1, seconds=0.1)
            before = sent
            forged = sum(mallory.forge(event) for event in list(mallory.heard))
            await bus.flush()
            await until(lambda: handler.counters.foreign == forged)
            assert (sent, handler.in_flight) == (before, 1)
            # The caller still controls its call.
            for _ in range(WINDOW_ITEMS * 2):
                await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            await until(lambda: handler.in_flight == 0)
        await handler.close()


def test_a_proof_is_for_one_message_of_one_call() -> None:
    credit = JSON.decode_any(write_credit("ada-1", JSON, 5, 100, number=3))
    abort = JSON.decode_any(write_abort("ada-1", JSON, "enough", with_proof=True))
    assert isinstance(credit, CallCredit)
    assert isinstance(abort, CallAborted)
    assert credit.id == abort.id == control_id("ada-1")
    assert has_valid_proof("ada-1", credit.payload)
    assert has_valid_proof("ada-1", abort.payload)
    assert not has_valid_proof("ada-2", credit.payload)
    credit.payload.number = 4
    assert not has_valid_proof("ada-1", credit.payload)
    abort.payload.proof = credit.payload.proof
    assert not has_valid_proof("ada-1", abort.payload)
    abort.payload.proof = "\ud800"
    assert not has_valid_proof("ada-1", abort.payload)
