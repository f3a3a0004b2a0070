"""Types that msgspec loads alone: its fast way, and a slow second look at what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from operations.errors import CallError
from operations.schema.problems import Found
from operations.schema.types.jsonable import error_text
from operations.schema.types.mismatch import mismatch, too_deep
from operations.schema.types.routes import has_typed_keys

Load = Callable[[Any], Any]


def make_native_load(tp: Any, explain: Load) -> Load:
    """msgspec's own loader; `explain` is asked what is wrong with a value that it refuses, and where."""
    # msgspec prepares a class once but a generic alias on every call, so the type is put on a class of its own.
    box: Any = msgspec.defstruct("Box", [("value", tp)], array_like=True)
    convert = msgspec.convert

    def load(value: Any) -> Any:
        try:
            return convert((value,), box).value
        except CallError:
            raise
        except Exception as error:  # noqa: BLE001  a class's own code may raise anything
            return _second_look(value, box, explain, error)

    def load_with_keys(value: Any) -> Any:
        try:
            return convert((value,), box, str_keys=True).value
        except CallError:
            raise
        except Exception as error:  # noqa: BLE001  as above
            return _second_look(value, box, explain, error)

    # An option given to `convert` costs more than a small value does, hence two functions.
    return load_with_keys if has_typed_keys(tp) else load


def _second_look(value: Any, box: Any, explain: Load, error: Exception) -> Any:
    """Load a value whose floats are whole where ints are wanted, or tell where it does not fit."""
    try:
        if isinstance(error, msgspec.ValidationError):
            try:
                return msgspec.convert((_with_ints(value),), box, str_keys=True).value
            except msgspec.ValidationError as again:
                error = again
        explain(value)  # raises with the exact place, which msgspec leaves out for mappings
    except RecursionError:
        raise too_deep() from None
    raise mismatch([_place(error_text(error))]) from error


def _with_ints(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_ints(item) for key, item in value.items()}
    return [_with_ints(item) for item in value] if isinstance(value, list) else value


def _place(message: str) -> Found:
    """The pointer and the message in one of msgspec's, which ends in ``- at `$[0].value` ``."""
    text, _, path = message.rpartition(" - at `$[0]")
    if not text:
        return "", message.partition(" - at `")[0]
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path.rstrip("`"))
    return "".join(f"/{name or index}" for name, index in steps), text
