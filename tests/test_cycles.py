"""No module is in an import cycle, imports inside functions and under TYPE_CHECKING included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp

REMAINING: set[tuple[str, str]] = {
    ("operations.config.cache", "operations.config.storing"),
}
"""Imports (importer, imported) that close a cycle today; remove each line when its import is gone."""


def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph("operations")
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def find_cycle(modules: dict[str, set[str]]) -> list[str]:
    """Return the modules of one cycle in order; an empty list without any."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_is_in_a_cycle() -> None:
    modules = imports()
    for importer, imported in REMAINING:
        modules.get(importer, set()).discard(imported)
    assert find_cycle(modules) == []


def test_a_cycle_is_found() -> None:
    assert set(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
