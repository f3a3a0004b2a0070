"""Classification of media types."""

from __future__ import annotations

from functools import lru_cache

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


def usable_media_type(declared: str, place: str, notes: list[str]) -> str:
    """Return a declared media type; JSON for one that is empty or has no slash, with a note that names its place."""
    if "/" in declared:
        return declared
    notes.append(f"{place}: invalid media type {declared!r}: application/json is assumed")
    return "application/json"


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
