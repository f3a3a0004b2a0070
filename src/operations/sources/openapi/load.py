"""from_openapi and its variants: OpenAPI documents as operations; each operation object is read on first use."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Protocol
from urllib.parse import urljoin

import msgspec

from operations.awaitable_context import AwaitableContext
from operations.errors import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPResponse, default_client, read_body
from operations.local_files import read_regular
from operations.registry import OperationRegistry
from operations.settings import read_settings
from operations.sources.openapi.auth import NO_CREDENTIALS, CredentialSource, RequestCredentials
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.documents import (
    MAIN,
    DanglingReferenceError,
    DocNode,
    Documents,
    LazyObject,
    OpenAPISpec,
    as_utf8,
    read_document,
    read_referenced_files,
)
from operations.sources.openapi.endpoint import Entry, FoundEntry, NameAllocator, OpenAPIEndpoint
from operations.sources.openapi.exchange import Exchange, OutgoingRequest
from operations.sources.openapi.origins import CredentialOrigins, without_query
from operations.sources.openapi.own_documents import OwnEndpoint, is_own, read_own_entries
from operations.sources.openapi.requests import PreparedRequest
from operations.sources.openapi.responses import header
from operations.sources.openapi.service import HTTPService
from operations.sources.openapi.template import TemplateReader
from operations.spec import Operation

Loader = Callable[[str], Any]

_METHODS = (("get",), ("put",), ("post",), ("delete",), ("options",), ("head",), ("patch",), ("trace",))
_DOCUMENT_BYTES = 256 * 1024 * 1024


class OpenAPIFS(Protocol):
    """A file system to read documents from."""

    def read(self, path: str) -> bytes | str | Awaitable[bytes | str]:
        """Return the content of a file."""


class APIOperations(list[Operation[Any]]):
    """The operations of a document and the service that calls them; `async with` closes the connections at its end."""

    def __init__(
        self,
        operations: list[Operation[Any]],
        service: HTTPService,
        endpoints: Sequence[OpenAPIEndpoint | OwnEndpoint],
        problems: list[str],
    ) -> None:
        super().__init__(operations)
        self.service = service
        self._endpoints = endpoints
        self._problems = problems

    def diagnostics(self) -> dict[str, list[str]]:
        """Return the unusable parts of the document, by operation id; the id `""` means the document itself.

        This method reads every operation object; loading a document does not.
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

    async def __aenter__(self) -> APIOperations:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def from_openapi(
    document: OpenAPISpec | Mapping[str, Any] | bytes | str,
    config: HTTPServiceConfig | Mapping[str, Any],
    *,
    loader: Loader | None = None,
    own: bool = True,
) -> APIOperations:
    """Return the operations of a document; files that it refers to are read through `loader(address)` only.

    `config` may be a mapping of the fields of `HTTPServiceConfig`. The document of another served registry is imported
    without loss; `own=False` reads it like any other document.
    """
    config = read_settings(config, HTTPServiceConfig, "config")
    if isinstance(document, (bytes, str)):
        document = as_utf8(document)
    elif not isinstance(document, Mapping):
        message = f"invalid document: expected a mapping, str or bytes, not {type(document).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    main = read_document(document, "the document")
    may_stream = _mentions_streams(document if isinstance(document, bytes) else main)
    return _operations(Documents(main, loader=loader), config, [], may_stream=may_stream, own=own)


def from_openapi_file(
    path: str | Path,
    config: HTTPServiceConfig | Mapping[str, Any],
    fs: OpenAPIFS | None = None,
    *,
    root: str | Path | None = None,
    loader: Loader | None = None,
    own: bool = True,
) -> AwaitableContext[APIOperations]:
    """Return the operations of a document in a file.

    The document may refer to files below `root`, by default the directory of the document. Symbolic links are followed
    if they lead to such a file.

    Await the result, or use it with `async with`, which closes the connections.
    """
    return AwaitableContext(_open_file(path, config, fs, root, loader, own))


