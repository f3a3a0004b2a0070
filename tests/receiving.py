"""Receivers for tests that need only messages, not their addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operations.pubsub import Arrival, Receive


def into(receive: Callable[[bytes], Any]) -> Receive:
    """A receiver that passes on the message alone."""

    def take(message: bytes, arrival: Arrival) -> None:
        receive(message)

    return take
