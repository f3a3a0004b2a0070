"""A hub forwards few and small interim responses of a call, whether its caller asked for them or not."""

from __future__ import annotations

import asyncio
import time

from operations import Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.endpoint import endpoint_of
from operations.calls.events import VERSION, AcceptancePayload, CallAccepted, CallProgress, ProgressPayload
from operations.calls.hub import Hub
from operations.calls.hub.session import _INTERIM_BYTES, _INTERIM_PER_SECOND
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from tests.waiting import until

TOKENS = StaticTokens({name: Principal(Identity(name), ("work",)) for name in ("ada", "mallory")})
FLOOD = 5_000


async def test_a_hub_forwards_few_and_small_interim_responses_of_a_call() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @operation(id="work.run")
    async def run() -> str:
        entered.set()
        await leave.wait()
        return "done"

    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        url = f"ws://127.0.0.1:{hub.port}"
        async with Spoke(url, token="mallory") as worker, Spoke(url, token="ada") as caller:
            handler = CallHandler(OperationRegistry([run]), worker)
            call = asyncio.create_task(PendingRequestMap(caller).call("work.run", wait=True))
            await entered.wait()
            (request_id,) = endpoint_of(worker).running
            progress = CallProgress(VERSION, request_id, "", ProgressPayload(request_id, 1.0, None, "x"))
            accepted = CallAccepted(VERSION, request_id, "", AcceptancePayload(request_id, "w"))
            large = CallProgress(VERSION, request_id, "", ProgressPayload(request_id, 1.0, None, "x" * _INTERIM_BYTES))
            received, started = endpoint_of(caller).counters, time.monotonic()
            worker.send("", JSON.encode(large))
            for _ in range(FLOOD):
                worker.send("", JSON.encode(progress))
                worker.send("", JSON.encode(accepted))
            leave.set()
            assert (await call).data == "done"
            seconds = int(time.monotonic() - started) + 1
            most = _INTERIM_PER_SECOND * (seconds + 1)
            assert 0 < received.dropped <= most  # the caller did not ask for progress
            await until(lambda: hub.counters.dropped >= 2 * FLOOD + 1 - most)
            await handler.close()
