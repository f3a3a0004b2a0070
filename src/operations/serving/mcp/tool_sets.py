"""ToolSets: tool sets of the operations that each set of rights may call, for search mode and code mode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from operations.context import Identity
from operations.exports.tools import ToolSet
from operations.interceptors import Interceptor
from operations.serving.exposure import Exposure, Rights
from operations.serving.mcp.tools import ToolList
from operations.spec import Operation

_MAX_KEPT = 16
T = TypeVar("T")


class ToolSets(Generic[T]):
    """Cache of one object `T` per set of rights, created from a tool set of the operations that these rights may call.

    The tool sets are used to list and describe; calls go through `MCPCalls`. A change of the registry clears the cache.
    """

    def __init__(self, exposure: Exposure, tool_list: ToolList, make: Callable[[ToolSet], T]) -> None:
        self._exposure = exposure
        self._tool_list = tool_list
        self._make = make
        self._generation = -1
        self._kept: OrderedDict[Rights, T] = OrderedDict()

    def of(self, identity: Identity | None) -> T:
        """Return the object for a caller's rights."""
        if self._generation != self._exposure.generation:
            self._generation = self._exposure.generation
            self._kept.clear()
        rights = self._exposure.rights(identity)
        kept = self._kept.get(rights)
        if kept is None:
            operations = {tool.operation.id: tool.operation for tool in self._tool_list.visible(identity)}
            tool_set = ToolSet(cast(Any, _View(operations)))
            tool_set.tools  # noqa: B018  # computed here, before threads read it
            kept = self._kept[rights] = self._make(tool_set)
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(rights)
        return kept


class _View(msgspec.Struct, frozen=True):
    """The part of a registry that lists and descriptions read: the operations of one set of rights."""

    operations: Mapping[str, Operation[Any]]
    generation: int = 0
    interceptors: Sequence[Interceptor] = ()
