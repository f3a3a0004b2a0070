"""The request that an input makes of a template: pure, nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPRequest
from operations.sources.openapi.auth import NOBODY, Credentials
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPCallOptions, HTTPServiceConfig
from operations.sources.openapi.media import is_stream
from operations.sources.openapi.parameters import Parameter, cookie_header, expand_path, header_values, query_string
from operations.sources.openapi.shortcut import Shortcut
from operations.sources.openapi.template import Template

Origin = tuple[str, str, int | None]


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request without credentials: what the input and the configuration make of the template."""

    method: str
    url: str
    query: str
    headers: Sequence[tuple[str, str]]
    cookies: str | None
    body: Body | None
    own: frozenset[str] = frozenset()
    """The names of the headers that the call itself set, which nothing overrides."""

    def headers_with(self, credentials: Credentials = NOBODY) -> Sequence[tuple[str, str]]:
        """The headers to send, credentials included; one that the call set itself stays as it is."""
        headers = self.headers
        if credentials is NOBODY and self.cookies is None:
            return headers
        if credentials.headers:
            shown = [pair for pair in credentials.headers if pair[0].lower() not in self.own]
            headers = overridden(headers, shown)
        if (self.cookies is None and not credentials.cookies) or "cookie" in self.own:
            return headers
        pairs = [f"{name}={value}" for name, value in credentials.cookies]
        cookies = "; ".join(([self.cookies] if self.cookies else []) + pairs)
        return [*headers, ("Cookie", cookies)] if cookies else headers

    def url_with(self, credentials: Credentials = NOBODY) -> str:
        """The whole address, credentials in the query included."""
        query = self.query
        if credentials.query:
            extra = query_string((), {}, credentials.query)
            query = f"{query}&{extra}" if query else extra
        return f"{self.url}?{query}" if query else self.url


