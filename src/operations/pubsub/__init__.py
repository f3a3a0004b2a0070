"""Transports: carry bytes between peers. They know addresses and bytes, nothing of calls or operations."""

from operations.pubsub.connection_errors import require_extra
from operations.pubsub.protocols import (
    Arrival,
    Capabilities,
    Delivery,
    Flushes,
    InProcess,
    KeepsRecords,
    Receive,
    Record,
    Refused,
    Remembers,
    ReportsBacklog,
    Stop,
    Stores,
    Take,
    TooManyRecords,
    Transport,
    TransportWrapper,
    Undelivered,
)
from operations.pubsub.schemes import check_address, connect

__all__ = [
    "Arrival",
    "Capabilities",
    "Delivery",
    "Flushes",
    "InProcess",
    "KeepsRecords",
    "Receive",
    "Record",
    "Refused",
    "Remembers",
    "ReportsBacklog",
    "Stop",
    "Stores",
    "Take",
    "TooManyRecords",
    "Transport",
    "TransportWrapper",
    "Undelivered",
    "check_address",
    "connect",
    "require_extra",
]
