"""Sources: the sources of a served registry's operations, and their state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from operations.serving.exposure import Exposure
from operations.serving.http.problems import is_http_source
from operations.spec import Operation


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one source."""

    name: str
    kind: str
    """`openapi`, `mcp`, `python`, `entry-point`, `worker` or `registry`."""
    state: Literal["ready", "failed"] = msgspec.field(default="ready")
    reason: str | None = None
    """Why the source failed."""


class Sources(Protocol):
    """The sources of a registry."""

    def states(self) -> Iterable[SourceState]:
        """Return every source, failed ones included."""

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of the source of an operation; None if the id is unknown."""


class NamespaceSources:
    """The sources of a registry whose real sources are unknown: one for each first part of a namespace (`shop`)."""

    def __init__(self, exposure: Exposure) -> None:
        self._exposure = exposure
        self._generation = -1
        self._states: dict[str, SourceState] = {}

    def states(self) -> Iterable[SourceState]:
        """Return a source for each first part of a namespace."""
        if self._generation != self._exposure.generation:
            self._states = _group(self._exposure.operations)
            self._generation = self._exposure.generation
        return self._states.values()

    def source_of(self, operation_id: str) -> str | None:
        """Return the first part of an id."""
        return operation_id.partition(".")[0]


def _group(operations: Mapping[str, Operation[Any]]) -> dict[str, SourceState]:
    states: dict[str, SourceState] = {}
    for operation_id, operation in operations.items():
        name = operation_id.partition(".")[0]
        if name not in states:
            states[name] = SourceState(name, _kind(operation))
    return states


def _kind(operation: Operation[Any]) -> str:
    if operation.origin is not None:
        return "worker"
    return "openapi" if is_http_source(operation) else "python"


def source_json(state: SourceState, count: int) -> dict[str, Any]:
    """Return a source in the console's format."""
    described: dict[str, Any] = {"name": state.name, "kind": state.kind, "state": state.state, "count": count}
    if state.reason is not None:
        described["reason"] = state.reason
    return described