async def _open_file(
    path: str | Path,
    config: HTTPServiceConfig | Mapping[str, Any],
    fs: OpenAPIFS | None,
    root: str | Path | None,
    loader: Loader | None,
    own: bool,
) -> APIOperations:
    config = read_settings(config, HTTPServiceConfig, "config")

    async def read(name: str, directory: Path | None = None) -> bytes | str:
        if fs is None:
            return await asyncio.to_thread(read_file, name, directory, may_be_pipe=directory is None)
        content = fs.read(name)
        content = await content if inspect.isawaitable(content) else content
        if not isinstance(content, (bytes, str)):
            raise OSError(f"the file system returned {type(content).__name__}: expected str or bytes")
        return content

    location = _absolute(path, fs)
    directory = location.parent if root is None else _absolute(root, fs)
    try:
        text = as_utf8(await read(str(location)))
    except (OSError, LookupError) as error:
        # A file system over a mapping raises KeyError for a missing file.
        reason = "no such file" if isinstance(error, LookupError) else error.strerror or error
        message = f"cannot read {path}: {reason}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
    documents = Documents(read_document(text, str(path)), location.as_uri(), loader=loader)
    text_of_json = text if isinstance(documents.root.value, LazyObject) else None
    problems = await read_referenced_files(
        documents,
        text_of_json,
        lambda name: read(name, directory),
        directory=directory.as_uri().rstrip("/") + "/",
    )
    may_stream = len(documents) > 1 or _mentions_streams(text)
    return _operations(documents, config, problems, may_stream=may_stream, own=own)


def from_openapi_url(
    url: str, config: HTTPServiceConfig | Mapping[str, Any], *, loader: Loader | None = None, own: bool = True
) -> AwaitableContext[APIOperations]:
    """Return the operations of a document at a URL; redirects are followed.

    Await the result, or use it with `async with`, which closes the connections.

    The first request for the document has no credentials. If it fails with 401, a second request has the credentials
    and the configured headers. The second request is also sent if a registry of this library serves the document: such
    a document contains only operations that its reader may call. The second request is sent only to an origin that
    receives the credentials of calls.
    """
    return AwaitableContext(_open_url(url, config, loader, own))


async def _open_url(
    url: str, config: HTTPServiceConfig | Mapping[str, Any], loader: Loader | None, own: bool
) -> APIOperations:
    config = read_settings(config, HTTPServiceConfig, "config")
    if not url.lower().startswith(("http://", "https://")):
        message = f"{url.partition('?')[0]!r} is not an http or https URL: use from_openapi_file for files"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    client = config.client or default_client(ClientOptions(proxy=config.proxy))
    try:
        response, body = await _request(url, config, client, NO_CREDENTIALS, CredentialOrigins(None, None, ()))
        origins = CredentialOrigins(config.base_url, url, config.credential_origins)
        if url in origins and (response.status == 401 or (own and _may_be_own(body))):
            credentials = await _document_credentials(url, config, client, origins)
            if credentials is not None:
                response, body = await _request(url, config, client, credentials, origins, config.headers)
    finally:
        if config.client is None:
            await client.close()
    found = response.url
    if response.status != 200:
        raise CallError(ErrorCode.UNAVAILABLE, _not_a_document(url, found, response))
    body = as_utf8(body)
    documents = Documents(read_document(body, without_query(found)), found, loader=loader)
    may_stream = _mentions_streams(body)
    return _operations(documents, config, [], may_stream=may_stream, document_url=found, requested_url=url, own=own)


async def _document_credentials(
    url: str, config: HTTPServiceConfig, client: HTTPClient, origins: CredentialOrigins
) -> RequestCredentials | None:
    """Return the credentials for a request for a document; None if there are neither credentials nor headers."""
    authenticator = None if config.auth is None else CredentialSource(config.auth, {}, client, url, origins)
    chosen = None if authenticator is None else authenticator.choose([{"bearer": []}], None)
    if authenticator is not None and chosen:
        return await authenticator.resolve(chosen, config.timeout)
    return NO_CREDENTIALS if config.headers else None


