"""Shared definitions: the `$defs` of many schemas as one set without duplicates. Independent of operations.

A definition is identified by its key: a hash of its content and of all definitions that it refers to at any depth.
Equal definitions of different schemas therefore become one. Names are assigned last, because they must be unique only
among the definitions that one reader sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from operations.schema.dialects.keywords import SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS
from operations.schema.dialects.traversal import components

_ROOT = "#"
_POINTER = "#/$defs/"
_USUALLY_BOOLEAN = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
"""Keywords whose value is often a boolean. `revise` does not get these booleans, which all readers accept."""
_encode = msgspec.json.Encoder().encode

Place = Callable[[str], str]
Revise = Callable[[Any], Any]


class SharedDefinition(msgspec.Struct, frozen=True):
    """A definition that several schemas may share, identified by `key`."""

    key: str
    """Hash of the content and of all definitions that it refers to at any depth: 32 hexadecimal digits."""
    name: str
    """The name of the definition in its schema; definitions with different content may have the same name."""
    uses: tuple[str, ...]
    """Keys of the definitions that this definition refers to directly."""
    content: Any = None
    keys: Mapping[str, str] = {}
    """Key of each definition that `content` refers to, by the reference in `content`, such as `#/$defs/Item`."""

    def schema(self, place: Place, revise: Revise | None = None) -> Any:
        """Return the schema with each `$ref` replaced: `place` returns the new reference for the key of the target.

        `revise` is called with the schema and with each of its sub-schemas, outer ones first, and returns their
        replacements. It is not called with booleans of keywords such as `additionalProperties`.
        """
        return _relinked(self.content, lambda reference: place(self.keys[reference]), revise)


class Hoisted(msgspec.Struct, frozen=True):
    """A schema without `$defs`, and all definitions that it refers to at any depth, by key."""

    root: SharedDefinition
    uses: tuple[str, ...]
    definitions: Mapping[str, SharedDefinition]

    def schema(self, place: Place, revise: Revise | None = None) -> Any:
        """Return the schema with its references replaced; if it is one of the definitions, return a reference to it.

        `place` and `revise` are those of `SharedDefinition.schema`.
        """
        if self.root.key in self.definitions:
            return {"$ref": place(self.root.key)}
        return self.root.schema(place, revise)


def hoist(document: Mapping[str, Any] | bool, root_name: str, *, with_root: bool = False) -> Hoisted:
    """Separate a schema from its `$defs`. Its references must be `#` or `#/$defs/…`.

    A schema that refers to itself becomes a definition, named `root_name`; with `with_root`, every schema does.
    """
    contents: dict[str, Any] = {_ROOT: document}
    if isinstance(document, dict) and "$defs" in document:
        contents[_ROOT] = {keyword: value for keyword, value in document.items() if keyword != "$defs"}
        contents.update((_POINTER + name, schema) for name, schema in document["$defs"].items())
    texts, links = _read(contents)
    keys = _keys(texts, links)
    definitions: dict[str, SharedDefinition] = {}
    for pointer in texts:
        name = root_name if pointer == _ROOT else pointer[len(_POINTER) :]
        uses = tuple(dict.fromkeys(keys[target] for target in links[pointer]))
        definitions.setdefault(keys[pointer], SharedDefinition(keys[pointer], name, uses, contents[pointer], keys))
    root = definitions[keys[_ROOT]]
    if any(_ROOT in targets for targets in links.values()):
        return Hoisted(root, (root.key,), definitions)
    # The root may equal a definition: for example, the root of a tree is a node like all others.
    own = texts[_ROOT], [keys[target] for target in links[_ROOT]]
    for pointer in texts:
        if pointer != _ROOT and own == (texts[pointer], [keys[target] for target in links[pointer]]):
            del definitions[root.key]
            return Hoisted(definitions[keys[pointer]], (keys[pointer],), definitions)
    if with_root:
        return Hoisted(root, (root.key,), definitions)
    del definitions[root.key]
    return Hoisted(root, root.uses, definitions)


def closure(keys: Iterable[str], definitions: Mapping[str, SharedDefinition]) -> list[str]:
    """Return these keys and all keys that their definitions use, each once, in order of first use."""
    found = dict.fromkeys(keys)
    pending = list(reversed(found))
    ordered: dict[str, None] = {}
    while pending:
        key = pending.pop()
        if key not in ordered:
            ordered[key] = None
            pending.extend(reversed(definitions[key].uses))
    return list(ordered)


def assign_names(definitions: Iterable[SharedDefinition], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return a unique name for each key.

    The first definition with a name keeps it. The others with this name get digits of their keys appended.
    """
    names: dict[str, str] = {}
    used = set(taken)
    for definition in definitions:
        if definition.key in names:
            continue
        name, length = definition.name, 6
        while name in used:
            # A document may already use every prefix of the hash as a name.
            number = f"_{length}" if length > len(definition.key) else ""
            name = f"{definition.name}_{definition.key[:length]}{number}"
            length += 1
        used.add(name)
        names[definition.key] = name
    return names


