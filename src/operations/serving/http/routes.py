"""Routes: the path of each exposed operation, and its methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from operations.serving.exposure import Exposure
from operations.serving.http.inputs import InputReader
from operations.serving.http.problems import is_http_source
from operations.spec import OPEN, Operation, OperationType


class Route:
    """One operation at its path."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.id = operation.id
        self.is_open = operation.spec.access_control == OPEN
        self.is_mutation = operation.spec.type is OperationType.MUTATION
        self.streams_only = operation.handler is None
        self.has_stream = operation.stream is not None
        self.is_resumable = bool(operation.spec.annotations.get("resumable")) or is_http_source(operation)
        """Whether the handler itself continues a stream after the event that `Last-Event-ID` names."""

    @cached_property
    def inputs(self) -> InputReader:
        """The reader of inputs; created on first use, so that the input schema is not computed earlier."""
        return InputReader(self.operation)

    def inputs_of(self) -> InputReader:
        """Return `inputs`; passed as a function to code that may not need the reader."""
        return self.inputs

    @cached_property
    def methods(self) -> frozenset[str]:
        """The allowed methods."""
        if self.is_mutation or self.inputs.parameters is None:
            return frozenset({"POST", "OPTIONS"})
        if self.streams_only:
            return frozenset({"GET", "POST", "OPTIONS"})
        return frozenset({"GET", "HEAD", "POST", "OPTIONS"})

    @cached_property
    def allow(self) -> tuple[bytes, bytes]:
        """The `Allow` header."""
        return b"allow", ", ".join(sorted(self.methods)).encode()


class Routes:
    """The routes of an exposure by path, updated when the registry changes."""

    def __init__(self, exposure: Exposure) -> None:
        self._exposure = exposure
        self._generation = -1
        self._routes: dict[str, Route] = {}

    def find(self, path: str) -> Route | None:
        """Return the route of a percent-decoded path; None if there is none."""
        if self._generation != self._exposure.generation:
            self._refresh()
        return self._routes.get(path)

    def _refresh(self) -> None:
        operations: Mapping[str, Operation[Any]] = self._exposure.operations
        known = {route.id: route for route in self._routes.values()}
        routes: dict[str, Route] = {}
        for operation_id, operation in operations.items():
            route = known.get(operation_id)
            if route is None or route.operation is not operation:
                route = Route(operation)
            routes[path_for(operation)] = route
        self._routes = routes
        self._generation = self._exposure.generation


def path_for(operation: Operation[Any]) -> str:
    """Return the path of an operation, not percent-encoded. Namespaces have no slash, so paths are unique."""
    return f"/{operation.spec.namespace}/{operation.spec.name}"


def encoded_path(operation: Operation[Any]) -> str:
    """Return the path as in URLs. A slash that would create an empty segment is written `%2F`."""
    segments = operation.spec.name.split("/")
    parts = [segments[0]]
    for segment in segments[1:]:
        # An unescaped slash needs a character before and after it.
        parts.append(("/" if parts[-1] and not parts[-1].endswith("%2F") and segment else "%2F") + segment)
    return f"/{operation.spec.namespace}/{''.join(parts)}"
