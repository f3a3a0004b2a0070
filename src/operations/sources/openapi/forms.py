"""Forms: an object as `application/x-www-form-urlencoded` or as the parts of `multipart/form-data`."""

from __future__ import annotations

import mimetypes
import re
import secrets
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from operations.sources.openapi.media import essence, is_json
from operations.sources.openapi.parameters import (
    Pairs,
    Parameter,
    content_text,
    form_pairs,
    header_name,
    header_text,
    quoted,
    reason_of,
    scalar_text,
)
from operations.sources.openapi.uploads import Content, Upload, is_file, upload_of

_LINE_BREAK = re.compile(r"\r\n|\r|\n")

Encoding = Mapping[str, Any]
"""OAS encoding of one property. For Swagger 2.0 form parameters, it may also have `collectionFormat`."""


def encode_form(value: Mapping[str, Any], encoding: Mapping[str, Encoding]) -> bytes:
    """Encode an object as form data; raise `ValueError` with the name of a property that cannot be encoded."""
    written: list[str] = []
    for name, item in value.items():
        try:
            written += [f"{key}={text}" for key, text in _property_pairs(name, item, encoding.get(name, {}))]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"property {name!r}: {reason_of(error)}") from None
    return "&".join(written).encode()


def _property_pairs(name: str, value: Any, encoding: Encoding) -> Pairs:
    if value is None:
        return []
    parameter = styled_parameter(name, encoding)
    if parameter is not None:
        return form_pairs(parameter, value)
    media_type = first_type(encoding)
    # An object is encoded as JSON by default; an array becomes one pair for each item, unless its type is JSON.
    if isinstance(value, dict) or is_json(media_type or ""):
        return [(quoted(name), quoted(content_text(media_type or "application/json", value)))]
    plain = Parameter(name, "query", media_type=media_type)
    if media_type is None or not isinstance(value, (list, tuple)):
        return form_pairs(plain, value)
    return [pair for item in value if item is not None for pair in form_pairs(plain, item)]


def styled_parameter(name: str, encoding: Encoding) -> Parameter | None:
    """Return the parameter that encodes a property in its style; None if the content type determines the encoding."""
    style, explode = encoding.get("style"), encoding.get("explode")
    reserved, collection_format = encoding.get("allowReserved"), encoding.get("collectionFormat")
    if style is None and explode is None and reserved is None and collection_format is None:
        return None
    return Parameter(name, "query", style, explode, reserved is True, collection_format=collection_format)


def first_type(encoding: Encoding) -> str | None:
    """Return the first content type of an encoding, except wildcards; None if there is none."""
    for media_type in str(encoding.get("contentType") or "").split(","):
        if media_type.strip() and "*" not in media_type:
            return media_type.strip()
    return None


def encode_multipart(
    media_type: str,
    value: Mapping[str, Any],
    encoding: Mapping[str, Encoding],
    schema: Mapping[str, Any] | None = None,
) -> tuple[str, list[Content]]:
    """Encode an object as multipart: return the content type with its boundary, and the bytes and files in order.

    Raise `ValueError` with the name of a property that cannot be encoded.
    """
    # 128 random bits: the content does not contain them and no sender can guess them.
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
            raise ValueError(f"property {name!r}: {reason_of(error)}") from None
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
    elif isinstance(value, (list, tuple)) and (
        any(map(is_file, value)) or not (parameter or is_json(media_type or ""))
    ):
        for item in value:
            yield from _property_parts(name, item, encoding, _member(schema, "items"))
    elif parameter is not None:
        for key, text in form_pairs(parameter, value, key=str, text=str):
            yield _head(key, None, None, encoding), text.encode()
    elif value is not None:
        yield _value_part(name, value, media_type, encoding)


def _value_part(name: str, value: Any, media_type: str | None, encoding: Encoding) -> tuple[str, Content]:
    if media_type is None and isinstance(value, (dict, list, tuple)):
        media_type = "application/json"
    # Text is the default type of a part, and some servers treat a part with a type as a file.
    text = scalar_text(value) if media_type is None else content_text(media_type, value)
    return _head(name, None, media_type, encoding), text.encode()


def _upload_part(name: str, upload: Upload, encoding: Encoding) -> tuple[str, Content]:
    filename = upload.filename if upload.filename is not None else name
    media_type = upload.content_type or guess_type(str(encoding.get("contentType") or ""), filename)
    merged = {**encoding, "headers": {**_member(encoding, "headers"), **upload.headers}}
    return _head(name, filename, media_type, merged), upload.content


def guess_type(offered: str, filename: str) -> str:
    """Return the content type of a file, from its name and the types in `offered`, such as `image/png, image/*`.

    If no offered type matches the name, return the first one without a wildcard, or `application/octet-stream`.
    """
    types = [media_type.strip() for media_type in offered.split(",") if media_type.strip()]
    if len(types) == 1 and "*" not in types[0]:
        return types[0]
    guessed = mimetypes.guess_type(filename)[0] if types else None
    if guessed and any(fnmatchcase(guessed, essence(media_type)) for media_type in types):
        return guessed
    return first_type({"contentType": offered}) or "application/octet-stream"


def _head(name: str, filename: str | None, media_type: str | None, encoding: Encoding) -> str:
    """Return a part's headers, each with its line break."""
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
    """Return the value of a part's header; for an OAS Header Object, its constant or default, or None."""
    if not isinstance(described, Mapping):
        return described
    schema = _member(described, "schema")
    return schema.get("const", schema.get("default"))


def _member(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the property `name` if it is an object; otherwise an empty object, for example for the schema `true`."""
    member = of.get(name)
    return member if isinstance(member, Mapping) else {}


def _escaped(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
