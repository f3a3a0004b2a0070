"""The dispatcher: one path for every call from elsewhere, whichever transport it came by."""

from operations.dispatch.dispatcher import CONCURRENCY, QUEUE, Dispatcher, Outcome, Request, Running, Slots
from operations.dispatch.nesting import Remote

__all__ = ["CONCURRENCY", "QUEUE", "Dispatcher", "Outcome", "Remote", "Request", "Running", "Slots"]
