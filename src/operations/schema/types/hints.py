"""Analysis of type annotations: the type under Annotated or an alias, and the fields of a class."""

from __future__ import annotations

import collections
import collections.abc as abc
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

Kind = Literal["struct", "dataclass", "typeddict", "namedtuple"]
Mode = Literal["input", "output"]
NO_DEFAULT = msgspec.UNSET

LISTS: Mapping[Any, Callable[[Any], Any]] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Reversible: list,
    collections.deque: collections.deque,
}
SETS: Mapping[Any, Callable[[Any], Any]] = {
    set: set,
    frozenset: frozenset,
    abc.Set: set,
    abc.MutableSet: set,
}
DICTS: Mapping[Any, Callable[[Any], Any]] = {
    dict: dict,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
    collections.OrderedDict: collections.OrderedDict,
}
_MARKERS = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")


class ClassField(msgspec.Struct, frozen=True):
    """A field of a class: its Python name, JSON name, type and default."""

    attribute: str
    name: str
    type: Any
    required: bool
    default: Any = NO_DEFAULT
    factory: Any = None
    settable: bool = True
    """Whether the constructor accepts the field."""
    readable: bool = True
    """Whether instances have the field as an attribute."""


class Alias:
    """A `type X = …` alias with its arguments; it is not expanded, because it may refer to itself."""

    __slots__ = ("key", "name", "resolve")

    def __init__(self, name: str, key: Any, resolve: Callable[[], Any]) -> None:
        self.name = name
        self.key = key
        self.resolve = resolve


