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
    """Parse a docstring whose indentation is already removed; text outside sections and fields is the description."""
    if not text:
        return Docstring()
    description: list[str] = []
    parameters: dict[str, str] = {}
    for title, lines, numpy in _sections(text.splitlines()):
        if title == "":
            plain, found = _split_sphinx(lines)
            description.append("\n".join(plain).strip())
            parameters |= found
        elif title in _PARAMETER_SECTIONS:
            parameters |= _read_items(lines, numpy=numpy)
    return Docstring("\n\n".join(part for part in description if part), parameters)


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the lower-case title of each section, the lines, and whether the section is in NumPy format.

    The title is empty for text outside sections.
    """
    title, body, numpy = "", list[str](), False
    index = 0
    while index < len(lines):
        line = lines[index]
        name = line.strip().rstrip(":").lower()
        if line[:1].strip() and name in _PARAMETER_SECTIONS | _OTHER_SECTIONS:
            underlined = index + 1 < len(lines) and set(lines[index + 1].strip()) == {"-"}
            if underlined or line.rstrip().endswith(":"):
                yield title, body, numpy
                title, body, numpy = name, [], underlined
                index += 2 if underlined else 1
                continue
        if title and not numpy and _is_outside(line, body):
            yield title, body, numpy
            title, body = "", []
        body.append(line)
        index += 1
    yield title, body, numpy


def _is_outside(line: str, body: list[str]) -> bool:
    """Whether a line that follows `body` in a Google section does not belong to the section."""
    first = next((each for each in body if each.strip()), None)
    if first is None or not line[:1].strip():
        return False
    return not first[:1].strip() or not body[-1].strip()


def _split_sphinx(lines: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the lines outside fields, and the parameter descriptions of `:param x:` fields."""
    plain: list[str] = []
    parameters: dict[str, str] = {}
    current: str | None = None
    in_fields = is_after_blank = False
    for line in lines:
        text = line.strip()
        if is_after_blank and line[:1].strip() and not text.startswith(":"):
            if in_fields and plain and plain[-1].strip():
                plain.append("")
            current, in_fields = None, False
        is_after_blank = not text
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


def _read_items(lines: list[str], *, numpy: bool) -> dict[str, str]:
    """Return the parameter descriptions of a Google (`name: text`) or NumPy section (`name : type`, text below)."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return {}
    margin = len(filled[0]) - len(filled[0].lstrip())
    parameters: dict[str, str] = {}
    names: list[str] = []
    for line in filled:
        if len(line) - len(line.lstrip()) > margin:
            for name in names:
                parameters[name] = f"{parameters[name]} {line.strip()}".strip()
            continue
        names, text = _read_item(line.strip(), numpy=numpy)
        parameters |= dict.fromkeys(names, text)
    return parameters


def _read_item(line: str, *, numpy: bool) -> tuple[list[str], str]:
    if numpy:
        match = re.match(_NUMPY_ITEM, line)
        return ([name.strip(" *") for name in match.group(1).split(",")] if match else []), ""
    match = re.match(_GOOGLE_ITEM, line)
    return ([match.group(1)], match.group(2)) if match else ([], "")
