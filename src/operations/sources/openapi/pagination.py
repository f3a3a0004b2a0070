"""Pagination: async iterators over the pages of a list, or over their items."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from functools import reduce
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.openapi.service import call_options
from operations.spec import Operation
from operations.wire import member, pointer_parts

_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[^,;=]+(?:=(?:"[^"]*"|[^,;]*))?)*)')
_REL = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]*))', re.IGNORECASE)


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """How to find an operation's next page, by `kind`.

    `link`: the URL of the next page is in the `Link` header. `cursor`: the next value of `parameter` is in the data or
    in a header; the field `cursor` is its JSON pointer, or the name of the header. `page`: `parameter` counts pages
    from `first` (or items, in steps of `step`) until a page is empty.
    """

    kind: Literal["link", "cursor", "page"] = "link"
    parameter: str = "page"
    cursor: str = "/next_cursor"
    items: str = ""
    """JSON pointer to the items in a page's data; empty if the page is the list."""
    first: int = 1
    step: int = 1
    max_pages: int = 10_000
    """Maximum number of pages, for APIs whose pages never end."""


async def iterate_pages(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Mapping[str, Any] | None = None,
    context: OperationContext | None = None,
    *,
    pagination: Pagination = Pagination(),  # noqa: B008  # frozen
) -> AsyncIterator[ResponseEnvelope[Any]]:
    """Yield each page of a list as an envelope."""
    value: dict[str, Any] = dict(input or {})
    call = context or OperationContext()
    if pagination.kind == "page":
        value.setdefault(pagination.parameter, pagination.first)
    seen: set[str] = set()
    for _ in range(pagination.max_pages):
        envelope = await registry.execute(operation, value, call)
        if pagination.kind == "page" and not _items(envelope.data, pagination.items):
            return
        yield envelope
        following = _next(pagination, envelope, value)
        if following is None:
            return
        page_key = repr(following)
        if page_key in seen:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"endless list: the next page {page_key} was already read")
        seen.add(page_key)
        if pagination.kind == "link":
            call = _context_for(call, str(following))
        else:
            value[pagination.parameter] = following
    message = f"the list did not end within {pagination.max_pages:,} pages: raise max_pages of Pagination"
    raise CallError(ErrorCode.EXECUTION_ERROR, message)


async def iterate_items(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Mapping[str, Any] | None = None,
    context: OperationContext | None = None,
    *,
    pagination: Pagination = Pagination(),  # noqa: B008  # frozen
) -> AsyncIterator[Any]:
    """Yield each item of a list, page by page."""
    async for page in iterate_pages(registry, operation, input, context, pagination=pagination):
        for item in _items(page.data, pagination.items):
            yield item


def _items(data: Any, pointer: str) -> list[Any]:
    """Return the list at a JSON pointer in a page's data; an empty list if there is no value.

    Raise `VALIDATION_ERROR` if the value is not a list.
    """
    found = _at_pointer(data, pointer)
    if found is None or isinstance(found, list):
        return found or []
    named = found.items() if isinstance(found, dict) else ()
    lists = [f"{pointer}/{name}" for name, value in named if isinstance(value, list)]
    example = f", for example {lists[0]!r}" if lists else ""
    message = f"a page has no list at {pointer!r}: pass the JSON pointer of the list as Pagination(items=…){example}"
    raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _next(pagination: Pagination, envelope: ResponseEnvelope[Any], value: Mapping[str, Any]) -> Any:
    """Return the URL, cursor or number of the next page; None if there is no further URL or cursor.

    Numbers never end: the list ends at an empty page.
    """
    meta = envelope.meta
    if pagination.kind == "page":
        return value[pagination.parameter] + pagination.step
    if not isinstance(meta, HTTPResponseMeta):
        return None
    if pagination.kind == "link":
        return next_link(meta.headers.get("link", ""))
    if not pagination.cursor.startswith("/"):
        return meta.headers.get(pagination.cursor.lower()) or None
    return _at_pointer(envelope.data, pagination.cursor) or None


def next_link(header: str) -> str | None:
    """Return the `next` URL of a `Link` header; None if there is none."""
    for target, parameters in _LINK.findall(header):
        if any("next" in f"{quoted} {plain}".lower().split() for quoted, plain in _REL.findall(parameters)):
            return str(target)
    return None


def _context_for(context: OperationContext, address: str) -> OperationContext:
    """Return the context for a call to the next page's URL."""
    changed = msgspec.structs.replace(call_options(context), url=address)
    return msgspec.structs.replace(context, metadata={**context.metadata, "http": changed})


def _at_pointer(data: Any, path: str) -> Any:
    try:
        return reduce(member, pointer_parts(path), data)
    except LookupError:
        return None
