"""The history checker: each call has one outcome in time, each handler runs at most once, streams are complete, lost
messages are counted, and no socket stays open.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from operations import CallError, Operation, OperationContext, operation
from operations.calls import PendingRequestMap
from operations.pubsub.websocket import WebSocketLink
from operations.telemetry.counters import Counters

SCALE = float(os.environ.get("OPERATIONS_FAULT_SCALE", "4"))
"""Factor for time limits, which are for an idle machine."""
SLACK_SECONDS = 0.25 * SCALE


def open_sockets() -> int:
    """Return the number of open sockets of this process."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except FileNotFoundError:
            continue  # the descriptor that lists the directory
    return count


class Ledger:
    """Counts the messages between the peers of one process: written, read, and lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[WebSocketLink] = []
        connected = WebSocketLink.on_ws_connected

        def note(connection: WebSocketLink, transport: Any) -> None:
            self.connections.append(connection)
            connected(connection, transport)

        monkeypatch.setattr(WebSocketLink, "on_ws_connected", note)

    @property
    def lost(self) -> int:
        """Number of messages that were written by one peer and never read by the other."""
        return sum(connection.sent - connection.received for connection in self.connections)

    @property
    def is_settled(self) -> bool:
        """Whether every connection is closed, so that no message is in flight."""
        return not any(connection.is_open for connection in self.connections)


class History:
    """Operations that record their runs, calls that record their outcomes, and checks of both."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        """The runs that completed, whose responses must have arrived."""
        self.outcomes: dict[str, list[Any]] = {}
        self.late: list[tuple[str, float]] = []
        self.streams: dict[str, list[int]] = {}
        self.stream_ends: dict[str, CallError | None] = {}
        self.repeatable: set[str] = set()
        """The calls with `retry`, which may run more than once."""
        self.may_finish = asyncio.Event()
        """While this is not set, no handler of a call finishes."""
        self.may_finish.set()
        self._numbers = iter(range(10**9))

    def operations(self, namespace: str = "work") -> list[Operation[Any]]:
        """A query, a mutation and a stream that record their runs."""

        async def run(key: str, seconds: float) -> str:
            self.runs[key] += 1
            await self.may_finish.wait()
            if seconds:
                await asyncio.sleep(seconds)
            self.finished[key] += 1
            return key

        @operation(id=f"{namespace}.query", type="query")
        async def query(key: str, seconds: float = 0) -> str:
            return await run(key, seconds)

        @operation(id=f"{namespace}.mutate")
        async def mutate(key: str, context: OperationContext, seconds: float = 0) -> str:
            return await run(key, seconds)

        @operation(id=f"{namespace}.count")
        async def count(to: int) -> AsyncIterator[int]:
            for number in range(to):
                yield number
                if number % 50 == 0:
                    await asyncio.sleep(0.001)

        return [query, mutate, count]

    async def call(
        self, pending: PendingRequestMap, operation_id: str, *, seconds: float = 0, timeout: float = 2.0, **options: Any
    ) -> Any:
        """Make one call and record its outcome."""
        key = f"{operation_id}#{next(self._numbers)}"
        if options.get("retry"):
            self.repeatable.add(key)
        started = time.monotonic()
        outcome: Any
        try:
            deadline = int((time.time() + timeout) * 1000)
            input = {"key": key, "seconds": seconds}
            outcome = (await pending.call(operation_id, input, deadline=deadline, **options)).data
            assert outcome == key
        except CallError as error:
            outcome = error
        self.outcomes.setdefault(key, []).append(outcome)
        taken = time.monotonic() - started
        if taken > timeout + SLACK_SECONDS:
            self.late.append((key, taken))
        return outcome

    async def follow(self, pending: PendingRequestMap, operation_id: str, to: int) -> None:
        """Follow one stream and record its items and its end."""
        key = f"{operation_id}#{next(self._numbers)}"
        items = self.streams[key] = []
        self.stream_ends[key] = None
        try:
            async for envelope in pending.subscribe(operation_id, {"to": to}, idle_timeout=5.0):
                items.append(envelope.data)
            assert len(items) == to
        except CallError as error:
            self.stream_ends[key] = error

    def errors(self) -> Counter[str]:
        """Return the number of calls by error code."""
        ends = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        return Counter(str(end.code) for end in ends if isinstance(end, CallError))

    def check_account(self, ledger: Ledger, unsent: int, counters: Sequence[Counters]) -> None:
        """Check that every response without an outcome was lost with a connection or is counted."""
        answered = sum(not isinstance(ends[0], CallError) for ends in self.outcomes.values())
        missing = sum(self.finished.values()) - answered
        counted = sum(each.late + each.duplicate + each.dropped + each.unsent for each in counters)
        assert ledger.lost >= 0, "more came out than was put in"
        accounted = ledger.lost + unsent + counted
        listed = [*map(repr, counters), [(c.sent, c.received, c.unsent) for c in ledger.connections]]
        assert missing <= accounted, f"{missing} answers are missing, {accounted} are accounted for: {listed}"

    def check(self, *, timing: bool) -> None:
        """Check the recorded history; time limits only with `timing`, on a machine without other load."""
        assert all(len(outcomes) == 1 for outcomes in self.outcomes.values())
        assert [key for key, runs in self.runs.items() if runs > 1 and key not in self.repeatable] == []
        assert not timing or self.late == []
        for key, (outcome,) in self.outcomes.items():
            if isinstance(outcome, CallError) and isinstance(outcome.details, dict):
                if outcome.details.get("executed") == "no":
                    assert self.runs[key] == 0, f"{key} ran although its error says it did not: {outcome}"
            else:
                assert self.runs[key] >= 1
        for key, items in self.streams.items():
            assert items == list(range(len(items))), f"{key} has a gap"
