"""Loaders of Python values from JSON-like data. msgspec loads the types that it supports, this module the others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Never, NoReturn, get_args, get_origin

import msgspec

from operations.errors import CallError
from operations.schema.problems import Found
from operations.schema.types.hints import (
    Alias,
    container,
    is_anything,
    is_enum,
    is_union,
    key_of,
    record_kind,
    union_members,
    unsupported_type,
    unwrap_type,
    uses_pydantic,
)
from operations.schema.types.jsonable import error_text, jsonable
from operations.schema.types.library_choice import TEXTS, has_typed_keys, is_native
from operations.schema.types.mismatch import MAX_FOUND, found_within, message_of, mismatch, too_deep, wrong_kind
from operations.schema.types.unions import make_union_load

Load = Callable[[Any], Any]


def make_load(tp: Any) -> Load:
    """Return a function that builds values of `tp`; it raises `VALIDATION_ERROR` with the paths of mismatches."""
    load = Loaders(native=True).of(tp)

    def guarded(value: Any) -> Any:
        try:
            return load(value)
        except RecursionError:
            raise too_deep() from None

    return load if load in _LEAVES.values() or (not uses_pydantic(tp) and is_native(tp)) else guarded


def load_int(value: Any) -> Any:
    """Load an int, also from a float such as 2.0."""
    if value.__class__ is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise wrong_kind("an integer", value)


def load_float(value: Any) -> Any:
    """Load a float, also from an int."""
    if value.__class__ is float:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise mismatch([("", "the number is too large for a float")]) from error
    raise wrong_kind("a number", value)


class Loaders:
    """Creates the loaders of a type and its parts. With `native`, msgspec loads the parts that it supports."""

    def __init__(self, *, native: bool) -> None:
        self._native = native
        self._made: dict[Any, list[Load]] = {}

    def of(self, tp: Any) -> Load:
        """Return the loader of one type."""
        base, _ = unwrap_type(tp)
        if leaf := _LEAVES.get(base if isinstance(base, type) else None):
            return leaf
        if is_anything(base):
            return _same
        if uses_pydantic(tp):
            from operations.schema.types import pydantic_types

            adapter = pydantic_types.adapt(tp)
            if adapter is not None:
                return pydantic_types.make_load(adapter)
        elif self._native and is_native(tp):
            return make_native_load(tp, lambda value: Loaders(native=False).of(tp)(value))
        if isinstance(base, Alias):
            return self._recursive(base.key, lambda: self.of(base.resolve()))
        if record_kind(base):
            return self._recursive(base, lambda: self._of_record(base))
        return self._of_form(base)

    def _recursive(self, key: Any, make: Callable[[], Load]) -> Load:
        """Return a loader of a type that may refer to itself: nested uses of the type call the same loader."""
        key = key_of(key)
        if key in self._made:
            holder = self._made[key]
            return lambda value: holder[0](value)
        holder = self._made[key] = []
        holder.append(make())
        return holder[0]

    def _of_record(self, tp: Any) -> Load:
        from operations.schema.types.classes import make_class_load

        return make_class_load(tp, self.of)

    def _of_form(self, tp: Any) -> Load:
        if is_union(tp):
            return make_union_load([(member, self.of(member)) for member in union_members(tp)])
        if is_enum(tp):
            return _enum_load(tp)
        if get_origin(tp) is Literal:
            return _literal_load(get_args(tp))
        arguments = get_args(tp)
        if (get_origin(tp) or tp) is tuple:
            return self._of_tuple(arguments)
        form = container(tp)
        if form is None:
            return _text_load(tp)
        parts = [self.of(argument) for argument in arguments] or [_same, _same]
        if form[0] == "dict":
            return _dict_load(self._key_load(arguments), parts[1], form[1])
        return _list_load(parts[0], form[1])

    def _of_tuple(self, arguments: Sequence[Any]) -> Load:
        if not arguments:
            return _list_load(_same, tuple)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _list_load(self.of(arguments[0]), tuple)
        return _row_load([self.of(argument) for argument in arguments])

    def _key_load(self, arguments: Sequence[Any]) -> Load:
        if not arguments or unwrap_type(arguments[0])[0] is str:
            return _same
        key = arguments[0]
        if is_enum(unwrap_type(key)[0]) or uses_pydantic(key):
            return self.of(key)
        return lambda name: next(iter(_convert({name: None}, dict[key, None])))  # type: ignore[valid-type]


def _same(value: Any) -> Any:
    return value


def _never(value: Any) -> Any:
    raise mismatch([("", "no value is allowed")])


def _convert(value: Any, tp: Any) -> Any:
    try:
        return msgspec.convert(value, tp, str_keys=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise mismatch([("", message_of(error_text(error).partition(" - at ")[0]))]) from error


def _list_load(item: Load, build: Callable[[Any], Any]) -> Load:
    def load(value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            raise wrong_kind("an array", value)
        try:
            return _built(build, [item(member) for member in value])
        except CallError:
            raise_all((index, item, member) for index, member in enumerate(value))
            raise

    return load


def _row_load(items: Sequence[Load]) -> Load:
    def load(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise wrong_kind("an array", value)
        if len(value) != len(items):
            raise mismatch([("", f"expected an array of length {len(items)}, got {len(value)}")])
        try:
            return tuple([item(member) for item, member in zip(items, value, strict=True)])
        except CallError:
            raise_all((index, item, member) for index, (item, member) in enumerate(zip(items, value, strict=True)))
            raise

    return load


def _dict_load(key: Load, item: Load, build: Callable[[Any], Any]) -> Load:
    def load(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong_kind("an object", value)
        try:
            return build({key(name): item(member) for name, member in value.items()})
        except CallError:
            raise_all((name, key, name) for name in value)
            raise_all((name, item, member) for name, member in value.items())
            raise

    return load


def raise_all(tries: Iterable[tuple[Any, Load, Any]]) -> None:
    """Load every part again, and raise one error with the mismatches of all parts; return if every part loads.

    Each of `tries` is a key or index, the loader of the part, and the value of the part.
    """
    found: list[Found] = []
    for step, load, value in tries:
        try:
            load(value)
        except CallError as error:
            found += found_within(error, step)
            if len(found) > MAX_FOUND:
                break
    if found:
        raise mismatch(found)


def _built(build: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a constructor. Exceptions that it raises become mismatches, except CallError, which user code may raise."""
    try:
        return build(*arguments, **named)
    except (CallError, RecursionError):
        raise
    except Exception as error:
        raise mismatch([("", error_text(error))]) from error


