"""DuplicateFilter: drops messages that arrive on both connections during a move to another server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from operations.pubsub.nats.parser import NatsParser
from operations.pubsub.nats.wire import NatsMessage, ReceiveData, ReceiveMessage


class DuplicateFilter:
    """Drops the second copy of each message. Equal messages are counted, as a sender may repeat a message."""

    def __init__(self) -> None:
        self._passed: Counter[int] = Counter()

    def watch(self, reader: NatsParser, sids: list[bytes]) -> None:
        """Filter the messages of these subscriptions on one of the connections."""
        arrived: Counter[int] = Counter()

        def is_first(*message: object) -> bool:
            key = hash(message)
            arrived[key] += 1
            if arrived[key] <= self._passed[key]:
                return False
            self._passed[key] += 1
            return True

        for sid in sids:
            if sid in reader.plain:
                reader.plain[sid] = _filter_data(sid, reader.plain[sid], is_first)
            elif sid in reader.full:
                reader.full[sid] = _filter_messages(sid, reader.full[sid], is_first)


def _filter_data(sid: bytes, receive: ReceiveData, is_first: Callable[..., bool]) -> ReceiveData:
    def filtered(data: bytes, subject: bytes) -> None:
        if is_first(sid, subject, data):
            receive(data, subject)

    return filtered


def _filter_messages(sid: bytes, receive: ReceiveMessage, is_first: Callable[..., bool]) -> ReceiveMessage:
    def filtered(message: NatsMessage) -> None:
        if is_first(sid, *message):
            receive(message)

    return filtered
