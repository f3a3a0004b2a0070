"""AcceptHeader: the media types that a client accepts."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from operations.serving.http.responses import ENVELOPE_TYPE

_EVENTS = "text/event-stream"


class AcceptHeader(msgspec.Struct, frozen=True):
    """The kinds of response that an `Accept` header allows."""

    json: bool = True
    """Whether JSON is accepted."""
    envelope: bool = False
    """Whether envelopes are requested."""
    events: bool = False
    """Whether an event stream is requested by its name."""
    takes_events: bool = True
    """Whether an event stream is accepted from an operation with no other response."""
    envelope_events: bool = False
    """Whether each event is an envelope."""
    other: bool = True
    """Whether another type than JSON is accepted: bytes or text."""


ANYTHING = AcceptHeader()


def read_accept(header: bytes | None) -> AcceptHeader:
    """Return the accepted kinds of response; if there is no header, all kinds."""
    return ANYTHING if header is None or header == b"*/*" else _read(header[:2_000])


@lru_cache(256)
def _read(header: bytes) -> AcceptHeader:
    weights: dict[str, float] = {}
    profile = False
    for item in header.decode("latin-1").lower().split(","):
        essence, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                weight = _weight(value)
            elif name.strip() == "profile" and value.strip().strip('"') == "envelope":
                profile = profile or essence == _EVENTS
        if essence:
            weights[essence] = weight
    if not weights:
        return ANYTHING
    everything = weights.get("*/*", 0.0)
    application = weights.get("application/*", everything)
    json = weights.get("application/json", application)
    envelope = weights.get(ENVELOPE_TYPE, 0.0)
    events = weights.get(_EVENTS, 0.0)
    return AcceptHeader(
        json=json > 0,
        envelope=envelope > 0 and envelope >= weights.get("application/json", 0.0),
        events=events > 0 and events >= max(weights.get("application/json", 0.0), envelope),
        takes_events=max(events, weights.get("text/*", everything) if _EVENTS not in weights else 0.0) > 0,
        envelope_events=profile,
        other=any(weight > 0 for name, weight in weights.items() if name not in (ENVELOPE_TYPE, _EVENTS)),
    )


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
