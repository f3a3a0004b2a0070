"""Uploads: values that are sent as files, streamed in chunks.

A file is a bytes-like object, a path object, an open binary file, an async iterator of bytes, or one of these with a
name and type. A string is never a path, so that no JSON input can make this process read a file.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.media import is_json

CHUNK = 256 * 1024
_UPLOAD_KEYS = {"content", "filename", "contentType", "headers"}
_MAX_DEPTH = 6
_PLACEHOLDER = b"file"


class FileContent(msgspec.Struct, frozen=True):
    """A file on disk, read in chunks each time it is sent."""

    path: Path
    size: int | None
    """Size when the request was built; no more bytes are sent. None for a pipe or device."""
    consumed: bool = False
    """Always False: the file is opened for each attempt, so that it can be sent again."""

    @classmethod
    def at(cls, path: Path) -> FileContent:
        """Return the file at a path; raise `ValueError` if the path leads to no file."""
        try:
            status = path.stat()
        except OSError as error:
            raise ValueError(f"cannot read file {str(path)!r}: {error.strerror}") from None
        if stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{str(path)!r} is a directory")
        return cls(path, status.st_size if stat.S_ISREG(status.st_mode) else None)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content in chunks."""
        try:
            file = await asyncio.to_thread(self.path.open, "rb")
        except OSError as error:
            raise _unreadable(str(self.path), error) from error
        with file:
            async for chunk in _read(file, str(self.path), self.size):
                yield chunk


class OpenFile:
    """A binary file that the caller opened. It is sent from the position at which the request was built.

    If the file is seekable, a retry sends it from the same position.
    """

    __slots__ = ("_file", "_start", "consumed", "name", "size")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.consumed = False
        """Whether the file cannot be sent again: it was read and is not seekable."""
        self._start: int | None = None
        self.size: int | None = None
        name = getattr(file, "name", None)
        self.name = Path(name).name if isinstance(name, str) else None
        try:
            if file.seekable():
                self._start = file.tell()
                self.size = file.seek(0, os.SEEK_END) - self._start
                file.seek(self._start)
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(f"cannot read the open file: {error}") from None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content from the position at which the request was built; the file stays open."""
        if self.consumed:
            raise CallError(ErrorCode.EXECUTION_ERROR, "cannot send the open file again: it is not seekable")
        if self._start is None:
            self.consumed = True
        else:
            await asyncio.to_thread(self._file.seek, self._start)
        async for chunk in _read(self._file, self.name or "(open file)", self.size):
            yield chunk


class StreamContent:
    """A one-time stream of bytes."""

    __slots__ = ("_pieces", "consumed", "size")

    def __init__(self, pieces: AsyncIterable[Any]) -> None:
        self._pieces = pieces
        self.size: int | None = None
        self.consumed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the stream."""
        if self.consumed:
            raise CallError(ErrorCode.EXECUTION_ERROR, "cannot send the streamed body again")
        self.consumed = True
        async for piece in self._pieces:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                message = f"invalid piece of a streamed body: expected bytes, not {type(piece).__name__}"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)
            if piece:
                yield bytes(piece)


