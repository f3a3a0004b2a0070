"""Python signatures of operations: names, parameters and result types. Stubs and code mode use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from operations.catalogue import attribute_path
from operations.exports.python_types import TypeWriter, is_identifier, pascal, refer_by_key
from operations.spec import OperationSpec

RESERVED = frozenset(("subscribe", "self", "mro", "TypedDict"))
"""Names that no attribute or parameter may have.

`TypedDict` is one of them because type checkers recognise it only by this name.
"""


class NamedOperations(msgspec.Struct, frozen=True):
    """Operations of one namespace by Python name, and the ids of operations without a Python name, with the reason."""

    by_name: Mapping[str, OperationSpec]
    unreachable: Mapping[str, str]


def name_operations(specs: Iterable[OperationSpec], taken: Container[str] = ()) -> NamedOperations:
    """Return the operations of one namespace by Python name, sorted; no operation gets a name in `taken`."""
    by_name: defaultdict[str, list[OperationSpec]] = defaultdict(list)
    for spec in specs:
        by_name[attribute_path(spec.name)].append(spec)
    found: dict[str, OperationSpec] = {}
    unreachable: dict[str, str] = {}
    for name, sharing in by_name.items():
        reason = ""
        if not is_identifier(name) or name.startswith("_") or name in RESERVED:
            reason = "not a Python name"
        elif name in taken:
            reason = "a namespace has the same name"
        exact = [spec for spec in sharing if spec.name == name]
        if not reason and len(sharing) > 1 and not exact:
            reason = f"{len(sharing)} operations share the name {name}"
        for spec in sharing:
            if reason or (len(sharing) > 1 and spec not in exact):
                unreachable[spec.id] = reason or f"{exact[0].id} has the name {name}"
            else:
                found[name] = spec
    return NamedOperations(dict(sorted(found.items())), unreachable)


class SignatureWriter:
    """Writes the parameters and result types of one module, and collects the TypedDicts that they use."""

    def __init__(self, taken: Sequence[str] = (), functions: Iterable[str] = ()) -> None:
        self.types = TypeWriter(taken, functions)

    def result(self, spec: OperationSpec) -> str:
        """Return the annotation of an operation's data."""
        return self.types.visible(self.types.annotate(spec.output_schema.document, f"{pascal(spec.name)} result"))

    def parameters(self, spec: OperationSpec) -> list[str]:
        """Return the parameters of an operation.

        Each property is a keyword. Properties whose name is not valid in Python are passed together as `input`.
        """
        hint = f"{pascal(spec.name)} input"
        document = spec.input_schema.document
        node = self.types.resolve(self.types.hoisted(document, hint).schema(refer_by_key))
        properties: Mapping[str, Any] = node.get("properties", {})
        if not properties or "anyOf" in node or "oneOf" in node:
            return self._free_parameters(node, document, hint)
        required = set(node.get("required", ()))
        named = [each for each in properties if is_identifier(each) and each not in RESERVED]
        keywords = [
            f"{each}: {self.types.visible(self.types.property_annotation(properties[each], f'{hint} {each}'))}"
            f"{'' if each in required else ' = ...'}"
            for each in sorted(named, key=lambda each: each not in required)
        ]
        others = [each for each in properties if each not in named]
        first = []
        if others:
            needed = bool(required.intersection(others))
            name = "input" if "input" not in named else "input_data"  # positional-only: callers never write this name
            first = [f"{name}: {self.types.visible('dict[str, Any]')}{'' if needed else ' = ...'}", "/"]
        return [*first, *(["*", *keywords] if keywords else [])]

    def _free_parameters(self, node: Mapping[str, Any], document: Any, hint: str) -> list[str]:
        """Return the parameters of an operation whose input has no fixed properties."""
        if node.get("type") == "object" and node.get("additionalProperties") is False and not node.get("properties"):
            return []
        whole, anything = (self.types.visible(each) for each in (self.types.annotate(document, hint), "Any"))
        return [f"input: {whole} = ...", "/", f"**properties: {anything}"]