async def _request(
    url: str,
    config: HTTPServiceConfig,
    client: HTTPClient,
    credentials: RequestCredentials,
    origins: CredentialOrigins,
    headers: Mapping[str, str] | None = None,
) -> tuple[HTTPResponse, bytes]:
    """Return the response to a request for a document, and its body."""
    wanted = [("Accept", "application/json, application/yaml, */*"), *(headers or {}).items()]
    outgoing = OutgoingRequest(
        prepared=PreparedRequest("GET", url, "", wanted, None, None),
        credentials=credentials,
        deadline=None,
        timeout=config.timeout,
    )
    sent = await Exchange(client, config, origins).send(outgoing)
    try:
        return sent.response, await read_body(sent.response, limit=_DOCUMENT_BYTES)
    finally:
        await sent.close()


def _may_be_own(body: bytes) -> bool:
    return b'"x-operations":{"version":1}' in body[:65536]


class HTTPServices:
    """The APIs of a registry, by namespace; `async with` removes all of them at its end."""

    def __init__(self, registry: OperationRegistry) -> None:
        self.registry = registry
        self._services: dict[str, APIOperations] = {}

    async def add(
        self,
        source: Mapping[str, Any] | str | Path,
        config: HTTPServiceConfig | Mapping[str, Any],
        *,
        replace: bool = False,
    ) -> APIOperations:
        """Register and return the operations of a document: a mapping, a file's path, or a URL.

        With `replace`, they replace the service with the same namespace. If they cannot be registered, that service is
        kept.
        """
        config = read_settings(config, HTTPServiceConfig, "config")
        name = config.namespace or ""
        if name in self._services and not replace:
            message = f"service {name!r} already exists: pass replace=True to replace it"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        operations = await _load(source, config)
        replaced = self._services.get(name)
        withdrawn = [] if replaced is None else self._withdraw(replaced)
        try:
            self.registry.register_all(operations)
        except BaseException:
            self.registry.register_all(withdrawn)
            await operations.close()
            raise
        self._services[name] = operations
        if replaced is not None:
            await replaced.close()
        return operations

    async def remove(self, namespace: str) -> None:
        """Unregister a service's operations and close its connections; raise `OPERATION_NOT_FOUND` if it is unknown."""
        operations = self._services.pop(namespace, None)
        if operations is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown service {namespace!r}")
        self._withdraw(operations)
        await operations.close()

    def _withdraw(self, operations: APIOperations) -> Sequence[Operation[Any]]:
        """Unregister a service's operations; return those that were registered."""
        registered = [each for each in operations if self.registry.get_operation(each.id) is each]
        for operation in registered:
            self.registry.unregister(operation.id)
        return registered

    def get(self, namespace: str) -> APIOperations | None:
        """Return the operations of a service; None if unknown."""
        return self._services.get(namespace)

    def list(self) -> list[str]:
        """Return the namespaces of all services, sorted."""
        return sorted(self._services)

    async def close(self) -> None:
        """Remove every service."""
        for namespace in list(self._services):
            await self.remove(namespace)

    async def __aenter__(self) -> HTTPServices:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _load(source: Mapping[str, Any] | str | Path, config: HTTPServiceConfig) -> APIOperations:
    if isinstance(source, Mapping):
        return from_openapi(source, config)
    address = str(source)
    if address.startswith(("http://", "https://")):
        return await from_openapi_url(address, config)
    return await from_openapi_file(source, config)


def _not_a_document(url: str, found: str, response: HTTPResponse) -> str:
    led = "" if found == url else f" (redirected from {without_query(url)})"
    target = header(response.headers, "location")
    further = f"; the redirect to {without_query(urljoin(found, target))} is not followed" if target else ""
    return f"{without_query(found)}{led} returned {response.status} instead of an OpenAPI document{further}"


def read_file(path: str, directory: Path | None = None, *, may_be_pipe: bool = False) -> bytes:
    """Return the content of a regular file of limited size; with `may_be_pipe` (for paths from the user), or of a pipe.

    With `directory`, raise OSError for a link that leads out of the directory. A document from another person may come
    with a link to a private file of the user.
    """
    file = Path(path)
    if directory is not None:
        file = file.resolve()
        if not file.is_relative_to(directory.resolve()):
            problem = "it is a link to a file outside the allowed directory (in Python, root= sets this directory)"
            raise OSError(errno.EACCES, problem)
    return file.read_bytes() if may_be_pipe and file.is_fifo() else read_regular(file, _DOCUMENT_BYTES)


