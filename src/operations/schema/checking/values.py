"""Sizes, depths and JSON copies of values, which may contain bytes and objects that are not JSON."""

from __future__ import annotations

from collections.abc import Mapping
from gc import get_referents
from typing import Any, NamedTuple

_CONTAINERS = frozenset({dict, list, tuple})
MAX_PARTS = 4_000
"""Maximum size of a value whose problems are all listed: the native engine takes 10 µs for each problem."""
MAX_DEPTH = 400
"""Maximum depth of values of a recursive schema; deeper values could overflow the native validator."""

_BYTES = (bytes, bytearray, memoryview)
_SCALARS = (str, int, float, type(None), *_BYTES)
_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})
_WIDE = 500_000
_CHUNK = 64
_MAX_WRITTEN = 20_000_000


class Foreign(NamedTuple):
    """A part of a value that JSON cannot represent: its path and description."""

    path: tuple[str | int, ...]
    what: str


class Plain(NamedTuple):
    """A JSON copy of a value, and the parts that could not be copied."""

    value: Any
    foreign: list[Foreign]


def pointer(path: Any) -> str:
    """Return the JSON pointer (RFC 6901) of path segments."""
    return "".join(f"/{pointer_segment(str(part))}" for part in path)


def pointer_segment(name: str) -> str:
    """Return a name as a segment of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def existing_path(value: Any, path: str) -> tuple[str | int, ...]:
    """Return the keys of a JSON pointer as far as they exist in `value`."""
    keys: list[str | int] = []
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            key: str | int = name
        elif isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
            key = int(name)
        else:
            break
        keys.append(key)
        value = value[key]
    return tuple(keys)


def too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether `value` is nested deeper than `limit`."""
    kind = value.__class__
    if kind is not dict and kind is not list:
        return not isinstance(value, _SCALARS) and _deep_precisely(value, limit)
    level = get_referents(value)
    for _ in range(limit - 1):
        if not level:
            return False
        level = _members(level)
        if len(level) > _WIDE:
            break
    # Long chains, cycles and shared parts: count each container once.
    return bool(level) and _deep_precisely(value, limit)


def _members(level: list[Any]) -> list[Any]:
    """Return the contents of a level's containers; if there are too many, only enough to exceed the limit.

    Only JSON containers are inspected: `get_referents` of some extension modules (`_asyncio` in Python 3.12) returns
    dead objects. Containers are inspected a few at a time: many references to one long list would exhaust memory.
    """
    if not _PLAIN.issuperset(map(type, level)):
        level = [_plain_container(part) for part in level if isinstance(part, Mapping | list | tuple)]
    if len(level) <= _CHUNK:
        return get_referents(*level)
    members: list[Any] = []
    for start in range(0, len(level), _CHUNK):
        members += get_referents(*level[start : start + _CHUNK])
        if len(members) > _WIDE:
            break
    return members


def _plain_container(part: Any) -> Any:
    return part if isinstance(part, dict | list | tuple) else list(part.values())


def _deep_precisely(value: Any, limit: int) -> bool:
    seen: dict[int, int] = {}
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if not isinstance(item, Mapping | list | tuple) or seen.get(id(item), 0) >= depth:
            continue
        if depth > limit:
            return True
        seen[id(item)] = depth
        members = item.values() if isinstance(item, Mapping) else item
        pending += [(member, depth + 1) for member in members]
    return False


def is_small(value: Any) -> bool:
    """Whether one quick walk shows that `value` is not `too_deep` and not `too_shared`."""
    level, counted = [value], 0
    for _ in range(MAX_DEPTH):
        level = _members(level)
        counted += len(level)
        if not level or counted > _WIDE:
            break
    return not level


def count_parts(value: Any, limit: int) -> int:
    """Return the number of parts of `value` at all depths: keys, property values and items. Stop beyond `limit`."""
    level, counted = [value], 0
    while level and counted <= limit:
        level = _members(level)
        counted += len(level)
    return counted


def too_shared(value: Any) -> bool:
    """Whether the JSON text of `value`, in which shared parts are repeated, would exhaust memory."""
    level = [value]
    counted = 0
    while level and counted <= _WIDE:
        level = _members(level)
        counted += len(level)
    return bool(level) and _written_out(value) > _MAX_WRITTEN


