"""The call protocol, with which operations are called in process or across a bus. Every call ends exactly once."""

from operations.calls.caller import PendingRequestMap
from operations.calls.codec import read_event
from operations.calls.events import CALL_EVENT_SCHEMAS, CallEventSchema
from operations.calls.remote_operations import RemoteOperations, from_call
from operations.calls.worker import CallHandler, ServedRegistry, serve_registry
from operations.context import outside_request
from operations.telemetry.counters import Counters

__all__ = [
    "CALL_EVENT_SCHEMAS",
    "CallEventSchema",
    "CallHandler",
    "Counters",
    "PendingRequestMap",
    "RemoteOperations",
    "ServedRegistry",
    "from_call",
    "outside_request",
    "read_event",
    "serve_registry",
]