def _enum_load(tp: Any) -> Load:
    def load(value: Any) -> Any:
        if isinstance(value, tp):
            return value
        for member in tp:
            if member.value == value or jsonable(member.value) == value:
                return member
        return _built(tp, value)

    return load


def _literal_load(values: Sequence[Any]) -> Load:
    def load(value: Any) -> Any:
        for choice in values:
            if jsonable(choice) == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise mismatch([("", f"expected one of {', '.join(map(repr, values))}, got {value!r}")])

    return load


def _text_load(tp: Any) -> Load:
    """Return the loader of a scalar type: one that JSON writes as text (UUID, date), or a subclass of a builtin."""
    if tp is Never or tp is NoReturn:
        return _never
    if not isinstance(tp, type):
        raise unsupported_type(tp)
    if tp in TEXTS:
        return lambda value: _convert(value, tp)
    if issubclass(tp, bytes | bytearray | memoryview):
        return lambda value: _built(tp, _convert(value, bytes))
    if issubclass(tp, str | int | float) or tp.__module__ == "ipaddress" or issubclass(tp, os.PathLike):
        return lambda value: value if isinstance(value, tp) else _built(tp, value)
    raise unsupported_type(tp)


def _exactly(tp: type, name: str) -> Load:
    def load(value: Any) -> Any:
        if isinstance(value, tp):
            return value
        raise wrong_kind(name, value)

    return load


_LEAVES: dict[Any, Load] = {
    int: load_int,
    float: load_float,
    str: _exactly(str, "a string"),
    bool: _exactly(bool, "a boolean"),
    type(None): _exactly(type(None), "null"),
}


def make_native_load(tp: Any, explain: Load) -> Load:
    """Return a loader of `tp` that uses msgspec; if it fails, `explain` raises the error with the exact path."""
    # msgspec prepares a class once but a generic alias on every call, so the type is put in a class.
    box: Any = msgspec.defstruct("Box", [("value", tp)], array_like=True)
    convert = msgspec.convert

    def load(value: Any) -> Any:
        try:
            return convert((value,), box).value
        except CallError:
            raise
        except Exception as error:  # noqa: BLE001  a class's own code may raise anything
            return _load_leniently(value, box, explain, error)

    def load_with_keys(value: Any) -> Any:
        try:
            return convert((value,), box, str_keys=True).value
        except CallError:
            raise
        except Exception as error:  # noqa: BLE001  as above
            return _load_leniently(value, box, explain, error)

    # Passing an option to `convert` costs more than converting a small value, hence two functions.
    return load_with_keys if has_typed_keys(tp) else load


def _load_leniently(value: Any, box: Any, explain: Load, error: Exception) -> Any:
    """Load a value that msgspec rejected, with floats such as 2.0 as ints; if this fails, raise an error with the exact
    path.
    """
    try:
        if isinstance(error, msgspec.ValidationError):
            try:
                return msgspec.convert((_with_ints(value),), box, str_keys=True).value
            except msgspec.ValidationError as again:
                error = again
        explain(value)  # raises with the exact path, which msgspec omits for mappings
    except RecursionError:
        raise too_deep() from None
    raise mismatch([_split_error(error_text(error))]) from error


def _with_ints(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_ints(item) for key, item in value.items()}
    return [_with_ints(item) for item in value] if isinstance(value, list) else value


def _split_error(message: str) -> Found:
    """Return the pointer and message of a msgspec error, which ends in ``- at `$[0].value` ``."""
    text, _, path = message.rpartition(" - at `$[0]")
    if not text:
        return "", message_of(message.partition(" - at `")[0])
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path.rstrip("`"))
    return "".join(f"/{name or index}" for name, index in steps), message_of(text)