class BytesContent:
    """Bytes in memory, sent in chunks; only one chunk at a time is copied."""

    __slots__ = ("_data", "consumed", "size")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        # Keep no memoryview: the caller may close the underlying buffer when the call ends.
        with memoryview(data) as view:
            self.size: int | None = view.nbytes
            self._data = data if view.c_contiguous else view.tobytes()
        self.consumed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in chunks."""
        for start in range(0, self.size or 0, CHUNK):
            with memoryview(self._data) as view, view.cast("B") as plain:
                chunk = plain[start : start + CHUNK].tobytes()
            yield chunk


Streamed = FileContent | OpenFile | StreamContent | BytesContent
Content = bytes | Streamed


async def _read(file: BinaryIO, name: str, size: int | None) -> AsyncIterator[bytes]:
    left = size
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK if left is None else min(CHUNK, left)):
            left = None if left is None else left - len(chunk)
            yield chunk
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    if left:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"file {name!r} was truncated while it was sent")


def _unreadable(name: str, error: Exception) -> CallError:
    reason = getattr(error, "strerror", None) or error
    return CallError(ErrorCode.EXECUTION_ERROR, f"cannot read file {name!r} while sending it: {reason}")


class Upload(msgspec.Struct, frozen=True):
    """A file to send: content, name, type and headers."""

    content: Content
    filename: str | None = None
    content_type: str | None = None
    headers: Mapping[str, Any] = {}


def upload_of(value: Any, schema: Mapping[str, Any] | None = None) -> Upload | None:
    """Return a value as a file; None if the value is not a file. Raise `ValueError` for a path that leads to no file.

    A string is a file's content if the schema is binary.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Upload(bytes(value) if memoryview(value).nbytes <= CHUNK else BytesContent(value))
    if isinstance(value, os.PathLike):
        return Upload(FileContent.at(Path(value)), Path(value).name)
    if _is_open_file(value):
        file = OpenFile(value)
        return Upload(file, file.name)
    if isinstance(value, AsyncIterable):
        return Upload(StreamContent(value))
    if isinstance(value, str):
        return Upload(value.encode()) if schema is not None and is_binary(schema) else None
    return _described_upload(value, schema or {}) if isinstance(value, dict) and "content" in value else None


def is_file(value: Any) -> bool:
    """Whether a value is a file, whatever its schema."""
    if isinstance(value, dict) and value.keys() <= _UPLOAD_KEYS:
        value = value.get("content")
    return isinstance(value, (bytes, bytearray, memoryview)) or _is_outside_json(value)


def _is_outside_json(value: Any) -> bool:
    return isinstance(value, (os.PathLike, AsyncIterable)) or _is_open_file(value)


def _is_open_file(value: Any) -> bool:
    return hasattr(value, "read") and hasattr(value, "seekable") and not hasattr(value, "encoding")


def _described_upload(value: dict[str, Any], schema: Mapping[str, Any]) -> Upload | None:
    content, filename = value["content"], value.get("filename")
    is_text = isinstance(content, str)
    if not value.keys() <= _UPLOAD_KEYS or (is_text and filename is None and not is_binary(schema)):
        return None
    if is_text and schema.get("type") == "object":
        return None
    inner = Upload(content.encode()) if is_text else upload_of(content)
    if inner is None:
        return None
    filename = inner.filename if filename is None else str(filename)
    content_type = value.get("contentType")
    headers = value.get("headers")
    return Upload(
        inner.content,
        filename,
        None if content_type is None else str(content_type),
        headers if isinstance(headers, Mapping) else {},
    )


def is_binary(schema: Mapping[str, Any]) -> bool:
    """Whether a schema describes bytes rather than text."""
    if schema.get("format") == "binary" or schema.get("type") == "file":
        return True
    media_type = str(schema.get("contentMediaType") or "text/plain")
    return "contentEncoding" not in schema and not is_json(media_type) and not media_type.startswith("text/")


class SplitInput:
    """An input split into data and files, so that the data can be validated without the files."""

    __slots__ = ("_files", "without_files")

    def __init__(self, without_files: Any, files: list[tuple[tuple[Any, ...], Any]]) -> None:
        self.without_files = without_files
        self._files = files

    @classmethod
    def split(cls, input: Any) -> SplitInput | None:
        """Split an input; None if it has no files."""
        files: list[tuple[tuple[Any, ...], Any]] = []
        without_files = _without_files(input, (), files)
        return cls(without_files, files) if files else None

    def restore(self, value: Any) -> Any:
        """Return the value with the files restored."""
        for path, file in self._files:
            holder = value
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = file
        return value


def _without_files(value: Any, path: tuple[Any, ...], files: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """Return a copy of the value with a placeholder for each file; the value itself if it has none."""
    large = isinstance(value, (bytearray, memoryview)) or (isinstance(value, bytes) and len(value) > CHUNK)
    if large or _is_outside_json(value):
        files.append((path, value))
        return _PLACEHOLDER
    if len(path) >= _MAX_DEPTH or not isinstance(value, (dict, list, tuple)):
        return value
    before = len(files)
    members = value.items() if isinstance(value, dict) else enumerate(value)
    without_files = {key: _without_files(member, (*path, key), files) for key, member in members}
    if len(files) == before:
        return value
    return without_files if isinstance(value, dict) else list(without_files.values())
