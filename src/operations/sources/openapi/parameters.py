"""Parameters: encode values into a path, a query string, headers and the Cookie header by the rules of OAS.

This module is independent of documents and HTTP clients. Values are JSON-like; bytes become base64. No value can change
the structure of a request.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.media import essence, is_json
from operations.wire import has_invalid_number

Location = Literal["path", "query", "header", "cookie", "querystring"]
Encode = Callable[[str], str]
Pairs = list[tuple[str, str]]

_CONTAINERS = (dict, list, tuple)
_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|", "ssv": " ", "tsv": "\t", "pipes": "|"}

_is_literal = re.compile(r"[A-Za-z0-9_.~/:-]*").fullmatch
_is_plain = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch
_is_token = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
# Empty and dot segments, raw or repeatedly encoded, with or without the `;…` that some servers strip: normalising the
# path would turn it into another path.
_find_lost_segment = re.compile(r"/(?:(?:\.|%(?:25)*2e){1,2}(?:;[^/]*)?)?(?=/|$)", re.IGNORECASE).search
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_QUERY_EXPRESSION = re.compile(r"\{[?&#][^{}]*\}")
# Characters to encode even where reserved ones are allowed: `#`, `[` and `]` end or break a query, `&` and `+` are
# special in forms, and a percent sign outside a triple is data.
_UNRESERVED_ONLY = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9_.~:/?@!$'()*,;=%-]+")
_NOT_LITERAL = re.compile(r"%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9_.~:/?@!$&'()*+,;=%-]+")
_NOT_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_IN_COOKIES = re.compile(r"[^\x20-\x3a\x3c-\x7e]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

_encode_json = msgspec.json.Encoder().encode


class Parameter(msgspec.Struct, frozen=True):
    """A parameter with its references resolved."""

    name: str
    location: Location
    style: str | None = None
    """The style; None, or one that the location does not support, means the location's default."""
    explode: bool | None = None
    """Whether each item or property is written separately; None means the style's default: true for `form` and
    `cookie`.
    """
    allow_reserved: bool = False
    """Whether reserved characters and percent-encoded triples stay unencoded; for queries only."""
    media_type: str | None = None
    """Media type in which the value is encoded, for a parameter that is described by `content`."""
    collection_format: str | None = None
    """Format of arrays in Swagger 2.0, which takes precedence over `style`; None for a parameter of OpenAPI 3.

    A parameter of Swagger 2.0 needs a value here, even if its format is the default `csv`.
    """
    allow_empty: bool = False
    """Whether an empty array or object is sent as `name=` instead of omitted."""
    key: str = ""
    """Key of the value in an input; the name by default."""

    def __post_init__(self) -> None:
        if not self.key:
            msgspec.structs.force_setattr(self, "key", self.name)


