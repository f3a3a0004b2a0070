"""The dispatcher: one path for every call from elsewhere, whichever transport it came by."""

from operations.dispatch.dispatcher import CONCURRENCY, QUEUE, Dispatcher, Request
from operations.dispatch.nesting import Remote
from operations.dispatch.queueing import Slots

__all__ = ["CONCURRENCY", "QUEUE", "Dispatcher", "Remote", "Request", "Slots"]
