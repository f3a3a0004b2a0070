"""Addresses of the call protocol: where requests, answers, control and news of workers go."""

from __future__ import annotations

import functools
from collections.abc import Iterable

WORKERS = "workers"
"""The address at which workers announce themselves."""
ASKS = "asks"
"""The address at which workers are asked what they offer."""


def namespaces_of(operation_ids: Iterable[str]) -> set[str]:
    """The namespaces of some operations."""
    return {operation_id.rpartition(".")[0] for operation_id in operation_ids}


@functools.lru_cache(maxsize=4096)
def namespace_of(operation_id: str) -> str:
    """The namespace of an operation."""
    return operation_id.rpartition(".")[0]


@functools.lru_cache(maxsize=4096)
def work_address(operation_id: str) -> str:
    """Where requests for an operation go: to one of the workers of its namespace."""
    return f"work.{namespace_of(operation_id)}"


@functools.lru_cache(maxsize=4096)
def operation_address(operation_id: str) -> str:
    """The same on a transport that addresses each operation."""
    namespace, _, name = operation_id.rpartition(".")
    return f"work.{namespace}/{name}"


def direct_address(peer: str, operation_id: str) -> str:
    """Where a request for one worker goes, on a transport that addresses workers."""
    namespace, _, name = operation_id.rpartition(".")
    return f"direct.{peer}/{namespace}/{name}"


@functools.lru_cache(maxsize=4096)
def queue_address(operation_id: str) -> str:
    """Where requests for a durable operation are stored."""
    return f"queue.{namespace_of(operation_id)}"


@functools.lru_cache(maxsize=4096)
def control_address(operation_id: str) -> str:
    """Where control of a call goes while its worker is not known: to all workers of its namespace."""
    return f"control.{namespace_of(operation_id)}"


def worker_address(worker_id: str) -> str:
    """Where control of a call goes once its worker is known: to the peer that `<peer>.<number>` is at."""
    return f"peer.{worker_id.rpartition('.')[0]}"
