"""The base of transports with a server: the first connection, log lines about attempts, and closing."""

from __future__ import annotations

import asyncio

import pytest

from operations import CallError, ErrorCode
from operations.pubsub.connection_errors import UNSUPPORTED
from operations.pubsub.reconnect import ReconnectingTransport
from operations.testing import error_of
from tests.waiting import until


class Line(ReconnectingTransport):
    """A transport whose attempts to connect fail with the errors in a list; None is a connection, which the test can
    close.
    """

    def __init__(self, *outcomes: Exception | None, certain: CallError | None = None) -> None:
        super().__init__(server="the exchange", shortest_delay=0.001, longest_delay=0.002)
        self.lose = asyncio.Event()
        self.left = False
        self.stood = 0
        self._outcomes = iter(outcomes)
        self._certain = certain

    async def _connect(self) -> None:
        outcome = next(self._outcomes, None)
        if outcome is not None:
            raise outcome
        self.stood += 1

    async def _wait_lost(self) -> None:
        await self.lose.wait()
        self.lose.clear()
        self._note_loss("lost")

    async def _leave(self) -> None:
        self.left = True
        self.lose.set()
        await asyncio.sleep(0)

    async def _diagnose(self, error: Exception) -> CallError | None:
        return self._certain


REFUSED = ConnectionRefusedError(111, "Connect call failed")


async def test_the_first_connection_is_waited_for_and_each_problem_is_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    busy = CallError(ErrorCode.UNAVAILABLE, "busy")
    far = CallError(ErrorCode.UNAVAILABLE, "no connection to far.example: no such host")
    line = Line(REFUSED, busy, REFUSED, busy, far, None, REFUSED, None)
    lost: list[str] = []
    line.watch(lambda: None, lost.append)
    async with line:
        assert (line.failures, line.stood, line._why_down) == (5, 1, "")
        line.lose.set()
        await until(lambda: line.stood == 2)
        assert lost == ["lost"]
        assert not line.left
    assert line.left
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [warning.partition("; next try in ")[0] for warning in warnings] == [
        "no connection to the exchange (connection refused)",
        "no connection to the exchange (busy)",
        "no connection to far.example: no such host",
        "no connection to the exchange (lost)",
        "no connection to the exchange (connection refused)",
    ]


async def test_a_connection_that_is_lost_immediately_counts_as_a_failed_attempt() -> None:
    async with Line() as line:
        line.lose.set()
        await until(lambda: line.stood == 2)
        assert (line.failures, line.reconnects) == (1, 1)
    assert line.failures == 1  # closing is not a loss


async def test_kept_messages_have_a_maximum_size() -> None:
    async with Line() as line:
        for message in (b"a" * (9 << 20), b"b" * (9 << 20), b"c"):
            line._keep(message)
        assert [message[:1] for message in line._take_kept()] == [b"a", b"c"]
        assert (line.unsent, line._take_kept()) == (1, [])
        line._keep(b"d" * (9 << 20))
        assert line.unsent == 1


@pytest.mark.parametrize(
    "hopeless",
    [
        CallError(ErrorCode.ACCESS_DENIED, "not you"),
        CallError(ErrorCode.UNAVAILABLE, "too old", {"reason": UNSUPPORTED}),
    ],
)
async def test_a_permanent_error_is_raised_for_the_first_connection_only(hopeless: CallError) -> None:
    first = Line(REFUSED, hopeless)
    assert await error_of(first.__aenter__()) is hopeless
    assert first.left
    async with Line(None, hopeless, None) as line:
        line.lose.set()
        await until(lambda: line.stood == 2)


async def test_a_diagnosed_cause_is_raised() -> None:
    certain = CallError(ErrorCode.UNAVAILABLE, "another protocol")
    assert await error_of(Line(REFUSED, certain=certain).__aenter__()) is certain


async def test_a_task_that_fails_fails_its_waiters(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(RuntimeError("a mistake"))
    with pytest.raises(RuntimeError, match="a mistake"):
        await line.__aenter__()
    assert line.left
    assert "reconnecting to the exchange has stopped" in caplog.text


async def test_closing_does_not_wait_for_the_next_attempt() -> None:
    line = Line(REFUSED)
    line._delays = 60.0, 60.0
    entering = asyncio.create_task(line.__aenter__())
    await until(lambda: line.failures == 1)
    async with asyncio.timeout(30):
        await line.close()
        await asyncio.wait((entering,))
    assert entering.cancelled()
