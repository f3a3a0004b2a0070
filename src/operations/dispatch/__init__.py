"""Dispatcher: runs external calls in the same steps for every transport."""

from operations.dispatch.dispatcher import CONCURRENCY, QUEUE, Dispatcher, Request
from operations.dispatch.nested_calls import RemoteCalls
from operations.dispatch.queueing import Slots

__all__ = ["CONCURRENCY", "QUEUE", "Dispatcher", "RemoteCalls", "Request", "Slots"]
