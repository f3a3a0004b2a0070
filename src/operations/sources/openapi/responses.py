"""Responses: data by content type, errors by status, and downloads to a file."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import secrets
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from errno import EISDIR
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from operations.envelope import HTTPResponseMeta
from operations.errors import CallError, ErrorCode
from operations.http import HTTPResponse
from operations.http.client import error_text
from operations.sources.openapi.media import charset, is_json, is_text

_log = logging.getLogger("operations")
_decode = msgspec.json.Decoder().decode
_SLOW_CODECS = frozenset({"idna", "punycode"})
"""Codecs of host names; their time is quadratic."""
_PIECE = 1024 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def header(headers: Sequence[tuple[str, str]], name: str) -> str:
    """Return the first header of a name; empty if there is none."""
    for key, value in headers:
        if key == name or key.lower() == name:
            return value
    return ""


def may_have_body(method: str, status: int) -> bool:
    """Whether a response has a body, which may be empty."""
    return method != "HEAD" and status not in (204, 205, 304)


def read_data(content_type: str, body: bytes) -> Any:
    """Return the body as data: JSON parsed, text decoded, anything else as bytes. Malformed JSON is returned as text.

    For an empty body, return None if the type is JSON or missing, else an empty string or empty bytes.
    """
    if not body and (not content_type or is_json(content_type)):
        return None
    if is_json(content_type):
        try:
            return _decode(body if _is_utf8(content_type) else _as_utf8(body, content_type))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _read_broken(content_type, body, error)
    if is_text(content_type):
        text = _text(body, content_type)
        return body.decode("latin-1") if text is None else text
    return body


def _read_broken(content_type: str, body: bytes, error: Exception) -> Any:
    """Parse malformed JSON again without its byte order mark; return it as text if that fails."""
    bare = body.removeprefix(BOM_UTF8)
    if len(bare) < len(body):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _decode(bare) if bare else None
    _log.warning("response of type %s is not valid JSON (%s): returned as text", content_type, error)
    return body.decode("utf-8", "replace")


@lru_cache(256)
def _is_utf8(content_type: str) -> bool:
    return charset(content_type).lower() in ("utf-8", "utf8", "us-ascii")


def _as_utf8(body: bytes, content_type: str) -> bytes:
    text = _text(body, content_type)
    return body if text is None else text.encode("utf-8", "replace")


def _text(body: bytes, content_type: str) -> str | None:
    """Return the text of a body; None if the declared character set is unknown or wrong."""
    try:
        codec = codecs.lookup(charset(content_type))
        return None if codec.name in _SLOW_CODECS else body.decode(codec.name)
    except (LookupError, ValueError):
        return None


def make_error(method: str, path: str, meta: HTTPResponseMeta, data: Any) -> CallError:
    """Return the error for a response with status 300 or above; details have status, headers and parsed body."""
    status = meta.status_code
    details = {key: value for key, value in meta.to_dict().items() if key != "source"}
    message, reason = f"{method} {path} returned {status} {_PHRASES.get(status, '(unknown status)')}", error_text(data)
    details["body"] = data
    return CallError(ErrorCode.EXECUTION_ERROR, f"{message}: {reason}" if reason else message, details)


class Download(dict[str, Any]):
    """The path and the size of a downloaded body. The schema of the response does not apply to them."""


async def download(response: HTTPResponse, path: str | os.PathLike[str]) -> Download:
    """Write the body to `path`, and return path and size; the file appears only when it is complete."""
    try:
        return Download(path=os.fspath(path), size=await _write(response, Path(path)))
    except OSError as error:
        message = f"cannot write the response to {os.fspath(path)}: {error.strerror or error}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message) from error


async def _write(response: HTTPResponse, path: Path) -> int:
    # A unique name: no other download and no user file is overwritten.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    size = 0
    if await asyncio.to_thread(path.is_dir):
        raise IsADirectoryError(EISDIR, "it is a directory")
    file = await asyncio.to_thread(partial.open, "xb")
    try:
        with file:
            async for piece in _batched(response.chunks()):
                await asyncio.to_thread(file.write, piece)
                size += len(piece)
        await asyncio.to_thread(partial.replace, path)
    except BaseException:
        await asyncio.to_thread(partial.unlink, missing_ok=True)
        raise
    return size


async def _batched(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in fewer, larger pieces: each piece costs a thread switch."""
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= _PIECE:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)
