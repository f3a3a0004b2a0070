"""from_openapi and its siblings: an API document becomes operations, none of them read before it is used."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Protocol
from urllib.parse import urljoin

from operations.errors import CallError, ErrorCode
from operations.http import ClientOptions, HTTPResponse, default_client, read_body
from operations.sources.openapi.auth import NOBODY
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.crawl import crawl
from operations.sources.openapi.documents import (
    MAIN,
    DanglingReferenceError,
    Documents,
    LazyObject,
    Node,
    as_utf8,
    read_document,
)
from operations.sources.openapi.endpoint import Endpoint, Entry
from operations.sources.openapi.exchange import Exchange, Outgoing
from operations.sources.openapi.names import Names
from operations.sources.openapi.requests import PreparedRequest, without_query
from operations.sources.openapi.responses import header
from operations.sources.openapi.service import HTTPService
from operations.sources.openapi.template import TemplateReader
from operations.spec import Operation

Loader = Callable[[str], Any]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_DOCUMENT_BYTES = 256 * 1024 * 1024


class OpenAPIFS(Protocol):
    """Where files are read from."""

    def read(self, path: str) -> bytes | str | Awaitable[bytes | str]:
        """The content of a file."""


class APIOperations(list[Operation[Any]]):
    """The operations of a document, with the service they are called through."""

    def __init__(
        self, operations: list[Operation[Any]], service: HTTPService, endpoints: list[Endpoint], problems: list[str]
    ) -> None:
        super().__init__(operations)
        self.service = service
        self._endpoints = endpoints
        self._problems = problems

    def diagnostics(self) -> dict[str, list[str]]:
        """What in the document could not be used, by operation id; under `""` what concerns no single one.

        This reads every operation, which loading did not.
        """
        found = {"": list(self._problems)} if self._problems else {}
        for endpoint in self._endpoints:
            notes = endpoint.notes()
            if notes:
                found[endpoint.id] = notes
        return found

    async def close(self) -> None:
        """Close the connections that calls opened."""
        await self.service.close()


def from_openapi(
    document: Mapping[str, Any] | bytes | str, config: HTTPServiceConfig, *, loader: Loader | None = None
) -> APIOperations:
    """The operations of a document; files it refers to come through `loader(address)` or not at all."""
    if isinstance(document, (bytes, str)):
        document = as_utf8(document)
    elif not isinstance(document, Mapping):
        message = f"the document is {type(document).__name__}, not a mapping, text or bytes"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    main = read_document(document, "the document")
    may_stream = not isinstance(document, bytes) or _mentions_streams(document)
    return _operations(Documents(main, loader=loader), config, [], may_stream=may_stream)


async def from_openapi_file(
    path: str | Path,
    config: HTTPServiceConfig,
    fs: OpenAPIFS | None = None,
    *,
    root: str | Path | None = None,
    loader: Loader | None = None,
) -> APIOperations:
    """The operations of a document in a file, with the files it refers to in its folder, or in `root` and below."""

    async def read(name: str) -> bytes | str:
        if fs is None:
            return await asyncio.to_thread(Path(name).read_bytes)
        content = fs.read(name)
        content = await content if inspect.isawaitable(content) else content
        if not isinstance(content, (bytes, str)):
            raise OSError(f"the file reader gave {type(content).__name__}, not text or bytes")
        return content

    location = _absolute(path, fs)
    folder = location.parent if root is None else _absolute(root, fs)
    try:
        text = as_utf8(await read(str(location)))
    except (OSError, LookupError) as error:
        # A file reader over a mapping says with a KeyError that there is no such file.
        reason = "no such file" if isinstance(error, LookupError) else error.strerror or error
        message = f"{path} cannot be read: {reason}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
    documents = Documents(read_document(text, str(path)), location.as_uri(), loader=loader)
    text_of_json = text if isinstance(documents.root.value, LazyObject) else None
    problems = await crawl(documents, text_of_json, read, folder=folder.as_uri().rstrip("/") + "/")
    return _operations(documents, config, problems, may_stream=len(documents) > 1 or _mentions_streams(text))


async def from_openapi_url(url: str, config: HTTPServiceConfig, *, loader: Loader | None = None) -> APIOperations:
    """The operations of a document at a URL, redirects followed; no credentials are sent to fetch it."""
    if not url.lower().startswith(("http://", "https://")):
        message = f"{url.partition('?')[0]!r} is no http or https address; from_openapi_file reads files"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    client = config.client or default_client(ClientOptions(proxy=config.proxy))
    wanted = [("Accept", "application/json, application/yaml, */*")]
    outgoing = Outgoing(
        prepared=PreparedRequest("GET", url, "", wanted, None, None),
        credentials=NOBODY,
        deadline=None,
        timeout=config.timeout,
    )
    try:
        sent = await Exchange(client, config).send(outgoing)
        try:
            body = await read_body(sent.response, limit=_DOCUMENT_BYTES)
        finally:
            await sent.close()
    finally:
        if config.client is None:
            await client.close()
    found = sent.response.url
    if sent.response.status != 200:
        raise CallError(ErrorCode.UNAVAILABLE, _not_a_document(url, found, sent.response))
    body = as_utf8(body)
    documents = Documents(read_document(body, without_query(found)), found, loader=loader)
    return _operations(documents, config, [], document_url=found, may_stream=_mentions_streams(body))


def _not_a_document(url: str, found: str, response: HTTPResponse) -> str:
    led = "" if found == url else f", which {without_query(url)} led to,"
    target = header(response.headers, "location")
    further = f" to {without_query(urljoin(found, target))}, which is not followed" if target else ""
    return f"{without_query(found)}{led} answered {response.status}{further}, not an API document"


def _absolute(path: str | Path, fs: OpenAPIFS | None) -> Path:
    """A path that addresses can be made of; another file system than the machine's has its own root."""
    return Path(os.path.abspath(path)) if fs is None else Path("/", path)


