"""Relations of schemas: which types a value may have, and whether one schema accepts everything that another accepts.

Cheap and conservative: if a schema has keywords that are not considered here, the result is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.schema.dialects.keywords import ASSERTING, ASSERTIONS
from operations.schema.dialects.literals import same
from operations.schema.dialects.traversal import parts_of, target_in

Kinds = frozenset[str]

_MAX_DEPTH = 6
_CONSIDERED = frozenset({"type", "enum", "const", "properties", "required", "items", "$ref", "allOf"})
_COMPARED = frozenset(ASSERTIONS) - _CONSIDERED
_BEYOND = ASSERTING - _CONSIDERED - _COMPARED
_NAMES = {str: "string", dict: "object", list: "array", tuple: "array", type(None): "null", bool: "boolean"}


def kinds_of(schema: Any) -> Kinds | None:
    """Return the JSON types that a schema's own keywords allow; None if the keywords do not restrict the types."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return frozenset({_kind_of(schema["const"])})
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    return frozenset(name for name in kind if isinstance(name, str)) if isinstance(kind, list | tuple) else None


def kinds_overlap(first: Kinds, second: Kinds) -> bool:
    """Whether a value can have both a type in `first` and a type in `second`."""
    return not _with_integers(first).isdisjoint(_with_integers(second))


def covers(wide: Any, narrow: Any, definitions: Mapping[str, Any], depth: int = 0) -> bool:
    """Return True only if `wide` is known to accept every value that `narrow` accepts.

    Values with a property that `wide` describes but `narrow` does not are ignored.
    """
    wide, narrow = target_in(definitions, wide), target_in(definitions, narrow)
    if wide is narrow or wide is True:
        return True
    if not isinstance(wide, dict) or not isinstance(narrow, dict) or depth > _MAX_DEPTH:
        return False
    if _asserted(wide) == _asserted(narrow):
        return True
    wide, narrow = _joined(wide, definitions), _joined(narrow, definitions)
    if "not" in wide or "not" in narrow:
        return False
    if wide.keys() & _BEYOND or any(key not in narrow or wide[key] != narrow[key] for key in wide.keys() & _COMPARED):
        return False
    return (
        _covers_kinds(wide, narrow)
        and _covers_choices(wide, narrow)
        and set(wide.get("required", ())) <= set(narrow.get("required", ()))
        and all(
            name not in narrow.get("properties", {})
            or covers(schema, narrow["properties"][name], definitions, depth + 1)
            for name, schema in wide.get("properties", {}).items()
        )
        and ("items" not in wide or covers(wide["items"], narrow.get("items", True), definitions, depth + 1))
    )


def _covers_kinds(wide: dict[str, Any], narrow: dict[str, Any]) -> bool:
    allowed, given = kinds_of(wide), kinds_of(narrow)
    return allowed is None or (given is not None and given <= _with_integers(allowed))


def _covers_choices(wide: dict[str, Any], narrow: dict[str, Any]) -> bool:
    allowed, given = _choices(wide), _choices(narrow)
    return allowed is None or (
        given is not None and all(any(same(choice, other) for other in allowed) for choice in given)
    )


def _choices(schema: dict[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _with_integers(kinds: Kinds) -> Kinds:
    return kinds | {"integer"} if "number" in kinds else kinds


def _kind_of(value: Any) -> str:
    return _NAMES.get(type(value)) or ("integer" if value == value // 1 else "number")


def _asserted(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key in ASSERTING}


def _joined(schema: dict[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a schema merged with its parts; if they cannot be merged, the result has the keyword `not`."""
    made = {key: value for key, value in schema.items() if key in ASSERTING and key not in ("allOf", "$ref")}
    if made.get("additionalProperties") is True:
        del made["additionalProperties"]
    for part in parts_of(schema):
        target = target_in(definitions, part)
        if not isinstance(target, dict) or depth > _MAX_DEPTH:
            return {**made, "not": {}}
        for key, value in _joined(target, definitions, depth + 1).items():
            both = _both(key, made[key], value) if key in made else value
            if both is None:
                return {**made, "not": {}}
            made[key] = both
    return made


def _both(key: str, first: Any, second: Any) -> Any:
    if key == "required":
        return [*first, *second]
    if key == "properties" and first.keys().isdisjoint(second):
        return {**first, **second}
    return first if first == second else None
