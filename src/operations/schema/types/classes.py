"""Loaders of classes with fields (structs, dataclasses, TypedDicts, NamedTuples) from JSON-like data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin

import msgspec

from operations.errors import CallError
from operations.schema.checking.values import pointer
from operations.schema.problems import Found
from operations.schema.types.hints import members, record_kind
from operations.schema.types.jsonable import error_text
from operations.schema.types.mismatch import found_within, mismatch, wrong_kind

Load = Callable[[Any], Any]


class _Slot(msgspec.Struct, frozen=True):
    """A field to load: its name in the data, its constructor argument, and its loader."""

    name: str
    attribute: str
    load: Load
    required: bool


def make_class_load(tp: Any, load_of: Callable[[Any], Load]) -> Load:
    """Return a loader of the class `tp`; `load_of` returns the loader of each field's type."""
    cls = get_origin(tp) or tp
    slots = [
        _Slot(member.name, member.attribute, load_of(member.type), member.required)
        for member in members(tp)
        if member.settable
    ]
    config = getattr(cls, "__struct_config__", None)
    is_row = record_kind(tp) == "namedtuple" or (config is not None and config.array_like)
    build = dict if record_kind(tp) == "typeddict" else cls

    def load(value: Any) -> Any:
        if build is not dict and isinstance(value, cls):
            return value
        if is_row:
            value = _row_as_mapping(value, slots, config)
        elif not isinstance(value, dict):
            raise wrong_kind("an object", value)
        _check_tag(value, config)
        given = _load_members(value, slots)
        try:
            return build(**given)
        except (CallError, RecursionError):
            raise
        except Exception as error:
            raise mismatch([("", error_text(error))]) from error

    return load


def _row_as_mapping(row: Any, slots: Sequence[_Slot], config: Any) -> dict[str, Any]:
    if not isinstance(row, list | tuple):
        raise wrong_kind("an array", row)
    tag = {} if config is None or config.tag is None else {config.tag_field: row[0] if row else None}
    return tag | {slot.name: value for slot, value in zip(slots, row[len(tag) :], strict=False)}


def _check_tag(value: Mapping[str, Any], config: Any) -> None:
    if config is not None and config.tag is not None:
        tag = value.get(config.tag_field, config.tag)
        if tag != config.tag:
            raise mismatch([(pointer((config.tag_field,)), f"expected {config.tag!r}, got {tag!r}")])


def _load_members(value: Mapping[str, Any], slots: Sequence[_Slot]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    found: list[Found] = []
    for slot in slots:
        if slot.name not in value:
            if slot.required:
                found.append((pointer((slot.name,)), "missing required property"))
            continue
        try:
            given[slot.attribute] = slot.load(value[slot.name])
        except CallError as error:
            found += found_within(error, slot.name)
    if found:
        raise mismatch(found)
    return given
