"""Requests: built from an operation's template, its input and the configuration, without sending them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus, urljoin

import msgspec

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.auth import NO_CREDENTIALS, RequestCredentials
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPCallOptions, HTTPServiceConfig
from operations.sources.openapi.media import EVENT_STREAM, is_stream
from operations.sources.openapi.origins import (
    CredentialOrigins,
    harmless_headers,
    is_complete,
    is_same_origin,
    show_origin,
    withheld_error,
)
from operations.sources.openapi.parameters import (
    Parameter,
    PathTemplate,
    cookie_header,
    header_values,
    query_string,
    quoted,
)
from operations.sources.openapi.template import Template


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request without credentials."""

    method: str
    url: str
    query: str
    headers: Sequence[tuple[str, str]]
    cookies: str | None
    body: Body | None
    own: frozenset[str] = frozenset()
    """Names of the headers that the call sets; nothing overrides them."""

    def headers_with(self, credentials: RequestCredentials = NO_CREDENTIALS) -> Sequence[tuple[str, str]]:
        """Return the headers with credentials; headers that the call sets take precedence."""
        headers = self.headers
        if credentials is NO_CREDENTIALS and self.cookies is None:
            return headers
        if credentials.headers:
            added = {pair[0].lower(): pair for pair in credentials.headers if pair[0].lower() not in self.own}
            headers = override_headers(headers, list(added.values()))
        if (self.cookies is None and not credentials.cookies) or "cookie" in self.own:
            return headers
        cookies = "; ".join(_replace_pairs((self.cookies or "").split("; "), credentials.cookies, str))
        return [*headers, ("Cookie", cookies)] if cookies else headers

    def url_with(self, credentials: RequestCredentials = NO_CREDENTIALS) -> str:
        """Return the URL with its query, including credentials."""
        query = self.query
        if credentials.query:
            query = "&".join(_replace_pairs(query.split("&"), credentials.query, quoted))
        return f"{self.url}?{query}" if query else self.url


class RequestBuilder:
    """Builder of one operation's requests; everything that does not depend on the input is prepared once."""

    def __init__(
        self,
        template: Template,
        config: HTTPServiceConfig,
        *,
        document_url: str | None,
        home: str | None,
        origins: CredentialOrigins,
    ) -> None:
        self.template = template
        self._config = config
        base = base_url(template.servers, config, document_url)
        self._base: str | None = None
        self._base_query = ""
        if base is not None:
            self._base, self._base_query = _split_query(base)
        self._is_trusted = base is None or base in origins
        self.accept = ", ".join(kind for kind in template.accepts if not is_stream(kind)) or "*/*"
        # Configured headers may be secrets: a server that is not a credential origin receives only harmless ones.
        own = list((config.headers if self._is_trusted else harmless_headers(config.headers)).items())
        if len(own) < len(config.headers) and base is not None and is_same_origin(base, home):
            raise untrusted_server_error(template, base)
        self.accept_stream = EVENT_STREAM if template.streams else f"{EVENT_STREAM}, {self.accept}"
        accepted = (self.accept, self.accept_stream)
        self._headers = {kind: override_headers([("Accept", kind)], own) for kind in accepted}
        located: defaultdict[str, list[Parameter]] = defaultdict(list)
        for parameter in template.plan.parameters.values():
            located[parameter.location].append(parameter)
        self._path = PathTemplate(template.path, located["path"])
        self._query_parameters = located["querystring"] or located["query"]
        self._header_parameters = located["header"]
        self._cookie_parameters = located["cookie"]

    def build(self, input: Mapping[str, Any], options: HTTPCallOptions, accept: str) -> PreparedRequest:
        """Return the request for an input; raise `VALIDATION_ERROR` if it cannot be sent safely."""
        if self._base is None:
            raise self._no_server()
        path, query = self._path.fill(input)
        query = query_string(self._query_parameters, input, first=(self._base_query, query))
        headers = self._headers[accept]
        given: list[tuple[str, str]] = []
        if self._header_parameters:
            given = header_values(self._header_parameters, input)
            headers = override_headers(headers, given)
        cookies = None
        if self._cookie_parameters:
            cookies = cookie_header(self._cookie_parameters, input)
        plan = self.template.plan.body
        body = None if plan is None else plan.body(input, options.content_type, self._config.content_types)
        # A Swagger 2.0 document may declare a `Content-Type` parameter, which names the type more exactly.
        if body is not None and body.content_type is not None and not _has_content_type(given):
            headers = override_headers(headers, [("Content-Type", body.content_type)])
        own: frozenset[str] = frozenset()
        if options.headers:
            if not self._is_trusted and len(harmless_headers(options.headers)) < len(options.headers):
                raise untrusted_server_error(self.template, self._base)
            headers = override_headers(headers, list(options.headers.items()))
            own = frozenset(name.lower() for name in options.headers)
        return PreparedRequest(self.template.method, self._base + path, query, headers, cookies, body, own)

    def _no_server(self) -> CallError:
        url = _fill_variables(self.template.servers[0] if self.template.servers else {}, self._config.server_variables)
        problem = f"the document's server {url} has unset variables: set server_variables or base_url"
        problem = problem if "{" in url else "the document has no server: set base_url"
        message = f"{self.template.method} {self.template.path}: {problem}"
        return CallError(ErrorCode.VALIDATION_ERROR, message)