class PathTemplate:
    """A parsed key of `paths`, such as `/items/{id}`: percent-encoded text with parameters between.

    A key may have a query (`/search?kind={kind}`), which is filled, too. A fragment (`#…`) is never sent and is
    dropped. Query expressions of URI templates (`{?page,size}`) are dropped as well, because their parameters are
    described as query parameters.
    """

    __slots__ = ("_path", "_query")

    def __init__(self, key: str, parameters: Sequence[Parameter]) -> None:
        if "?" in key or "#" in key:
            key = _QUERY_EXPRESSION.sub("", key).replace("?}", "}").partition("#")[0]
        path, _, query = key.partition("?")
        described = {parameter.name: parameter for parameter in parameters if parameter.location == "path"}
        self._path = _TextTemplate(path, described)
        self._query = _TextTemplate(query, described) if query else None

    def fill(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return path and query with the values filled in; no value can add or remove a path segment."""
        path = self._path.fill(values)
        if self._path.parameters and _find_lost_segment(path if path.startswith("/") else f"/{path}"):
            self._path.check_segments(path)
        return path, "" if self._query is None else self._query.fill(values)


class _TextTemplate:
    """Text with placeholders for parameters."""

    __slots__ = ("_first", "_pieces", "_template", "parameters")

    def __init__(self, template: str, described: Mapping[str, Parameter]) -> None:
        self._template = template
        pieces = _PLACEHOLDER.split(template)
        self._first, *literals = [_literal(piece) for piece in pieces[::2]]
        self.parameters = [described.get(name) or _undescribed(name, described) for name in pieces[1::2]]
        self._pieces = list(zip(self.parameters, literals, strict=True))
        """Each parameter with the literal that follows it."""

    def fill(self, values: Mapping[str, Any]) -> str:
        written = self._first
        for parameter, literal in self._pieces:
            try:
                written += _path_text(parameter, values.get(parameter.key)) + literal
            except (ValueError, RecursionError) as error:
                raise _refusal(parameter, error) from None
        return written

    def check_segments(self, filled: str) -> None:
        """Reject a value that makes its segment empty or a dot segment; the template may contain such segments."""
        position = 0
        # Values contain no slash, so the segments before and after filling correspond.
        for shape, segment in zip(_PLACEHOLDER.sub("\0", self._template).split("/"), filled.split("/"), strict=True):
            if "\0" in shape and _find_lost_segment(f"/{segment}"):
                reason = "servers would normalise its path segment to another path" if segment else "it is empty"
                raise _refusal(self.parameters[position], ValueError(reason))
            position += shape.count("\0")


def placeholder_name(placeholder: str) -> str:
    """Return the name of a placeholder's parameter: `proxy`, `path`, `id` for `{proxy+}`, `{+path}`, `{id:[0-9]+}`."""
    return re.split("[:=]", placeholder)[0].strip("+* ")


def _undescribed(placeholder: str, described: Mapping[str, Parameter]) -> Parameter:
    name = placeholder_name(placeholder)
    return described.get(name) or Parameter(name, "path")


def query_string(
    parameters: Sequence[Parameter],
    values: Mapping[str, Any],
    extra: Sequence[tuple[str, str]] = (),
    *,
    first: Iterable[str] = (),
) -> str:
    """Return the query string without `?`: the parts in `first`, the parameters, then the pairs in `extra`."""
    written = [*first]
    for parameter in parameters:
        value = values.get(parameter.key)
        if value is None or parameter.location not in ("query", "querystring"):
            continue
        try:
            if parameter.location == "querystring":
                written.append(_whole_query(parameter, value))
            else:
                for name, text in form_pairs(parameter, value):
                    written.append(f"{name}={text}")
        except (ValueError, RecursionError) as error:
            raise _refusal(parameter, error) from None
    for name, text in extra:
        written.append(f"{quoted(name)}={quoted(text)}")
    return "&".join(filter(None, written))


def header_values(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> Pairs:
    """Return the header parameters as pairs of name and value.

    Most characters of values stay unchanged, as OAS requires. Non-ASCII characters are percent-encoded, and so are
    commas within array items, unless the item contains a quote. Control characters are rejected.
    """
    written: Pairs = []
    for parameter in parameters:
        if parameter.location != "header" or (value := values.get(parameter.key)) is None:
            continue
        try:
            text = _header_text(parameter, value)
            if text is not None:
                written.append((header_name(parameter.name), header_text(text)))
        except (ValueError, RecursionError) as error:
            raise _refusal(parameter, error) from None
    return written


def cookie_header(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> str | None:
    """Return the value of the Cookie header; None if there is nothing to send.

    Style `form` percent-encodes. Style `cookie` and `text/plain` content are sent unchanged, and characters that would
    end the cookie are rejected. Exploded arrays and objects become separate cookies.
    """
    written: list[str] = []
    for parameter in parameters:
        if parameter.location != "cookie" or (value := values.get(parameter.key)) is None:
            continue
        raw = parameter.style == "cookie" or essence(parameter.media_type or "") == "text/plain"
        key, text = (_cookie_name, _cookie_text) if raw else (quoted, quoted)
        try:
            written += [f"{name}={item}" for name, item in form_pairs(parameter, value, key=key, text=text)]
        except (ValueError, RecursionError) as error:
            raise _refusal(parameter, error) from None
    return "; ".join(written) if written else None


def form_pairs(parameter: Parameter, value: Any, *, key: Encode | None = None, text: Encode | None = None) -> Pairs:
    """Encode a value as `name=value` pairs of a form, query or cookie; raise `ValueError` if that is impossible.

    `key` and `text` encode names and values, by default with percent-encoding. Undefined values of RFC 6570 (null, an
    empty array or object, a null property) give no pair. With `allow_empty`, an empty array or object gives `name=`.
    """
    key = key or quoted
    text = text or (_quoted_but_reserved if parameter.allow_reserved else quoted)
    if parameter.media_type is not None:
        return [(key(parameter.name), text(content_text(parameter.media_type, value)))]
    if not isinstance(value, _CONTAINERS):
        return [] if value is None else [(key(parameter.name), text(scalar_text(value)))]
    pairs = _container_pairs(parameter, value, key, text)
    return pairs if pairs or not parameter.allow_empty else [(key(parameter.name), "")]


def _container_pairs(parameter: Parameter, value: Any, key: Encode, text: Encode) -> Pairs:
    style = parameter.collection_format or parameter.style or "form"
    if style == "deepObject":
        return [(key(name), text(scalar_text(member))) for name, member in _deep_members(parameter.name, value)]
    exploded = parameter.explode if parameter.explode is not None else style in ("form", "cookie")
    if style == "multi" or (exploded and parameter.collection_format is None):
        if isinstance(value, dict):
            return [(key(str(name)), text(scalar_text(item))) for name, item in value.items() if item is not None]
        return [(key(parameter.name), text(scalar_text(item))) for item in value if item is not None]
    delimiter = _DELIMITERS.get(style, ",")
    if delimiter == ",":
        members = _members(value, key, _without_commas(text) if text is _quoted_but_reserved else text)
    else:
        members, delimiter = _members(value, key, text), key(delimiter)
    return [(key(parameter.name), _join(members, delimiter))] if members else []


def _deep_members(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a deepObject by name: `a[b][c]`, `a[b][]` for plain arrays, `a[0][b]` for nested ones."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _deep_members(f"{prefix}[{name}]", member)
    elif isinstance(value, (list, tuple)):
        items = [item for item in value if item is not None]
        numbered = any(isinstance(item, _CONTAINERS) for item in items)
        for index, item in enumerate(items):
            yield from _deep_members(f"{prefix}[{index}]" if numbered else f"{prefix}[]", item)
    elif value is not None:
        yield prefix, value


def _whole_query(parameter: Parameter, value: Any) -> str:
    media_type = parameter.media_type or "application/x-www-form-urlencoded"
    text = content_text(media_type, value)
    return _literal(text) if essence(media_type) == "application/x-www-form-urlencoded" else quoted(text)


def _path_text(parameter: Parameter, value: Any) -> str:
    if value is None:
        raise ValueError("missing required parameter")
    if parameter.media_type is not None:
        value = content_text(parameter.media_type, value)
    explode = parameter.explode is True and parameter.collection_format is None
    if not isinstance(value, _CONTAINERS):
        members = [quoted(scalar_text(value))]
        if parameter.style not in ("label", "matrix") and parameter.collection_format is None:
            return members[0]
    elif not (members := _members(value, quoted, quoted, paired=explode)):
        raise ValueError("it is empty")
    if parameter.style == "label":
        return "." + ("." if explode else ",").join(members)
    if parameter.style == "matrix":
        return _matrix_text(quoted(parameter.name), members, explode, isinstance(value, dict))
    delimiter = _DELIMITERS.get(parameter.collection_format or "", ",")
    return _join(members, delimiter if delimiter == "," else quoted(delimiter))


def _matrix_text(name: str, members: list[str], explode: bool, paired: bool) -> str:
    # RFC 6570: an empty value is written without `=`.
    if not explode:
        members = [f"{name}={','.join(members)}"]
    elif not paired:
        members = [f"{name}={member}" for member in members]
    return "".join([f";{member.removesuffix('=')}" for member in members])


def _header_text(parameter: Parameter, value: Any) -> str | None:
    if parameter.media_type is not None:
        text = content_text(parameter.media_type, value)
        # JSON escapes characters that headers cannot contain.
        return text if text.isascii() or not is_json(parameter.media_type) else _ascii_json(text)
    if not isinstance(value, _CONTAINERS):
        return scalar_text(value)
    delimiter = _DELIMITERS.get(parameter.collection_format or "", ",")
    item = _without_commas(str) if delimiter == "," else str
    explode = parameter.explode is True and parameter.collection_format is None
    members = _members(value, lambda name: item(name).replace("=", "%3D"), item, paired=explode)
    return (delimiter.join(members) if delimiter == "," else _join(members, delimiter)) if members else None


def _ascii_json(text: str) -> str:
    return json.dumps(json.loads(text), separators=(",", ":"))


def _members(value: Any, key: Encode, text: Encode, *, paired: bool = False) -> list[str]:
    """Return an array's items, or an object's names and values (alternating, or as `name=value`); skip nulls."""
    if not isinstance(value, dict):
        return [text(scalar_text(item)) for item in value if item is not None]
    named = [(key(str(name)), text(scalar_text(item))) for name, item in value.items() if item is not None]
    return [f"{name}={item}" for name, item in named] if paired else [part for pair in named for part in pair]


def _join(members: list[str], delimiter: str) -> str:
    if any(delimiter in member for member in members):
        raise ValueError("an item contains the separator of the items")
    return delimiter.join(members)


def scalar_text(value: Any) -> str:
    """Return a value as text: primitives as in JSON but without quotes, other values as JSON."""
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    return json_bytes(value).decode()


def _float_text(value: float) -> str:
    if not isfinite(value):
        raise ValueError("JSON has no NaN or infinity")
    # Write 1.0 as 1: JSON does not distinguish them.
    return str(int(value)) if value.is_integer() and abs(value) < 1e21 else _encode_json(value).decode()


def json_bytes(value: Any) -> bytes:
    """Encode a value as compact JSON, bytes as base64; raise `ValueError` if JSON cannot represent it."""
    try:
        data = _encode_json(value)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it cannot be encoded as JSON: {error}") from None
    # msgspec silently encodes NaN and infinity as null.
    if b"null" in data and has_invalid_number(value):
        raise ValueError("JSON has no NaN or infinity")
    return data


def content_text(media_type: str, value: Any) -> str:
    """Encode a value as text of a media type; raise `ValueError` for an array or object that the media
    type cannot represent.
    """
    if is_json(media_type):
        return json_bytes(value).decode()
    if not isinstance(value, _CONTAINERS):
        return scalar_text(value)
    if essence(media_type) == "application/x-www-form-urlencoded" and isinstance(value, dict):
        pairs = [pair for name, item in value.items() for pair in form_pairs(Parameter(str(name), "query"), item)]
        return "&".join([f"{name}={text}" for name, text in pairs])
    raise ValueError(f"an array or object cannot be encoded as {media_type}: pass a string")


def quoted(text: str) -> str:
    """Percent-encode everything except unreserved characters."""
    return text if _is_plain(text) else quote(text, safe="")


def _quoted_but_reserved(text: str) -> str:
    return _UNRESERVED_ONLY.sub(lambda found: quote(found[0], safe=""), text)


def _literal(text: str) -> str:
    return text if _is_literal(text) else _NOT_LITERAL.sub(lambda found: quote(found[0], safe=""), text)


def _without_commas(encode: Encode) -> Encode:
    def encode_item(text: str) -> str:
        encoded = encode(text)
        return encoded if '"' in encoded else encoded.replace(",", "%2C")

    return encode_item


def header_name(name: str) -> str:
    """Return a header name; raise `ValueError` if it is invalid."""
    if not _is_token(name):
        raise ValueError(f"{name!r} is not a header name")
    return name


def header_text(text: str) -> str:
    """Return a header value, with non-ASCII characters percent-encoded; raise `ValueError` for a control character."""
    if _NOT_IN_HEADERS.search(text):
        raise ValueError("it contains a line break or another control character")
    return _NOT_ASCII.sub(lambda found: quote(found[0], safe=""), text).strip(" \t")


def _cookie_text(text: str) -> str:
    if _NOT_IN_COOKIES.search(text):
        raise ValueError("it contains a character that is not allowed in a cookie")
    return text


def _cookie_name(name: str) -> str:
    if not _is_token(name):
        raise ValueError("its name is not valid for a cookie")
    return name


def _refusal(parameter: Parameter, error: Exception) -> CallError:
    message = f"cannot send {parameter.location} parameter {parameter.name!r}: {reason_of(error)}"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"parameter": parameter.name, "in": parameter.location})


def reason_of(error: Exception) -> str:
    """Return why a value cannot be encoded."""
    match error:
        case UnicodeEncodeError(encoding="utf-8"):
            return "it contains a lone surrogate, which cannot be encoded"
        case RecursionError():
            return "it is nested too deeply"
    return str(error)
