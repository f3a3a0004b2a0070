"""An operation's input from words: `key=value` typed by the schema, `key:=json`, `key@file`, `@input.json`, `-`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from operations.cli.arguments import UsageError, suggestion
from operations.cli.fields import Fields
from operations.cli.fields import Path as Place
from operations.cli.stderr import warn

_WORD = re.compile(r"^(?P<key>[^=@:]+(?::(?!=)[^=@:]*)*?)(?P<sign>:=@|=@|:=|=|@)(?P<value>.*)$", re.S)
_STEP = re.compile(r"\[(\d*)\]|([^.\[\]]+)")
_APPEND = -1
_STDIN = ("-", "@-")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

INPUT_FORMS = (
    ("item=tea", "a value, read as the type that the schema gives the field"),
    ("count:=4", "JSON: a number, true, null, a list, an object"),
    ("photo@cat.png", "the content of a file; bytes where the schema wants bytes"),
    ("filter:=@f.json", "JSON from a file"),
    ("address.city=Rome", "a field of a field"),
    ("tags=a tags=b", "a list; tags[]=a and tags[0]=a say so where the schema does not"),
    ("@input.json", "the whole input from a file; - or @- reads it from stdin"),
)


def read_stdin(words: Sequence[str]) -> bytes:
    """What stdin holds, where the words ask for it: to be read before anything is under way that would wait."""
    return sys.stdin.buffer.read() if sys.stdin is not None and any(word in _STDIN for word in words) else b""


def read_input(words: Sequence[str], document: object, stdin: bytes = b"") -> Any:
    """The input that words describe, for an operation with this input schema; None where there are no words."""
    fields = Fields(document)
    whole: Any = None
    said: set[tuple[str | int, ...]] = set()
    for word in words:
        if word == "-" or word.startswith(("@", "{", "[")):
            if whole is not None:
                raise UsageError(f"the whole input is given twice: {word!r}")
            whole = _read_whole(word, stdin)
            continue
        match = _WORD.match(word)
        if match is None:
            raise UsageError(f"{word!r} is no input: key=value, key:=json, key@file or @input.json", _example(fields))
        if whole is None:
            whole = {}
        if not isinstance(whole, dict):
            raise UsageError(f"{word!r} cannot be put into an input that is no object")
        place = _place(match["key"], fields)
        _check_name(place, fields)
        _put(whole, place, _value(match["sign"], match["value"], place, fields), match["key"], said)
    return whole


def _read_whole(word: str, stdin: bytes) -> Any:
    if word in _STDIN:
        return _json(stdin, "stdin")
    if word.startswith("@"):
        return _json(_read_file(word[1:]), word[1:])
    return _json(word.encode(errors="surrogateescape"), "the input")


def _value(sign: str, text: str, place: Place, fields: Fields) -> Any:
    name = _shown(place)
    if sign == ":=":
        return _json(text.encode(errors="surrogateescape"), name)
    if sign == ":=@":
        return _json(_read_file(text), text)
    if sign in ("@", "=@"):
        content = _read_file(text, _text_hint(name, text) if sign == "=@" else "")
        if fields.is_binary(_known(place)):
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{name}: the value is not Unicode text", f"{name}@file reads bytes from a file")
    return typed(text, _known(place), fields)


def typed(text: str, place: Place, fields: Fields) -> Any:
    """A text as the type that the schema gives its place; where a text is allowed, it stays one."""
    for choice in fields.choices(place):
        if (choice if isinstance(choice, str) else _dumped(choice)) == text:
            return choice
    types = fields.types(place)
    if not types or "string" in types:
        return text
    for kind, read in _READERS:
        if kind in types:
            try:
                return read(text)
            except ValueError:
                continue
    if "array" in types and text[:1] != "[":
        return [typed(text, [*place, 0], fields)]
    if types & {"array", "object"}:
        return _json(text.encode(errors="surrogateescape"), _shown(place))
    return text  # the schema's own message says what is wrong with it


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _read_number(text: str) -> int | float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdecimal() else number


def _read_null(text: str) -> None:
    if text != "null":
        raise ValueError(text)


_READERS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("null", _read_null),
    ("boolean", _read_boolean),
    ("integer", int),
    ("number", _read_number),
)
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


def _place(key: str, fields: Fields) -> list[str | int]:
    """The steps of a key: `a.b[0]`; one that is declared as it stands is one step, dots included."""
    if key in fields.names():
        return [key]
    steps: list[str | int] = []
    end = 0
    for match in _STEP.finditer(key):
        if key[end : match.start()] not in ("", "."):
            break
        end = match.end()
        if match[2] is not None:
            steps.append(match[2])
        else:
            steps.append(int(match[1]) if match[1] else _APPEND)
    if end != len(key) or not steps or isinstance(steps[0], int):
        raise UsageError(f"{key!r} is no key: write name, name.part, name[0] or name[]")
    return steps


def _check_name(place: Place, fields: Fields) -> None:
    """A name that the schema does not declare is told while it can be mended; a closed schema refuses it."""
    for depth, step in enumerate(place):
        before = _known(place[:depth])
        names = fields.names(before)
        if isinstance(step, int) or not names or step in names:
            continue
        message = f"{_shown(place[: depth + 1])} is no field of this operation{suggestion(step, names)}"
        if not fields.is_open(before):
            raise UsageError(message, f"its fields are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}")
        if "did you mean" in message:
            warn(message)
        return


def _put(target: dict[str, Any], place: Place, value: Any, key: str, said: set[tuple[str | int, ...]]) -> None:
    """Set the value at a place; a list is made where a step is a number, and a key given again adds to a list.

    What a whole input has at the place is replaced; `said` holds the places that words have set before.
    """
    steps = tuple(place)
    parted = _APPEND not in place and any(len(other) > len(steps) and other[: len(steps)] == steps for other in said)
    holder: Any = target
    for step, following in pairwise(place):
        made: Any = [] if isinstance(following, int) else {}
        holder = _enter(holder, step, made, key)
    last = place[-1]
    before = None if isinstance(holder, list) else holder.get(last)
    if isinstance(before, list) and isinstance(value, list):
        before.extend(value)
    elif parted:
        raise UsageError(f"{key} is given as a whole and in parts")
    elif isinstance(holder, list):
        _set_item(holder, last, value, key)
    elif steps in said and _APPEND not in place:
        raise UsageError(f"{key} is given twice, and is no list")
    else:
        holder[last] = value
    said.add(steps)


def _enter(holder: Any, step: str | int, made: Any, key: str) -> Any:
    if isinstance(holder, list):
        if step == _APPEND:
            holder.append(made)
            return made
        if isinstance(step, int) and step < len(holder):
            return _same_kind(holder[step], made, key)
        _set_item(holder, step, made, key)
        return made
    return _same_kind(holder.setdefault(step, made), made, key)


def _same_kind(there: Any, wanted: Any, key: str) -> Any:
    if type(there) is not type(wanted):
        raise UsageError(f"{key}: a part of it has a value already that is no {'list' if wanted == [] else 'object'}")
    return there


def _set_item(holder: list[Any], step: str | int, value: Any, key: str) -> None:
    if not isinstance(step, int):
        raise UsageError(f"{key}: a list has no field {step!r}")
    if step == _APPEND or step == len(holder):
        holder.append(value)
    elif step < len(holder):
        holder[step] = value
    else:
        raise UsageError(f"{key}: item {step} of a list that has {len(holder)} so far; give them in order, or use []")


def _known(place: Place) -> list[str | int]:
    return [0 if step == _APPEND else step for step in place]


def _shown(place: Place) -> str:
    text = ""
    for step in place:
        if isinstance(step, int):
            text += "[]" if step == _APPEND else f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _json(content: bytes, name: str) -> Any:
    from operations.errors import CallError
    from operations.wire import decode_json

    if not content.strip():
        raise UsageError(f"{name} is empty: JSON is wanted")
    try:
        return decode_json(content.removeprefix(_BYTE_ORDER_MARK))
    except CallError as error:
        raise UsageError(f"{name}: {error.message}", "text is quoted in JSON; name=text needs no quotes") from None


def _dumped(value: Any) -> str:
    from operations.wire import encode_json

    return encode_json(value).decode()


def _text_hint(name: str, text: str) -> str:
    from shlex import quote

    return f"{name}=@… reads a file; the text itself is {name}:={quote(_dumped(f'@{text}'))}"


def _read_file(name: str, hint: str = "") -> bytes:
    if not name:
        raise UsageError("the name of a file is missing after @", "key@file and @input.json read one, @- reads stdin")
    try:
        return Path(name).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{name}: {reason.lower()}", hint) from None


def _example(fields: Fields) -> str:
    names = fields.names()
    return f"for example: {names[0]}=…" if names else ""
