"""Parse an operation's input from the words of a command line.

The forms are `key=value` (converted to the type in the schema), `key:=json`, `key@file`, `@input.json` and `-` (stdin).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from os.path import isfile
from pathlib import Path
from typing import Any

from operations.cli.arguments import WHOLE, WORD, UsageError, suggestion
from operations.cli.stderr import warn
from operations.config.trust import shell_quoted
from operations.schema.parts import FieldPath, Fields
from operations.spec import Operation

_STEP = r"\[(\d*)\]|([^.\[\]]+)"
_APPEND = -1
_STDIN = ("-", "@-")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

INPUT_FORMS = (
    ("item=tea", "a value, converted to the field's type"),
    ("count:=4", "JSON: a number, true, null, a list or an object"),
    (
        "photo@cat.png",
        "content of a file: text or bytes, as the schema requires; for uploads also cat.png;type=image/png",
    ),
    ("filter:=@f.json", "JSON from a file"),
    ("address.city=Rome", "a nested field"),
    ("tags=a tags=b", "a list; write tags[]=a if the schema does not declare a list"),
    ("@input.json", "the whole input from a file; - or @- reads stdin"),
)


def read_stdin(words: Sequence[str]) -> bytes:
    """Read stdin if the words refer to it; called before the event loop starts, because it blocks."""
    return sys.stdin.buffer.read() if sys.stdin is not None and any(word in _STDIN for word in words) else b""


def read_operation_input(words: Sequence[str], operation: Operation[Any], stdin: bytes = b"") -> Any:
    """Return the input that the words of a command line specify for an operation.

    If the operation sends files to an HTTP API, a file is passed as its path, name and type.
    """
    return read_input(words, operation.spec.input_schema.document, stdin, sends_files=operation.split_files is not None)


def read_input(words: Sequence[str], document: Any, stdin: bytes = b"", *, sends_files: bool = False) -> Any:
    """Return the input that the words of a command line specify, typed by the schema `document`.

    Return None if there are no words. With `sends_files`, a file for a binary field is passed as its path, name and
    type instead of its content.
    """
    fields = Fields(document)
    whole: Any = None
    assigned: set[tuple[str | int, ...]] = set()
    for word in words:
        if word == "-" or word.startswith(WHOLE):
            if whole is not None:
                raise UsageError(f"the whole input is given twice: the second is {word!r}")
            whole = _read_whole(word, stdin)
            continue
        match = re.match(WORD, word)
        if match is None:
            raise UsageError(
                f"invalid input {word!r}: expected key=value, key:=json, key@file or @input.json", _example(fields)
            )
        if whole is None:
            whole = {}
        if not isinstance(whole, dict):
            raise UsageError(f"cannot set {word!r}: the whole input is not an object")
        path = _parse_key(match["key"], fields)
        _check_name(path, fields)
        if sends_files and match["sign"] == "@" and fields.is_binary(_known(path)):
            value: Any = _upload(match["value"])
        else:
            value = _value(match["sign"], match["value"], path, fields)
        _put(whole, path, value, match["key"], assigned)
    return whole


def typed_by_schema(words: Sequence[str]) -> dict[str, str]:
    """Return the key and the text of each `key=value` word. Only these texts need the types in the schema."""
    matches = (re.match(WORD, word) for word in words if not word.startswith(WHOLE))
    return {match["key"]: match["value"] for match in matches if match is not None and match["sign"] == "="}


def _upload(text: str) -> dict[str, Any]:
    """Parse a file to send: `cat.png` or `cat.png;type=image/png;filename=my.png`; return path, name and type."""
    from mimetypes import guess_type

    name, *parameters = [text] if Path(text).is_file() else text.split(";")
    given = dict(parameter.partition("=")[::2] for parameter in parameters)
    if unknown := [each for each in given if each not in ("type", "filename")]:
        raise UsageError(f"unknown {unknown[0]!r} after ;", "expected type or filename, such as cat.png;type=image/png")
    path = Path(name).expanduser()
    _check_file(path, name)
    kind = given.get("type") or guess_type(path.name)[0]
    upload: dict[str, Any] = {"content": path, "filename": given.get("filename") or path.name}
    return {**upload, "contentType": kind} if kind else upload


def _check_file(path: Path, name: str) -> None:
    try:
        with path.open("rb"):
            return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{name}: {reason.lower()}") from None


def _read_whole(word: str, stdin: bytes) -> Any:
    if word in _STDIN:
        return _json(stdin, "stdin")
    if word.startswith("@"):
        return _json(_read_file(word[1:]), word[1:])
    return _json(word.encode(errors="surrogateescape"), "the input")


def _value(sign: str, text: str, path: FieldPath, fields: Fields) -> Any:
    name = _shown(path)
    if sign == ":=":
        return _json(text.encode(errors="surrogateescape"), name)
    if sign == ":=@":
        return _json(_read_file(text), text)
    if sign in ("@", "=@"):
        content = _read_file(text, _text_hint(name, text) if sign == "=@" else "")
        if fields.is_binary(_known(path)):
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{name}: the value is not valid Unicode", f"pass bytes with {name}@file")
    _warn_of_file_name(text, path, fields)
    return typed(text, _known(path), fields)


def _warn_of_file_name(text: str, path: FieldPath, fields: Fields) -> None:
    """Warn if the text for a binary field, or for a list of them, is the name of a file."""
    if not isfile(text):
        return
    known = _known(path)
    is_list = not fields.is_binary(known) and fields.is_binary([*known, 0])
    if is_list or fields.is_binary(known):
        word = shell_quoted(f"{_shown(path)}{'[]' * is_list}@{text}")
        warn(f"{_shown(path)} is set to the text {text}; write {word} to send the content of the file with this name")


def typed(text: str, path: FieldPath, fields: Fields) -> Any:
    """Convert text to the type of the field at `path`.

    Text that spells an enumerated value becomes this value. Other text stays a string if the schema allows strings.
    """
    for choice in fields.choices(path):
        if (choice if isinstance(choice, str) else _dumped(choice)) == text:
            return choice
    types = fields.types(path)
    if not types or "string" in types or fields.is_binary(path):
        return text
    for kind, read in _READERS:
        if kind in types:
            try:
                return read(text)
            except ValueError:
                continue
    if "array" in types and text[:1] != "[":
        return [typed(text, [*path, 0], fields)]
    if "object" in types and text.lstrip()[:1] != "{":
        field = next(iter(fields.names(path)), "name")
        raise UsageError(f"{_shown(path)} is an object: write {_shown(path)}.{field}=…")
    if types & {"array", "object"}:
        return _json(text.encode(errors="surrogateescape"), _shown(path))
    return text  # validation reports the mismatch


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


def _parse_key(key: str, fields: Fields) -> list[str | int]:
    """Split a key such as `a.b[0]` into steps; a key that is a declared name is one step, even with dots."""
    if key in fields.names():
        return [key]
    steps: list[str | int] = []
    end = 0
    for match in re.finditer(_STEP, key):
        if key[end : match.start()] not in ("", "."):
            break
        end = match.end()
        if match[2] is not None:
            steps.append(match[2])
        else:
            steps.append(int(match[1]) if match[1] else _APPEND)
    if end != len(key) or not steps or isinstance(steps[0], int):
        raise UsageError(f"invalid key {key!r}: expected name, name.part, name[0] or name[]")
    return steps


def _check_name(path: FieldPath, fields: Fields) -> None:
    """Check that the schema declares each name in a path.

    For an undeclared name, raise if the schema forbids undeclared fields; otherwise warn if a declared name is similar.
    """
    for depth, step in enumerate(path):
        before = _known(path[:depth])
        names = fields.names(before)
        if isinstance(step, int) or not names or step in names:
            continue
        message = f"unknown field {_shown(path[: depth + 1])}{suggestion(step, names)}"
        if not fields.is_open(before):
            raise UsageError(message, f"expected one of {', '.join(names[:12])}{', …' if len(names) > 12 else ''}")
        if "did you mean" in message:
            warn(message)
        return


def _put(target: dict[str, Any], path: FieldPath, value: Any, key: str, assigned: set[tuple[str | int, ...]]) -> None:
    """Set the value at a path; a numeric step creates a list, and a repeated key appends to a list.

    Raise if an earlier word set the same path, unless the path holds a list. A value from a whole input (`@input.json`)
    is replaced, and a list is extended. `assigned` has the paths that earlier words set.
    """
    steps = tuple(path)
    parted = _APPEND not in path and any(len(other) > len(steps) and other[: len(steps)] == steps for other in assigned)
    holder: Any = target
    for step, following in pairwise(path):
        made: Any = [] if isinstance(following, int) else {}
        holder = _enter(holder, step, made, key)
    last = path[-1]
    before = None if isinstance(holder, list) else holder.get(last)
    if isinstance(before, list) and isinstance(value, list):
        before.extend(value)
    elif parted:
        raise UsageError(f"conflicting values for {key}: given as a whole and in parts")
    elif isinstance(holder, list):
        _set_item(holder, last, value, key)
    elif steps in assigned and _APPEND not in path:
        raise UsageError(f"duplicate value for {key}: it is not a list")
    else:
        holder[last] = value
    assigned.add(steps)


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


def _same_kind(existing: Any, expected: Any, key: str) -> Any:
    if type(existing) is not type(expected):
        raise UsageError(
            f"{key}: part of the path already has a value that is not {'a list' if expected == [] else 'an object'}"
        )
    return existing


def _set_item(holder: list[Any], step: str | int, value: Any, key: str) -> None:
    if not isinstance(step, int):
        raise UsageError(f"{key}: a list has no field {step!r}")
    if step == _APPEND or step == len(holder):
        holder.append(value)
    elif step < len(holder):
        holder[step] = value
    else:
        problem = f"index {step} is out of range: the list has length {len(holder)}"
        raise UsageError(f"{key}: {problem}; give items in order, or append them with [] as the index")


def _known(path: FieldPath) -> list[str | int]:
    return [0 if step == _APPEND else step for step in path]


def _shown(path: FieldPath) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += "[]" if step == _APPEND else f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def _json(content: bytes, name: str) -> Any:
    from operations.errors import CallError
    from operations.wire import decode_json

    if not content.strip():
        raise UsageError(f"{name} is empty: expected JSON")
    try:
        return decode_json(content.removeprefix(_BYTE_ORDER_MARK))
    except CallError as error:
        raise UsageError(
            f"{name}: {error.message}", "quote strings in JSON, or pass name=text without quotes"
        ) from None


def _dumped(value: Any) -> str:
    from operations.wire import encode_json

    return encode_json(value).decode()


def _text_hint(name: str, text: str) -> str:
    word = shell_quoted(name)
    return f"{word}=@… reads a file; to pass the text itself, write {word}:={shell_quoted(_dumped(f'@{text}'))}"


def _read_file(name: str, hint: str = "") -> bytes:
    if not name:
        raise UsageError("missing file name after @", "write key@file, @input.json, or @- for stdin")
    try:
        return Path(name).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{name}: {reason.lower()}", hint) from None


def _example(fields: Fields) -> str:
    names = fields.names()
    return f"example: {shell_quoted(names[0])}=…" if names else ""
