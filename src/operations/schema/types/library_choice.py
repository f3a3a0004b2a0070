"""Checks of a type that decide how its values are loaded and dumped: by msgspec, part by part, or not at all."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec

from operations.schema.types.hints import (
    NO_DEFAULT,
    Alias,
    children,
    container,
    is_anything,
    is_enum,
    is_union,
    key_of,
    members,
    record_kind,
    union_members,
    unwrap_type,
)

TEXTS = {
    datetime.datetime: "date-time",
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "duration",
    UUID: "uuid",
    Decimal: "decimal",
}
"""Types that msgspec writes as strings, with their format."""

_NATIVE_LEAVES = frozenset({str, int, float, bool, type(None), bytes, bytearray, *TEXTS})
_SAME_LEAVES = frozenset({str, bool, type(None), list, dict})
_PLAIN_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def is_native(tp: Any) -> bool:
    """Whether msgspec loads all values of `tp` exactly as our own loaders do."""
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, _ = unwrap_type(part)
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
    """Whether msgspec supports a type itself; its parts are not examined."""
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
    # msgspec bypasses a dataclass's constructor, and omits plain defaults from the instance's attributes.
    return all(member.settable and member.readable and member.default is NO_DEFAULT for member in members(tp))


def _accepted_by_msgspec(tp: Any) -> bool:
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, RecursionError):
        return False
    return True


def has_typed_keys(tp: Any) -> bool:
    """Whether `tp` has a mapping with keys other than strings."""
    return _somewhere(tp, lambda part: get_origin(part) is dict and unwrap_type(get_args(part)[0])[0] is not str)


def may_hold_bytes(tp: Any) -> bool:
    """Whether values of `tp` may contain bytes: as declared, or in parts without a declared type."""
    return _somewhere(tp, lambda part: part in (bytes, bytearray, list, dict, set, tuple) or is_anything(part))


def is_flat(tp: Any) -> bool:
    """Whether `tp` contains no list, tuple, set or mapping at any depth."""
    return not _somewhere(tp, lambda part: container(part) or tuple in (part, get_origin(part)) or _is_row(part))


def _is_row(tp: Any) -> bool:
    config = getattr(get_origin(tp) or tp, "__struct_config__", None)
    return record_kind(tp) == "namedtuple" or (config is not None and config.array_like)


def _somewhere(tp: Any, test: Callable[[Any], Any]) -> bool:
    """Whether `test` holds for `tp` or any of its parts."""
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, _ = unwrap_type(part)
        if isinstance(base, Alias):
            base = base.key
        if base in seen:
            return False
        seen.append(base)
        return bool(test(base)) or any(visit(child) for child in children(unwrap_type(base)[0]))

    return visit(tp)


def needs_no_load(tp: Any) -> bool:
    """Whether valid JSON-like data of `tp` is already the Python value, so that nothing needs to be converted."""
    return _all_leaves(tp, lambda leaf: leaf in _SAME_LEAVES or is_anything(leaf), (str, bool))


def needs_no_dump(tp: Any) -> bool:
    """Whether the values of `tp` are already JSON-like, so that nothing needs to be converted."""
    return _all_leaves(tp, lambda leaf: leaf in _PLAIN_LEAVES, (str, bool, int))


def _all_leaves(tp: Any, accept: Callable[[Any], bool], literals: tuple[type, ...]) -> bool:
    base, _ = unwrap_type(tp)
    if isinstance(base, Alias):
        return False  # may refer to itself; walking the fields is correct, only slower
    if is_union(base):
        return all(_all_leaves(member, accept, literals) for member in union_members(base))
    origin, arguments = get_origin(base), get_args(base)
    if origin is Literal:
        return all(value is None or type(value) in literals for value in arguments)
    if origin is list:
        return _all_leaves(arguments[0], accept, literals)
    if origin is dict:
        return unwrap_type(arguments[0])[0] is str and _all_leaves(arguments[1], accept, literals)
    return accept(key_of(base))
