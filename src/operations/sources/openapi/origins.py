"""Origins of requests, and which of them receive the user's credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from operations.errors import CallError, ErrorCode

Origin = tuple[str, str, int | None]

HARMLESS = frozenset({"accept", "accept-encoding", "user-agent", "content-type", "last-event-id", "range"})
"""Headers that every origin receives; any other may be a secret."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_AMBIGUOUS = re.compile(r"[\\\s\x00-\x1f]|//[^/?#]*@")


def origin(url: str) -> Origin:
    """Return scheme, host and port of a URL, with the default port filled in."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme)


def is_same_origin(url: str, home: str | None) -> bool:
    """Whether a URL has the origin of `home`, the API's base URL; true for any URL if `home` is None."""
    return home is None or origin(url) == origin(home)


def is_complete(url: str) -> bool:
    """Whether requests can be sent to a URL: it has a host and no unfilled variables."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0 and "{" not in url
    except ValueError:
        return False


def show_origin(url: str) -> str:
    """Format the origin of a URL: `https://host` or `http://host:8080`."""
    scheme, host, port = origin(url)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" if port == _DEFAULT_PORTS.get(scheme) else f"{scheme}://{host}:{port}"


def without_query(url: str) -> str:
    """Return a URL for display: no query, no credentials."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


class CredentialOrigins:
    """The origins that receive the user's credentials: those that the user chose, never those of a document.

    They are the configured `credential_origins` and the origin of `base_url`; without `base_url`, the origin that the
    document was requested from, before any redirect.
    """

    def __init__(self, base_url: str | None, requested_url: str | None, named: Iterable[str]) -> None:
        first = base_url if base_url is not None else requested_url
        self._origins = {origin(url) for url in ((first, *named) if first is not None else named)}

    def __contains__(self, url: str) -> bool:
        # Clients disagree on the host of a URL with one of these characters: send no credentials there.
        return not _AMBIGUOUS.search(url) and origin(url) in self._origins


def check_origins(given: Any) -> None:
    """Raise `VALIDATION_ERROR` if the configured origins are not a list of origins."""
    for each in [given] if isinstance(given, str) else given:
        if isinstance(given, str) or not isinstance(each, str) or not _is_origin(each):
            message = f"invalid credential_origins {each!r}: expected a list such as ['https://login.example.com']"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _is_origin(url: str) -> bool:
    return is_complete(url) and not _AMBIGUOUS.search(url) and url.rstrip("/").count("/") == 2 and not {*url} & {*"?#"}


def harmless_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that every origin receives."""
    return {name: value for name, value in headers.items() if name.lower() in HARMLESS}


def withheld_error(what: str, url: str, instead: str) -> CallError:
    """Return the error for credentials that are not sent to `url`, because only the document names its origin.

    `what` is the subject of the message, and `instead` its advice.
    """
    target = show_origin(url)
    message = f"{what}: no credentials are sent to {target}, because only the document names this address: {instead}"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"origin": target, "executed": "no"})
