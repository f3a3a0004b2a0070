"""Which library looks after a type: pydantic, msgspec alone, or our own composition of both; or nobody need."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec

from operations.schema.types.hints import (
    DICTS,
    LISTS,
    NO_DEFAULT,
    SETS,
    Alias,
    is_anything,
    is_enum,
    is_union,
    key_of,
    members,
    peel,
    record_kind,
    union_members,
)

TEXTS = {
    datetime.datetime: "date-time",
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "duration",
    UUID: "uuid",
    Decimal: "decimal",
}
"""The types that msgspec writes as text, with the format that says so."""

_NATIVE_LEAVES = frozenset({str, int, float, bool, type(None), bytes, bytearray, *TEXTS})
_SAME_LEAVES = frozenset({str, bool, type(None), list, dict})
_PLAIN_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def children(tp: Any) -> Iterator[Any]:
    """The types that a peeled type is made of."""
    if isinstance(tp, Alias):
        yield tp.resolve()
    elif record_kind(tp):
        yield from (member.type for member in members(tp))
    elif get_origin(tp) is not Literal:
        yield from (argument for argument in get_args(tp) if argument is not Ellipsis)


def uses_pydantic(tp: Any) -> bool:
    """Whether `tp` is, holds or is annotated with something of pydantic's."""
    if "pydantic" not in sys.modules:
        return False
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, notes = peel(part)
        if any(type(note).__module__.startswith("pydantic") for note in notes) or is_pydantic(base):
            return True
        key = base.key if isinstance(base, Alias) else base
        if key in seen:
            return False
        seen.append(key)
        return any(visit(child) for child in children(base))

    return visit(tp)


def is_pydantic(tp: Any) -> bool:
    """Whether `tp` itself is a class that pydantic knows how to handle by what is written on it."""
    cls = get_origin(tp) or tp
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def is_native(tp: Any) -> bool:
    """Whether msgspec loads all of `tp` in just the way we would."""
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, _ = peel(part)
        if key_of(base) in _NATIVE_LEAVES or is_anything(base):
            return True
        if isinstance(base, Alias):
            return False
        if base in seen:
            return True
        seen.append(base)
        return _is_native_form(base) and all(visit(child) for child in children(base))

    return visit(tp) and _accepted_by_msgspec(tp)


def _is_native_form(tp: Any) -> bool:
    """Whether msgspec knows this form, its parts aside."""
    kind = record_kind(tp)
    if kind == "dataclass":
        return _is_native_dataclass(tp)
    if kind or is_union(tp):
        return True
    if is_enum(tp):
        return {type(item.value) for item in tp} in ({str}, {int})
    origin = get_origin(tp) or tp
    return origin is Literal or origin is tuple or origin in {list, set, frozenset, dict}


def _is_native_dataclass(tp: Any) -> bool:
    # msgspec passes a dataclass's constructor by, and leaves a plain default out of the instance's own members.
    return all(member.settable and member.readable and member.default is NO_DEFAULT for member in members(tp))


def _accepted_by_msgspec(tp: Any) -> bool:
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, RecursionError):
        return False
    return True


def has_typed_keys(tp: Any) -> bool:
    """Whether `tp` holds a mapping whose keys are something else than text."""
    return _somewhere(tp, lambda part: get_origin(part) is dict and peel(get_args(part)[0])[0] is not str)


def may_hold_bytes(tp: Any) -> bool:
    """Whether values of `tp` may hold bytes: it says so, or it does not say what they hold."""
    return _somewhere(tp, lambda part: part in (bytes, bytearray, list, dict, set, tuple) or is_anything(part))


def is_flat(tp: Any) -> bool:
    """Whether `tp` holds no list, tuple, set or mapping, however deep."""
    return not _somewhere(tp, lambda part: container(part) or tuple in (part, get_origin(part)) or _is_row(part))


def _is_row(tp: Any) -> bool:
    config = getattr(get_origin(tp) or tp, "__struct_config__", None)
    return record_kind(tp) == "namedtuple" or (config is not None and config.array_like)


def _somewhere(tp: Any, test: Callable[[Any], Any]) -> bool:
    """Whether `test` holds for `tp` or for anything it is made of."""
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, _ = peel(part)
        if isinstance(base, Alias):
            base = base.key
        if base in seen:
            return False
        seen.append(base)
        return bool(test(base)) or any(visit(child) for child in children(peel(base)[0]))

    return visit(tp)


def needs_no_load(tp: Any) -> bool:
    """Whether JSON-shaped data that fits the schema is the Python value already."""
    return _all_leaves(tp, lambda leaf: leaf in _SAME_LEAVES or is_anything(leaf), (str, bool))


def needs_no_dump(tp: Any) -> bool:
    """Whether the Python value is JSON-shaped already."""
    return _all_leaves(tp, lambda leaf: leaf in _PLAIN_LEAVES, (str, bool, int))


def _all_leaves(tp: Any, accept: Callable[[Any], bool], literals: tuple[type, ...]) -> bool:
    base, _ = peel(tp)
    if isinstance(base, Alias):
        return False  # it may refer to itself; going through the members is right, only slower
    if is_union(base):
        return all(_all_leaves(member, accept, literals) for member in union_members(base))
    origin, arguments = get_origin(base), get_args(base)
    if origin is Literal:
        return all(value is None or type(value) in literals for value in arguments)
    if origin is list:
        return _all_leaves(arguments[0], accept, literals)
    if origin is dict:
        return peel(arguments[0])[0] is str and _all_leaves(arguments[1], accept, literals)
    return accept(key_of(base))


def container(tp: Any) -> tuple[Literal["list", "set", "dict"], Callable[[Any], Any]] | None:
    """What sort of container `tp` is and what builds it; None for anything else."""
    origin = key_of(get_origin(tp) or tp)
    if origin in LISTS:
        return "list", LISTS[origin]
    if origin in SETS:
        return "set", SETS[origin]
    if origin in DICTS:
        return "dict", DICTS[origin]
    return None
