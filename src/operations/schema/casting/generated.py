"""Generated code that removes undeclared properties and fills in defaults: fast code for the most common changes.

Each node whose values may need changes has one function. The function never changes its argument, but returns a changed
copy. `Repair` makes all other changes. The caller checks the result with the closed form, so an incomplete result costs
only time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_not
from typing import Any

from operations.schema.casting.nodes import MISSING, Node, Nodes, discriminator
from operations.schema.casting.repair import Repair, default_for, defaultable
from operations.schema.dialects.literals import copied

_MAX_LINES = 5_000
"""Maximum number of generated lines: compiling more takes longer than repairing thousands of values."""
_MAX_LEARNED = 32
_CONTAINERS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
)
Normaliser = Callable[[Any], Any]


def generate(nodes: Nodes) -> tuple[Normaliser, Normaliser] | None:
    """Return two functions that normalise values of the root; None if generating code is not worthwhile.

    The first removes only those undeclared properties whose names are recorded. It is fast and nearly always
    sufficient. The second inspects every property, and records the names of undeclared properties.
    """
    learned: dict[int, list[str]] = {}
    quick = _Writer(nodes, learned, quick=True).compiled()
    thorough = None if quick is None else _Writer(nodes, learned, quick=False).compiled()
    return None if quick is None or thorough is None else (quick, thorough)


class _Writer:
    """Writes the functions of all nodes reachable from the root."""

    def __init__(self, nodes: Nodes, learned: dict[int, list[str]], *, quick: bool) -> None:
        self._nodes = nodes
        self._learned = learned
        self._quick = quick
        self._sources: list[str] = []
        self._namespace: dict[str, Any] = {"is_not": is_not, "copied": copied, "learn": self._learn}
        self._names: dict[int, str | None] = {}
        self._pending: list[tuple[str, Node]] = []
        self._dispatchers: list[tuple[dict[str, Any], dict[str, str]]] = []

    def compiled(self) -> Normaliser | None:
        """Return the function of the root; None if there is nothing to do or too much code."""
        root = self._function(self._nodes.root)
        written = 0
        while self._pending and written <= _MAX_LINES:
            name, node = self._pending.pop()
            body = [f"    {line}\n" for line in self._body(node)]
            self._sources.append(f"def {name}(v):\n{''.join(body)}    return v\n")
            written += len(body) + 2
        if root is None or self._pending:
            return None
        exec(compile("\n".join(self._sources), "<operations.schema.casting.generated>", "exec"), self._namespace)
        for table, names in self._dispatchers:
            table.update({value: self._namespace[name] for value, name in names.items()})
        function: Normaliser = self._namespace[root]
        return function

    def _function(self, node: Node | None) -> str | None:
        """Return the name of the function for `node`; None if values of `node` never need changes."""
        if node is None or not node.parts:
            return None
        if id(node) not in self._names and (only := _only_container(node)) is not None:
            self._names[id(node)] = self._function(only)
        elif id(node) not in self._names:
            name = None if _is_idle(node) else f"normalise_{len(self._names)}"
            self._names[id(node)] = name
            if name is not None:
                self._pending.append((name, node))
        return self._names[id(node)]

    def _learn(self, excess: list[str], name: str) -> None:
        """Record the name of an undeclared property once: the fast function removes properties with recorded names."""
        with self._nodes.lock:
            if name not in excess and len(excess) < _MAX_LEARNED:
                excess.append(name)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._namespace)}"
        self._namespace[name] = value
        return name

    def _body(self, node: Node) -> Iterator[str]:
        if node.conditional or any("patternProperties" in part for part in node.parts):
            yield self._slow(node)
        elif node.unions:
            yield from self._union(node)
        else:
            if node.allows("object"):
                yield from self._object(node)
            if node.allows("array"):
                yield from self._array(node)

    def _slow(self, node: Node) -> str:
        nodes = self._nodes
        return f"return {self._constant(lambda value: Repair(nodes, total=False).cast_to(node, value))}(v)"

    # Objects

    def _object(self, node: Node) -> Iterator[str]:
        yield "if v.__class__ is dict:"
        yield "    out = None"
        yield from self._strip(node)
        for name in node.properties:
            if node.keeps(name):
                yield from self._member(name, node.member(name))
        yield from self._defaults(node)
        yield "    return v if out is None else out"

    def _strip(self, node: Node) -> Iterator[str]:
        kept = frozenset(name for name in (*node.properties, *node.required) if node.keeps(name))
        if node.open:
            yield from self._extras(node, kept)
        elif node.declares:
            excess = self._constant(self._learned.setdefault(id(node), []))
            if self._quick:
                yield f"    for k in {excess}:"
                yield "        if k in v:"
                yield "            if out is None: out = v.copy()"
                yield "            del out[k]"
                return
            names = self._constant(kept)
            yield f"    if not v.keys() <= {names}:"
            yield "        out = v.copy()"
            yield "        for k in v:"
            yield f"            if k not in {names}:"
            yield "                del out[k]"
            yield f"                learn({excess}, k)"

    def _extras(self, node: Node, kept: frozenset[str]) -> Iterator[str]:
        """Yield the code that casts the properties which only `additionalProperties` describes."""
        function = self._function(node.member("\0"))
        if function is not None:
            yield f"    for k in v.keys() - {self._constant(kept)}:"
            yield f"        y = {function}(v[k])"
            yield "        if y is not v[k]:"
            yield "            if out is None: out = v.copy()"
            yield "            out[k] = y"

    def _member(self, name: str, child: Node | None) -> Iterator[str]:
        function, items = self._function(child), self._items_function(child)
        if function is None:
            return
        yield f"    x = v.get({name!r})"
        if items is not None:
            yield "    if x and x.__class__ is list:"
            yield f"        y = [{items}(i) for i in x]"
            yield "        if any(map(is_not, x, y)):"
        else:
            yield "    if x is not None:"
            yield f"        y = {function}(x)"
            yield "        if y is not x:"
        yield "            if out is None: out = v.copy()"
        yield f"            out[{name!r}] = y"

    def _items_function(self, node: Node | None) -> str | None:
        """Return the name of the function for the items of an array; None if the loop over the
        items cannot be inlined.
        """
        if node is None or node.types is None or "array" not in node.types or "object" in node.types:
            return None
        if node.unions or node.conditional or node.tuple_length or node.choices is not None:
            return None
        return self._function(node.item(0))

    def _defaults(self, node: Node) -> Iterator[str]:
        for name in defaultable(node):
            default = default_for(node, name)
            if default is not MISSING:
                constant = self._constant(default)
                made = f"copied({constant})" if isinstance(default, dict | list) else constant
                yield f"    if {name!r} not in v:"
                yield "        if out is None: out = v.copy()"
                yield f"        out[{name!r}] = {made}"

    # Arrays

    def _array(self, node: Node) -> Iterator[str]:
        if node.tuple_length:
            yield f"if v.__class__ is list: {self._slow(node)}"
            return
        function = self._function(node.item(0))
        if function is not None:
            yield "if v.__class__ is list:"
            yield f"    out = [{function}(x) for x in v]"
            yield "    return out if any(map(is_not, out, v)) else v"

    # Unions

    def _union(self, node: Node) -> Iterator[str]:
        branches = node.branches
        objects = [branch for branch in branches if branch.allows("object")]
        arrays = [branch for branch in branches if branch.allows("array")]
        discriminator_name = discriminator(objects) if len(objects) > 1 else None
        if len(arrays) > 1 or (len(objects) > 1 and discriminator_name is None):
            yield self._slow(node)
            return
        if discriminator_name is not None:
            yield "if v.__class__ is dict:"
            yield f"    k = v.get({discriminator_name!r})"
            yield f"    f = {self._table(discriminator_name, objects)}.get(k) if k.__class__ is str else None"
            yield "    return v if f is None else f(v)"
        elif objects and (function := self._function(objects[0])) is not None:
            yield f"if v.__class__ is dict: return {function}(v)"
        if arrays and (function := self._function(arrays[0])) is not None:
            yield f"if v.__class__ is list: return {function}(v)"

    def _table(self, discriminator_name: str, branches: list[Node]) -> str:
        """Return the name of a table from the values of the discriminating property to functions."""
        names: dict[str, str] = {}
        for branch in branches:
            child, function = branch.member(discriminator_name), self._function(branch)
            if function is not None and child is not None:
                names.update(dict.fromkeys(child.choices or (), function))
        table: dict[str, Any] = {}
        self._dispatchers.append((table, names))
        return self._constant(table)


def _only_container(node: Node) -> Node | None:
    """Return the only non-scalar branch of a union, such as the object in `object | null`; otherwise None."""
    if not node.unions or node.conditional:
        return None
    branches = node.branches
    containers = [branch for branch in branches if branch.allows("object") or branch.allows("array")]
    return containers[0] if len(containers) == 1 else None


def _is_idle(node: Node) -> bool:
    """Whether a node needs no generated code, for example because its values are scalars."""
    if node.never or node.choices is not None:
        return True
    if node.unions or node.conditional:
        return False
    if node.types is not None and not {"object", "array"} & set(node.types):
        return True
    return not any(keyword in part for part in node.parts for keyword in _CONTAINERS)
