"""Classification of media types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

EVENT_STREAM = "text/event-stream"


@lru_cache(256)
def is_json(media_type: str) -> bool:
    """Whether the content is JSON: `application/json`, or any type that ends in `/json` or `+json`."""
    return essence(media_type).endswith(("/json", "+json"))


@lru_cache(256)
def is_stream(media_type: str) -> bool:
    """Whether the content is a stream of server-sent events."""
    return essence(media_type) == EVENT_STREAM


@lru_cache(256)
def is_text(media_type: str) -> bool:
    """Whether the content is text."""
    kind = essence(media_type)
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+xml", "+yaml"))


@lru_cache(256)
def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def usable_media_types(declared: Iterable[tuple[str, T]], place: str, notes: list[str]) -> dict[str, T]:
    """Return contents by media type; an invalid type (without a slash) counts as JSON, unless JSON is declared. Each
    invalid type adds a line to `notes`.
    """
    contents = list(declared)
    usable = {kind: content for kind, content in contents if "/" in kind}
    has_json = any(essence(kind) == "application/json" for kind in usable)
    for kind, content in contents:
        if "/" in kind:
            continue
        outcome = "ignored" if has_json else "application/json is assumed"
        notes.append(f"{place}: invalid media type {kind!r}: {outcome}")
        if not has_json:
            usable["application/json"] = content
            has_json = True
    return usable


def charset(media_type: str) -> str:
    """Return the character set of a media type; UTF-8 by default."""
    for parameter in media_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'") or "utf-8"
    return "utf-8"


_TEXTS = frozenset(
    {
        *("application/xml", "application/yaml", "application/x-yaml", "application/javascript", "application/graphql"),
        *("application/x-ndjson", "application/jsonl", "application/json-seq", "application/x-www-form-urlencoded"),
    }
)
