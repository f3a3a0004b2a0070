"""TypeCodec: schema, loader and dumper of one Python type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from operations.schema.schema import UNKNOWN, Schema, from_schema
from operations.schema.types.documents import describe_type
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
from operations.schema.types.loading import load_float, load_int, make_load

T = TypeVar("T")


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