def _read(contents: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Sequence[str]]]:
    """Return the JSON text and the references of the root and of each definition that it refers to, at any depth.

    In the text, every reference is an empty string; the second result has the references in the order of the text.
    """
    texts: dict[str, bytes] = {}
    links: dict[str, Sequence[str]] = {}
    pending = [_ROOT]
    while pending:
        pointer = pending.pop()
        if pointer in texts:
            continue
        collector = _Collector()
        texts[pointer] = _encode(_relinked(contents[pointer], collector))
        links[pointer] = collector
        pending.extend(reversed(collector))
    return texts, links


class _Collector(list[str]):
    """A list of references. As a function for `_relinked`, it appends a reference and returns an empty string."""

    def __call__(self, reference: str) -> str:
        self.append(reference)
        return ""


def _relinked(schema: Any, place: Place, revise: Revise | None = None) -> Any:
    """Return the schema with every reference replaced; parts that do not change are shared, not copied."""
    if revise is not None:
        schema = revise(schema)
    if not isinstance(schema, dict):
        return schema
    changed: dict[str, Any] = {}
    for keyword, value in schema.items():
        new: Any = value
        if keyword == "$ref" and isinstance(value, str):
            new = place(value)
        elif keyword in SCHEMA:
            if not isinstance(value, bool) or keyword not in _USUALLY_BOOLEAN:
                new = _relinked(value, place, revise)
        elif keyword in SCHEMA_LISTS:
            members = [_relinked(member, place, revise) for member in value]
            new = members if any(map(_differ, members, value)) else value
        elif keyword in SCHEMA_MAPS:
            members = [_relinked(member, place, revise) for member in value.values()]
            new = dict(zip(value, members, strict=True)) if any(map(_differ, members, value.values())) else value
        if new is not value:
            changed[keyword] = new
    return {**schema, **changed} if changed else schema


def _differ(one: Any, other: Any) -> bool:
    return one is not other


def _keys(texts: Mapping[str, bytes], links: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the key of every schema. Keys are equal if contents and targets are equal; names do not matter."""
    keys: dict[str, str] = {}
    for component in components(texts, links.__getitem__):
        if len(component) == 1 and component[0] not in links[component[0]]:
            (pointer,) = component
            keys[pointer] = _digest(texts[pointer], *(keys[target] for target in links[pointer]))
        else:
            keys.update(_cycle_keys(component, texts, links, keys))
    return keys


def _cycle_keys(
    component: Sequence[str], texts: Mapping[str, bytes], links: Mapping[str, Sequence[str]], keys: Mapping[str, str]
) -> dict[str, str]:
    """Return the keys of schemas that refer to each other.

    The first hash of a schema covers its content. Each round adds the hashes of the schemas that it refers to, until a
    round distinguishes no more schemas. A key also covers the hashes of the whole cycle, because schemas of two
    different cycles may still have equal hashes.
    """
    hashes = {pointer: _digest(texts[pointer]) for pointer in component}
    distinct = 0
    while distinct < (now := len(set(hashes.values()))):
        distinct = now
        hashes = {
            pointer: _digest(texts[pointer], *(keys.get(target) or hashes[target] for target in links[pointer]))
            for pointer in component
        }
    everyone = sorted(set(hashes.values()))
    return {pointer: _digest(hashes[pointer].encode(), *everyone) for pointer in component}


def _digest(content: bytes, *targets: str) -> str:
    digest = blake2b(content, digest_size=16)
    for target in targets:
        digest.update(target.encode())
    return digest.hexdigest()
