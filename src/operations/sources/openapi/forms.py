"""Forms: an object as `application/x-www-form-urlencoded`, each property by its OAS encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.sources.openapi.media import is_json
from operations.sources.openapi.parameters import Pairs, Parameter, content_text, form_pairs, quoted, reason_of

Encoding = Mapping[str, Any]
"""One property's OAS encoding; `collectionFormat` is heeded too, for the form parameters of Swagger 2.0."""


def encode_form(value: Mapping[str, Any], encoding: Mapping[str, Encoding]) -> bytes:
    """An object as form data; raises ValueError that names the property which cannot be written."""
    written: list[str] = []
    for name, item in value.items():
        try:
            written += [f"{key}={text}" for key, text in _property_pairs(name, item, encoding.get(name, {}))]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the property {name!r}: {reason_of(error)}") from None
    return "&".join(written).encode()


def _property_pairs(name: str, value: Any, encoding: Encoding) -> Pairs:
    if value is None:
        return []
    parameter = styled_parameter(name, encoding)
    if parameter is not None:
        return form_pairs(parameter, value)
    media_type = first_type(encoding)
    # Objects are JSON unless told otherwise; arrays are repeated, unless JSON is asked for.
    if isinstance(value, dict) or (media_type is not None and is_json(media_type)):
        return [(quoted(name), quoted(content_text(media_type or "application/json", value)))]
    plain = Parameter(name, "query", media_type=media_type)
    if media_type is None or not isinstance(value, (list, tuple)):
        return form_pairs(plain, value)
    return [pair for item in value if item is not None for pair in form_pairs(plain, item)]


def styled_parameter(name: str, encoding: Encoding) -> Parameter | None:
    """A property described by a style, as a parameter; None where its content type decides."""
    style, explode = encoding.get("style"), encoding.get("explode")
    reserved, collection_format = encoding.get("allowReserved"), encoding.get("collectionFormat")
    if style is None and explode is None and reserved is None and collection_format is None:
        return None
    return Parameter(name, "query", style, explode, reserved is True, collection_format=collection_format)


def first_type(encoding: Encoding) -> str | None:
    """The first content type that an encoding names without a wildcard."""
    for media_type in str(encoding.get("contentType") or "").split(","):
        if media_type.strip() and "*" not in media_type:
            return media_type.strip()
    return None
