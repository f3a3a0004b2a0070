"""A table of a file made the struct that describes it, with every problem found and placed."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec

from operations.config.documents import Document
from operations.config.problems import ConfigProblem, Key, nearest, write_key
from operations.config.settings import Settings
from operations.config.variables import Filled

S = TypeVar("S", bound=Settings)

_PLACE = re.compile(r" - at `\$(.*)`$")


class Checker:
    """Reads tables of one file; what is wrong with them is added to `problems`."""

    def __init__(self, document: Document, problems: list[ConfigProblem]) -> None:
        self.document = document
        self._problems = problems

    def report(self, key: Key, message: str, *, mention: str = "") -> None:
        """Note a problem with what is at a key."""
        line = self.document.line(key, mention)
        self._problems.append(ConfigProblem(self.document.path, line, write_key(key), message))

    def read(self, kind: type[S], table: Any, key: Key) -> S | None:
        """The struct that a table describes; None where it does not."""
        if not isinstance(table, Mapping):
            self.report(key, f"a table is wanted, not {_kind_of(table)}")
            return None
        before = len(self._problems)
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for name in table:
            if name not in fields:
                self.report((*key, name), f"the key is not known{nearest(name, fields)}")
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in table:
                values[name] = self._read_value(field.type, table[name], (*key, name))
            elif field.required:
                self.report(key, f"{name} is missing")
        return kind(**values) if len(self._problems) == before else None

    def _read_value(self, wanted: Any, value: Any, key: Key) -> Any:
        kind = _bare(wanted)
        if isinstance(kind, type) and issubclass(kind, Settings):
            return self.read(kind, value, key)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType):
            return self._read_union(arguments, wanted, value, key)
        if origin is dict and _holds_settings(arguments[1]) and isinstance(value, Mapping):
            return {name: self._read_value(arguments[1], item, (*key, name)) for name, item in value.items()}
        if origin is list and _holds_settings(arguments[0]) and isinstance(value, list):
            return [self._read_value(arguments[0], item, (*key, number)) for number, item in enumerate(value)]
        if origin is Literal and value not in arguments:
            advice = nearest(str(value), arguments)
            # Only what is nearly right is quoted: anything else may be a secret in the wrong place.
            is_slip = isinstance(value, str) and advice.startswith("; did")
            self.report(
                key, f"{value!r} is not known{advice}" if is_slip else f"one of {', '.join(arguments)} is wanted"
            )
            return None
        return self._convert(wanted, value, key)

    def _read_union(self, members: tuple[Any, ...], wanted: Any, value: Any, key: Key) -> Any:
        """Of a union, the table if a table was given, else the one other kind that there is."""
        tables = [member for member in members if _holds_settings(member)]
        others = [member for member in members if member is not type(None) and member not in tables]
        if tables and (isinstance(value, Mapping) or not others):
            return self._read_value(tables[0], value, key)
        return self._read_value(others[0], value, key) if len(others) == 1 else self._convert(wanted, value, key)

    def _convert(self, wanted: Any, value: Any, key: Key) -> Any:
        try:
            return msgspec.convert(_plain(value), wanted, strict=not _is_filled(value))
        except msgspec.ValidationError as error:
            # Such a text names types, never values.
            place = _PLACE.search(str(error))
            message = _PLACE.sub("", str(error)).replace("`", "")
            suffix = place[1] if place else ""
            where = f"at {suffix.lstrip('.')}: " if suffix and suffix != "[...]" else ""
            self.report(key, f"{where}{message[:1].lower()}{message[1:]}")
            return None


def _bare(wanted: Any) -> Any:
    return typing.get_args(wanted)[0] if typing.get_origin(wanted) is Annotated else wanted


def _holds_settings(wanted: Any) -> bool:
    kind = _bare(wanted)
    if typing.get_origin(kind) in (Union, types.UnionType):
        return any(_holds_settings(member) for member in typing.get_args(kind))
    return isinstance(kind, type) and issubclass(kind, Settings)


def _is_filled(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_filled, value.values()))
    return any(map(_is_filled, value)) if isinstance(value, list) else isinstance(value, Filled)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Filled) else value


def _kind_of(value: Any) -> str:
    names = {str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), type(value).__name__)
