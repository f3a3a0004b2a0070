"""The call protocol: one way to call an operation, in process and across a bus, where every call ends exactly once."""

from operations.calls.caller import PendingRequestMap
from operations.calls.events import CALL_EVENT_SCHEMAS, CallEventSchema
from operations.calls.importing import RemoteOperations, from_call
from operations.calls.serving import ServedRegistry, serve_registry
from operations.calls.worker import CallHandler
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
    "serve_registry",
]