class RequestBuilder:
    """Makes requests for one operation; what does not depend on the input is worked out once."""

    def __init__(
        self, template: Template, config: HTTPServiceConfig, document_url: str | None, home: Origin | None
    ) -> None:
        self.template = template
        self._config = config
        base = base_url(template.servers, config, document_url)
        self._base: str | None = None
        self._fixed_query = ""
        if base is not None:
            self._base, self._fixed_query = _split_query(base)
        # What is configured may be a secret: it goes to the API's own origin, not to an operation's server elsewhere.
        at_home = base is not None and origin(base) == home
        self._headers = list(config.headers.items()) if at_home else []
        self._path = template.path
        self.accept = ", ".join(kind for kind in template.accepts if not is_stream(kind)) or "*/*"
        self._keys: dict[str, list[tuple[str, str]]] = {}
        self._parameters: dict[str, list[Parameter]] = {}
        for key, parameter in template.plan.parameters.items():
            self._keys.setdefault(parameter.location, []).append((key, parameter.name))
            self._parameters.setdefault(parameter.location, []).append(parameter)
        # A server with a query of its own has it in every request, which is not the short way.
        self._shortcut = None if self._fixed_query else Shortcut.of(template)
        plain = template.plan.body is None and not {"header", "cookie"} & self._keys.keys()
        self._same_headers = tuple(self._fixed_headers(self.accept)) if plain else None
        """The headers of every call that asks for nothing of its own, where no input makes any."""

    def plain_request(self, input: Mapping[str, Any], timeout: float) -> HTTPRequest | None:
        """The request for an input that needs no care, to be sent without credentials; None where it needs any."""
        if self._shortcut is None or self._same_headers is None or self._base is None:
            return None
        filled = self._shortcut.fill(input)
        if filled is None:
            return None
        path, query = filled
        url = f"{self._base}{path}?{query}" if query else f"{self._base}{path}"
        return HTTPRequest(method=self.template.method, url=url, headers=self._same_headers, timeout=timeout)

    def build(self, input: Mapping[str, Any], options: HTTPCallOptions, accept: str) -> PreparedRequest:
        """The request for an input; raises `VALIDATION_ERROR` for one that cannot be sent safely."""
        plain = self._shortcut.fill(input) if self._shortcut is not None else None
        path, query = plain or self._fill(input)
        url = self._base + path if self._base is not None else self._no_server()
        if self._same_headers is not None and accept is self.accept and not options.headers:
            return PreparedRequest(self.template.method, url, query, self._same_headers, None, None)
        headers = self._fixed_headers(accept)
        if "header" in self._keys:
            headers = overridden(headers, header_values(*self._values(input, "header")))
        cookies = cookie_header(*self._values(input, "cookie")) if "cookie" in self._keys else None
        plan = self.template.plan.body
        body = None if plan is None else plan.body(input, options.content_type, self._config.content_types)
        if body is not None and body.content_type is not None:
            headers = overridden(headers, [("Content-Type", body.content_type)])
        if options.headers:
            headers = overridden(headers, list(options.headers.items()))
        own = frozenset(name.lower() for name in options.headers)
        return PreparedRequest(self.template.method, url, query, headers, cookies, body, own)

    def _fixed_headers(self, accept: str) -> list[tuple[str, str]]:
        return overridden([("Accept", accept)], self._headers)

    def _fill(self, input: Mapping[str, Any]) -> tuple[str, str]:
        """Path and query, whatever the values are and however they are written."""
        path, _, fixed = expand_path(self._path, *self._values(input, "path")).partition("?")
        place = "querystring" if "querystring" in self._keys else "query"
        query = query_string(*self._values(input, place)) if place in self._keys else ""
        return path, "&".join(part for part in (self._fixed_query, fixed, query) if part)

    def _values(self, input: Mapping[str, Any], place: str) -> tuple[list[Parameter], dict[str, Any]]:
        values = {name: input[key] for key, name in self._keys.get(place, ()) if key in input}
        return self._parameters.get(place, []), values

    def _no_server(self) -> str:
        url = _filled_in(self.template.servers[0] if self.template.servers else {}, self._config.server_variables)
        told = f"the document's server {url} is no whole address; give server_variables or base_url"
        told = told if "{" in url else "the document names no server; give base_url"
        message = f"{self.template.method} {self.template.path}: {told}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def base_url(servers: Sequence[Mapping[str, Any]], config: HTTPServiceConfig, document_url: str | None) -> str | None:
    """The address of the API, with a query that it may have; None where the document gives no whole one."""
    if config.base_url is not None:
        if not _is_whole(config.base_url):
            message = "base_url is no whole address: it has to be like https://api.example.com/v1"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return config.base_url
    url = _filled_in(servers[0] if servers else {}, config.server_variables)
    if document_url is not None:
        url = urljoin(document_url, url)
    elif url.startswith("//"):
        url = f"https:{url}"
    return url if _is_whole(url) else None


def _split_query(base: str) -> tuple[str, str]:
    """What paths are appended to, and the query that every request has."""
    path, _, query = base.partition("#")[0].partition("?")
    return path.rstrip("/"), query


def _filled_in(server: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """The address of a server with its variables filled in, as far as there is anything to fill them with."""
    url = server.get("url")
    url = url if isinstance(url, str) else "/"
    for name, value in given.items():
        url = url.replace(f"{{{name}}}", value)
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        told = variable if isinstance(variable, Mapping) else {}
        choices = told.get("enum")
        default = told.get("default", choices[0] if isinstance(choices, list) and choices else None)
        if default is not None:
            url = url.replace(f"{{{name}}}", str(default))
    return url


def _is_whole(url: str) -> bool:
    """Whether requests can go to an address: it names a host, and no variable is left in it."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "{" not in url
    except ValueError:
        return False


def origin(url: str) -> Origin:
    """Scheme, host and port of an address, the default port filled in."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def without_query(url: str) -> str:
    """An address as it may be shown: no query, no credentials."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


def overridden(headers: Sequence[tuple[str, str]], own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers with the more particular ones in place of those of the same name."""
    names = {name.lower() for name, _ in own}
    return [pair for pair in headers if pair[0].lower() not in names] + list(own)
