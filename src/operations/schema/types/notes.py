"""What the notes in an `Annotated` say in JSON Schema: bounds, lengths, patterns, titles, descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_KEYWORDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
    "title": "title",
    "description": "description",
    "examples": "examples",
}
_LENGTHS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_KNOWN = ("msgspec", "annotated_types", "pydantic", "typing_extensions", "typing")
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of")


def annotate(document: dict[str, Any], notes: Sequence[Any]) -> dict[str, Any]:
    """`document` with what `notes` add to it; notes that mean nothing here are left out."""
    for note in _flat(notes):
        document = _with_note(document, note)
    return document


def _flat(notes: Sequence[Any]) -> Iterator[Any]:
    for note in notes:
        inner = getattr(note, "metadata", None)
        if isinstance(inner, list) and type(note).__module__.startswith("pydantic"):
            yield from inner
        yield note


def _with_note(document: dict[str, Any], note: Any) -> dict[str, Any]:
    if isinstance(note, str):
        return {**document, "description": note}
    if type(note).__module__.partition(".")[0] not in _KNOWN:
        return document
    if isinstance(text := getattr(note, "documentation", None), str):
        return {**document, "description": text}
    added = {keyword: value for name, keyword in _KEYWORDS.items() if _says((value := getattr(note, name, None)), name)}
    document = {**document, **added}
    if (extra := getattr(note, "extra_json_schema", None)) is not None:
        document |= extra
    return _with_lengths(document, getattr(note, "min_length", None), getattr(note, "max_length", None))


def _says(value: Any, name: str) -> bool:
    """Whether a note's attribute is something that JSON Schema can say."""
    if name in _BOUNDS:
        return isinstance(value, int | float)
    return isinstance(value, list if name == "examples" else str)


def _with_lengths(document: dict[str, Any], least: Any, most: Any) -> dict[str, Any]:
    """`document` with a length's bounds, in the words of its type; in a union, of each member's type."""
    if not least and most is None:
        return document
    if "anyOf" in document:
        return {**document, "anyOf": [_with_lengths(option, least, most) for option in document["anyOf"]]}
    if document.get("type") not in _LENGTHS or "contentEncoding" in document:
        return document
    lower, upper = _LENGTHS[document["type"]]
    if least:
        document = {**document, lower: least}
    return document if most is None else {**document, upper: most}
