"""NatsKeptRecords: the records of stored messages, for the call protocol."""

from __future__ import annotations

from collections.abc import Callable

from operations.pubsub.nats.durable_queues import DurableQueues
from operations.pubsub.protocols import KeepsRecords, Record, Stop


class NatsKeptRecords(KeepsRecords):
    """The records of one peer's durable queues."""

    def __init__(self, queues: DurableQueues) -> None:
        self._queues = queues

    async def read_record(self, address: str, key: str) -> tuple[bytes, bytes] | None:
        """Return the value and body of a record, or None if there is none."""
        kept = await self._queues.records.read(address, key)
        return None if kept is None else (kept.value, kept.body)

    async def list_records(self, owner: str | None, most: int) -> list[tuple[str, str, bytes]]:
        """Return the address, key and value of at most `most` records: those of `owner`, or all if `owner` is None."""
        return await self._queues.records.list_owned(owner, most)

    async def end_record(self, address: str, record: Record) -> bool:
        """Write the final value of a record, so that its message is dropped.

        Return False if there is no such record, or if its value is already final.
        """
        return await self._queues.records.end(address, record)

    async def store_again(self, address: str, message: bytes, record: Record, *, sender: str) -> None:
        """Store a deleted message again, and replace its record."""
        await self._queues.store_again(address, message, record, sender=sender)

    def watch_record(self, address: str, key: str, changed: Callable[[], None]) -> Stop:
        """Call `changed` when a record is replaced because its message is gone."""
        return self._queues.records.watch(address, key, changed)
