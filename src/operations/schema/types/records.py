"""RecordCodec: converts the arguments of a function between a JSON-like object and Python values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from operations.errors import CallError
from operations.schema.schema import deferred_schema
from operations.schema.types.codecs import TypeCodec, codec_for
from operations.schema.types.documents import Writer, with_default
from operations.schema.types.loading import load_float, load_int, raise_all

_EXACT: dict[Any, str] = {load_int: "int", load_float: "float"}


class Field(msgspec.Struct, frozen=True):
    """A field of an object: a parameter of a function."""

    name: str
    type: Any
    required: bool = True
    default: Any = msgspec.UNSET
    description: str = ""


class RecordCodec:
    """The schema of an object with given fields, and the functions that convert such objects.

    Each access to `load` or `dump` creates a new function, or returns None if no data needs the conversion.
    """

    __slots__ = ("_extra", "_fields", "schema")

    def __init__(self, fields: Sequence[Field], extra: Any) -> None:
        self._fields = tuple(fields)
        self._extra = extra
        self._describe()  # raises now, not at the first call, if a type has no schema
        self.schema = deferred_schema(self._describe)

    @property
    def converts(self) -> bool:
        """Whether some data needs conversion; `load` is then a function, otherwise None."""
        codecs, rest = self._codecs()
        return any(codec is not None and codec.load is not None for codec in (*codecs.values(), rest))

    @property
    def load(self) -> Callable[[Any], dict[str, Any]] | None:
        """A function that converts JSON-like data to Python values; None if no field needs conversion."""
        codecs, rest = self._codecs()
        return _make_each({name: codec.load for name, codec in codecs.items()}, None if rest is None else rest.load)

    @property
    def dump(self) -> Callable[[Any], dict[str, Any]] | None:
        """A function that converts Python values to JSON-like data; None if no field needs conversion."""
        codecs, rest = self._codecs()
        return _make_each({name: codec.dump for name, codec in codecs.items()}, None if rest is None else rest.dump)

    def _codecs(self) -> tuple[dict[str, TypeCodec[Any]], TypeCodec[Any] | None]:
        """Return the codec of each field by name, and the codec of undeclared fields."""
        codecs = {field.name: codec_for(field.type, mode="input") for field in self._fields}
        return codecs, None if self._extra is None else codec_for(self._extra, mode="input")

    def _describe(self) -> dict[str, Any]:
        return _describe(self._fields, self._extra)


def record_codec(fields: Sequence[Field], *, extra: Any = None) -> RecordCodec:
    """Return the codec of an object with these fields; `extra` is the type of other fields, None rejects them.

    An absent optional field stays absent, so that the function's default applies.
    """
    return RecordCodec(fields, extra)


def _describe(fields: Sequence[Field], extra: Any) -> dict[str, Any]:
    writer = Writer("input")
    properties = {}
    for field in fields:
        document = with_default(writer.describe(field.type), field.default)
        properties[field.name] = {**document, "description": field.description} if field.description else document
    others: Any = False if extra is None else writer.describe(extra) or True
    document = {"type": "object", "properties": properties, "additionalProperties": others}
    if required := [field.name for field in fields if field.required]:
        document["required"] = required
    return writer.finished(document)


def _make_each(
    each: Mapping[str, Callable[[Any], Any] | None], rest: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """Return a function that converts the fields of an object; None if no field needs conversion.

    `each` has the function that converts a field, by name; `rest` converts all other fields. The returned function is
    compiled from generated source code for speed, because it runs on every call of an operation.
    """
    busy = {name: function for name, function in each.items() if function is not None}
    if not busy and rest is None:
        return None
    lines = ["def each(value):", "    out = value", "    try:"]
    scope: dict[str, Any] = {"CallError": CallError, "known": frozenset(each), "rest": rest}
    scope["fail"] = lambda value: _fail(value, busy, each, rest)
    for index, (name, function) in enumerate(busy.items()):
        scope[f"f{index}"] = function
        exact = _EXACT.get(function)
        lines += [
            f"        if {name!r} in value:",
            f"            member = value[{name!r}]",
            *([f"            if member.__class__ is not {exact}:"] if exact else ["            if True:"]),
            "                if out is value: out = {**value}",
            f"                out[{name!r}] = f{index}(member)",
        ]
    if rest is not None:
        lines += [
            "        if not known.issuperset(value):",
            "            if out is value: out = {**value}",
            "            for name in value:",
            "                if name not in known: out[name] = rest(value[name])",
        ]
    lines += ["    except CallError:", "        fail(value)", "        raise", "    return out"]
    exec("\n".join(lines), scope)
    return scope["each"]  # type: ignore[no-any-return]


def _fail(
    value: Mapping[str, Any],
    busy: Mapping[str, Callable[[Any], Any]],
    known: Collection[str],
    rest: Callable[[Any], Any] | None,
) -> None:
    """Raise one error with the mismatches of all fields, not just of the first."""
    tries = [(name, function, value[name]) for name, function in busy.items() if name in value]
    if rest is not None:
        tries += [(name, rest, member) for name, member in value.items() if name not in known]
    raise_all(tries)
