"""The parts of a complete `multipart/form-data` body. The only module that imports python-multipart."""

from __future__ import annotations

import logging
from typing import Any

from operations.errors import ErrorCode
from operations.pubsub import require_extra
from operations.serving.refusals import RefusedError

_UNUSED = logging.Logger("operations.multipart", logging.CRITICAL)


def read_parts(body: bytes, content_type: str, *, max_parts: int) -> list[tuple[str, bytes]]:
    """Return the name and content of each part in order; raise RefusedError for an invalid body."""
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser, parse_options_header
    except ImportError:
        raise require_extra("python-multipart", "serve") from None
    _, options = parse_options_header(content_type.encode("latin-1"))
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 70:
        raise _refuse("invalid Content-Type: expected a boundary of 1 to 70 characters")
    collector = _Collector(max_parts, parse_options_header)
    parser = MultipartParser(boundary, collector.callbacks())
    parser.logger = _UNUSED  # callers must not be able to fill the log; they get an error
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _refuse("malformed multipart body") from None
    if not collector.ended:
        raise _refuse("incomplete multipart body")
    return collector.parts


class _Collector:
    """Collects the parts from the callbacks of the parser."""

    def __init__(self, max_parts: int, parse_options: Any) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.ended = False
        self._max_parts = max_parts
        self._parse_options = parse_options
        self._field = self._value = b""
        self._disposition = b""
        self._content: list[bytes] = []

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_part_data": lambda data, start, end: self._content.append(data[start:end]),
            "on_part_end": self._end,
            "on_header_field": self._read_field,
            "on_header_value": self._read_value,
            "on_header_end": self._end_header,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        if len(self.parts) >= self._max_parts:
            raise _refuse(f"too many parts: the limit is {self._max_parts}")
        self._disposition, self._content = b"", []

    def _read_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _end(self) -> None:
        kind, options = self._parse_options(self._disposition)
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise _refuse("a part of the multipart body has no name")
        try:
            self.parts.append((name.decode(), b"".join(self._content)))
        except UnicodeDecodeError:
            raise _refuse("the name of a part is not UTF-8") from None

    def _finish(self) -> None:
        self.ended = True


def _refuse(message: str) -> RefusedError:
    return RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "UNREADABLE")
