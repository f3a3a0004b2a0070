"""Dispatcher: runs every external call the same way, whichever transport it came by."""

from operations.dispatch.dispatcher import CONCURRENCY, QUEUE, Dispatcher, Request
from operations.dispatch.nested_calls import RemoteCalls
from operations.dispatch.queueing import Slots

__all__ = ["CONCURRENCY", "QUEUE", "Dispatcher", "RemoteCalls", "Request", "Slots"]
