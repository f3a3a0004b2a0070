"""Multipart: an object as the parts of `multipart/form-data`, with files that are read only while they are sent."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.forms import Encoding, first_type, styled_parameter
from operations.sources.openapi.media import essence, is_json
from operations.sources.openapi.parameters import (
    content_text,
    form_pairs,
    header_name,
    header_text,
    reason_of,
    scalar_text,
)

_CHUNK = 256 * 1024
_UPLOAD_KEYS = {"content", "filename", "contentType", "headers"}
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


class FileContent(msgspec.Struct, frozen=True):
    """A file on disk, read in chunks each time it is sent."""

    path: Path
    size: int | None
    """Its size when the request was built, which is how much is sent; None for a pipe or a device."""

    @classmethod
    def at(cls, path: Path) -> FileContent:
        """The file at a path; raises ValueError where there is none."""
        try:
            status = path.stat()
        except OSError as error:
            raise ValueError(f"the file {str(path)!r} cannot be read: {error.strerror}") from None
        if stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{str(path)!r} is a directory")
        return cls(path, status.st_size if stat.S_ISREG(status.st_mode) else None)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The content, never more than a chunk of it in memory."""
        left = self.size
        try:
            with await asyncio.to_thread(self.path.open, "rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK if left is None else min(_CHUNK, left)):
                    left = None if left is None else left - len(chunk)
                    yield chunk
        except OSError as error:
            message = f"The file {str(self.path)!r} could not be read while it was sent: {error.strerror}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error
        if left:
            message = f"The file {str(self.path)!r} became shorter while it was sent"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)


Content = bytes | FileContent


class Upload(msgspec.Struct, frozen=True):
    """A value that is a file: its content, and what its sender says of it."""

    content: Content
    filename: str | None = None
    content_type: str | None = None
    headers: Mapping[str, Any] = {}


