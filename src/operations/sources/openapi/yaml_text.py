"""YAML parser for JSON-like data by YAML 1.2: dates, `yes` and `=` stay strings, and keys become strings."""

from __future__ import annotations

import math
import re
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.schema.checking.values import unicode_text

_MAX_NODES = 5_000_000
"""Maximum number of values that aliases may expand to: a few lines can expand to billions."""
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read_yaml(text: str) -> Any:
    """Parse one document; raise `VALIDATION_ERROR` with the problem and its position."""
    # YAML does not allow control characters, but real documents contain them.
    text = _CONTROLS.sub("", text)
    try:
        return with_text_keys(_read_fast(text))
    except ValueError as error:
        reason = str(error)
    # Published documents are not always valid YAML 1.2: retry with a more lenient parser, and with tabs replaced.
    for lenient in dict.fromkeys((text, text.replace("\t", "  "))):
        try:
            return with_text_keys(_read_lenient(lenient))
        except ValueError:
            continue
    raise CallError(ErrorCode.VALIDATION_ERROR, f"malformed YAML: {reason}")


def _read_fast(text: str) -> Any:
    try:
        import fast_yaml
    except ImportError as error:
        raise _missing() from error
    return fast_yaml.safe_load(text)


def _read_lenient(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise _missing() from error
    parse = getattr(yaml, "CParser", None) or yaml.SafeLoader
    parser = parse(text)
    try:
        return _Builder(parser).document()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    finally:
        parser.dispose()


def _missing() -> CallError:
    message = 'YAML requires the extra "openapi": pip install "operations[openapi]"'
    return CallError(ErrorCode.VALIDATION_ERROR, message)


class _Builder:
    """Builds values from PyYAML's parser events, typed by the core schema of YAML 1.2 instead of PyYAML's 1.1."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._anchors: dict[str, Any] = {}
        self._left = _MAX_NODES

    def document(self) -> Any:
        """Return the first document of the stream; None if it is empty."""
        events = self._parser
        events.get_event()
        if type(events.peek_event()).__name__ != "DocumentStartEvent":
            return None
        events.get_event()
        return self._node(0)

    def _node(self, depth: int) -> Any:
        if depth > 250:
            raise ValueError("nested deeper than 250 levels")
        event = self._parser.get_event()
        kind = type(event).__name__
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise ValueError(f"unknown alias *{event.anchor}")
            return self._anchors[event.anchor]
        if kind == "ScalarEvent":
            value = _scalar(event.value, event.tag, plain=event.implicit[0])
        elif kind == "SequenceStartEvent":
            value = self._sequence(depth)
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while type(self._parser.peek_event()).__name__ != "SequenceEndEvent":
            items.append(self._node(depth + 1))
        self._parser.get_event()
        return items

    def _mapping(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        while type(self._parser.peek_event()).__name__ != "MappingEndEvent":
            key = self._node(depth + 1)
            value = self._node(depth + 1)
            if key == "<<":
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, dict):
                        self._merge(part, merged)
            elif isinstance(key, (dict, list)):
                raise ValueError("a mapping or a list cannot be a key")
            else:
                members[key] = value
        self._parser.get_event()
        return {**merged, **members}

    def _merge(self, part: dict[Any, Any], merged: dict[Any, Any]) -> None:
        """Add the members of a mapping under `<<`, replace no others; raise `ValueError` if there are too many."""
        self._left -= len(part)
        if self._left < 0:
            raise ValueError(f"aliases expand to more than {_MAX_NODES:,} values")
        for key, value in part.items():
            merged.setdefault(key, value)


def _scalar(text: str, tag: str | None, *, plain: bool) -> Any:
    if not plain or (tag is not None and tag.endswith(":str")):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) < 4_000 else text
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    return float(text) if _FLOAT.fullmatch(text) else text


def with_text_keys(value: Any) -> Any:
    """Return a copy with string keys, valid text and JSON numbers; raise `ValueError` if it has too many values."""
    left = _MAX_NODES
    seen: dict[int, tuple[Any, int]] = {}

    def copy(node: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"aliases expand to more than {_MAX_NODES:,} values")
        kind = type(node)
        if kind is dict:
            known = seen.get(id(node))
            if known is not None:
                left -= known[1]
                return known[0]
            before = left
            made: Any = {_key(key): copy(member) for key, member in node.items()}
            seen[id(node)] = made, before - left
            return made
        if kind is list:
            return [copy(item) for item in node]
        if kind is float and not math.isfinite(node):
            return str(node)
        return unicode_text(node) if kind is str else node

    return copy(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return unicode_text(key)
    if key is None:
        return "null"
    return str(key).lower() if isinstance(key, bool) else str(key)