def _written_out(value: Any) -> int:
    """Return the number of properties and items of `value`, with shared parts counted each time; cycles count once."""
    sizes: dict[int, int] = {}
    pending = [(value, False)]
    while pending:
        item, entered = pending.pop()
        if not isinstance(item, Mapping | list | tuple) or (id(item) in sizes and not entered):
            continue
        members = item.values() if isinstance(item, Mapping) else item
        if entered:
            sizes[id(item)] = min(len(item) + sum(sizes.get(id(member), 0) for member in members), _MAX_WRITTEN + 1)
        else:
            sizes[id(item)] = 0
            pending.append((item, True))
            pending += [(member, False) for member in members]
    return sizes.get(id(value), 0)


Trail = tuple[Any, ...]
"""A path as a linked list, `(parent, key)`, so that deep values cost linear memory."""


def _path(trail: Trail) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    while trail:
        trail, part = trail
        parts.append(part)
    return tuple(reversed(parts))


class _Copier:
    """One copy of one value; iterative, so that depth does not use the call stack."""

    def __init__(self, depth: int | None, *, content: bool) -> None:
        self.foreign: list[Foreign] = []
        self._limit = depth
        self._content = content
        self._made: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        holder: list[Any] = [None]
        pending: list[tuple[Any, Any, Any, Trail, int]] = [(value, holder, 0, (), 0)]
        while pending:
            item, parent, key, trail, depth = pending.pop()
            if not isinstance(item, Mapping | list | tuple):
                parent[key] = self._leaf(item, trail)
            elif id(item) in self._made:
                parent[key] = self._made[id(item)]
            else:
                parent[key] = made = self._container(item, trail)
                self._made[id(item)] = made
                if self._limit is None or depth < self._limit:
                    pending += [(v, made, k, (trail, k), depth + 1) for k, v in self._members(item)]
        return holder[0]

    def _container(self, item: Any, trail: Trail) -> Any:
        if not isinstance(item, Mapping):
            return [None] * len(item)
        for key in item:
            if not isinstance(key, str):
                self.foreign.append(Foreign(_path(trail), f"a key of type {type(key).__name__}"))
        return {unicode_text(key): None for key in item if isinstance(key, str)}

    @staticmethod
    def _members(item: Any) -> list[tuple[Any, Any]]:
        if isinstance(item, Mapping):
            return [(unicode_text(key), value) for key, value in item.items() if isinstance(key, str)]
        return list(enumerate(item))

    def _leaf(self, item: Any, trail: Trail) -> Any:
        if item is None or isinstance(item, bool):
            return item
        if isinstance(item, str):
            return unicode_text(item)
        if isinstance(item, int | float):
            return int(item) if isinstance(item, int) else float(item)
        if isinstance(item, _BYTES) and self._content:
            return bytes(item).decode("latin-1")
        if isinstance(item, _BYTES):
            return "\0" * (item.nbytes if isinstance(item, memoryview) else len(item))
        if type(item).__name__ == "Decimal":
            return item
        self.foreign.append(Foreign(_path(trail), f"a value of type {type(item).__name__}"))
        return None


def unicode_text(value: str) -> str:
    """Return text with pairs of surrogates joined and lone surrogates replaced: UTF-8 cannot encode surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(value)


def as_json(value: Any, *, depth: int | None = None, content: bool = False) -> Plain:
    """Return a JSON copy of `value` for checking: bytes become strings of equal length, foreign objects are listed.

    With `depth`, deeper parts are omitted. With `content`, the string has the character of each byte, so that patterns
    apply to the string. Without `content`, the string equals no usual string.
    """
    copier = _Copier(depth, content=content)
    return Plain(copier.copy(value), copier.foreign)


def has_more_parts(value: Any, most: int) -> bool:
    """Whether a value has more than `most` properties and items; shared parts count each time."""
    pending, parts = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping | list | tuple):
            parts += len(item)
            if parts > most:
                return True
            pending += item.values() if isinstance(item, Mapping) else item
    return False


def has_large_object(value: Any, most: int) -> bool:
    """Whether plain data has an object with more than `most` properties; shared parts are visited once."""
    pending, seen = [value], set[int]()
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind not in _CONTAINERS or id(item) in seen:
            continue
        seen.add(id(item))
        if kind is dict and len(item) > most:
            return True
        pending += [each for each in (item.values() if kind is dict else item) if type(each) in _CONTAINERS]
    return False
