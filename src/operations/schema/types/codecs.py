"""TypeCodec: schema, loader and dumper of one Python type; RecordCodec: the same for the arguments of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from operations.errors import CallError
from operations.schema.schema import UNKNOWN, Schema, deferred_schema, from_schema
from operations.schema.types.documents import Writer, describe_type, with_default
from operations.schema.types.hints import Mode, is_union, record_kind, unwrap_type, uses_pydantic
from operations.schema.types.jsonable import dump_of_class, jsonable
from operations.schema.types.library_choice import (
    TEXTS,
    has_typed_keys,
    is_flat,
    may_hold_bytes,
    needs_no_dump,
    needs_no_load,
)
from operations.schema.types.loading import load_float, load_int, make_load, raise_all

T = TypeVar("T")
_EXACT: dict[Any, str] = {load_int: "int", load_float: "float"}


class TypeCodec(Generic[T]):
    """The schema of a type, and the functions `load` and `dump` for its values; a function is None if it would change
    nothing.
    """

    __slots__ = ("_schema", "_write", "dump", "load", "type")

    type: Any
    load: Callable[[Any], T] | None
    dump: Callable[[Any], Any] | None
    _write: Callable[[], dict[str, Any] | Literal[True]]
    _schema: Schema | None

    def __init__(
        self,
        tp: Any,
        *,
        write: Callable[[], dict[str, Any] | Literal[True]],
        load: Callable[[Any], T] | None = None,
        dump: Callable[[Any], Any] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "type", tp)
        put(self, "load", load)
        put(self, "dump", dump)
        put(self, "_write", write)
        put(self, "_schema", None)

    @property
    def schema(self) -> Schema:
        """The type's JSON Schema, written on first access."""
        schema = self._schema
        if schema is None:
            document = self._write()
            schema = UNKNOWN if document is True else from_schema(document)
            object.__setattr__(self, "_schema", schema)
        return schema

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a TypeCodec is frozen: cannot set {name!r}")

    def __repr__(self) -> str:
        return f"TypeCodec({self.type!r})"


def from_type(tp: Any, *, mode: Mode = "output") -> Schema:
    """Return the JSON Schema of a Python type; raise `TypeError` if it has none.

    `mode` matters for types that differ by direction: "input" describes what can be loaded, "output" what is dumped. A
    pydantic model's computed fields are only in its output, a dataclass's InitVars only in its input.
    """
    return codec_for(tp, mode=mode).schema


def codec_for(tp: Any, *, mode: Mode = "output") -> TypeCodec[Any]:
    """Return the codec of a Python type; raise `TypeError` if the type is not supported."""
    try:
        hash(tp)
    except TypeError:
        return _make_codec(tp, mode)
    # Unions of the same types in another order are equal, but the order matters here; their repr() differs.
    return _cached_codec(tp, mode, "" if isinstance(tp, type) else repr(tp))


def _make_codec(tp: Any, mode: Mode, text: str = "") -> TypeCodec[Any]:
    load, dump = _ways(tp)
    return TypeCodec(tp, write=lambda: describe_type(tp, mode=mode), load=load, dump=dump)


_cached_codec = lru_cache(maxsize=1024, typed=True)(_make_codec)


def _ways(tp: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    if uses_pydantic(tp):
        from operations.schema.types import pydantic_types

        adapter = pydantic_types.adapt(tp)
        if adapter is not None:
            return pydantic_types.make_load(adapter), pydantic_types.make_dump(adapter, jsonable)
    base, _ = unwrap_type(tp)
    if base is int:
        return load_int, None
    if base is float:
        return load_float, None
    load = None if needs_no_load(tp) else make_load(tp)
    if needs_no_dump(tp):
        return load, None
    part = _part(base)
    return load, dump_of_class(part, flat=is_flat(part)) if _is_plain_class(part) else jsonable


def _part(tp: Any) -> Any:
    """Return `cls` for the types `list[cls]` and `cls | None`; return any other type unchanged."""
    parts = [part for part in get_args(tp) if part is not type(None)]
    if len(parts) == 1 and (get_origin(tp) is list or is_union(tp)):
        return unwrap_type(parts[0])[0]
    return tp


def _is_plain_class(tp: Any) -> bool:
    """Whether msgspec converts all instances of this class to JSON-like data without options."""
    if record_kind(tp) in ("struct", "dataclass"):
        return not (may_hold_bytes(tp) or has_typed_keys(tp) or uses_pydantic(tp))
    return isinstance(tp, type) and tp in TEXTS


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
