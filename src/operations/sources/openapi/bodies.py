"""Request bodies: built from an input, encoded in one of the operation's media types.

This module is independent of documents and HTTP clients, and does no I/O except to read the sizes of files.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema import Schema
from operations.sources.openapi.forms import Encoding, encode_form, encode_multipart, guess_type
from operations.sources.openapi.media import essence, is_json
from operations.sources.openapi.parameters import header_text, json_bytes, reason_of, scalar_text
from operations.sources.openapi.uploads import Content, FileContent, is_file, upload_of

Kind = Literal["json", "form", "multipart", "lines", "yaml", "xml", "text", "other"]
Shape = Literal["file", "text", "object with files", "object", "array", "primitive"]

_FORM = "application/x-www-form-urlencoded"
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]+)', re.IGNORECASE)
# Kinds of media types that suit a value, best first.
_PREFERENCES: Mapping[Shape, Sequence[Kind]] = {
    "file": ("other", "xml", "text", "yaml", "lines", "json"),
    "text": ("text", "xml", "yaml", "lines", "other", "json", "form"),
    "object with files": ("multipart", "json", "yaml", "form"),
    "object": ("json", "form", "multipart", "yaml"),
    "array": ("json", "lines", "yaml"),
    "primitive": ("json", "text", "yaml"),
}
_FOR_ANY: Mapping[Shape, str] = {
    "file": "application/octet-stream",
    "text": "text/plain",
    "object with files": "multipart/form-data",
}


class Body(msgspec.Struct, frozen=True):
    """Body of a request: bytes, or a stream of bytes and files that is read again for each attempt."""

    content_type: str | None
    data: bytes | None
    """The whole body; None if it has to be streamed."""
    parts: tuple[Content, ...] = ()

    @property
    def length(self) -> int | None:
        """Number of bytes to send; None if unknown."""
        total = len(self.data or b"")
        for part in self.parts:
            size = len(part) if isinstance(part, bytes) else part.size
            if size is None:
                return None
            total += size
        return total

    @property
    def consumed(self) -> bool:
        """Whether the body was sent and cannot be sent again."""
        return any(not isinstance(part, bytes) and part.consumed for part in self.parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces; files are read as they are sent."""
        if self.data:
            yield self.data
        for part in self.parts:
            if isinstance(part, bytes):
                yield part
            else:
                async with aclosing(part.chunks()) as chunks:
                    async for chunk in chunks:
                        yield chunk

    def preview(self) -> Any:
        """Return the body as data: its bytes, or its parts with the path and size of each file."""
        return self.data if self.data is not None else [_preview(part) for part in self.parts]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A media type of a body."""

    media_type: str
    encoding: Mapping[str, Mapping[str, Any]]
    """The OAS encoding of the body's properties, for forms."""
    members: frozenset[str] | None
    """The names of the body's properties; None for a body that cannot be flattened (see `BodyPlan`)."""
    required: Sequence[str] = ()
    is_open: bool = False
    """Whether the body may have other properties as well."""
    hint: Mapping[str, Any] | None = None
    """Schema of a multipart body, to distinguish files from strings."""
    schema: Schema | None = None
    """Schema of the body; None if all media types have the same."""


class BodyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How an input contains the body: flattened (the body's properties are the input's), or whole under one key."""

    formats: Sequence[Format]
    """Media types of the operation, in order of preference."""
    required: bool
    members: Mapping[str, str] | None
    """The body's property for each input key, if the body is flattened; None for a whole body."""
    key: str
    """Input key of a body that is passed as a whole."""
    takes_files: bool
    """Whether one of the media types supports files or streamed bytes."""
    required_members: Sequence[str] = ()
    """Properties that every media type of a flattened body requires."""
    read_only: frozenset[str] = frozenset()
    """Properties that the server alone sets; they are not sent."""
    parameters: frozenset[str] = frozenset()
    """Input keys that are parameters, not parts of the body."""

    @property
    def is_open(self) -> bool:
        """Whether an input may have further properties, which are sent in the body."""
        return self.members is not None and any(kind.is_open for kind in self.formats)

    def body(self, input: Mapping[str, Any], requested_type: str | None, preferred: Sequence[str]) -> Body | None:
        """Return the body of an input, in `requested_type` or the best media type; None if there is no body."""
        if self.members is None:
            if self.key not in input:
                return None
            value, formats = input[self.key], _accepting(self.formats, input[self.key])
        else:
            value = {member: input[key] for key, member in self.members.items() if key in input}
            if len(value) < len(input) and self.is_open:
                value |= self._further(input)
            if not value and not self.required:
                return None
            formats = self._best_formats(value)
        chosen = self._choose(formats, value, requested_type, preferred)
        known = {kind.media_type: kind for kind in self.formats}.get(chosen)
        if known is None:
            return encode_body(chosen, value)
        return encode_body(chosen, value, encoding=known.encoding, schema_hint=known.hint)

    def _further(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of an input that the body's schema allows without declaring them."""
        assert self.members is not None
        further = {key: input[key] for key in input if key not in self.members and key not in self.parameters}
        wrong = sorted(self.read_only & further.keys())
        if wrong:
            message = f"{', '.join(wrong)}: read-only, set by the server: leave it out of the input"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"readOnly": wrong, "executed": "no"})
        missing = [name for name in self.required_members if name not in input]
        if further and missing:
            message = f"{', '.join(missing)}: missing required property of the body"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"missing": missing, "executed": "no"})
        return further

    def _best_formats(self, value: Mapping[str, Any]) -> Sequence[Format]:
        """Return the formats that have the most properties in common with the value.

        Of these, formats whose required properties are all in the value are preferred.
        """
        flat = [kind for kind in self.formats if kind.members is not None]
        if len(flat) < 2:
            return flat
        if not value.keys() <= (self.members or {}).keys():
            flat = [kind for kind in flat if kind.is_open]  # the value has properties that no schema describes
        common = [len(value.keys() & (kind.members or ())) for kind in flat]
        best = [kind for kind, count in zip(flat, common, strict=True) if count == max(common)]
        whole = [kind for kind in best if value.keys() >= set(kind.required)]
        return _accepting(whole or best, value)

    def _choose(
        self, formats: Sequence[Format], value: Any, requested_type: str | None, preferred: Sequence[str]
    ) -> str:
        every = [kind.media_type for kind in self.formats]
        if requested_type is not None:
            return choose_media_type(every, value, requested_type)
        offered = [kind.media_type for kind in formats]
        if len(offered) == 1 and is_json(offered[0]):
            return offered[0]  # the usual case: one media type
        for media_type in preferred:
            for kind in offered:
                if essence(kind) == essence(media_type):
                    return kind
        return choose_media_type(offered, value)


def _accepting(formats: Sequence[Format], value: Any) -> Sequence[Format]:
    """Return the formats whose schema accepts the value; all formats if no schema does, or if
    files determine the format.
    """
    if len(formats) < 2 or _shape_of(value) in ("file", "object with files"):
        return formats
    return [kind for kind in formats if kind.schema is None or kind.schema.check(value)] or formats


def _preview(part: Content) -> Any:
    if isinstance(part, bytes):
        return part
    return {"path": str(part.path) if isinstance(part, FileContent) else None, "size": part.size}


def choose_media_type(available: Sequence[str], value: Any, requested: str | None = None) -> str:
    """Return the media type for a value: the requested one, or by default the best offered one.

    JSON is preferred, except for strings, files and objects with files. A wildcard among the offered types is replaced
    by a matching concrete type. A requested type that is not offered raises `VALIDATION_ERROR`.
    """
    if requested is not None:
        return _requested_type(available, requested)
    shape = _shape_of(value)
    if shape == "file" and isinstance(value, dict) and isinstance(value.get("contentType"), str):
        own: str = value["contentType"]
        if any(fnmatchcase(essence(own), essence(offered)) for offered in available):
            return own
    if not available:
        return _FOR_ANY.get(shape, "application/json")
    ranks = {kind: rank for rank, kind in enumerate(_PREFERENCES[shape])}
    concrete = [_concrete(offered, shape, value) for offered in available]
    return min(concrete, key=lambda offered: (ranks.get(_kind_of(offered), len(ranks)), _json_rank(offered, shape)))


def _requested_type(available: Sequence[str], requested: str) -> str:
    requested_type = essence(requested)
    for offered in available:
        if essence(offered) == requested_type:
            return requested if ";" in requested else offered
    if not available or any(fnmatchcase(requested_type, essence(offered)) for offered in available):
        return requested
    message = f"cannot send the body as {requested}: expected one of {', '.join(available)}"
    raise CallError(ErrorCode.VALIDATION_ERROR, message, {"mediaType": requested, "available": list(available)})


def _shape_of(value: Any) -> Shape:
    if is_file(value):
        return "file"
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        members = [item for member in value.values() for item in (member if isinstance(member, list) else [member])]
        return "object with files" if any(map(is_file, members)) else "object"
    return "array" if isinstance(value, (list, tuple)) else "primitive"


