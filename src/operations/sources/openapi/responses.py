"""What an HTTP answer means: its data by its content type, or the error it stands for."""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta, http_envelope
from operations.errors import CallError, ErrorCode
from operations.sources.openapi.media import charset, is_json, is_text

_log = logging.getLogger("operations")
_decode = msgspec.json.Decoder().decode


def header(headers: Sequence[tuple[str, str]], name: str) -> str:
    """The first header of a name; empty when there is none."""
    for key, value in headers:
        if key == name or key.lower() == name:
            return value
    return ""


def read_data(content_type: str, body: bytes) -> Any:
    """The body as data: JSON parsed, text decoded, anything else as bytes; nothing is None."""
    if not body:
        return None
    if is_json(content_type):
        try:
            return _decode(body if _is_utf8(content_type) else _as_utf8(body, content_type))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _read_broken(content_type, body, error)
    if is_text(content_type):
        try:
            return body.decode(charset(content_type))
        except (LookupError, UnicodeDecodeError):
            return body.decode("latin-1")
    return body


def _read_broken(content_type: str, body: bytes, error: Exception) -> Any:
    """JSON that cannot be read as it is: without the mark that some put before it, or as text."""
    if body.startswith(BOM_UTF8):
        return read_data(content_type, body.removeprefix(BOM_UTF8))
    _log.warning("an answer of type %s is not JSON (%s): it is given as text", content_type, error)
    return body.decode("utf-8", "replace")


@lru_cache(256)
def _is_utf8(content_type: str) -> bool:
    return charset(content_type).lower() in ("utf-8", "utf8", "us-ascii")


def _as_utf8(body: bytes, content_type: str) -> bytes:
    try:
        return body.decode(charset(content_type)).encode()
    except (LookupError, UnicodeDecodeError):
        return body


def read_meta(status: int, headers: Sequence[tuple[str, str]]) -> HTTPResponseMeta:
    """What the head of an answer says."""
    meta = http_envelope(None, status_code=status, headers=headers).meta
    assert isinstance(meta, HTTPResponseMeta)
    return meta


def make_error(method: str, path: str, meta: HTTPResponseMeta, data: Any) -> CallError:
    """The error that an answer of status 300 or above stands for: status, headers and parsed body in its details."""
    status = meta.status_code
    details = {key: value for key, value in meta.to_dict().items() if key != "source"}
    said = _message(data)
    return CallError(
        ErrorCode.EXECUTION_ERROR,
        f"{method} {path} answered {status} {_phrase(status)}{f': {said}' if said else ''}",
        {**details, "body": data},
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "(no such status)"


def _message(data: Any) -> str:
    """What the body of an error says to people, where it says it in one of the usual places."""
    if isinstance(data, str):
        return data.strip()[:200]
    for key in ("message", "detail", "title", "error_description", "error"):
        value = data.get(key) if isinstance(data, dict) else None
        if isinstance(value, str) and value:
            return value[:200]
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])[:200]
    return ""
