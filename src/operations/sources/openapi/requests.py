"""Requests: what an input and the configuration make of an operation's template. Pure: nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urljoin

import msgspec

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.auth import NOBODY, Credentials
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPCallOptions, HTTPServiceConfig
from operations.sources.openapi.media import EVENT_STREAM, is_stream
from operations.sources.openapi.origins import (
    CredentialOrigins,
    harmless,
    is_complete,
    is_same_origin,
    show_origin,
    withheld,
)
from operations.sources.openapi.parameters import Parameter, PathTemplate, cookie_header, header_values, query_string
from operations.sources.openapi.template import Template


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request without credentials, made of the template, the input and the configuration."""

    method: str
    url: str
    query: str
    headers: Sequence[tuple[str, str]]
    cookies: str | None
    body: Body | None
    own: frozenset[str] = frozenset()
    """The names of the headers that the call itself set; nothing overrides them."""

    def headers_with(self, credentials: Credentials = NOBODY) -> Sequence[tuple[str, str]]:
        """Return the headers to send, credentials included; a header that the call itself set stays as it is."""
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
        """Return the address with its query, credentials included."""
        query = self.query
        if credentials.query:
            extra = query_string((), {}, credentials.query)
            query = f"{query}&{extra}" if query else extra
        return f"{self.url}?{query}" if query else self.url


class RequestBuilder:
    """Builder of one operation's requests; what does not depend on the input is prepared once."""

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
        # Configured headers may be secrets: an operation's own server does not get them, nor does an untrusted API.
        own = list((config.headers if self._is_trusted else harmless(config.headers)).items())
        if len(own) < len(config.headers) and base is not None and is_same_origin(base, home):
            raise untrusted(template, base)
        self._headers = {kind: overridden([("Accept", kind)], own) for kind in (self.accept, EVENT_STREAM)}
        self._keys: dict[str, list[tuple[str, str]]] = {}
        """Input key and parameter name, by location."""
        self._parameters: dict[str, list[Parameter]] = {}
        for key, parameter in template.plan.parameters.items():
            self._keys.setdefault(parameter.location, []).append((key, parameter.name))
            self._parameters.setdefault(parameter.location, []).append(parameter)
        self._path = PathTemplate(template.path, self._parameters.get("path", ()))

    def build(self, input: Mapping[str, Any], options: HTTPCallOptions, accept: str) -> PreparedRequest:
        """Return the request for an input; raise `VALIDATION_ERROR` for an input that cannot be sent safely."""
        if self._base is None:
            raise self._no_server()
        path, query = self._path.fill(self._values(input, "path"))
        query = "&".join(filter(None, (self._base_query, query, self._query(input))))
        headers = self._headers[accept]
        if "header" in self._keys:
            headers = overridden(headers, header_values(self._parameters["header"], self._values(input, "header")))
        cookies = None
        if "cookie" in self._keys:
            cookies = cookie_header(self._parameters["cookie"], self._values(input, "cookie"))
        plan = self.template.plan.body
        body = None if plan is None else plan.body(input, options.content_type, self._config.content_types)
        if body is not None and body.content_type is not None:
            headers = overridden(headers, [("Content-Type", body.content_type)])
        own: frozenset[str] = frozenset()
        if options.headers:
            if not self._is_trusted and len(harmless(options.headers)) < len(options.headers):
                raise untrusted(self.template, self._base)
            headers = overridden(headers, list(options.headers.items()))
            own = frozenset(name.lower() for name in options.headers)
        return PreparedRequest(self.template.method, self._base + path, query, headers, cookies, body, own)

    def _query(self, input: Mapping[str, Any]) -> str:
        location = "querystring" if "querystring" in self._keys else "query"
        return query_string(self._parameters.get(location, ()), self._values(input, location))

    def _values(self, input: Mapping[str, Any], location: str) -> dict[str, Any]:
        return {name: input[key] for key, name in self._keys.get(location, ()) if key in input}

    def _no_server(self) -> CallError:
        url = _filled_in(self.template.servers[0] if self.template.servers else {}, self._config.server_variables)
        told = f"the document's server {url} is no whole address; give server_variables or base_url"
        told = told if "{" in url else "the document names no server; give base_url"
        message = f"{self.template.method} {self.template.path}: {told}"
        return CallError(ErrorCode.VALIDATION_ERROR, message)


def untrusted(template: Template, url: str) -> CallError:
    """Return the error of an operation whose server gets no credentials."""
    instead = f"set base_url, or add {show_origin(url)!r} to credential_origins"
    return withheld(f"{template.method} {template.path}", url, instead)


def base_url(servers: Sequence[Mapping[str, Any]], config: HTTPServiceConfig, document_url: str | None) -> str | None:
    """Return the address of the API, with its query; None where the document gives no complete one."""
    if config.base_url is not None:
        if not is_complete(config.base_url):
            message = "base_url is no whole address: it has to be like https://api.example.com/v1"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return config.base_url
    url = _filled_in(servers[0] if servers else {}, config.server_variables)
    if document_url is not None:
        url = urljoin(document_url, url)
    elif url.startswith("//"):
        url = f"https:{url}"
    return url if is_complete(url) else None


def _split_query(base: str) -> tuple[str, str]:
    """Return what paths are appended to, and the query of every request."""
    path, _, query = base.partition("#")[0].partition("?")
    return path.rstrip("/"), query


def _filled_in(server: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """Return the address of a server with its known variables filled in."""
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


def overridden(headers: Sequence[tuple[str, str]], own: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return `headers` with those of `own` in place of others of the same name."""
    names = {name.lower() for name, _ in own}
    return [pair for pair in headers if pair[0].lower() not in names] + list(own)