def _mentions_streams(text: bytes) -> bool:
    """Whether a document may describe streams at all, told by one search instead of reading each operation."""
    return b"event-stream" in text


def _operations(
    documents: Documents,
    config: HTTPServiceConfig,
    problems: list[str],
    *,
    may_stream: bool,
    document_url: str | None = None,
) -> APIOperations:
    _require_document(documents.root)
    service = HTTPService(documents, config, document_url=document_url, may_stream=may_stream)
    reader = TemplateReader(documents)
    names = Names()
    with _collector_paused():
        endpoints = [Endpoint(service, reader, documents, names, entry) for entry in _entries(documents, problems)]
        return APIOperations([endpoint.operation() for endpoint in endpoints], service, endpoints, problems)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from going over thousands of new objects again and again; none of them is garbage.

    When it is woken, it would go over all of them at once, a quarter of what the load itself takes; so they are put
    among the old objects, which it sees to in its rarest rounds.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            if gc.get_freeze_count() == 0:
                # What a program has frozen for itself has to stay so.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _require_document(root: Node) -> None:
    document = root.value
    version = document.get("openapi", document.get("swagger"))
    if version is None or ("paths" not in document and "webhooks" not in document and "components" not in document):
        name = "" if root.address == MAIN else f"{root.address.partition('?')[0].removeprefix('file://')}: "
        message = f"{name}not an API document: it has no `openapi` or `swagger` version, or no paths"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _entries(documents: Documents, problems: list[str]) -> Iterator[Entry]:
    """Every path and method of the document, in its order; what a path refers to is followed."""
    newest = str(documents.root.value.get("openapi", "")).startswith("3.2")
    paths = documents.root.get("paths")
    if not isinstance(paths.value, (Mapping, NoneType)):
        problems.append(f"the paths are {type(paths.value).__name__}, not an object")
        return
    for path, own in paths.items():
        if path.startswith("x-"):
            continue
        try:
            item = documents.follow(own)
        except DanglingReferenceError as error:
            problems.append(f"the path {path} is left out: {error}")
            continue
        if not isinstance(item.value, Mapping):
            problems.append(f"the path {path} is left out: it is {type(item.value).__name__}, not an object")
            continue
        yield from _methods(path, item, newest)
        if own is not item:
            # Operations beside a `$ref` stand where the path refers to have none of the same method.
            yield from (entry for entry in _methods(path, own, newest) if entry.method not in item.value)


def _methods(path: str, item: Node, newest: bool) -> Iterator[Entry]:
    described = set(item.value)
    for method in (*_METHODS, "query") if newest else _METHODS:
        if method in described:
            yield Entry(path, method, item, (method,))
    if newest:
        for method, _ in item.get("additionalOperations").items():
            yield Entry(path, method, item, ("additionalOperations", method))