def _has_content_type(headers: Sequence[tuple[str, str]]) -> bool:
    return any(name.lower() == "content-type" for name, _ in headers)


def untrusted_server_error(template: Template, url: str) -> CallError:
    """Return the error for an operation whose server receives no credentials."""
    instead = f"set base_url, or add {show_origin(url)!r} to credential_origins"
    return withheld_error(f"{template.method} {template.path}", url, instead)


def base_url(servers: Sequence[Mapping[str, Any]], config: HTTPServiceConfig, document_url: str | None) -> str | None:
    """Return the base URL of the API with its query; None if the document has no complete URL."""
    if config.base_url is not None:
        if not is_complete(config.base_url):
            message = "invalid base_url: expected a URL such as https://api.example.com/v1"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return config.base_url
    url = _fill_variables(servers[0] if servers else {}, config.server_variables)
    if document_url is not None:
        url = urljoin(document_url, url)
    elif url.startswith("//"):
        url = f"https:{url}"
    return url if is_complete(url) else None


def _split_query(base: str) -> tuple[str, str]:
    """Split a base URL: return the URL that precedes each path, and the query that each request gets."""
    path, _, query = base.partition("#")[0].partition("?")
    return path.rstrip("/"), query


def _fill_variables(server: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """Return the URL of a server with its known variables filled in."""
    url = server.get("url")
    url = url if isinstance(url, str) else "/"
    for name, value in given.items():
        url = url.replace(f"{{{name}}}", value)
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        declared = variable if isinstance(variable, Mapping) else {}
        choices = declared.get("enum")
        default = declared.get("default", choices[0] if isinstance(choices, list) and choices else None)
        if default is not None:
            url = url.replace(f"{{{name}}}", str(default))
    return url


def _replace_pairs(
    pairs: Sequence[str], credentials: Sequence[tuple[str, str]], encode: Callable[[str], str]
) -> list[str]:
    """Return `name=value` pairs with the credentials, which replace pairs of the same name."""
    own = dict(credentials)
    kept = [pair for pair in pairs if pair and unquote_plus(pair.partition("=")[0]) not in own]
    return [*kept, *(f"{encode(name)}={encode(value)}" for name, value in own.items())]


def override_headers(headers: Sequence[tuple[str, str]], own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return `headers`, with those of `own` replacing others of the same name."""
    names = {name.lower() for name, _ in own}
    return [pair for pair in headers if pair[0].lower() not in names] + list(own)
