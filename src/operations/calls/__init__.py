"""The call protocol: one way to call an operation, in process and across a bus, where every call ends exactly once."""

from operations.calls.counters import Counters
from operations.calls.events import CALL_EVENT_SCHEMAS, CallEventSchema
from operations.calls.handler import CallHandler
from operations.calls.importing import RemoteOperations, from_call
from operations.calls.pending import PendingRequestMap
from operations.calls.serving import ServedRegistry, serve_registry

__all__ = [
    "CALL_EVENT_SCHEMAS",
    "CallEventSchema",
    "CallHandler",
    "Counters",
    "PendingRequestMap",
    "RemoteOperations",
    "ServedRegistry",
    "from_call",
    "serve_registry",
]
