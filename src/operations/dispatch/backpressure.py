"""Backpressure: responses wait while their transport has too much unsent data."""

from __future__ import annotations

import asyncio

from operations.dispatch.queueing import FairQueue


class Backpressure:
    """Delays responses while the transport has too much unsent data; the callers take turns.

    A call that waits here keeps its slot, so that the number of results that wait is bounded.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether a response has to wait, because of unsent data or behind others that wait."""
        self._is_congested = False
        self._waiting: FairQueue[_Response] = FairQueue()

    def change(self, is_congested: bool) -> None:
        """Note whether the transport has too much unsent data."""
        self._is_congested = is_congested
        if is_congested:
            self.is_on = True
        else:
            self._resume_next()

    async def wait(self, caller: str) -> None:
        """Wait until the response to this caller may be sent; send it before any other await."""
        response = _Response(caller)
        self._waiting.add(response)
        try:
            await response.may_be_sent
        finally:
            self._waiting.discard(response)
            # The next response is sent after this one, unless this one causes congestion again.
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _resume_next(self) -> None:
        while not self._is_congested:
            if not self._waiting.size:
                self.is_on = False
                return
            response = self._waiting.pop()
            if not response.may_be_sent.done():
                response.may_be_sent.set_result(None)
                return


class _Response:
    """A response that waits."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.may_be_sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
