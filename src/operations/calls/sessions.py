"""Sessions: the peers at a hub, and the calls that each of them made or runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from operations.calls.authentication import Principal
from operations.calls.codec import Codec, transcode
from operations.calls.events import Announced, CallRequested, Header
from operations.context import Identity


class Session:
    """One peer at the hub: a spoke's connection, or the hub's own end."""

    def __init__(
        self,
        name: str,
        principal: Principal,
        deliver: Callable[[bytes], None],
        *,
        trusted: bool = False,
    ) -> None:
        self.name = name
        self.principal = principal
        self.trusted = trusted
        """Whether an identity that this peer claims for its calls is believed."""
        self.peer = ""
        self.generation = 0
        self.codec: Codec | None = None
        """The one that it reads, where it does not read them all."""
        self.max_payload: int | None = None
        self.deliver = deliver
        self.take: Callable[[CallRequested, Codec], None] | None = None
        """How a peer in the hub's own process gets a request: as it was read, not written and read again."""
        self.open: Callable[[Header, Codec], None] | None = None
        """The same of a request of which only the outside was read."""
        self.calls_hub = False
        """Whether its last request was for the hub's own process: the next one is then read whole at once."""
        self.watches = False
        self.claims: dict[str, Announced] = {}
        self.calls: dict[str, Route] = {}
        self.work: dict[str, Route] = {}

    def send(self, message: bytes) -> None:
        """Deliver a message, in the one format that this peer reads where it does not read them all."""
        if self.codec is not None:
            message = transcode(message, self.codec)
        self.deliver(message)


class Route(msgspec.Struct, eq=False):
    """One call in flight: who made it, who runs it, on whose behalf."""

    request_id: str
    operation_id: str
    caller: Session
    worker: Session
    identity: Identity | None
    stream: bool
