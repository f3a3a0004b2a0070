"""Which modules of a tree import which: a change to one changes those that were made with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping


def imported_names(source: bytes, module: str, *, is_package: bool) -> frozenset[str]:
    """The full names a module's text may import: each module, and each `module.name` of a from-import."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(names)


def affected(changed: Iterable[str], imports: Mapping[str, frozenset[str]]) -> set[str]:
    """The changed modules and, through any number of steps, all that import them."""
    reached = set(changed)
    waiting = list(reached)
    while waiting:
        name = waiting.pop()
        for module, imported in imports.items():
            if module not in reached and name in imported:
                reached.add(module)
                waiting.append(module)
    return reached


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    above = node.level - (1 if is_package else 0)
    kept = parts[: len(parts) - above] if above else parts
    return ".".join((*kept, node.module)) if node.module else ".".join(kept)
