"""What kind of content a media type announces."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(256)
def is_json(media_type: str) -> bool:
    """Whether the content is JSON: `application/json`, and every other that ends in `/json` or `+json`."""
    return essence(media_type).endswith(("/json", "+json"))


@lru_cache(256)
def is_stream(media_type: str) -> bool:
    """Whether the content is a stream of server-sent events."""
    return essence(media_type) == "text/event-stream"


@lru_cache(256)
def is_text(media_type: str) -> bool:
    """Whether the content is text for people or programs to read."""
    kind = essence(media_type)
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+xml", "+yaml"))


def essence(media_type: str) -> str:
    """A media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def charset(media_type: str) -> str:
    """The character set a media type names; UTF-8 where it names none."""
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
