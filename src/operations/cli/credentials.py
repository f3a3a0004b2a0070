"""Whose calls `ops serve` accepts: the tokens, keys and issuers of a configuration as one authenticator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from operations.cli.arguments import TOKEN_VARIABLE, ParsedArguments
from operations.cli.transports import jwt_tokens
from operations.config import Config
from operations.config.settings import ServeSettings
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import AnyAuthenticator, Principal, StaticTokens
from operations.identity.issuer_keys import IssuerTokens
from operations.identity.keys import APIKeys

OPERATOR = "operator"


def authenticator_of(settings: ServeSettings, args: ParsedArguments, config: Config | None) -> AnyAuthenticator | None:
    """Return what accepts callers; None where nothing is configured, so that everybody is anonymous."""
    folder = config.path.parent if config is not None else Path()
    accepted: list[AnyAuthenticator] = []
    principals = {
        each.token: Principal(
            Identity(each.identity, tuple(each.scopes), {name: tuple(held) for name, held in each.resources.items()}),
            tuple(each.namespaces),
        )
        for each in settings.tokens
    }
    own = Path(args.token_file).read_text().strip() if args.token_file else os.environ.get(TOKEN_VARIABLE)
    if own:
        principals.setdefault(own, Principal(Identity(OPERATOR, args.scope), ("*",)))
    if principals:
        accepted.append(StaticTokens(principals))
    keys = args.keys or (str(folder / Path(settings.keys).expanduser()) if settings.keys is not None else None)
    if keys is not None:
        accepted.append(APIKeys(keys))
    if settings.jwt is not None:
        accepted.append(jwt_tokens(settings.jwt, config))
    if settings.issuer is not None:
        issuer = settings.issuer
        audience = issuer.audience or [settings.public_url or "", f"{settings.public_url}/mcp"]
        accepted.append(IssuerTokens(issuer.url, audience=audience, keys_url=issuer.keys_url))
    if not accepted:
        return None
    return accepted[0] if len(accepted) == 1 else AnyOf(accepted)


class AnyOf:
    """Several authenticators, asked in order until one accepts a token."""

    def __init__(self, authenticators: Sequence[AnyAuthenticator]) -> None:
        self._authenticators = authenticators

    async def authenticate(self, token: str | None) -> Principal:
        """Return the principal, of whichever knows the token."""
        refused = CallError(ErrorCode.ACCESS_DENIED, "the token is not valid")
        for each in self._authenticators:
            try:
                verdict = each.authenticate(token)
                return verdict if isinstance(verdict, Principal) else await verdict
            except CallError as error:
                if error.code is not ErrorCode.ACCESS_DENIED:
                    refused = error
        raise refused

    def has_changed(self) -> bool:
        """Whether one of them has revoked tokens."""
        changed = [each.has_changed() for each in self._authenticators if isinstance(each, APIKeys)]
        return any(changed)