def _absolute(path: str | Path, fs: OpenAPIFS | None) -> Path:
    """Return an absolute path; a custom file system has its own root."""
    return Path(os.path.abspath(path)) if fs is None else Path("/", path)


def _mentions_streams(document: bytes | Mapping[str, Any]) -> bool:
    """Whether a document, or one that it refers to, may describe event streams; faster than reading every operation."""
    if isinstance(document, bytes):
        return b"event-stream" in document
    pending: list[Any] = [document]
    seen = {id(document)}
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            if any("event-stream" in key for key in node) or not str(node.get("$ref", "#")).startswith("#"):
                return True
            node = node.values()
        fresh = [member for member in node if isinstance(member, (Mapping, list)) and id(member) not in seen]
        seen.update(map(id, fresh))
        pending += fresh
    return False


def _operations(
    documents: Documents,
    config: HTTPServiceConfig,
    problems: list[str],
    *,
    may_stream: bool,
    document_url: str | None = None,
    requested_url: str | None = None,
    own: bool = True,
) -> APIOperations:
    _require_document(documents.root)
    own = own and is_own(documents)
    if config.namespace is None and not own:
        message = "the namespace of this document's operations is missing: set it in HTTPServiceConfig"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    service = HTTPService(
        documents, config, document_url=document_url, requested_url=requested_url, may_stream=may_stream
    )
    endpoints: list[OpenAPIEndpoint] | list[OwnEndpoint]
    if own:
        endpoints = read_own_entries(service, _entries(documents, problems), problems)
    else:
        reader, names = TemplateReader(documents, service.schemas.body), NameAllocator()
        endpoints = [OpenAPIEndpoint(service, reader, names, found) for found in _entries(documents, problems)]
    return APIOperations([endpoint.operation for endpoint in endpoints], service, endpoints, problems)


def _require_document(root: DocNode) -> None:
    document = root.value
    version = document.get("openapi", document.get("swagger"))
    if version is None or ("paths" not in document and "webhooks" not in document and "components" not in document):
        name = "" if root.address == MAIN else f"{root.address.partition('?')[0].removeprefix('file://')}: "
        message = (
            f"{name}not an OpenAPI document: expected `openapi` or `swagger`, and `paths`, `webhooks` or `components`"
        )
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _entries(documents: Documents, problems: list[str]) -> Iterator[FoundEntry]:
    """Yield every path and method of the document in order; the `$ref` of a path is resolved."""
    newest = str(documents.root.value.get("openapi", "")).startswith("3.2")
    paths = documents.root.get("paths")
    if not isinstance(paths.value, (Mapping, NoneType)):
        problems.append(f"`paths` is {type(paths.value).__name__}, not an object")
        return
    described = paths.value or {}
    for path in described:
        if path.startswith("x-"):
            continue
        value = described.peek(path) if isinstance(described, LazyObject) else described[path]
        own = DocNode(value, paths.address, ("paths", path))
        try:
            item = documents.follow(own)
        except DanglingReferenceError as error:
            problems.append(f"path {path} is skipped: {error}")
            continue
        if not isinstance(item.value, Mapping):
            problems.append(f"path {path} is skipped: it is {type(item.value).__name__}, not an object")
            continue
        for keys in _methods(item, newest):
            yield Entry(documents, path, keys[-1], keys, own is not item), _text(item, keys)
        if own is not item:
            # Operations beside a `$ref` count, unless the target of the `$ref` has the same method.
            for keys in _methods(own, newest):
                if keys[-1] not in item.value:
                    yield Entry(documents, path, keys[-1], keys, False), _text(own, keys)


def _methods(item: DocNode, newest: bool) -> Iterator[tuple[str, ...]]:
    """Yield the path of keys to the operation object of each method; the last key is the method."""
    for keys in (*_METHODS, ("query",)) if newest else _METHODS:
        if keys[0] in item.value:
            yield keys
    if newest:
        for method, _ in item.get("additionalOperations").items():
            yield "additionalOperations", method


def _text(item: DocNode, keys: tuple[str, ...]) -> msgspec.Raw | None:
    value = item.value
    return value.raw(keys[0]) if len(keys) == 1 and isinstance(value, LazyObject) else None