def _concrete(offered: str, shape: Shape, value: Any) -> str:
    """Return an offered media type with its wildcard replaced to suit the value."""
    bare = essence(offered)
    if "*" not in bare:
        return offered
    fitting = _FOR_ANY.get(shape, "application/json")
    if fnmatchcase(fitting, bare):
        return fitting
    if bare in ("text/*", "multipart/*"):
        return {"text/*": "text/plain", "multipart/*": "multipart/form-data"}[bare]
    filename = value.get("filename") if isinstance(value, dict) else value
    named = shape == "file" and isinstance(filename, (str, os.PathLike))
    return guess_type(bare, str(filename)) if named else fitting


def _json_rank(media_type: str, shape: Shape) -> int:
    bare = essence(media_type)
    if bare == "application/json":
        return 0
    # A JSON Patch is an array of steps; other patch formats are objects.
    return 2 if "patch" in bare and (bare == "application/json-patch+json") != (shape == "array") else 1


def _kind_of(media_type: str) -> Kind:
    bare = essence(media_type)
    if is_json(bare):
        return "json"
    if bare == _FORM:
        return "form"
    if bare in _LINES:
        return "lines"
    if bare.endswith(("/xml", "+xml")):
        return "xml"
    if bare.endswith(("yaml", "/yml")):
        return "yaml"
    if bare.startswith("multipart/"):
        return "multipart"
    return "text" if bare.startswith("text/") else "other"


def encode_body(
    media_type: str,
    value: Any,
    *,
    encoding: Mapping[str, Encoding] | None = None,
    schema_hint: Mapping[str, Any] | None = None,
) -> Body:
    """Encode a value as a body of a media type; raise `VALIDATION_ERROR` if the type cannot represent it.

    `encoding` has the OAS encoding of each property, for forms and multipart; `schema_hint` is the body's schema, which
    identifies files among its properties.
    """
    if "*" in media_type:
        media_type = choose_media_type([media_type], value)
    try:
        header_text(media_type)
        return _encode(media_type, value, encoding or {}, schema_hint)
    except (ValueError, LookupError, RecursionError) as error:
        message = f"cannot send the body as {media_type}: {reason_of(error)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, {"mediaType": media_type}) from None


def _encode(
    media_type: str, value: Any, encoding: Mapping[str, Encoding], schema_hint: Mapping[str, Any] | None
) -> Body:
    kind = _kind_of(media_type)
    if kind == "json":
        return Body(media_type, json_bytes(value))
    if kind in ("multipart", "form") and isinstance(value, (list, tuple)):
        value = {str(index): item for index, item in enumerate(value)}  # forms have lists only within properties
    if kind == "multipart" and isinstance(value, dict):
        content_type, parts = encode_multipart(media_type, value, encoding, schema_hint)
        return _body_of(content_type, parts)
    if kind == "form" and isinstance(value, dict):
        return Body(media_type, encode_form(value, encoding))
    verbatim = _verbatim(media_type, value, kind)
    if verbatim is not None:
        return verbatim
    if kind == "lines":
        items = value if isinstance(value, (list, tuple)) else [value]  # many schemas describe one line, not the list
        return Body(media_type, b"".join([json_bytes(item) + b"\n" for item in items]))
    if kind == "yaml":
        return Body(media_type, json_bytes(value))  # JSON is valid YAML
    if kind == "text" and not isinstance(value, (dict, list, tuple)) and value is not None:
        return _text_body(media_type, scalar_text(value))
    raise ValueError(_EXPECTED.get(kind, "pass bytes, a path object or a string"))


_EXPECTED: Mapping[Kind, str] = {
    "xml": "pass the XML as a string",
    "text": "pass a string",
    "form": "pass an object",
    "multipart": "pass an object",
}


def _verbatim(media_type: str, value: Any, kind: Kind) -> Body | None:
    """Return the body for a value that is already encoded (a string, bytes or a file); None for any other value."""
    if isinstance(value, str):
        return _text_body(media_type, value) if kind != "multipart" else None
    if isinstance(value, bytes) and kind != "multipart":
        return Body(media_type, value)
    upload = upload_of(value, {"format": "binary"} if kind == "other" else None)
    if upload is None or (kind == "multipart" and "boundary" not in media_type.lower()):
        return None
    return _body_of(media_type, [upload.content])


def _text_body(media_type: str, text: str) -> Body:
    charset = _CHARSET.search(media_type)
    if charset is not None:
        return Body(media_type, text.encode(charset[1]))
    named = essence(media_type).startswith("text/")
    return Body(f"{media_type}; charset=utf-8" if named else media_type, text.encode())


def _body_of(content_type: str, parts: Sequence[Content]) -> Body:
    data = [part for part in parts if isinstance(part, bytes)]
    return Body(content_type, b"".join(data)) if len(data) == len(parts) else Body(content_type, None, tuple(parts))
