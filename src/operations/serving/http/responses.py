"""Responses: an envelope as an HTTP response, with the data in the body and the meta in headers.

AcceptHeader: the media types that a client accepts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta, LocalResponseMeta, MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import too_large
from operations.serving.asgi import JSON_TYPE, NO_SNIFF, REQUEST_ID_HEADER, Headers, Response
from operations.serving.http.problems import tool_error
from operations.wire import has_invalid_number

ENVELOPE_TYPE = "application/vnd.operations.envelope+json"
OWN_TYPE = "application/vnd.operations+json"
_BYTES_TYPE = "application/octet-stream"
_BYTES = (b"content-type", _BYTES_TYPE.encode())
_LOCAL = (b"operations-source", b"local")
_PASSED_ON = frozenset({"content-language", "content-disposition", "etag", "last-modified", "link", "retry-after"})
"""Upstream headers that describe the result. Cookies and connection headers are never passed on."""
_INERT = (b"content-security-policy", b"sandbox")
"""The header with which a browser runs no script of a response, and treats the response as of another origin."""
_NO_STORE = (b"cache-control", b"no-store")
"""The header that forbids caching: a cache that ignores `X-API-Key` would send results to other callers."""
_encode = msgspec.json.Encoder().encode
_EVENTS = "text/event-stream"


def write_response(
    envelope: ResponseEnvelope[Any], operation_id: str, request_id: str, *, as_envelope: bool, max_bytes: int
) -> Response:
    """Return an envelope as a response; raise CallError if it cannot be encoded or is too large."""
    meta = envelope.meta
    headers: Headers = [(REQUEST_ID_HEADER, request_id.encode()), _NO_STORE, NO_SNIFF]
    if as_envelope:
        body = envelope.to_json()
        headers += ((b"content-type", ENVELOPE_TYPE.encode()), (b"operations-source", meta.source.encode()))
    elif type(meta) is LocalResponseMeta:
        data = envelope.data
        timestamp = (b"operations-timestamp", b"%d" % meta.timestamp)
        if type(data) is bytes:
            body = data
            headers += (_BYTES, _LOCAL, timestamp)
        else:
            body = write_json(data, operation_id)
            headers += (JSON_TYPE, _LOCAL, timestamp)
    else:
        body = _write_foreign(envelope, operation_id, headers)
    if len(body) > max_bytes:
        raise too_large(operation_id, "result", len(body), max_bytes, "yes")
    return Response(200, headers, body)


def write_json(data: Any, operation_id: str) -> bytes:
    """Encode data as JSON with bytes as base64 text; raise `EXECUTION_ERROR` for values that JSON cannot express."""
    try:
        body = _encode(data)
        if b"null" in body and has_invalid_number(data):  # the encoder writes NaN and infinities as null
            raise ValueError("JSON has no NaN and no infinity")
        return body
    except (ValueError, TypeError, RecursionError) as error:
        kind = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"{operation_id}: the result cannot be written as JSON: {kind}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "NOT_JSON", "executed": "yes"}) from None


def _write_foreign(envelope: ResponseEnvelope[Any], operation_id: str, headers: Headers) -> bytes:
    """Encode a result of an HTTP or MCP source, and append the response headers to `headers`."""
    meta, data = envelope.meta, envelope.data
    content_type = "application/json"
    if isinstance(meta, MCPResponseMeta):
        if meta.is_error:
            raise tool_error(meta, operation_id)
        headers.append((b"operations-source", b"mcp"))
    elif isinstance(meta, HTTPResponseMeta):
        headers += ((b"operations-source", b"http"), (b"operations-upstream-status", str(meta.status_code).encode()))
        headers += [
            (name.encode("latin-1"), value.encode("latin-1", errors="replace"))
            for name, value in meta.headers.items()
            if (name in _PASSED_ON or "ratelimit" in name) and _is_header(value)
        ]
    if isinstance(data, bytes):
        upstream = meta.content_type if isinstance(meta, HTTPResponseMeta) else ""
        headers += ((b"content-type", _safe_type(upstream, _BYTES_TYPE)), _INERT)
        return data
    if isinstance(data, str) and isinstance(meta, HTTPResponseMeta) and meta.content_type.startswith("text/"):
        essence = meta.content_type.partition(";")[0].strip()
        headers += ((b"content-type", _safe_type(f"{essence}; charset=utf-8", "text/plain; charset=utf-8")), _INERT)
        return data.encode(errors="replace")
    headers.append((b"content-type", content_type.encode()))
    return write_json(data, operation_id)


def _safe_type(content_type: str, default: str) -> bytes:
    """Return a content type; return `default` for a type that a browser could execute in this server's origin."""
    lowered = content_type.lower()
    if not content_type or not _is_header(content_type):
        return default.encode()
    if any(active in lowered for active in ("html", "xml", "svg", "javascript", "ecmascript", "css", "pdf")):
        return default.encode()
    return content_type.encode("latin-1", errors="replace")


def _is_header(value: str) -> bool:
    return value.isprintable() and len(value) <= 8_192


class AcceptHeader(msgspec.Struct, frozen=True):
    """The kinds of response that an `Accept` header allows."""

    json: bool = True
    """Whether JSON is accepted."""
    envelope: bool = False
    """Whether the header names envelopes, with no lower weight than JSON."""
    events: bool = False
    """Whether the header names `text/event-stream`, with no lower weight than JSON."""
    takes_events: bool = True
    """Whether an event stream is accepted from an operation with no other response."""
    envelope_events: bool = False
    """Whether each event is an envelope."""
    other: bool = True
    """Whether a result of any type, such as bytes or text, may be accepted: not only envelopes and events."""


ANYTHING = AcceptHeader()


def read_accept(header: bytes | None) -> AcceptHeader:
    """Return the kinds of response that an `Accept` header allows; `ANYTHING` if there is no header."""
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
