"""Parser of docstrings in Google, NumPy or Sphinx format: descriptions of a function and its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

_SPHINX = r"^:(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
_SPHINX_OTHER = r"^:\w+[^:]*:"
_GOOGLE_ITEM = r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$"
_NUMPY_ITEM = r"^\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$"
_PARAMETER_SECTIONS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"}
_OTHER_SECTIONS = {
    *(
        "attributes",
        "example",
        "examples",
        "note",
        "notes",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
    ),
    *("todo", "warning", "warnings", "warns", "yield", "yields", "other parameters"),
}


class Docstring(msgspec.Struct, frozen=True):
    """Descriptions of a function and its parameters."""

    description: str = ""
    parameters: Mapping[str, str] = {}


def read_docstring(text: str | None) -> Docstring:
    """Parse a docstring whose indentation is already removed; unrecognised parts belong to the description."""
    if not text:
        return Docstring()
    description: list[str] = []
    parameters: dict[str, str] = {}
    for title, lines in _sections(text.splitlines()):
        if title == "":
            plain, found = _split_sphinx(lines)
            description += plain
            parameters |= found
        elif title in _PARAMETER_SECTIONS:
            parameters |= _read_items(lines)
    return Docstring("\n".join(description).strip(), parameters)


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each section's lower-case title (empty for the first) with its lines."""
    title, body = "", list[str]()
    index = 0
    while index < len(lines):
        line = lines[index]
        name = line.strip().rstrip(":").lower()
        if line[:1].strip() and name in _PARAMETER_SECTIONS | _OTHER_SECTIONS:
            underlined = index + 1 < len(lines) and set(lines[index + 1].strip()) == {"-"}
            if underlined or line.rstrip().endswith(":"):
                yield title, body
                title, body = name, []
                index += 2 if underlined else 1
                continue
        body.append(line)
        index += 1
    yield title, body


def _split_sphinx(lines: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the lines outside fields, and the parameter descriptions of `:param x:` fields."""
    plain: list[str] = []
    parameters: dict[str, str] = {}
    current: str | None = None
    in_fields = False
    for line in lines:
        text = line.strip()
        field = re.match(_SPHINX, text) if text.startswith(":") else None
        if field is not None:
            current, in_fields = field.group(1), True
            parameters[current] = field.group(2)
        elif text.startswith(":") and re.match(_SPHINX_OTHER, text):
            current, in_fields = None, True
        elif not in_fields:
            plain.append(line)
        elif current is not None and text:
            parameters[current] = f"{parameters[current]} {text}".strip()
    return plain, parameters


def _read_items(lines: list[str]) -> dict[str, str]:
    """Return the parameter descriptions of a Google (`name: text`) or NumPy section (`name : type`, text below)."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return {}
    margin = min(len(line) - len(line.lstrip()) for line in filled)
    parameters: dict[str, str] = {}
    names: list[str] = []
    for line in filled:
        if len(line) - len(line.lstrip()) > margin:
            for name in names:
                parameters[name] = f"{parameters[name]} {line.strip()}".strip()
            continue
        names, text = _read_item(line.strip(), numpy=margin == 0)
        parameters |= dict.fromkeys(names, text)
    return parameters


def _read_item(line: str, *, numpy: bool) -> tuple[list[str], str]:
    if numpy:
        match = re.match(_NUMPY_ITEM, line)
        return ([name.strip(" *") for name in match.group(1).split(",")] if match else []), ""
    match = re.match(_GOOGLE_ITEM, line)
    return ([match.group(1)], match.group(2)) if match else ([], "")
