"""Lists that come in pages: an async iterator over the pages, or over their items, for the usual ways of paging."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import msgspec

from operations.context import OperationContext
from operations.envelope import HTTPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.openapi.service import call_options
from operations.spec import Operation

_LINK = re.compile(r'<([^>]*)>((?:\s*;\s*[^,;=]+(?:=(?:"[^"]*"|[^,;]*))?)*)')
_REL_NEXT = re.compile(r';\s*rel\s*=\s*(?:"[^"]*\bnext\b[^"]*"|next\b)', re.IGNORECASE)


class Pagination(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation's pages follow each other.

    `link`: the `Link` header names the next page. `cursor`: the answer holds what a parameter must be for the next
    page, at the JSON pointer `cursor` in the data, or in the header `cursor`. `page`: a parameter counts pages (or,
    with `step`, items) until one comes back empty.
    """

    kind: Literal["link", "cursor", "page"] = "link"
    parameter: str = "page"
    cursor: str = "/next_cursor"
    items: str = ""
    """JSON pointer to the list of items in a page's data; empty when the page is the list."""
    first: int = 1
    step: int = 1
    most: int = 10_000
    """How many pages at the most: an API whose pages never end must not be followed for ever."""


async def pages(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Mapping[str, Any] | None = None,
    context: OperationContext | None = None,
    *,
    pagination: Pagination = Pagination(),  # noqa: B008  # frozen
) -> AsyncIterator[ResponseEnvelope[Any]]:
    """Each page of a list, as the envelope of its own answer."""
    value: dict[str, Any] = dict(input or {})
    call = context or OperationContext()
    if pagination.kind == "page":
        value.setdefault(pagination.parameter, pagination.first)
    seen: set[str] = set()
    for _ in range(pagination.most):
        envelope = await registry.execute(operation, value, call)
        if pagination.kind == "page" and not _at(envelope.data, pagination.items):
            return
        yield envelope
        following = _next(pagination, envelope, value)
        if following is None:
            return
        mark = repr(following)
        if mark in seen:
            raise CallError(ErrorCode.EXECUTION_ERROR, f"the next page is one that was seen already: {mark}")
        seen.add(mark)
        if pagination.kind == "link":
            call = _to(call, envelope, str(following))
        else:
            value[pagination.parameter] = following
    raise CallError(ErrorCode.EXECUTION_ERROR, f"the list has more than {pagination.most} pages")


async def items(
    registry: OperationRegistry,
    operation: str | Operation[Any],
    input: Mapping[str, Any] | None = None,
    context: OperationContext | None = None,
    *,
    pagination: Pagination = Pagination(),  # noqa: B008  # frozen
) -> AsyncIterator[Any]:
    """Each item of a list, page after page."""
    async for page in pages(registry, operation, input, context, pagination=pagination):
        found = _at(page.data, pagination.items)
        for item in found if isinstance(found, list) else ():
            yield item


def _next(pagination: Pagination, envelope: ResponseEnvelope[Any], value: Mapping[str, Any]) -> Any:
    """What leads to the next page; None after the last."""
    meta = envelope.meta
    if pagination.kind == "page":
        return value[pagination.parameter] + pagination.step
    if not isinstance(meta, HTTPResponseMeta):
        return None
    if pagination.kind == "link":
        return next_link(meta.headers.get("link", ""))
    if not pagination.cursor.startswith("/"):
        return meta.headers.get(pagination.cursor.lower()) or None
    return _at(envelope.data, pagination.cursor) or None


def next_link(header: str) -> str | None:
    """The address that a `Link` header calls the next one."""
    for target, parameters in _LINK.findall(header):
        if _REL_NEXT.search(parameters):
            return str(target)
    return None


def _to(context: OperationContext, envelope: ResponseEnvelope[Any], address: str) -> OperationContext:
    """The context for a call of the next page's address."""
    changed = msgspec.structs.replace(call_options(context), url=address)
    return msgspec.structs.replace(context, metadata={**context.metadata, "http": changed})


def _at(data: Any, path: str) -> Any:
    for part in path.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(data, list):
            data = data[int(key)] if key.isdecimal() and int(key) < len(data) else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data
