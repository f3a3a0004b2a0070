"""SandboxModule: operations as the modules of a sandbox, `env.shop.quote(item="tea")`, with a typed stub for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from operations.catalogue import attribute_path
from operations.exports.python_types import SignatureWriter, doc_line, is_identifier, name_operations
from operations.spec import OperationSpec, OperationType

ROOT = "env"
"""The name of the outermost module."""
_IMPORTS = "from typing import Any, Literal, NotRequired, TypedDict\n"
_WORD = re.compile(r"\w+")
_MISSING = re.compile(r"Module `(?P<module>[\w.]+)` has no member `(?P<name>\w+)`")
_MAX_HINTS = 10


class SandboxModule(msgspec.Struct):
    """One namespace: its operations by function name, and the namespaces below it."""

    path: str
    functions: dict[str, OperationSpec] = {}
    children: dict[str, SandboxModule] = {}

    def walk(self) -> Iterator[SandboxModule]:
        """Yield this module and all modules below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def stub(self) -> str:
        """Return the stub of this module: a typed function for each operation, which returns the data of its result."""
        signatures = SignatureWriter(functions=(*self.functions, *self.children))
        functions = [_function(name, spec, signatures) for name, spec in self.functions.items()]
        children = [f"from . import {name} as {name}\n" for name in self.children]
        imports = [_IMPORTS, signatures.types.imports()]
        return "".join([*imports, *children, *functions, *signatures.types.records.values()])

    def used_in(self, code: str) -> SandboxModule:
        """Return this module with only the functions and modules whose names occur in the code."""
        return self._only(frozenset(_WORD.findall(code)))

    def hints(self, diagnostics: str) -> str:
        """Return the nearest names for unknown functions in the messages of the type checker."""
        modules = {module.path: module for module in self.walk()}
        lines = []
        for found in list(_MISSING.finditer(diagnostics))[:_MAX_HINTS]:
            module = modules.get(found["module"])
            names = [] if module is None else [*module.functions, *module.children]
            near = get_close_matches(found["name"], names, n=3, cutoff=0.5)
            if near:
                lines.append(f"{found['module']} has {', '.join(near)}")
        return "\n".join(dict.fromkeys(lines))

    def _only(self, words: frozenset[str]) -> SandboxModule:
        functions = {name: spec for name, spec in self.functions.items() if name in words}
        children = {name: child._only(words) for name, child in self.children.items() if name in words}
        return SandboxModule(self.path, functions, children)


def sandbox_modules(specs: Iterable[OperationSpec]) -> SandboxModule:
    """Return the operations as modules below `env`. Operations without a Python name are left out."""
    by_namespace: dict[str, list[OperationSpec]] = {}
    for spec in sorted(specs, key=lambda spec: spec.id):
        by_namespace.setdefault(spec.namespace, []).append(spec)
    root = SandboxModule(ROOT)
    for namespace in sorted(by_namespace):
        module = _descend(root, namespace.split("."))
        if module is not None and not module.functions:
            module.functions = dict(name_operations(by_namespace[namespace]).by_name)
    for module in root.walk():
        for name in module.children:
            module.functions.pop(name, None)  # a namespace has precedence, as in the stubs
    return root


def import_lines(root: SandboxModule) -> str:
    """Return the statements that import every module."""
    return "".join(f"import {module.path}\n" for module in root.walk())


def _descend(root: SandboxModule, parts: Sequence[str]) -> SandboxModule | None:
    """Return the module of a namespace, created if needed; None if a part is not a Python name."""
    module = root
    for part in parts:
        name = attribute_path(part)
        if not is_identifier(name) or name.startswith("_"):
            return None
        module = module.children.setdefault(name, SandboxModule(f"{module.path}.{name}"))
    return module


def _function(name: str, spec: OperationSpec, signatures: SignatureWriter) -> str:
    parameters = ", ".join(signatures.parameters(spec))
    result = signatures.result(spec)
    if spec.type is OperationType.SUBSCRIPTION:
        result = f"{signatures.types.visible('list')}[{result}]"
    head = f"async def {name}({parameters}) -> {result}:"
    doc = doc_line(spec.title or spec.description)
    return f'{head}\n    """{doc}"""\n' if doc else f"{head} ...\n"


def operations_by_path(root: SandboxModule) -> Mapping[str, OperationSpec]:
    """Return the operations by the path that a script calls: `env.shop.quote`."""
    return {f"{module.path}.{name}": spec for module in root.walk() for name, spec in module.functions.items()}
