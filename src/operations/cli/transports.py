"""Opening the transport that a URL or the configuration names; each library is imported when its URL is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from operations.cli.arguments import Given, suggestion
from operations.cli.failures import CommandError
from operations.cli.options import TOKEN_VARIABLE, TRANSPORT_URLS
from operations.config.models import Config
from operations.config.settings import TransportSettings
from operations.pubsub import check_address

_EXTRAS = {
    **dict.fromkeys(("redis", "redis+cluster", "redis+sentinel", "unix"), "redis"),
    **dict.fromkeys(("rediss", "rediss+cluster", "rediss+sentinel"), "redis"),
    **dict.fromkeys(("nats", "tls"), "nats"),
}
"""The extra, and the module in `operations.pubsub` with a `connect(url, **options)`, for each kind of URL."""


def transport_at(url: str | None, config: Config | None) -> TransportSettings:
    """The transport that a URL or a name stands for; without one, the only transport of the configuration."""
    named = dict(config.transports) if config is not None else {}
    if url is None:
        if len(named) == 1:
            return next(iter(named.values()))
        hint = (
            f"name one of {', '.join(named)}"
            if named
            else f"--url takes {TRANSPORT_URLS}, or add [transports.…] to the configuration"
        )
        raise CommandError("where to? no transport is named", hint)
    if url in named:
        return named[url]
    if ":" not in url:
        message = f"{url!r} is no transport of the configuration{suggestion(url, list(named))}"
        raise CommandError(message, f"--url takes {TRANSPORT_URLS}")
    check_address(url)
    return TransportSettings(url=url)


def shown_url(settings: TransportSettings) -> str:
    """The address without the credentials that may stand in it."""
    before, sign, after = settings.url.partition("://")
    place = after.rpartition("@")[2].partition("?")[0] if sign else ""
    return f"{before}://{place}" if sign else settings.url


def open_transport(settings: TransportSettings, given: Given) -> AbstractAsyncContextManager[Any]:
    """The transport, to be entered; raises a CommandError for a kind that there is none for.

    Hubs and NATS take the token as it is. Redis takes it as the password where its URL has none, but not the one in the
    environment: that is a hub's, and a Redis without a password refuses any.
    """
    url = settings.url
    kind = url.partition(":")[0].lower()
    token = _token_from(given, settings)
    try:
        if kind in ("ws", "wss"):
            connect = import_module("operations.calls.spoke").Spoke
        elif kind in _EXTRAS:
            connect = import_module(f"operations.pubsub.{_EXTRAS[kind]}").connect
        else:
            raise CommandError(f"{shown_url(settings)!r} is no address of a transport", f"there are {TRANSPORT_URLS}")
    except ImportError as error:
        raise _explain(error, _EXTRAS.get(kind, "ws")) from None
    options = dict(settings.options)
    if kind in ("ws", "wss"):
        options = {"token": token, **options}
    elif token is not None and _EXTRAS[kind] == "nats":
        options = {"token": token(), **options}
    elif token is not None and (given.token_file or settings.token):
        url = _with_password(url, token())
    try:
        opened: AbstractAsyncContextManager[Any] = connect(url, **options)
    except (TypeError, ValueError) as error:
        raise CommandError(f"options of {shown_url(settings)}: {str(error).rpartition('() ')[2]}") from None
    return opened


def _with_password(url: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return url if "@" in rest.partition("/")[0] else f"{scheme}://:{quote(password, safe='')}@{rest}"


def _token_from(given: Given, settings: TransportSettings) -> Callable[[], str] | None:
    """Where the token comes from, asked anew at each connection; never from the command line, which others can see."""
    if given.token_file is not None:
        path = Path(given.token_file).expanduser()
        path.stat()  # a name that is wrong is told now, not at the first connection
        return lambda: path.read_text().strip()
    if settings.token is not None:
        return lambda: settings.token or ""
    if os.environ.get(TOKEN_VARIABLE):
        return lambda: os.environ[TOKEN_VARIABLE]
    return None


def _explain(error: ImportError, extra: str) -> ImportError:
    text = str(error)
    if "pip install" in text:
        return error
    return ImportError(f"{error.name or extra} is not installed: pip install 'operations[{extra}]'")