def unwrap_type(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type under `Annotated`, `NewType`, `Required` and similar, and the metadata of `Annotated`."""
    notes: tuple[Any, ...] = ()
    while True:
        if isinstance(tp, typing.ForwardRef | str):
            raise unsupported_type(tp, "unresolved name; pass the type itself")
        if getattr(tp, "__unpacked__", False):
            raise unsupported_type(tp, "a tuple with an unpacked part is not supported")
        origin = get_origin(tp)
        if origin is typing.Annotated:
            tp, notes = tp.__origin__, (*tp.__metadata__, *notes)
        elif origin is not None and getattr(origin, "_name", None) in _MARKERS:
            (tp,) = get_args(tp)
        elif isinstance(tp, typing.NewType):
            tp = tp.__supertype__
        elif isinstance(tp, TypeVar):
            tp = _of_variable(tp)
        elif tp is None:
            return type(None), notes
        elif tp is typing.LiteralString:
            return str, notes
        else:
            return _without_alias(tp, origin), notes


def _of_variable(variable: TypeVar) -> Any:
    """Return the replacement of an unbound type variable: its default, bound, constraints, or Any."""
    default = getattr(variable, "__default__", None)
    if default is not None and getattr(default, "__name__", "") != "NoDefault" and str(default) != "typing.NoDefault":
        return default
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007  the constraints are a tuple
    return Any if variable.__bound__ is None else variable.__bound__


def _without_alias(tp: Any, origin: Any) -> Any:
    if type(tp).__name__ == "TypeAliasType":
        return Alias(tp.__name__, tp, lambda: _alias_value(tp))
    if type(origin).__name__ == "TypeAliasType":
        arguments = dict(zip(origin.__type_params__, get_args(tp), strict=False))
        return Alias(type_name(tp), tp, lambda: substitute(_alias_value(origin), arguments))
    return tp


def _alias_value(alias: Any) -> Any:
    holder = type("Holder", (), {"__annotations__": {"value": alias.__value__}})
    return _resolved(holder, vars(sys.modules.get(alias.__module__, types)))["value"]


def key_of(tp: Any) -> Any:
    """Return a cache key for a type: the type, or its text if its metadata cannot be hashed."""
    try:
        hash(tp)
    except TypeError:
        return repr(tp)
    return tp


def is_union(tp: Any) -> bool:
    """Whether `tp` is a union in any notation."""
    origin = get_origin(tp)
    return origin is Union or origin is types.UnionType


def union_members(tp: Any) -> list[Any]:
    """Return the members of a union, without msgspec's UNSET."""
    return [member for member in get_args(tp) if member is not msgspec.UnsetType]


def is_anything(tp: Any) -> bool:
    """Whether `tp` has no constraints: `Any`, `object`, or no annotation."""
    return tp is Any or tp is object or getattr(tp, "__qualname__", None) in ("_empty", "Parameter.empty")


def is_enum(tp: Any) -> bool:
    """Whether `tp` is an enumeration."""
    return isinstance(tp, sys.modules["enum"].EnumMeta)


def record_kind(tp: Any) -> Kind | None:
    """Return the kind of a class with fields (`tp` or its origin); None for other types."""
    cls = get_origin(tp) or tp
    if not isinstance(cls, type):
        return None
    if issubclass(cls, msgspec.Struct):
        return "struct"
    if "__dataclass_fields__" in vars(cls) or hasattr(cls, "__dataclass_fields__"):
        return "dataclass"
    if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
        return "typeddict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    return None


def members(tp: Any) -> tuple[ClassField, ...]:
    """Return the fields of a struct, dataclass, TypedDict or NamedTuple, with resolved types."""
    try:
        hash(tp)
    except TypeError:
        return _find_members(tp)
    return _cached_members(tp, "" if isinstance(tp, type) else repr(tp))


def _find_members(tp: Any, text: str = "") -> tuple[ClassField, ...]:
    kind = record_kind(tp)
    hints = _hints_of(tp)
    cls = get_origin(tp) or tp
    if kind == "struct":
        return tuple(_struct_members(cls, hints))
    if kind == "dataclass":
        return tuple(_dataclass_members(cls, hints))
    if kind == "typeddict":
        return tuple(_typeddict_members(cls, hints))
    defaults = cls._field_defaults
    return tuple(
        ClassField(name, name, hints.get(name, Any), name not in defaults, defaults.get(name, NO_DEFAULT))
        for name in cls._fields
    )


# Resolving annotations is most of the cost of a codec, and each class is resolved several times.
_cached_members = lru_cache(maxsize=1024)(_find_members)


def _struct_members(cls: Any, hints: Mapping[str, Any]) -> Iterator[ClassField]:
    for field in msgspec.structs.fields(cls):
        factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
        default = NO_DEFAULT if field.default is msgspec.NODEFAULT else field.default
        yield ClassField(field.name, field.encode_name, hints[field.name], field.required, default, factory)


def _dataclass_members(cls: Any, hints: Mapping[str, Any]) -> Iterator[ClassField]:
    from dataclasses import MISSING, InitVar

    for field in cls.__dataclass_fields__.values():
        tp = hints.get(field.name, Any)
        form = field._field_type.name
        if form == "_FIELD_CLASSVAR":
            continue
        factory = None if field.default_factory is MISSING else field.default_factory
        default = NO_DEFAULT if field.default is MISSING else field.default
        yield ClassField(
            field.name,
            field.name,
            tp.type if isinstance(tp, InitVar) else tp,
            factory is None and default is NO_DEFAULT and field.init,
            default,
            factory,
            field.init,
            form == "_FIELD",
        )


def _typeddict_members(cls: Any, hints: Mapping[str, Any]) -> Iterator[ClassField]:
    for name, tp in hints.items():
        required = name in cls.__required_keys__
        inner = tp
        # With postponed annotations the markers are strings when the class is created, so its key sets miss them.
        while getattr(get_origin(inner), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
            mark = get_origin(inner)._name
            required = required if mark == "ReadOnly" else mark == "Required"
            (inner,) = get_args(inner)
        yield ClassField(name, name, inner, required)


def _hints_of(tp: Any) -> dict[str, Any]:
    """Return a class's resolved annotations, with its type variables substituted."""
    cls = get_origin(tp) or tp
    hints = _resolved(cls, None)
    filled = _variables(tp, {})
    if not filled:
        return hints
    return {name: substitute(hint, filled.get(_owner(cls, name, filled), {})) for name, hint in hints.items()}


def _owner(cls: Any, name: str, filled: Mapping[Any, Any]) -> Any:
    """Return the class that annotates `name`.

    A TypedDict does not keep its bases: the bases are found by their annotations.
    """
    if record_kind(cls) == "typeddict":
        owners = [base for base in filled if name in vars(base).get("__annotations__", {})]
        return owners[-1] if owners else cls
    return next((base for base in cls.__mro__ if name in vars(base).get("__annotations__", {})), cls)


def _variables(tp: Any, outer: Mapping[Any, Any]) -> dict[Any, dict[Any, Any]]:
    """Return the type arguments of each generic class among `tp` and its bases."""
    cls = get_origin(tp) or tp
    parameters = getattr(cls, "__parameters__", ())
    arguments = [substitute(argument, outer) for argument in get_args(tp)]
    mine = dict(zip(parameters, arguments, strict=False))
    found = {cls: mine} if mine else {}
    for base in getattr(cls, "__orig_bases__", ()):
        if get_origin(base) not in (None, typing.Generic, typing.Protocol):
            found |= _variables(base, mine)
    return found


def _resolved(holder: Any, namespace: dict[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(holder, globalns=namespace, include_extras=True)
    except NameError as error:
        raise unsupported_type(holder, f"undefined name {error.name!r} in its annotations") from error


def substitute(tp: Any, filled: Mapping[Any, Any]) -> Any:
    """Return `tp` with its type variables substituted."""
    if isinstance(tp, TypeVar):
        return filled.get(tp, tp)
    parameters = getattr(tp, "__parameters__", ())
    if not filled or not parameters or isinstance(tp, type):
        return tp
    return tp[tuple(filled.get(parameter, parameter) for parameter in parameters)]


def type_name(tp: Any) -> str:
    """Return a name for `tp` that is valid in a JSON pointer: `Box[int]` is `Box_int`."""
    origin = get_origin(tp)
    base = origin or tp
    name = getattr(base, "__name__", None) or str(base).replace("typing.", "")
    arguments = [type_name(argument) for argument in get_args(tp)] if origin is not None else []
    text = "_".join([name, *arguments])
    return "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in text)


def docstring(cls: Any) -> str:
    """Return the first paragraph of a class's own docstring; empty without one."""
    text = vars(cls).get("__doc__") or ""
    if text.startswith(f"{cls.__name__}(") or text == "An enumeration.":
        return ""  # generated by dataclass, NamedTuple or enum
    lines = [line.strip() for line in text.strip().splitlines()]
    return " ".join(lines[: lines.index("")] if "" in lines else lines)


def unsupported_type(tp: Any, reason: str = "") -> TypeError:
    """Return the error for an unsupported type; without a `reason`, it lists the supported types."""
    shown = getattr(tp, "__qualname__", None) or str(tp)
    supported = (
        "unsupported type; use one of: a pydantic model, a dataclass, a TypedDict, a NamedTuple, a msgspec.Struct, "
        "an enum, Literal, a union, list, dict, tuple, set, str, int, float, bool, bytes, None, datetime, date, time, "
        "timedelta, UUID, Decimal, Path, or Any"
    )
    return TypeError(f"cannot make a JSON Schema from {shown}: {reason or supported}")


def children(tp: Any) -> Iterator[Any]:
    """Yield the parts of an unwrapped type."""
    if isinstance(tp, Alias):
        yield tp.resolve()
    elif record_kind(tp):
        yield from (member.type for member in members(tp))
    elif get_origin(tp) is not Literal:
        yield from (argument for argument in get_args(tp) if argument is not Ellipsis)


def uses_pydantic(tp: Any) -> bool:
    """Whether `tp` is, contains or is annotated with a pydantic type."""
    if "pydantic" not in sys.modules:
        return False
    seen: list[Any] = []

    def visit(part: Any) -> bool:
        base, notes = unwrap_type(part)
        if any(type(note).__module__.startswith("pydantic") for note in notes) or is_pydantic(base):
            return True
        key = base.key if isinstance(base, Alias) else base
        if key in seen:
            return False
        seen.append(key)
        return any(visit(child) for child in children(base))

    return visit(tp)


def is_pydantic(tp: Any) -> bool:
    """Whether `tp` itself is a class with pydantic's hooks."""
    cls = get_origin(tp) or tp
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def container(tp: Any) -> tuple[Literal["list", "set", "dict"], Callable[[Any], Any]] | None:
    """Return the kind and the constructor of a container type; None for other types."""
    origin = key_of(get_origin(tp) or tp)
    if origin in LISTS:
        return "list", LISTS[origin]
    if origin in SETS:
        return "set", SETS[origin]
    if origin in DICTS:
        return "dict", DICTS[origin]
    return None
