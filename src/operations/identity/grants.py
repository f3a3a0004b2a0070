"""Grants: the right of a worker to make nested calls for the caller of a request that the worker runs.

The hub issues a grant for each request that it gives to a worker. The worker presents the grant with every nested call,
at any depth, and the hub makes that call for the request's caller. A grant ends with its request. Nothing else gives a
worker the rights of a caller, and a request id gives no rights at all.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from operations.context import Grant
from operations.errors import CallError, ErrorCode

CLOSING_SECONDS = 1.0
"""Seconds for which the grant of an aborted request stays valid, so that `finally` blocks can make nested calls.

With 0 the grant ends immediately."""
_MAX_CLOSING = 10_000
"""Largest number of grants of aborted requests; beyond it the oldest grants end early."""


class Grants:
    """The grants that one worker holds."""

    def __init__(self) -> None:
        self.held: dict[str, Grant] = {}
        """Grants by token. The issuer adds a grant, and removes it when its request ends."""
        self._closing: OrderedDict[object, Grant] = OrderedDict()
        """Grants of aborted requests by request id, the oldest first."""

    def __len__(self) -> int:
        """Number of valid grants. A grant that has ended without its worker's confirmation may still be in `held`."""
        return sum(map(_is_valid, self.held.values()))

    def present(self, token: str) -> Grant:
        """Return the grant with a token; raise `ACCESS_DENIED` if the grant is unknown or has ended."""
        grant = self.held.get(token)
        if grant is not None and _is_valid(grant):
            return grant
        if grant is not None:
            self._end(grant)
        message = "the grant of this call is unknown or has ended: the request that it belongs to is over"
        raise CallError(ErrorCode.ACCESS_DENIED, message, {"reason": "GRANT_ENDED", "executed": "no"})

    def close(self, grant: Grant, within: float) -> None:
        """End the grant of an aborted request, after `within` seconds in which its worker can clean up."""
        grant.closing = time.monotonic() + within
        same = self._closing.get(grant.origin)
        if same is not None and same is not grant:  # a caller may reuse a request id
            self._end(same)
        self._closing[grant.origin] = grant
        self._closing.move_to_end(grant.origin)
        while self._closing:
            oldest = next(iter(self._closing.values()))
            if len(self._closing) <= _MAX_CLOSING and _is_valid(oldest):
                return
            self._end(oldest)

    def confirm(self, request_id: str) -> None:
        """End the grant of an aborted request: its worker reports that the handler has ended."""
        grant = self._closing.get(request_id)
        if grant is not None:
            self._end(grant)

    def clear(self) -> None:
        """End all grants."""
        self.held.clear()
        self._closing.clear()

    def _end(self, grant: Grant) -> None:
        self.held.pop(grant.token, None)
        if self._closing.get(grant.origin) is grant:
            del self._closing[grant.origin]


def _is_valid(grant: Grant) -> bool:
    if grant.deadline is not None and grant.deadline <= time.time() * 1000:
        return False
    return grant.closing is None or grant.closing > time.monotonic()
