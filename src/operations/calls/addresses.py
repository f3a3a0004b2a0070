"""Addresses of the call protocol: of requests, responses, control messages and announcements."""

from __future__ import annotations

import functools
from collections.abc import Iterable

WORKERS = "workers"
"""The address of announcements and heartbeats of workers."""
ASKS = "asks"
"""The address of requests for announcements."""


def namespaces_of(operation_ids: Iterable[str]) -> set[str]:
    """Return the namespaces of operations."""
    return {operation_id.rpartition(".")[0] for operation_id in operation_ids}


@functools.lru_cache(maxsize=4096)
def namespace_of(operation_id: str) -> str:
    """Return the namespace of an operation."""
    return operation_id.rpartition(".")[0]


@functools.lru_cache(maxsize=4096)
def work_address(operation_id: str) -> str:
    """Return the address of requests for an operation; each request goes to one worker of the namespace."""
    return f"work.{namespace_of(operation_id)}"


@functools.lru_cache(maxsize=4096)
def operation_address(operation_id: str) -> str:
    """Return the address of requests for an operation, on a transport with a separate address for each operation."""
    namespace, _, name = operation_id.rpartition(".")
    return f"work.{namespace}/{name}"


def direct_address(peer: str, operation_id: str) -> str:
    """Return the address of requests for an operation at one worker, on a transport that addresses workers."""
    namespace, _, name = operation_id.rpartition(".")
    return f"direct.{peer}/{namespace}/{name}"


@functools.lru_cache(maxsize=4096)
def queue_address(operation_id: str) -> str:
    """Return the address at which requests for a durable operation are stored."""
    return f"queue.{namespace_of(operation_id)}"


@functools.lru_cache(maxsize=4096)
def control_address(operation_id: str) -> str:
    """Return the address of control messages for an unknown worker: all workers of the namespace receive them."""
    return f"control.{namespace_of(operation_id)}"


def worker_address(worker_id: str) -> str:
    """Return the address of control messages for a worker, whose id is `<peer>.<random digits>`."""
    return f"peer.{worker_id.rpartition('.')[0]}"
