"""Transports for the command line, by URL or by name in the configuration; signed if configured."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from operations.calls.signed_transport import SignedTransport
from operations.calls.signing_secrets import SigningSecret, SigningSession
from operations.cli.arguments import TOKEN_VARIABLE, TRANSPORT_URLS, ParsedArguments, suggestion
from operations.cli.failures import CommandError
from operations.config.settings import Config, JWTSettings, SigningSettings, TransportSettings
from operations.identity import JWTTokens
from operations.pubsub import check_address
from operations.pubsub import connect as connect_any

_EXTRAS = {
    **dict.fromkeys(("redis", "redis+cluster", "redis+sentinel", "unix"), "redis"),
    **dict.fromkeys(("rediss", "rediss+cluster", "rediss+sentinel"), "redis"),
    **dict.fromkeys(("nats", "tls"), "nats"),
    **dict.fromkeys(("ws", "wss"), "ws"),
}
"""Extra that each URL scheme requires."""


def transport_at(url: str | None, config: Config | None, urls: str = TRANSPORT_URLS) -> TransportSettings:
    """Return the transport for a URL or name; if none is given, the only transport of the configuration.

    `urls` is the text with example addresses for the hints of errors.
    """
    named = dict(config.transports) if config is not None else {}
    unusable = _unusable(config)
    known = [*named, *unusable]
    if url is None and len(known) == 1:
        url = known[0]
    if url is None:
        hint = (
            f"choose one with --url: {', '.join(known)}"
            if known
            else f"pass --url {urls}, or add [transports.…] to the configuration"
        )
        raise CommandError("no transport selected", hint)
    if url in unusable:
        raise CommandError(unusable[url])
    if url in named:
        return named[url]
    if ":" not in url:
        message = f"unknown transport {url!r}{suggestion(url, list(named))}"
        raise CommandError(message, f"expected a name in [transports], or {urls}")
    if url.lower().startswith(("http:", "https:")):
        message = f"{shown_url(TransportSettings(url=url))!r} is not the address of a transport"
        raise CommandError(message, f"the address of a server of 'ops serve' is ws://HOST:PORT/ws; expected {urls}")
    check_address(url)
    return TransportSettings(url=url)


def _unusable(config: Config | None) -> dict[str, str]:
    """Return why each transport with an unset variable cannot be used; the keys are the names of the transports."""
    found = {} if config is None else config.unusable
    return {name.removeprefix("transports."): why for name, why in found.items() if name.startswith("transports.")}


def shown_url(settings: TransportSettings) -> str:
    """Return the URL without credentials."""
    before, sign, after = settings.url.partition("://")
    location = after.rpartition("@")[2].partition("?")[0] if sign else ""
    return f"{before}://{location}" if sign else settings.url


def open_transport(settings: TransportSettings, args: ParsedArguments) -> AbstractAsyncContextManager[Any]:
    """Return a context manager that connects the transport; raise an error for an unknown scheme.

    Hubs and NATS receive the token. Redis receives the token as the password if its URL has no password. Only hubs and
    NATS receive the token in `OPERATIONS_TOKEN`, because a Redis server without a password rejects any password.
    """
    url = settings.url
    kind = url.partition(":")[0].lower()
    token = _token_from(args, settings)
    if kind == "memory":
        message = f"{shown_url(settings)!r} connects only peers within one process"
        raise CommandError(message, f"expected {TRANSPORT_URLS}")
    extra = _EXTRAS.get(kind, "")
    try:
        connect = _opener(extra)
    except ImportError as error:
        raise _explain(error, extra) from None
    options = dict(settings.options)
    is_named = bool(args.token_file or settings.token)
    if extra == "ws":
        options = {"token": token, **options}
    elif token is not None and (extra == "nats" or (not extra and is_named)):
        options = {"token": token(), **options}
    elif token is not None and is_named:
        url = _with_password(url, token())
    try:
        opened: AbstractAsyncContextManager[Any] = connect(url, **options)
    except (TypeError, ValueError) as error:
        raise CommandError(f"invalid options of {shown_url(settings)}: {str(error).rpartition('() ')[2]}") from None
    return opened


def _opener(extra: str) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Return the function that connects the transports of an extra; for an empty string, those of all other schemes.

    `pubsub.connect` could open every scheme, but it searches all installed packages for the scheme of a hub.
    """
    if not extra:
        return connect_any
    if extra == "ws":
        from operations.calls.hub.spoke import Spoke

        return Spoke
    if extra == "nats":
        from operations.pubsub.nats import connect as connect_nats

        return connect_nats
    from operations.pubsub.redis import connect as connect_redis

    return connect_redis


def jwt_tokens(settings: JWTSettings, config: Config | None) -> JWTTokens:
    """Return the verifier of signed tokens; `key_file` may be relative to the configuration's directory."""
    key = settings.key
    if key is None and settings.key_file is not None:
        directory = config.path.parent if config is not None else Path()
        key = (directory / settings.key_file).read_text()
    return JWTTokens(key, algorithms=settings.algorithms, issuer=settings.issuer, audience=settings.audience)


@asynccontextmanager
async def open_bus(
    settings: TransportSettings, args: ParsedArguments, config: Config | None, *, serves: bool = False
) -> AsyncIterator[Any]:
    """Connect a transport; if configured, sign requests and check signatures."""
    signing = settings.signing
    if signing is not None and serves and signing.secret is None:
        hint = "set `secret` in the transport's signing table to the secret that the token issuer uses"
        raise CommandError("a worker needs the secret to check signatures", hint)
    async with open_transport(settings, args) as transport:
        yield transport if signing is None else _signed(transport, signing, config, serves=serves)


def _signed(transport: Any, signing: SigningSettings, config: Config | None, *, serves: bool) -> Any:
    secret = None
    if signing.secret is not None:
        accepted = map(bytes.fromhex, signing.accepted_secrets)
        secret = SigningSecret(bytes.fromhex(signing.secret), accepts=accepted)
    if serves or signing.token is None:
        tokens = None if signing.jwt is None else jwt_tokens(signing.jwt, config)
        return SignedTransport(transport, secret=secret, tokens=tokens, required=signing.required)
    if signing.key is not None:
        return SignedTransport(transport, session=SigningSession(signing.token, bytes.fromhex(signing.key)))
    assert secret is not None
    return SignedTransport(transport, session=secret.session(signing.token))


def _with_password(url: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return url if "@" in rest.partition("/")[0] else f"{scheme}://:{quote(password, safe='')}@{rest}"


def _token_from(args: ParsedArguments, settings: TransportSettings) -> Callable[[], str] | None:
    """Return a function that reads the current token; None if there is none.

    No option takes the token itself, because other users of the computer can see the arguments of a command.
    """
    if args.token_file is not None:
        path = Path(args.token_file).expanduser()
        path.stat()  # fail now, not at the first connection
        return lambda: path.read_text().strip()
    if settings.token is not None:
        return lambda: settings.token or ""
    if os.environ.get(TOKEN_VARIABLE):
        return lambda: os.environ[TOKEN_VARIABLE]
    return None


def has_token(args: ParsedArguments, settings: TransportSettings) -> bool:
    """Whether an option, a setting or a variable gives the command a token for a transport."""
    return bool(args.token_file or settings.token or settings.signing or os.environ.get(TOKEN_VARIABLE))


def _explain(error: ImportError, extra: str) -> ImportError:
    text = str(error)
    if "pip install" in text:
        return error
    return ImportError(f"{error.name or extra} is not installed: pip install 'operations[{extra}]'")
