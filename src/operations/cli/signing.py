"""What a configuration says of signatures: the tokens that are accepted, and how requests on a bus are signed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from operations.calls.authentication import JWTTokens
from operations.calls.signing import Session, SignedTransport, SigningSecret
from operations.cli.arguments import Given
from operations.cli.failures import CommandError
from operations.cli.transports import open_transport
from operations.config.models import Config
from operations.config.settings import JWTSettings, SigningSettings, TransportSettings


def jwt_tokens(settings: JWTSettings, config: Config | None) -> JWTTokens:
    """The signed tokens that are accepted; the file of the key is found beside the configuration's."""
    key = settings.key
    if key is None and settings.key_file is not None:
        folder = config.path.parent if config is not None else Path()
        key = (folder / settings.key_file).read_text()
    return JWTTokens(key, algorithms=settings.algorithms, issuer=settings.issuer, audience=settings.audience)


@asynccontextmanager
async def open_bus(
    settings: TransportSettings, given: Given, config: Config | None, *, serves: bool = False
) -> AsyncIterator[Any]:
    """The transport, connected; where the configuration says so, what is sent is signed, and what comes is checked."""
    signing = settings.signing
    if signing is not None and serves and signing.secret is None:
        hint = "`secret` in its signing table is what workers and the issuer of tokens have"
        raise CommandError("a worker cannot check signatures without the secret", hint)
    async with open_transport(settings, given) as transport:
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
        return SignedTransport(transport, session=Session(signing.token, bytes.fromhex(signing.key)))
    assert secret is not None
    return SignedTransport(transport, session=secret.session(signing.token))
