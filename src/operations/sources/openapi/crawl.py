"""Bringing the files that a document refers to, and theirs, before they are needed; never from outside its folder."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from operations.errors import CallError
from operations.sources.openapi.documents import Documents, LazyObject, read_document

Read = Callable[[str], Awaitable[bytes | str]]

_REFERENCE = re.compile(rb'"\$ref"\s*:\s*"([^"#][^"]*)"')


async def crawl(documents: Documents, text: bytes | None, read: Read, *, folder: str) -> list[str]:
    """Read every file in `folder` that is referred to, however far; returns what could not be read, and why.

    `text` is the main document's JSON, if it is JSON, which is searched faster than a tree is walked.
    """
    address = documents.root.address
    found = _search(text) if text is not None else _walk(documents.root.value)
    pending = list(dict.fromkeys(_absolute(address, found)))
    seen = {address, *pending}
    problems: list[str] = []
    while pending:
        target = pending.pop()
        if urlsplit(target).scheme != "file":
            continue
        if not target.startswith(folder) or "/../" in unquote(target):
            problems.append(f"{target} lies outside of the document's folder: pass root= to allow it")
            continue
        try:
            document = read_document(await read(unquote(urlsplit(target).path)), target)
        except (OSError, CallError) as error:
            problems.append(f"{target} cannot be read: {error}")
            continue
        documents.add(target, document)
        for further in _absolute(target, _walk(document)):
            if further not in seen:
                seen.add(further)
                pending.append(further)
    return problems


def _absolute(base: str, references: Iterator[str]) -> Iterator[str]:
    for reference in references:
        address = urldefrag(urljoin(base, reference))[0]
        if address and address != base:
            yield address


def _search(text: bytes) -> Iterator[str]:
    # Most documents refer to nothing outside of themselves, and counting is faster than searching.
    own = text.count(b'"$ref":"#') + text.count(b'"$ref": "#')
    if text.count(b'"$ref"') == own:
        return
    for match in _REFERENCE.finditer(text):
        yield match[1].decode("utf-8", "replace")


def _walk(document: Any) -> Iterator[str]:
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, (dict, LazyObject, Mapping)):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                yield reference
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