def upload_of(value: Any, schema: Mapping[str, Any] | None = None) -> Upload | None:
    """A value as a file, or None where it is none; raises ValueError where there is no such file.

    Files are bytes, path objects, `{"filename", "content", "contentType"}`, and text where the schema says binary.
    Text is never taken for a path, so that nothing that came in as JSON makes us read a file.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Upload(bytes(value))
    if isinstance(value, os.PathLike):
        return Upload(FileContent.at(Path(value)), Path(value).name)
    if isinstance(value, str):
        return Upload(value.encode()) if schema is not None and _is_binary(schema) else None
    return _described_upload(value, schema or {}) if isinstance(value, dict) and "content" in value else None


def is_file(value: Any) -> bool:
    """Whether a value can only be a file, whatever its schema says."""
    if isinstance(value, dict) and value.keys() <= _UPLOAD_KEYS:
        value = value.get("content")
    return isinstance(value, (bytes, bytearray, memoryview, os.PathLike))


def _described_upload(value: dict[str, Any], schema: Mapping[str, Any]) -> Upload | None:
    content, filename = value["content"], value.get("filename")
    is_text = isinstance(content, str)
    if not value.keys() <= _UPLOAD_KEYS or (is_text and filename is None and not _is_binary(schema)):
        return None
    if is_text and schema.get("type") == "object":
        return None
    inner = Upload(content.encode()) if is_text else upload_of(content)
    if inner is None:
        return None
    filename = inner.filename if filename is None else str(filename)
    content_type = value.get("contentType")
    return Upload(
        inner.content, filename, None if content_type is None else str(content_type), _member(value, "headers")
    )


def _is_binary(schema: Mapping[str, Any]) -> bool:
    if schema.get("format") == "binary" or schema.get("type") == "file":
        return True
    media_type = str(schema.get("contentMediaType") or "text/plain")
    return "contentEncoding" not in schema and not is_json(media_type) and not media_type.startswith("text/")


def encode_multipart(
    media_type: str,
    value: Mapping[str, Any],
    encoding: Mapping[str, Encoding],
    schema: Mapping[str, Any] | None = None,
) -> tuple[str, list[Content]]:
    """An object as parts: the content type with its boundary, and the bytes and files to send one after the other.

    Raises ValueError that names the property which cannot be written.
    """
    # 128 random bits: no content that is there already holds them, and nobody can put them there.
    boundary = secrets.token_hex(16)
    properties = _member(schema or {}, "properties")
    pieces: list[Content] = []
    pending = bytearray()
    for name, item in value.items():
        try:
            for head, content in _property_parts(name, item, encoding.get(name, {}), _member(properties, name)):
                pending += f"--{boundary}\r\n{head}\r\n".encode()
                if isinstance(content, bytes):
                    pending += content
                else:
                    pieces += [bytes(pending), content]
                    pending.clear()
                pending += b"\r\n"
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the property {name!r}: {reason_of(error)}") from None
    pending += f"--{boundary}--\r\n".encode()
    return f"{essence(media_type)}; boundary={boundary}", [*pieces, bytes(pending)]


def _property_parts(
    name: str, value: Any, encoding: Encoding, schema: Mapping[str, Any]
) -> Iterator[tuple[str, Content]]:
    upload = upload_of(value, schema)
    parameter = styled_parameter(name, encoding)
    media_type = first_type(encoding)
    if upload is not None:
        yield _upload_part(name, upload, encoding)
    elif isinstance(value, (list, tuple)) and (any(map(is_file, value)) or not (parameter or _is_json(media_type))):
        for item in value:
            yield from _property_parts(name, item, encoding, _member(schema, "items"))
    elif parameter is not None:
        for key, text in form_pairs(parameter, value, key=str, text=str):
            yield _head(key, None, None, encoding), text.encode()
    elif value is not None:
        yield _value_part(name, value, media_type, encoding)


def _is_json(media_type: str | None) -> bool:
    return media_type is not None and is_json(media_type)


def _value_part(name: str, value: Any, media_type: str | None, encoding: Encoding) -> tuple[str, Content]:
    if media_type is None and isinstance(value, (dict, list, tuple)):
        media_type = "application/json"
    # Text is the default of a part, and some servers take any part with a type for a file.
    text = scalar_text(value) if media_type is None else content_text(media_type, value)
    return _head(name, None, media_type, encoding), text.encode()


def _upload_part(name: str, upload: Upload, encoding: Encoding) -> tuple[str, Content]:
    filename = upload.filename if upload.filename is not None else name
    media_type = upload.content_type or guess_type(str(encoding.get("contentType") or ""), filename)
    merged = {**encoding, "headers": {**_member(encoding, "headers"), **upload.headers}}
    return _head(name, filename, media_type, merged), upload.content


def guess_type(offered: str, filename: str) -> str:
    """Which of the offered content types (`image/png, image/*`) a file has, judged by its name."""
    types = [media_type.strip() for media_type in offered.split(",") if media_type.strip()]
    if len(types) == 1 and "*" not in types[0]:
        return types[0]
    guessed = mimetypes.guess_type(filename)[0] if types else None
    if guessed and any(fnmatchcase(guessed, essence(media_type)) for media_type in types):
        return guessed
    return first_type({"contentType": offered}) or "application/octet-stream"


def _head(name: str, filename: str | None, media_type: str | None, encoding: Encoding) -> str:
    """A part's headers, each with its line break."""
    disposition = f'form-data; name="{_escaped(_LINE_BREAK.sub(chr(13) + chr(10), name))}"'
    if filename is not None:
        disposition += f'; filename="{_escaped(filename)}"'
    lines = [f"Content-Disposition: {disposition}\r\n"]
    if media_type is not None:
        lines.append(f"Content-Type: {header_text(media_type)}\r\n")
    for header, described in _member(encoding, "headers").items():
        value = _header_value(described)
        if value is not None and header.lower() not in ("content-type", "content-disposition"):
            lines.append(f"{header_name(header)}: {header_text(scalar_text(value))}\r\n")
    return "".join(lines)


def _header_value(described: Any) -> Any:
    """The value of a part's header: given as it is, or fixed by the schema of an OAS Header Object."""
    if not isinstance(described, Mapping):
        return described
    schema = _member(described, "schema")
    return schema.get("const", schema.get("default"))


def _member(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A member that should be an object; anything else counts as an empty one (`true` is a schema, for one)."""
    member = of.get(name)
    return member if isinstance(member, Mapping) else {}


def _escaped(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
