"""Guarantee: an operation can be called as long as a connected worker has registered it, in any order of announcements
and lost connections, and the workers of one connection are bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.events import VERSION, EventHeader
from operations.calls.hub import Hub, directory
from operations.calls.hub.directory import HubDirectory
from operations.calls.hub.session import HubSession
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.telemetry.counters import Counters
from operations.testing import stub_operation
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

TOKENS = StaticTokens({name: Principal(Identity(name), ("shop",)) for name in ("one", "two", "mallory")})
NAMES = ("a" * 32, "b" * 32, "c" * 32)
OPERATIONS = ("buy", "sell")


def spec(name: str, description: str = "") -> dict[str, Any]:
    kind = {"type": "query", "inputSchema": {}, "outputSchema": {}}
    return {"namespace": "shop", "name": name, "version": "1", "description": description, **kind}


class Scene:
    """A directory without connections, and what it must contain."""

    def __init__(self) -> None:
        self.sessions: dict[str, HubSession] = {}
        self.directory = HubDirectory(self.sessions, Counters(lambda: 0, lambda: 0))
        self.generation = 0

    def session(self, name: str) -> HubSession:
        if name not in self.sessions:
            self.sessions[name] = HubSession(name, Principal(Identity(name), ("shop",)), lambda message: None)
            self.sessions[name].peer = name
        return self.sessions[name]

    def announce(self, name: str, worker: int, specs: list[dict[str, Any]], pool: bool) -> None:
        self.generation += 1
        payload = {"workerId": f"{name}.{worker}", "generation": self.generation, "operations": specs, "pool": pool}
        raw = msgspec.Raw(msgspec.json.encode(payload))
        header = EventHeader(VERSION, "worker.announced", "", "", raw, namespaces=("shop",))
        self.directory.announce(self.session(name), header, JSON)

    def retire(self, name: str, worker: int) -> None:
        raw = msgspec.Raw(msgspec.json.encode({"workerId": f"{name}.{worker}"}))
        self.directory.retire(self.session(name), EventHeader(VERSION, "worker.gone", "", "", raw), JSON)

    def leave(self, name: str) -> None:
        session = self.sessions.pop(name, None)
        if session is not None:
            self.directory.leave(session)

    def check(self) -> None:
        """Check that each announced operation is registered or waits, and that nothing else is kept."""
        workers = [each for workers in self.directory._workers.values() for each in workers.values()]
        announced = {operation_id for each in workers for operation_id in each.operations}
        assert self.directory.operations.keys() == announced
        assert self.directory.namespaces == ({"shop": len(announced)} if announced else {})
        for operation_id, operation in self.directory.operations.items():
            having = [each for each in workers if operation_id in each.operations]
            registered = [each for each in having if operation_id not in each.rejected]
            waiting = [each for each in having if operation_id in each.rejected]
            assert sorted(session.name for session in operation.sessions) == sorted(
                {each.session.name for each in registered}
            )
            assert sorted(each.worker_id for each in operation.waiting) == sorted(each.worker_id for each in waiting)


NAME, WORKER = st.sampled_from(NAMES), st.integers(1, 2)
SPECS = st.lists(st.builds(spec, st.sampled_from(OPERATIONS), st.sampled_from(["", "new"])), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("announce"), NAME, WORKER, SPECS, st.booleans()),
    st.tuples(st.just("retire"), NAME, WORKER),
    st.tuples(st.just("leave"), NAME),
)


@given(st.lists(STEPS, max_size=25))
def test_any_order_of_announcements_and_losses(steps: list[tuple[Any, ...]]) -> None:
    scene = Scene()
    for step, *arguments in steps:
        getattr(scene, step)(*arguments)
        scene.check()
    for name in NAMES:
        scene.leave(name)
        scene.check()
    assert not scene.directory.operations


async def announce(peer: RawPeer, worker_id: str, specs: list[dict[str, Any]], generation: int = 1) -> dict[str, Any]:
    """Announce operations; return the hub's response."""
    payload = {"workerId": worker_id, "generation": generation, "operations": specs, "pool": True}
    peer.send_event("worker.announced", payload, id=worker_id, namespaces=["shop"])
    answer = await peer.read_event()
    assert answer["to"] == worker_id
    return dict(answer["payload"])


async def test_a_worker_cannot_block_an_operation_after_its_connection_is_lost() -> None:
    async with Hub(TOKENS) as hub, Spoke(hub.url, token="one") as spoke:
        mallory = await RawPeer.join(hub.port, "mallory", NAMES[0])
        assert (await announce(mallory, f"{NAMES[0]}.1", [spec("buy")]))["accepted"] == ["shop.buy"]
        other = await RawPeer.join(hub.port, "two", NAMES[1])
        assert (await announce(other, f"{NAMES[1]}.1", [spec("buy")]))["accepted"] == ["shop.buy"]
        assert (await announce(mallory, f"{NAMES[0]}.2", [spec("buy", "other")]))["rejected"].keys() == {"shop.buy"}
        await mallory.close()
        await until(lambda: len(hub.connected) == 2)
        await other.close()
        await until(lambda: len(hub.connected) == 1)
        assert hub.operations == []
        handler = CallHandler(OperationRegistry([stub_operation("shop.buy", returns=1)]), spoke)
        await handler.registered()
        assert (await PendingRequestMap(hub.transport()).call("shop.buy")).data == 1
        await handler.close()


async def test_the_workers_of_one_connection_are_bounded() -> None:
    async with Hub(TOKENS) as hub:
        peer = await RawPeer.join(hub.port, "mallory", NAMES[0])
        for number in range(directory._MOST_WORKERS):
            assert (await announce(peer, f"{NAMES[0]}.{number}", []))["refused"] == {}
        reasons = (await announce(peer, f"{NAMES[0]}.more", []))["refused"]
        assert "too many workers" in reasons["shop"]
        # A known worker may still announce its operations, and one that leaves makes room.
        assert (await announce(peer, f"{NAMES[0]}.1", [spec("buy")], 2))["accepted"] == ["shop.buy"]
        peer.send_event("worker.gone", {"workerId": f"{NAMES[0]}.2"})
        assert (await peer.read_event())["to"] == f"{NAMES[0]}.2"
        assert (await announce(peer, f"{NAMES[0]}.more", []))["refused"] == {}
        await peer.close()


async def test_rejected_operations_count_for_the_limit_of_a_connection() -> None:
    async with Hub(TOKENS) as hub:
        peer = await RawPeer.join(hub.port, "mallory", NAMES[0])
        foreign = [{"namespace": "bank", "name": f"o{number}"} for number in range(directory._MOST_OPERATIONS)]
        assert len((await announce(peer, f"{NAMES[0]}.1", foreign))["rejected"]) == len(foreign)
        assert "too many operations" in (await announce(peer, f"{NAMES[0]}.2", [spec("buy")]))["refused"]["shop"]
        long = spec("sell") | {"errorSchemas": {"x" * 1_000_000: 5}}
        assert len((await announce(peer, f"{NAMES[0]}.1", [long], 2))["rejected"]["shop.sell"]) <= 1_000
        await peer.close()
