"""Uploads: what can be sent as a file, and its content in pieces, never all of it in memory.

A file is bytes of any kind, a path object, an open binary file, an async iterator of bytes, or one of these with a name
and a type. Text is never taken for a path, so that nothing that came in as JSON makes us read a file.
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
_DEEPEST = 6
_STAND_IN = b"file"


class FileContent(msgspec.Struct, frozen=True):
    """A file on disk, read in chunks each time it is sent."""

    path: Path
    size: int | None
    """Its size when the request was built, which is how much is sent; None for a pipe or a device."""
    spent: bool = False
    """Never: it is opened again for each attempt."""

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
        try:
            file = await asyncio.to_thread(self.path.open, "rb")
        except OSError as error:
            raise _unreadable(str(self.path), error) from error
        with file:
            async for chunk in _read(file, str(self.path), self.size):
                yield chunk


class OpenFile:
    """A binary file that the caller opened: sent from where it stands, and again from there if it can go back."""

    __slots__ = ("_file", "_start", "name", "size", "spent")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.spent = False
        """Whether it was read and cannot go back."""
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
            raise ValueError(f"the open file cannot be read: {error}") from None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The content from where the file stood when the request was built; the file stays open."""
        if self.spent:
            raise CallError(ErrorCode.EXECUTION_ERROR, "An open file that cannot go back was sent already")
        if self._start is None:
            self.spent = True
        else:
            await asyncio.to_thread(self._file.seek, self._start)
        async for chunk in _read(self._file, self.name or "that was given", self.size):
            yield chunk


class StreamContent:
    """Bytes that come in pieces, once."""

    __slots__ = ("_pieces", "size", "spent")

    def __init__(self, pieces: AsyncIterable[Any]) -> None:
        self._pieces = pieces
        self.size: int | None = None
        self.spent = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The pieces as they come."""
        if self.spent:
            raise CallError(ErrorCode.EXECUTION_ERROR, "A body that comes in pieces was sent already")
        self.spent = True
        async for piece in self._pieces:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                message = f"A body that comes in pieces must give bytes, not {type(piece).__name__}"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)
            if piece:
                yield bytes(piece)


class Blob:
    """Bytes that lie in memory already, sent in chunks without another copy of them all."""

    __slots__ = ("_data", "size", "spent")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        # No view of ours is kept: the caller may close what is behind theirs as soon as the call is over.
        with memoryview(data) as view:
            self.size: int | None = view.nbytes
            self._data = data if view.c_contiguous else view.tobytes()
        self.spent = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes in chunks."""
        for start in range(0, self.size or 0, CHUNK):
            with memoryview(self._data) as view, view.cast("B") as plain:
                chunk = plain[start : start + CHUNK].tobytes()
            yield chunk


Streamed = FileContent | OpenFile | StreamContent | Blob
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
        raise CallError(ErrorCode.EXECUTION_ERROR, f"The file {name!r} became shorter while it was sent")


def _unreadable(name: str, error: Exception) -> CallError:
    reason = getattr(error, "strerror", None) or error
    return CallError(ErrorCode.EXECUTION_ERROR, f"The file {name!r} could not be read while it was sent: {reason}")


class Upload(msgspec.Struct, frozen=True):
    """A value that is a file: its content, and what its sender says of it."""

    content: Content
    filename: str | None = None
    content_type: str | None = None
    headers: Mapping[str, Any] = {}


def upload_of(value: Any, schema: Mapping[str, Any] | None = None) -> Upload | None:
    """A value as a file, or None where it is none; raises ValueError where there is no such file.

    Text is a file where the schema says binary, and then its own content.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Upload(bytes(value) if memoryview(value).nbytes <= CHUNK else Blob(value))
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
    """Whether a value can only be a file, whatever its schema says."""
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


class SetAside:
    """An input without its files, and the way to put them back once the rest was validated."""

    __slots__ = ("_files", "shown")

    def __init__(self, shown: Any, files: list[tuple[tuple[Any, ...], Any]]) -> None:
        self.shown = shown
        self._files = files

    @classmethod
    def of(cls, input: Any) -> SetAside | None:
        """The input taken apart; None where there is no file in it."""
        files: list[tuple[tuple[Any, ...], Any]] = []
        shown = _without_files(input, (), files)
        return cls(shown, files) if files else None

    def put_back(self, value: Any) -> Any:
        """The value with the files where they were."""
        for path, file in self._files:
            holder = value
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = file
        return value


def _without_files(value: Any, path: tuple[Any, ...], files: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """A copy of the value in which something small stands in for each file; the value itself where there is none."""
    large = isinstance(value, (bytearray, memoryview)) or (isinstance(value, bytes) and len(value) > CHUNK)
    if large or _is_outside_json(value):
        files.append((path, value))
        return _STAND_IN
    if len(path) >= _DEEPEST or not isinstance(value, (dict, list, tuple)):
        return value
    before = len(files)
    members = value.items() if isinstance(value, dict) else enumerate(value)
    shown = {key: _without_files(member, (*path, key), files) for key, member in members}
    if len(files) == before:
        return value
    return shown if isinstance(value, dict) else list(shown.values())
